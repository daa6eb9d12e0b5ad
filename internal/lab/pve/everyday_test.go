package pve

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/history"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// copiers are guests that copy what is kept on a disk.
type copiers struct{ watchers }

func (*copiers) CopyContents(d *world.Disk) any {
	if p, ok := d.Contents.(*string); ok {
		text := *p
		return &text
	}
	return d.Contents
}

// inEveryday runs a test with a VM, as root. Its system disk keeps a text.
func inEveryday(t *testing.T, c Config, test func(root *testLab, guests *copiers)) {
	t.Helper()
	guests := &copiers{watchers{running: map[int]world.Guest{}}}
	c.Guests = guests
	inBubble(t, c, func(l *testLab) {
		l.ready()
		l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
		text := "first"
		l.vm(410).Disks["scsi0"].Contents = &text
		test(l.as(l.admin), guests)
		l.noViolations()
	})
}

func rowsOf(data any) (rows []map[string]any) {
	list, _ := data.([]any)
	for _, e := range list {
		r, _ := e.(map[string]any)
		rows = append(rows, r)
	}
	return rows
}

// waitLock makes a call that starts a task, and returns the lock that the VM has
// while it runs.
func (l *testLab) waitLock(method, path, form string) string {
	l.t.Helper()
	upid, _ := l.call(method, path, form).data.(string)
	time.Sleep(100 * time.Millisecond)
	lock := l.vm(410).Lock
	l.await(upid)
	if exit := l.task(upid).Exit; exit != "OK" {
		l.t.Errorf("%s %s: %s\n%s", method, path, exit, strings.Join(l.task(upid).Log, "\n"))
	}
	return lock
}

// TestSnapshots takes two, goes back to the first and removes it.
func TestSnapshots(t *testing.T) {
	inEveryday(t, Config{}, func(root *testLab, guests *copiers) {
		const at = "/nodes/pve1/qemu/410/snapshot"
		root.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
		if lock := root.waitLock("POST", at, "snapname=one&description=before"); lock != "snapshot" {
			t.Errorf("lock %q while a snapshot is taken", lock)
		}
		text := root.vm(410).Disks["scsi0"].Contents.(*string)
		*text = "second"
		root.ok("PUT", "/nodes/pve1/qemu/410/config", "description=later&scsi2=local-lvm:1")
		root.ok("PUT", "/nodes/pve1/qemu/410/resize", "disk=scsi0&size=4G")
		root.ok("POST", at, "snapname=two")

		rows := rowsOf(root.ok("GET", at, ""))
		byName := map[string]map[string]any{}
		for _, r := range rows {
			byName[fmt.Sprint(r["name"])] = r
		}
		if len(rows) != 3 || rows[2]["name"] != "current" || rows[2]["parent"] != "two" || byName["two"]["parent"] != "one" || byName["one"]["description"] != "before" {
			t.Errorf("snapshots: %v", rows)
		}
		config, _ := root.ok("GET", at+"/one/config", "").(map[string]any)
		if config["description"] != "before" || config["scsi2"] != nil || config["snaptime"] == nil || config["snapstate"] != nil {
			t.Errorf("config of the first: %v", config)
		}
		if same, _ := root.ok("GET", "/nodes/pve1/qemu/410/config?snapshot=one", "").(map[string]any); same["snaptime"] == nil {
			t.Errorf("config by name: %v", same)
		}

		if lock := root.waitLock("POST", at+"/one/rollback", "start=1"); lock != "rollback" {
			t.Errorf("lock %q while it goes back", lock)
		}
		v := root.vm(410)
		d := v.Disks["scsi0"]
		if got := *d.Contents.(*string); got != "first" || d.Bytes != 1248<<20 || v.Config["description"] != "later" || v.Config["parent"] != "one" || v.Power != Running {
			t.Errorf("after going back: %q, %d bytes, %v", got, d.Bytes, v)
		}
		if !strings.HasPrefix(v.Config["unused0"], "local-lvm:vm-410-disk-") || v.Config["scsi2"] != "" {
			t.Errorf("the later disk is not kept: %v", v.Config)
		}
		*d.Contents.(*string) = "third"
		root.ok("POST", at+"/one/rollback", "")
		if got := *root.vm(410).Disks["scsi0"].Contents.(*string); got != "first" {
			t.Errorf("the snapshot holds %q after the guest wrote", got)
		}
		if _, on := guests.guest(410); on {
			t.Error("it runs after going back without start")
		}

		if lock := root.waitLock("DELETE", at+"/one", ""); lock != "snapshot-delete" {
			t.Errorf("lock %q while one is removed", lock)
		}
		if v := root.vm(410); v.Config["parent"] != "" || v.Lock != "" {
			t.Errorf("after removing the parent: %v", v.Config)
		}
	})
}

// TestSnapshotsRefused pins what snapshots are refused with.
func TestSnapshotsRefused(t *testing.T) {
	inEveryday(t, Config{}, func(root *testLab, _ *copiers) {
		const at = "/nodes/pve1/qemu/410/snapshot"
		root.refused("POST", at, "snapname=current", 500, "unable to use snapshot name 'current' (reserved name)")
		root.refused("POST", at, "snapname=1", 400, "Parameter verification failed.")
		root.refused("GET", at+"/none/config", "", 500, "snapshot 'none' does not exist")
		root.refused("GET", "/nodes/pve1/qemu/999/snapshot", "", 500, "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist")
		agent := root.as(root.pve.AgentToken(AgentScope{Pool: "talos", Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}}))
		agent.refused("POST", at, "snapname=x", 403, "Permission check failed (/vms/410, VM.Snapshot)")
		agent.refused("POST", at+"/x/rollback", "", 403, "Permission check failed (/vms/410, VM.Snapshot|VM.Snapshot.Rollback)")
		root.ok("POST", at, "snapname=one")
		root.ok("PUT", at+"/one/config", "description=renamed")
		for want, exit := range map[string]string{
			"snapshot name 'one' already used":  root.exit("POST", at, "snapname=one"),
			"snapshot 'none' does not exist":    root.exit("DELETE", at+"/none", ""),
			"snapshot 'nowhere' does not exist": root.exit("POST", at+"/nowhere/rollback", ""),
		} {
			if exit != want {
				t.Errorf("%q, want %q", exit, want)
			}
		}
		root.refused("POST", "/nodes/pve1/qemu/410/template", "", 500, "unable to create template, because VM contains snapshots")
		root.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
		if exit := root.exit("POST", at, "snapname=two&vmstate=1"); !strings.Contains(exit, "savevm-start") {
			t.Errorf("with the memory of a running VM: %q", exit)
		}
		if err := root.pve.Lock(410, "backup"); err != nil {
			t.Fatal(err)
		}
		if exit := root.exit("POST", at, "snapname=three"); exit != "VM is locked (backup)" {
			t.Errorf("of a locked VM: %q", exit)
		}
	})
}

// TestSnapshotOfRawFile is on a directory, whose raw files have no snapshots.
func TestSnapshotOfRawFile(t *testing.T) {
	inBubble(t, Config{Hosts: []Host{{Storages: []Storage{{Name: "local", Content: []string{"images"}}}}}}, func(l *testLab) {
		root := l.as(l.admin)
		for vmid, tc := range map[int]struct{ format, exit string }{500: {"raw", "snapshot feature is not available"}, 501: {"qcow2", "OK"}} {
			root.ok("POST", "/nodes/pve1/qemu", fmt.Sprintf("vmid=%d&scsi0=local:1,format=%s", vmid, tc.format))
			at := fmt.Sprintf("/nodes/pve1/qemu/%d", vmid)
			if exit := root.exit("POST", at+"/snapshot", "snapname=one"); exit != tc.exit {
				t.Errorf("snapshot of %s: %q, want %q", tc.format, exit, tc.exit)
			}
			feature, _ := root.ok("GET", at+"/feature?feature=snapshot", "").(map[string]any)
			if has := fmt.Sprint(feature["hasFeature"]); (has == "1") != (tc.exit == "OK") {
				t.Errorf("feature of %s: %v", tc.format, feature)
			}
		}
	})
}

// TestSnapshotKilled: a worker that is killed leaves its lock and an incomplete
// snapshot, one that is interrupted cleans up.
func TestSnapshotKilled(t *testing.T) {
	inEveryday(t, Config{}, func(root *testLab, _ *copiers) {
		const at = "/nodes/pve1/qemu/410/snapshot"
		for _, tc := range []struct {
			cause error
			lock  string
			left  int
		}{{errInterrupted, "", 1}, {errKilled, "snapshot", 2}} {
			upid, _ := root.call("POST", at, "snapname=one").data.(string)
			time.Sleep(100 * time.Millisecond)
			root.pve.taskNamed(upid).stop(tc.cause)
			root.await(upid)
			if v := root.vm(410); v.Lock != tc.lock || len(rowsOf(root.ok("GET", at, ""))) != tc.left {
				t.Errorf("%v leaves lock %q and %v", tc.cause, v.Lock, root.ok("GET", at, ""))
			}
		}
		if err := root.pve.Unlock(410); err != nil {
			t.Fatal(err)
		}
		if exit := root.exit("POST", at+"/one/rollback", ""); exit != "unable to rollback to incomplete snapshot (snapstate = prepare)" {
			t.Errorf("going back to an incomplete one: %q", exit)
		}
	})
}

// TestMigrate moves a VM to another host of the cluster, with its disks.
func TestMigrate(t *testing.T) {
	inEveryday(t, Config{Hosts: []Host{{}, {Name: "pve2"}, {Name: "pve3", Storages: []Storage{{Name: "local"}}}}}, func(root *testLab, guests *copiers) {
		const at = "/nodes/pve1/qemu/410/migrate"
		a := root.refused("POST", at, "target=pve1", 400, "Parameter verification failed.")
		if a.errors["target"] != "target is local node." {
			t.Errorf("to itself: %v", a.errors)
		}
		root.refused("POST", at, "target=pve9", 500, "no such cluster node 'pve9'")
		root.refused("POST", at, "target=pve3", 500, "storage 'local-lvm' is not available on node 'pve3'")
		root.ok("POST", "/nodes/pve1/qemu/410/snapshot", "snapname=one")
		root.ok("DELETE", "/nodes/pve1/qemu/410/snapshot/one", "")
		root.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
		root.refused("POST", at, "target=pve2", 500, "can't migrate running VM without --online")
		if exit := root.exit("POST", at, "target=pve2&online=1"); exit != "migration aborted" || root.vm(410).Lock != "" {
			t.Errorf("with local disks it did not ask for: %q, lock %q", exit, root.vm(410).Lock)
		}
		_, booted := guests.guest(410)
		if lock := root.waitLock("POST", at, "target=pve2&online=1&with-local-disks=1"); lock != "migrate" {
			t.Errorf("lock %q meanwhile", lock)
		}
		v := root.vm(410)
		if v.Host != "pve2" || v.Power != Running || !booted || guests.booted != 1 || len(v.Disks) != 3 || v.Lock != "" {
			t.Errorf("after the migration: %+v, booted %d times", v, guests.booted)
		}
		if left := root.pve.Volumes("pve1", "local-lvm"); len(left) != 0 {
			t.Errorf("left on the first host: %v", left)
		}
		root.refused("GET", "/nodes/pve1/qemu/410/config", "", 500, "Configuration file 'nodes/pve1/qemu-server/410.conf' does not exist")
		root.ok("POST", "/nodes/pve2/qemu/410/status/stop", "")
	})
}

// TestMigrateAlone is on a host without others.
func TestMigrateAlone(t *testing.T) {
	inEveryday(t, Config{}, func(root *testLab, _ *copiers) {
		root.refused("POST", "/nodes/pve1/qemu/410/migrate", "target=pve2", 500, "no such cluster node 'pve2'")
	})
}

// TestMoveDisk moves a disk to another storage, while the VM runs.
func TestMoveDisk(t *testing.T) {
	storages := []Storage{{Name: "local", Content: []string{"import", "images", "iso"}}, {Name: "local-lvm", Type: "lvmthin", Content: []string{"images"}}, {Name: "isos", Content: []string{"iso"}}}
	inEveryday(t, Config{Hosts: []Host{{Storages: storages}}}, func(root *testLab, _ *copiers) {
		const at = "/nodes/pve1/qemu/410/move_disk"
		root.refused("POST", at, "disk=scsi5&storage=local", 500, "disk 'scsi5' does not exist")
		root.refused("POST", at, "disk=ide2&storage=local", 500, "you can't move a cdrom")
		root.refused("POST", at, "disk=scsi0&storage=local-lvm", 500, "you can't move to the same storage with same format")
		a := root.refused("POST", at, "disk=scsi0&storage=isos", 400, "Parameter verification failed.")
		if a.errors["storage"] != "storage 'isos' does not support vm images" {
			t.Errorf("to a storage for isos: %v", a.errors)
		}
		agent := root.as(root.pve.AgentToken(AgentScope{Pool: "talos", Storages: []string{"local-lvm"}, Bridges: []string{"vmbr1"}}))
		agent.refused("POST", at, "disk=scsi0&storage=isos", 403, "Permission check failed (/storage/isos, Datastore.AllocateSpace)")
		root.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
		before := root.vm(410).Disks["scsi0"]
		root.ok("POST", at, "disk=scsi0&storage=local&format=qcow2&delete=1")
		v := root.vm(410)
		if !strings.HasPrefix(v.Config["scsi0"], "local:410/vm-410-disk-0.qcow2,") || v.Disks["scsi0"] != before || v.Config["unused0"] != "" {
			t.Errorf("after the move: %v", v.Config)
		}
		root.ok("POST", at, "disk=scsi0&storage=local-lvm")
		if v := root.vm(410); v.Config["unused0"] != "local:410/vm-410-disk-0.qcow2" || !strings.HasPrefix(v.Config["scsi0"], "local-lvm:") {
			t.Errorf("after moving back: %v", v.Config)
		}
		root.ok("POST", "/nodes/pve1/qemu/410/snapshot", "snapname=one")
		root.refused("POST", at, "disk=scsi1&storage=local&delete=1&digest=0", 500, errChecksum.Error())
	})
}

// TestBackup backs a VM up, to a storage for backups.
func TestBackup(t *testing.T) {
	inEveryday(t, Config{}, func(root *testLab, _ *copiers) {
		a := root.refused("POST", "/nodes/pve1/vzdump", "storage=local", 400, "Parameter verification failed.")
		if a.errors["vmid"] != "property is missing" {
			t.Errorf("of nothing: %v", a.errors)
		}
		root.refused("POST", "/nodes/pve1/vzdump", "vmid=410&all=1", 400, "Parameter verification failed.")
		if lock := root.waitLock("POST", "/nodes/pve1/vzdump", "vmid=410&storage=local&compress=zstd&mode=snapshot"); lock != "backup" {
			t.Errorf("lock %q meanwhile", lock)
		}
		backups := rowsOf(root.ok("GET", "/nodes/pve1/storage/local/content?content=backup", ""))
		if len(backups) != 1 || !strings.HasSuffix(fmt.Sprint(backups[0]["volid"]), ".vma.zst") || fmt.Sprint(backups[0]["vmid"]) != "410" {
			t.Errorf("backups: %v", backups)
		}
		if exit := root.exit("POST", "/nodes/pve1/vzdump", "vmid=410&storage=local-lvm"); !strings.Contains(exit, "can't use storage 'local-lvm' for backups - wrong content type") {
			t.Errorf("to a storage for disks: %q", exit)
		}
		if exit := root.exit("POST", "/nodes/pve1/vzdump", "vmid=410,999&storage=local"); exit != "job errors" {
			t.Errorf("of one that there is not: %q", exit)
		}
		agent := root.as(root.pve.AgentToken(AgentScope{Pool: "talos", Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}}))
		if exit := agent.exit("POST", "/nodes/pve1/vzdump", "vmid=410&storage=local"); exit != "Permission check failed (/vms/410, VM.Backup)" {
			t.Errorf("without VM.Backup: %q", exit)
		}
		if seen := rowsOf(agent.ok("GET", "/nodes/pve1/storage/local/content?content=backup", "")); len(seen) != 0 {
			t.Errorf("the agent sees backups: %v", seen)
		}
		root.ok("DELETE", "/nodes/pve1/storage/local/content/"+fmt.Sprint(backups[0]["volid"]), "")
	})
}

// TestHistory reads statistics: of a VM that is off there are only times.
func TestHistory(t *testing.T) {
	inEveryday(t, Config{}, func(root *testLab, _ *copiers) {
		const at = "/nodes/pve1/qemu/410/rrddata?timeframe=hour"
		if rows := rowsOf(root.ok("GET", at, "")); len(rows) != 70 || slices.ContainsFunc(rows, func(r map[string]any) bool { return len(r) != 1 || r["time"] == nil }) {
			t.Errorf("of a VM that is off: %v", rows)
		}
		root.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
		time.Sleep(10 * time.Minute)
		rows := rowsOf(root.ok("GET", at, ""))
		known := 0
		for _, r := range rows {
			if r["maxmem"] != nil {
				known++
			}
		}
		if known < 9 || known > 11 {
			t.Errorf("%d minutes are known of a VM that runs for ten", known)
		}
		node := rowsOf(root.ok("GET", "/nodes/pve1/rrddata?timeframe=day&cf=AVERAGE", ""))
		if len(node) != 70 || node[69]["memtotal"] != nil {
			t.Errorf("of the host: %v", node[len(node)-1])
		}
		if node = rowsOf(root.ok("GET", "/nodes/pve1/rrddata?timeframe=hour&cf=AVERAGE", "")); node[68]["memtotal"] == nil || node[68]["pressureiosome"] != 2.5 {
			t.Errorf("of the host, in the minute before: %v", node[68])
		}
		root.pve.SetPressure("pve1", history.Pressure{CPU: 1, IO: 42, Memory: 7})
		if node = rowsOf(root.ok("GET", "/nodes/pve1/rrddata?timeframe=hour&cf=AVERAGE", "")); node[68]["pressurecpusome"] != 1.0 || node[68]["pressureiosome"] != 42.0 || node[68]["pressurememorysome"] != 7.0 {
			t.Errorf("of the host, under pressure: %v", node[68])
		}
		root.refused("GET", "/nodes/pve1/rrddata?timeframe=never", "", 400, "Parameter verification failed.")
	})
}

// TestProvider makes the calls of OpenTofu's bpg/proxmox provider when it creates,
// reads, changes and removes a VM: each is answered.
func TestProvider(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l = l.as(l.admin)
		for _, step := range []struct {
			method, path, form string
			want               string // of the answer, written out
		}{
			{"GET", "/version", "", "release"},
			{"GET", "/access/permissions", "", "/pool/talos"},
			{"GET", "/nodes", "", "pve1"},
			{"GET", "/nodes/pve1/version", "", "9.2.11"},
			{"GET", "/cluster/status", "", "pve1"},
			{"GET", "/cluster/resources?type=vm", "", "[]"},
			{"GET", "/cluster/options", "", "allowed-tags"},
			{"GET", "/storage", "", "local-lvm"},
			{"GET", "/nodes/pve1/storage", "", "local-lvm"},
			{"GET", "/nodes/pve1/storage/local/status", "", "avail"},
			{"GET", "/nodes/pve1/storage/local/content?content=import", "", imageName},
			{"GET", "/pools/talos", "", "members"},
			{"GET", "/cluster/nextid", "", "100"},
			{"POST", "/nodes/pve1/qemu", strings.Replace(vmForm(410), "agent=0", "agent=1&tags=tofu", 1), "UPID"},
			{"GET", "/cluster/resources?type=vm", "", "410"},
			{"GET", "/nodes/pve1/qemu", "", "dev-cp-410"},
			{"GET", "/nodes/pve1/qemu/410/config", "", "digest"},
			{"GET", "/nodes/pve1/qemu/410/pending", "", "scsi0"},
			{"PUT", "/nodes/pve1/qemu/410/resize", "disk=scsi0&size=20G", "UPID"},
			{"POST", "/nodes/pve1/qemu/410/status/start", "", "UPID"},
			{"GET", "/nodes/pve1/qemu/410/status/current", "", "running"},
			{"GET", "/nodes/pve1/qemu/410/agent/network-get-interfaces", "", "QEMU guest agent is not running"},
			{"GET", "/nodes/pve1/qemu/410/firewall/options", "", "digest"},
			{"GET", "/pools/talos", "", "410"},
			{"POST", "/nodes/pve1/qemu/410/config", "description=changed", "UPID"},
			{"PUT", "/nodes/pve1/qemu/410/config", "delete=description", "<nil>"},
			{"POST", "/nodes/pve1/qemu/410/status/shutdown", "forceStop=1&timeout=5", "UPID"},
			{"GET", "/nodes/pve1/qemu/410/status/current", "", "stopped"},
			{"GET", "/nodes/pve1/tasks?vmid=410", "", "qmshutdown"},
			{"DELETE", "/nodes/pve1/qemu/410?purge=1&destroy-unreferenced-disks=1", "", "UPID"},
			{"GET", "/cluster/resources?type=vm", "", "[]"},
		} {
			a := l.call(step.method, step.path, step.form)
			got := fmt.Sprint(a.data)
			if a.status != http.StatusOK {
				got = a.reason
			}
			if !strings.Contains(got, step.want) {
				t.Errorf("%s %s: %d %s %v, want %q", step.method, step.path, a.status, got, a.errors, step.want)
			}
			if upid, ok := a.data.(string); ok && strings.HasPrefix(upid, "UPID:") {
				l.await(upid)
				if exit := l.task(upid).Exit; exit != "OK" {
					t.Errorf("%s %s: %s", step.method, step.path, exit)
				}
			}
		}
	})
}
