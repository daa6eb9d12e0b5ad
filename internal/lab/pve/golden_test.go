package pve

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// TestBringUp is what an agent does with a VM, on thin volumes: image, create,
// tag, resize, start; then stop and delete.
func TestBringUp(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
		v := l.vm(410)
		if got, want := v.Config["scsi0"], "local-lvm:vm-410-disk-1,discard=on,iothread=1,serial=talos-sys,size=1248M,ssd=1"; got != want {
			t.Errorf("scsi0 is %q, want %q", got, want)
		}
		if v.Pool != "talos" || v.Maker != defaultAgent || v.Power != Stopped || v.UUID != "6f3a0f3e-8c1e-5d2b-9c3f-000000000410" {
			t.Errorf("vm: %+v", v)
		}
		l.ok("PUT", "/nodes/pve1/qemu/410/config", "tags=talos-agent%3BDev&digest="+v.Digest)
		if got := l.vm(410).Config["tags"]; got != "dev;talos-agent" {
			t.Errorf("tags %q", got)
		}
		l.ok("PUT", "/nodes/pve1/qemu/410/resize", "disk=scsi0&size=40G&digest="+l.vm(410).Digest)
		l.ok("POST", "/nodes/pve1/qemu/410/status/start", "")

		g, on := l.guests.guest(410)
		disks := l.vm(410).Disks
		want := world.Guest{
			VMID: 410, Host: "pve1", Name: "dev-cp-410", UUID: v.UUID, MAC: "bc:24:11:00:00:a0", Address: netip.MustParsePrefix("10.10.0.160/24"),
			Gateway: netip.MustParseAddr("10.10.0.1"), Bridge: "vmbr1", Cores: 2, MemoryMiB: 2048, Boot: disks["scsi0"],
		}
		if !on || len(g.Nameservers) != 1 || g.Nameservers[0] != want.Gateway || len(g.Disks) != 2 || g.Off == nil {
			t.Errorf("guest: %+v", g)
		}
		g.Nameservers, g.Disks, g.Off = nil, nil, nil
		if !sameGuest(g, want) {
			t.Errorf("guest\n have %+v\n want %+v", g, want)
		}
		if d := disks["scsi0"]; d.Image.Version != image.Version || d.Bytes != 40<<30 || d.Serial != "talos-sys" || d.Volid != "local-lvm:vm-410-disk-1" {
			t.Errorf("system disk: %+v", d)
		}

		// What the guest keeps survives a power cycle and dies with the VM.
		g.Boot.Contents = "config"
		l.ok("POST", "/nodes/pve1/qemu/410/status/stop", "")
		l.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
		if g, _ := l.guests.guest(410); g.Boot.Contents != "config" {
			t.Error("the disk lost its contents in a power cycle")
		}
		l.ok("POST", "/nodes/pve1/qemu/410/status/stop", "")
		l.ok("DELETE", "/nodes/pve1/qemu/410?purge=1&destroy-unreferenced-disks=0", "")
		if _, there := l.pve.VM(410); there || len(l.pve.Volumes("pve1", "local-lvm")) > 0 {
			t.Errorf("left over: %v", l.pve.Volumes("pve1", "local-lvm"))
		}
		if n := len(l.pve.Volumes("pve1", "local")); n != 1 {
			t.Errorf("%d files on local, want the image", n)
		}
		l.noViolations()
	})
}

func sameGuest(a, b world.Guest) bool {
	return a.VMID == b.VMID && a.Host == b.Host && a.Name == b.Name && a.UUID == b.UUID && a.MAC == b.MAC && a.Address == b.Address && a.Gateway == b.Gateway &&
		a.Bridge == b.Bridge && a.Cores == b.Cores && a.MemoryMiB == b.MemoryMiB && a.Agent == b.Agent && a.Boot == b.Boot && a.Dead == b.Dead
}

// TestImportsSideBySide shows that creations run side by side: their volumes are allocated one
// after the other, and share the speed of the storage while they are filled.
func TestImportsSideBySide(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		var upids []string
		d := took(func() {
			for _, id := range []int{410, 411, 412} {
				upid, _ := l.call("POST", "/nodes/pve1/qemu", vmForm(id)).data.(string)
				upids = append(upids, upid)
			}
			for _, u := range upids {
				if err := l.pve.WaitTask(l.world.Context(), u); err != nil {
					t.Error(err)
				}
			}
		})
		// One and a half times as long as one copy alone, and an allocation and one last second.
		if d = d.Round(100 * time.Millisecond); d != 13100*time.Millisecond {
			t.Errorf("three creations took %v, want 13.1s", d)
		}
		for _, id := range []string{"410", "411", "412"} {
			l.ok("POST", "/nodes/pve1/qemu/"+id+"/status/start", "")
		}
		_, links := l.world.LongestChain()
		if got := world.ChainText(links); !strings.HasPrefix(got, "upload/pve1 2s -> allocate/41") || strings.Count(got, "import/") != 1 {
			t.Errorf("chain %s", got)
		}
	})
}

// TestStorageThatIsLocked: a creation gives up after ten seconds while another one allocates,
// and leaves nothing. The words are those of lock_file and cfs_lock in the sources of
// libpve-common-perl and pve-cluster.
func TestStorageThatIsLocked(t *testing.T) {
	for shared, want := range map[bool]string{
		false: "unable to create VM 410 - can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout",
		true:  "unable to create VM 410 - cfs-lock 'storage-local-lvm' error: got lock request timeout",
	} {
		hosts := []Host{{Name: "pve1", Storages: []Storage{{Name: "local", Content: []string{"import", "images"}}, {Name: "local-lvm", Type: "lvmthin", Content: []string{"images"}, Shared: shared}}}}
		inBubble(t, Config{Hosts: hosts}, func(l *testLab) {
			l.ready()
			unlock, err := l.pve.LockStorage("pve1", "local-lvm")
			if err != nil {
				t.Fatal(err)
			}
			if exit := l.exit("POST", "/nodes/pve1/qemu", vmForm(410)); exit != want {
				t.Errorf("it ends with %q, want %q", exit, want)
			}
			if _, there := l.pve.VM(410); there || len(l.pve.Volumes("pve1", "local-lvm")) > 0 {
				t.Errorf("left over: %v", l.pve.Volumes("pve1", "local-lvm"))
			}
			unlock()
			if exit := l.exit("POST", "/nodes/pve1/qemu", vmForm(410)); exit != "OK" {
				t.Errorf("then it ends with %q", exit)
			}
		})
	}
}

// TestVolumeThatCannotBeFreed: what was allocated for a creation that fails stays where the lock of its
// storage is not free for ten seconds (eval { vdisk_free } of qemu-server's create_disks).
func TestVolumeThatCannotBeFreed(t *testing.T) {
	images := []string{"import", "images"}
	inBubble(t, Config{Hosts: []Host{{Name: "pve1", Storages: []Storage{{Name: "local", Content: images}, {Name: "local-lvm", Type: "lvmthin", Content: images[1:]}}}}}, func(l *testLab) {
		l.ready()
		unlock, err := l.pve.LockStorage("pve1", "local")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Second, func() {
			if _, err := l.pve.LockStorage("pve1", "local-lvm"); err != nil {
				t.Error(err)
			}
		})
		form := vmForm(410)
		if exit := l.exit("POST", "/nodes/pve1/qemu", strings.Replace(form, "scsi0=local-lvm", "scsi0=local", 1)); !strings.Contains(exit, "pve-storage-local'") {
			t.Errorf("it ends with %q", exit)
		}
		if _, there := l.pve.VM(410); there || len(l.pve.Volumes("pve1", "local-lvm")) == 0 {
			t.Errorf("left over: %v", l.pve.Volumes("pve1", "local-lvm"))
		}
		unlock()
	})
}

// TestCreationFromOutside is what others see of a VM that is being made.
func TestCreationFromOutside(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		root := l.as(l.admin)
		time.Sleep(statisticsEvery - 1500*time.Millisecond) // a round falls between here and the creation, the next after it
		upid, _ := l.call("POST", "/nodes/pve1/qemu", vmForm(410)).data.(string)
		time.Sleep(time.Second)

		config, _ := root.ok("GET", "/nodes/pve1/qemu/410/config", "").(map[string]any)
		if len(config) != 2 || config["lock"] != "create" {
			t.Errorf("root sees %v", config)
		}
		// The pool's token does not see it at all: it joins the pool last.
		l.refused("GET", "/nodes/pve1/qemu/410/config", "", 403, "Permission check failed (/vms/410, VM.Audit)")
		if vms, _ := l.ok("GET", "/cluster/resources?type=vm", "").([]any); len(vms) != 0 {
			t.Errorf("the agent sees %v", vms)
		}
		a := l.refused("GET", "/cluster/nextid?vmid=410", "", 400, "Parameter verification failed.")
		if a.errors["vmid"] != "VM 410 already exists" {
			t.Errorf("nextid: %v", a.errors)
		}
		active, _ := l.ok("GET", "/nodes/pve1/tasks?source=active", "").([]any)
		if len(active) != 1 || active[0].(map[string]any)["id"] != "410" || active[0].(map[string]any)["status"] != "RUNNING" {
			t.Errorf("active tasks: %v", active)
		}
		root.refused("PUT", "/nodes/pve1/qemu/410/config", "cores=4", 500, "VM is locked (create)")
		if err := l.pve.WaitTask(l.world.Context(), upid); err != nil {
			t.Fatal(err)
		}
		// A fresh VM has a row that knows next to nothing, until the next round.
		rows, _ := l.ok("GET", "/cluster/resources?type=vm", "").([]any)
		if len(rows) != 1 || rows[0].(map[string]any)["status"] != "unknown" || rows[0].(map[string]any)["name"] != nil {
			t.Errorf("fresh row: %v", rows)
		}
		time.Sleep(statisticsEvery)
		rows, _ = l.ok("GET", "/cluster/resources?type=vm", "").([]any)
		if len(rows) != 1 || rows[0].(map[string]any)["status"] != "stopped" || rows[0].(map[string]any)["name"] != "dev-cp-410" {
			t.Errorf("row: %v", rows)
		}
	})
}

// TestTagsAtCreation is the difference between the flavours that costs an agent
// its first VM.
func TestTagsAtCreation(t *testing.T) {
	for _, tc := range []struct{ flavour, exit, tags string }{
		{"9.2", "unable to create VM 410 - 403 Permission check failed (/vms/410, VM.Config.Options)", ""},
		{"8.4", "OK", "talos;Dev"},
	} {
		t.Run(tc.flavour, func(t *testing.T) {
			inBubble(t, Config{Flavour: tc.flavour}, func(l *testLab) {
				if exit := l.exit("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos&tags=talos%3BDev"); exit != tc.exit {
					t.Errorf("exit %q, want %q", exit, tc.exit)
				}
				if v, _ := l.pve.VM(410); v.Config["tags"] != tc.tags {
					t.Errorf("tags %q, want %q", v.Config["tags"], tc.tags)
				}
			})
		})
	}
}

// TestPoolIsTheWall shows what a token that is let at one pool can do to a VM
// outside it: nothing, not even whether there is one.
func TestPoolIsTheWall(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		if err := l.pve.CreateForeign(900, Foreign{Config: map[string]string{"name": "foreign"}, Running: true}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"900", "901"} {
			l.refused("GET", "/nodes/pve1/qemu/"+id+"/status/current", "", 403, "Permission check failed (/vms/"+id+", VM.Audit)")
			l.refused("POST", "/nodes/pve1/qemu/"+id+"/status/stop", "", 403, "Permission check failed (/vms/"+id+", VM.PowerMgmt)")
			l.refused("DELETE", "/nodes/pve1/qemu/"+id, "", 403, "Permission check failed (/vms/"+id+", VM.Allocate)")
		}
		l.refused("POST", "/nodes/pve1/qemu", "vmid=900&pool=talos", 500, "unable to create VM 900 - VM 900 already exists on node 'pve1'")
		l.refused("POST", "/nodes/pve1/qemu", "vmid=901", 403, "Permission check failed")
		if v := l.vm(900); v.Power != Running {
			t.Errorf("vm 900 is %s", v.Power)
		}
		// The rules apply to deeds, not to what the wall lets through.
		if n := len(l.world.Violations()); n != 3 {
			t.Errorf("%d violations: %v", n, l.world.Violations())
		}
		for _, path := range []string{"/nodes/pve1/qemu", "/cluster/resources?type=vm"} {
			if list, _ := l.ok("GET", path, "").([]any); len(list) != 0 {
				t.Errorf("%s: %v", path, list)
			}
		}
	})
}

// TestRules are the deeds the world must see, and the innocent ones it must
// not.
func TestRules(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(l *testLab)
		rule string
	}{
		{"a VM of its own twice", func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
			l.call("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
		}, "duplicate"},
		{"a foreign VM in its pool", func(l *testLab) {
			if err := l.pve.CreateForeign(411, Foreign{Pool: "talos"}); err != nil {
				l.t.Fatal(err)
			}
			l.call("PUT", "/nodes/pve1/qemu/411/config", "cores=2")
		}, "ownership"},
		{"its VMID, taken over by a person", func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
			if err := l.pve.Remove(410); err != nil {
				l.t.Fatal(err)
			}
			if err := l.pve.CreateForeign(410, Foreign{Pool: "talos"}); err != nil {
				l.t.Fatal(err)
			}
			l.call("DELETE", "/nodes/pve1/qemu/410", "")
		}, "ownership"},
		{"one image twice at a time", func(l *testLab) {
			l.upload(imageName)
			l.upload(imageName)
		}, "duplicate"},
		{"one image again", func(l *testLab) {
			l.ready()
			l.ready()
		}, ""},
		{"a VM again after its deletion", func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
			l.ok("DELETE", "/nodes/pve1/qemu/410", "")
			l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
		}, ""},
		{"reading a foreign VM", func(l *testLab) {
			if err := l.pve.CreateForeign(411, Foreign{Pool: "talos"}); err != nil {
				l.t.Fatal(err)
			}
			l.ok("GET", "/nodes/pve1/qemu/411/config", "")
		}, ""},
		{"another agent's VM, which that one has just looked at", func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos")
			l.ok("GET", "/nodes/pve1/qemu/410/config", "")
			l.as(l.pve.Token("talos-agent@pve", "pve2", false)).call("PUT", "/nodes/pve1/qemu/410/config", "cores=2")
		}, "ownership"},
		{"one image by two agents at a time", func(l *testLab) {
			l.upload(imageName)
			l.as(l.pve.Token("talos-agent@pve", "pve2", false)).upload(imageName)
		}, ""},
		{"somebody else's doing", func(l *testLab) {
			if err := l.pve.CreateForeign(411, Foreign{}); err != nil {
				l.t.Fatal(err)
			}
			l.as(l.admin).ok("DELETE", "/nodes/pve1/qemu/411", "")
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, Config{}, func(l *testLab) {
				tc.do(l)
				got := l.world.Violations()
				switch {
				case tc.rule == "" && len(got) > 0:
					t.Errorf("violations %v, want none", got)
				case tc.rule != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.rule+" ")):
					t.Errorf("violations %v, want one of %s", got, tc.rule)
				}
			})
		})
	}
}

// TestPrivilegesSeparate: what a token may do is what both it and its user may.
func TestPrivilegesSeparate(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		token := l.pve.Token("u@pve", "t", true)
		l.pve.Grant("u@pve", "PVEVMAdmin", "/vms")
		u := l.as(token)
		if err := l.pve.CreateForeign(100, Foreign{}); err != nil {
			t.Fatal(err)
		}
		list := func() int {
			vms, _ := u.ok("GET", "/nodes/pve1/qemu", "").([]any)
			return len(vms)
		}
		if list() != 0 {
			t.Error("the user's privileges alone let the token see")
		}
		l.pve.Grant("u@pve!t", "PVEAuditor", "/")
		if list() != 1 {
			t.Error("both together do not let the token see")
		}
		u.refused("POST", "/nodes/pve1/qemu/100/status/start", "", 403, "Permission check failed (/vms/100, VM.PowerMgmt)")
		// An entry nearer to the VM replaces those above it.
		l.pve.Grant("u@pve", "NoAccess", "/vms/100")
		if list() != 0 {
			t.Error("NoAccess on the VM itself does not hide it")
		}
	})
}

// TestKeepAlive: answers keep their connection, refusals end it, and either
// way the reason phrase arrives.
func TestKeepAlive(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		link := world.NewLink(l.world.Net)
		l.http = &http.Client{Transport: &http.Transport{DialContext: link.DialContext, TLSClientConfig: clientTLS(l.world)}}
		for range 3 {
			l.ok("GET", "/version", "")
		}
		if n := link.Open(); n != 1 {
			t.Errorf("%d connections after three answers", n)
		}
		l.refused("GET", "/nodes/pve1/qemu/410/config", "", 403, "Permission check failed (/vms/410, VM.Audit)")
		synctest.Wait() // for the client, which closes its end when it has read the answer
		if n := link.Open(); n != 0 {
			t.Errorf("%d connections after a refusal", n)
		}
		l.ok("GET", "/version", "")
		l.refused("PUT", "/nodes/pve1/qemu/410/resize", "disk=scsi0", 403, "Permission check failed (/vms/410, VM.Config.Disk)")
		l.ok("GET", "/version", "")

		other := l.as("talos-agent@pve!pve1=wrong")
		if d := took(func() { other.refused("GET", "/version", "", 401, "Authentication failed!") }); d != failureDelay {
			t.Errorf("a wrong secret waited %v", d)
		}
	})
}

// TestTasksNewestFirst checks the order of the lists, which the replay leaves
// open.
func TestTasksNewestFirst(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		for _, id := range []string{"410", "411", "412"} {
			l.ok("POST", "/nodes/pve1/qemu", "pool=talos&vmid="+id)
		}
		var ids []string
		list := l.call("GET", "/nodes/pve1/tasks?limit=2", "")
		for _, e := range list.data.([]any) {
			ids = append(ids, e.(map[string]any)["id"].(string))
		}
		if !slices.Equal(ids, []string{"412", "411"}) || list.total != 3.0 {
			t.Errorf("tasks %v of %v", ids, list.total)
		}
	})
}
