package pve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const createOp = "POST /nodes/{node}/qemu"

// TestFaults are the faults that only this service can bring about, and those of
// the wire where they mean something to it.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault world.Fault
		do    func(l *testLab)
	}{
		{"a creation that fails leaves nothing behind", world.Fault{Op: createOp, Subject: "410", Kind: world.FailTask, Text: "out of space"}, func(l *testLab) {
			if exit := l.exit("POST", "/nodes/pve1/qemu", vmForm(410)); exit != "unable to create VM 410 - out of space" {
				l.t.Errorf("exit %q", exit)
			}
			if _, there := l.pve.VM(410); there || len(l.pve.Volumes("pve1", "local-lvm")) > 0 {
				l.t.Error("something is left")
			}
		}},
		{"a start that fails leaves the VM off", world.Fault{Op: "POST /nodes/{node}/qemu/{vmid}/status/start", Kind: world.FailTask, Text: "start failed: QEMU exited with code 1"}, func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
			if exit := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); exit != "start failed: QEMU exited with code 1" {
				l.t.Errorf("exit %q", exit)
			}
			if _, on := l.guests.guest(410); on || l.vm(410).Power != Stopped {
				l.t.Error("the VM runs")
			}
		}},
		{"a task that hangs, in every kind of task", world.Fault{Kind: world.HangTask, Delay: time.Minute, Op: "PUT /nodes/{node}/qemu/{vmid}/resize"}, func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
			if d := took(func() { l.ok("PUT", "/nodes/pve1/qemu/410/resize", "disk=scsi0&size=40G") }); d != time.Minute+200*time.Millisecond {
				l.t.Errorf("took %v", d)
			}
		}},
		{"a guest that never comes up", world.Fault{Op: "POST /nodes/{node}/qemu/{vmid}/status/start", Subject: "410", Kind: world.NeverUp, Nth: 1}, func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
			for _, dead := range []bool{true, false} {
				l.ok("POST", "/nodes/pve1/qemu/410/status/start", "")
				if g, on := l.guests.guest(410); !on || g.Dead != dead {
					l.t.Errorf("dead %v, want %v", g.Dead, dead)
				}
				l.ok("POST", "/nodes/pve1/qemu/410/status/stop", "")
			}
		}},
		{"a list that is empty", world.Fault{Op: "GET /cluster/resources", Kind: world.EmptyList, Nth: 1}, func(l *testLab) {
			l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
			for _, want := range []int{0, 1} {
				if rows, _ := l.ok("GET", "/cluster/resources?type=vm", "").([]any); len(rows) != want {
					l.t.Errorf("%d rows, want %d", len(rows), want)
				}
			}
		}},
		{"a reply that is lost: the VM is made", world.Fault{Op: createOp, Kind: world.LoseReply, Nth: 1}, func(l *testLab) {
			if _, err := l.try("POST", "/nodes/pve1/qemu", vmForm(410)); err == nil {
				l.t.Error("the reply arrived")
			}
			time.Sleep(time.Minute)
			if v := l.vm(410); v.Lock != "" || v.Config["scsi0"] == "" {
				l.t.Errorf("vm: %+v", v)
			}
		}},
		{"a refusal whose reply is lost", world.Fault{Op: "GET /nodes/{node}/qemu/{vmid}/config", Kind: world.LoseReply}, func(l *testLab) {
			if _, err := l.try("GET", "/nodes/pve1/qemu/410/config", ""); err == nil {
				l.t.Error("the reply arrived")
			}
		}},
		{"a request that is lost: nothing happens", world.Fault{Op: createOp, Kind: world.LoseRequest, Nth: 1}, func(l *testLab) {
			if _, err := l.try("POST", "/nodes/pve1/qemu", vmForm(410)); err == nil {
				l.t.Error("the request arrived")
			}
			if _, there := l.pve.VM(410); there {
				l.t.Error("the VM is there")
			}
		}},
		{"a refusal in Proxmox VE's dialect", world.Fault{Op: createOp, Kind: world.Answer, Status: 500, Text: "cluster not ready - no quorum?"}, func(l *testLab) {
			l.refused("POST", "/nodes/pve1/qemu", vmForm(410), 500, "cluster not ready - no quorum?")
		}},
		{"an upload whose request is lost can be made again", world.Fault{Op: "POST /nodes/{node}/storage/{storage}/upload", Kind: world.LoseRequest, Nth: 1}, func(l *testLab) {
			if _, err := l.tryUpload("local", imageName, fileBytes(1<<20, 1<<30)); err == nil {
				l.t.Error("the request arrived")
			}
			l.ready()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, Config{}, func(l *testLab) {
				l.ready()
				tc.fault.System = "pve"
				l.world.Inject(tc.fault)
				tc.do(l)
				l.noViolations()
			})
		})
	}
}

// TestCallsHaveNames: the world sees every request by template and subject.
func TestCallsHaveNames(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
		upid, _ := l.ok("POST", "/nodes/pve1/qemu/410/status/start", "").(string)
		l.world.ForgetCalls()
		l.ok("GET", "/nodes/pve1/tasks/"+strings.ReplaceAll(upid, ":", "%3A")+"/status", "")
		l.ok("GET", "/nodes/pve1/storage/local/content/local:import/"+imageName, "")
		l.call("POST", "/nodes/pve1/qemu", "vmid=411&pool=talos")
		l.ok("PUT", "/nodes/pve1/qemu/410/config", "tags=a")
		l.call("GET", "/nodes/pve1/lxc", "")
		l.ok("GET", "/cluster/nextid?vmid=412", "")
		var got []string
		for _, c := range l.world.Calls() {
			got = append(got, fmt.Sprintf("%s %s %q %v", c.System, c.Op, c.Subject, c.Mutating))
		}
		want := []string{
			`pve GET /nodes/{node}/tasks/{upid}/status "410" false`,
			`pve GET /nodes/{node}/storage/{storage}/content/{volume} "local" false`,
			`pve POST /nodes/{node}/qemu "411" true`,
			`pve PUT /nodes/{node}/qemu/{vmid}/config "410" true`,
			`pve GET unknown "" false`,
			`pve GET /cluster/nextid "" false`,
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestConsole is what a person at the console can do to the agent.
func TestConsole(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
		before := l.vm(410).Digest
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(l.pve.Edit(410, "description", "hands off"))
		l.refused("PUT", "/nodes/pve1/qemu/410/config", "cores=4&digest="+before, 500, "checksum mismatch (file change by other user?)")
		must(l.pve.Lock(410, "backup"))
		l.refused("PUT", "/nodes/pve1/qemu/410/config", "cores=4", 500, "VM is locked (backup)")
		if exit := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); exit != "VM is locked (backup)" {
			t.Errorf("start of a locked VM: %q", exit)
		}
		must(l.pve.Unlock(410))
		l.ok("PUT", "/nodes/pve1/qemu/410/config", "cores=4")

		release, err := l.pve.HoldFile(context.Background(), 410)
		must(err)
		d := took(func() {
			l.refused("PUT", "/nodes/pve1/qemu/410/config", "cores=2", 500, "can't lock file '/var/lock/qemu-server/lock-410.conf' - got timeout")
		})
		if d != fileLockWait {
			t.Errorf("waited %v for the lock file", d)
		}
		upid, _ := l.call("POST", "/nodes/pve1/qemu/410/status/start", "").data.(string)
		time.Sleep(time.Second)
		release()
		must(l.pve.WaitTask(context.Background(), upid))
		if log := l.task(upid).Log; len(log) != 2 || log[0] != "trying to acquire lock..." {
			t.Errorf("log %q", log)
		}
		must(l.pve.Stop(410))
		if _, on := l.guests.guest(410); on {
			t.Error("the guest runs on")
		}
		must(l.pve.Start(410))
		must(l.pve.Remove(410))
		if _, there := l.pve.VM(410); there || len(l.pve.Volumes("pve1", "local-lvm")) > 0 {
			t.Error("something is left")
		}
		if err := l.pve.Edit(410, "name", "x"); err == nil {
			t.Error("edited a VM that is not there")
		}
		if err := l.pve.CreateForeign(411, Foreign{Host: "nowhere"}); err == nil {
			t.Error("made a VM nowhere")
		}
		must(l.pve.CreateForeign(411, Foreign{}))
		if err := l.pve.CreateForeign(411, Foreign{}); err == nil {
			t.Error("made a VM twice")
		}
	})
}

// TestKilledCreation is a worker that dies: lock, half a disk and all stay, and
// no token can clean up.
func TestKilledCreation(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		upid, _ := l.call("POST", "/nodes/pve1/qemu", vmForm(410)).data.(string)
		time.Sleep(3 * time.Second)
		if err := l.pve.KillTask(upid); err != nil {
			t.Fatal(err)
		}
		if exit := l.task(upid).Exit; exit != "unexpected status" {
			t.Errorf("exit %q", exit)
		}
		root := l.as(l.admin)
		if v := l.vm(410); v.Lock != "create" || len(l.pve.Volumes("pve1", "local-lvm")) == 0 {
			t.Errorf("vm: %+v", v)
		}
		if exit := root.exit("DELETE", "/nodes/pve1/qemu/410", ""); exit != "VM is locked (create)" {
			t.Errorf("delete: %q", exit)
		}
		root.refused("PUT", "/nodes/pve1/qemu/410/config", "delete=lock", 500, "only root can set 'lock' config")
		// The lock file died with the process, and the storage is free.
		l.ok("POST", "/nodes/pve1/qemu", vmForm(411))
		if err := l.pve.Unlock(410); err != nil {
			t.Fatal(err)
		}
		root.ok("DELETE", "/nodes/pve1/qemu/410?destroy-unreferenced-disks=1", "")
		for _, v := range l.pve.Volumes("pve1", "local-lvm") {
			if v.VMID == 410 {
				t.Errorf("left over: %+v", v)
			}
		}
	})
}

// TestAbortedCreation is DELETE of a running creation: it cleans up.
func TestAbortedCreation(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		upid, _ := l.call("POST", "/nodes/pve1/qemu", vmForm(410)).data.(string)
		time.Sleep(3 * time.Second)
		l.ok("DELETE", "/nodes/pve1/tasks/"+upid, "")
		task := l.task(upid)
		if !strings.HasPrefix(task.Exit, "unable to create VM 410 - cannot import from 'local:import/"+imageName+"' - copy failed:") ||
			!strings.HasSuffix(task.Exit, "received interrupt") {
			t.Errorf("exit %q", task.Exit)
		}
		if _, there := l.pve.VM(410); there || len(l.pve.Volumes("pve1", "local-lvm")) > 0 {
			t.Error("something is left")
		}
	})
}

// TestPower is what the power calls do to a guest.
func TestPower(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
		const path = "/nodes/pve1/qemu/410/status/"
		l.refused("POST", path+"reboot", "", 500, "VM 410 not running")
		l.ok("POST", path+"stop", "")
		l.ok("POST", path+"start", "")
		if exit := l.exit("POST", path+"start", ""); exit != "VM 410 already running" {
			t.Errorf("second start: %q", exit)
		}
		l.ok("PUT", "/nodes/pve1/qemu/410/config", "memory=4096")
		if v := l.vm(410); v.Pending["memory"] != "4096" {
			t.Errorf("memory of a running VM is not pending: %v", v.Pending)
		}
		// A reboot ends before the host starts the VM again, in root's name.
		l.ok("POST", path+"reboot", "")
		tasks := l.pve.Tasks()
		last := tasks[len(tasks)-1]
		if last.Type != "qmstart" || last.User != rootUser {
			t.Errorf("after the reboot: %+v", last)
		}
		l.await(last.UPID)
		if g, on := l.guests.guest(410); !on || g.MemoryMiB != 4096 {
			t.Errorf("guest after the reboot: %+v", g)
		}
		booted := l.guests.booted
		l.ok("POST", path+"reset", "")
		if l.guests.booted != booted+1 {
			t.Error("the reset button did nothing")
		}
		l.ok("POST", path+"suspend", "")
		if v := l.vm(410); v.Power != Paused {
			t.Errorf("power %s", v.Power)
		}
		l.ok("POST", path+"resume", "")
		// A guest that switches itself off is off for the host.
		g, _ := l.guests.guest(410)
		g.Off()
		if v := l.vm(410); v.Power != Stopped {
			t.Errorf("power %s", v.Power)
		}
		l.ok("POST", path+"start", "")
		l.guests.deaf = true
		var exit string
		if d := took(func() { exit = l.exit("POST", path+"shutdown", "timeout=30") }); d != 30*time.Second || exit != "VM quit/powerdown failed - got timeout" {
			t.Errorf("shutdown of a deaf guest: %q after %v", exit, d)
		}
		l.ok("POST", path+"shutdown", "timeout=30&forceStop=1")
		if _, on := l.guests.guest(410); on {
			t.Error("the guest runs on")
		}
	})
}

// TestDiskTooSmall are resizes the task refuses.
func TestResizeRefused(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
		for form, want := range map[string]string{
			"disk=scsi0&size=1G":          "shrinking disks is not supported",
			"disk=scsi7&size=9G":          "disk 'scsi7' does not exist",
			"disk=scsi0&size=9G&digest=0": "checksum mismatch (file change by other user?)",
		} {
			if exit := l.exit("PUT", "/nodes/pve1/qemu/410/resize", form); exit != want {
				t.Errorf("%s: %q, want %q", form, exit, want)
			}
		}
		before := l.vm(410).Digest
		l.ok("PUT", "/nodes/pve1/qemu/410/resize", "disk=scsi0&size=1248M")
		if l.vm(410).Digest != before {
			t.Error("a resize to the same size changed the configuration")
		}
	})
}

// TestServices: /cluster/resources has the state that the manager of high availability holds of a VM, also where that is not managed
// any more, and of none that it holds none of; status/current has it of those that are managed.
func TestServices(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l.ok("POST", "/nodes/pve1/qemu", vmForm(410))
		wants := func(when string, want, wantCurrent any) {
			t.Helper()
			rows, _ := l.ok("GET", "/cluster/resources?type=vm", "").([]any)
			current, _ := l.ok("GET", "/nodes/pve1/qemu/410/status/current", "").(map[string]any)
			if have, ha := rows[0].(map[string]any)["hastate"], current["ha"].(map[string]any)["state"]; have != want || ha != wantCurrent {
				t.Errorf("%s: %v, and %v of itself", when, have, ha)
			}
		}
		wants("without", nil, nil)
		l.pve.Manage("vm:410")
		wants("managed", "started", "started")
		l.pve.SetService("vm:410", "migrate")
		wants("migrated", "migrate", "migrate")
		l.pve.Manage()
		l.pve.SetService("vm:410", "migrate")
		wants("managed no more", "migrate", nil)
		l.pve.SetService("vm:410", "")
		wants("forgotten", nil, nil)
	})
}

// TestHosts is a cluster of two: local storages are each host's own, shared
// ones are one, and a VM is where it was made.
func TestHosts(t *testing.T) {
	all := []string{"images", "import"}
	hosts := []Host{
		{Name: "pve1", Storages: []Storage{{Name: "local", Content: all}, {Name: "nfs", Content: all, Shared: true}}},
		{Name: "pve2", Storages: []Storage{{Name: "local", Content: all}, {Name: "nfs", Content: all, Shared: true}}, Cores: 4, MemoryBytes: 8 << 30},
	}
	inBubble(t, Config{Hosts: hosts}, func(l *testLab) {
		root := l.as(l.admin)
		for _, name := range []string{"local", "nfs"} {
			if err := l.pve.AddFile("pve1", name, "import/x.raw", 1<<30, image); err != nil {
				t.Fatal(err)
			}
		}
		if exit := root.exit("POST", "/nodes/pve2/qemu", "vmid=100&scsi0=local:0,import-from=local:import/x.raw"); !strings.Contains(exit, "failed to stat") {
			t.Errorf("import from the other host's storage: %q", exit)
		}
		root.ok("POST", "/nodes/pve2/qemu", "vmid=100&scsi0=local:0,import-from=nfs:import/x.raw")
		root.refused("GET", "/nodes/pve1/qemu/100/config", "", 500, "Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist")
		root.refused("POST", "/nodes/pve1/qemu", "vmid=100", 500, "unable to create VM 100 - VM 100 already exists on node 'pve2'")
		if vms, _ := root.ok("GET", "/cluster/resources?type=vm", "").([]any); len(vms) != 1 || vms[0].(map[string]any)["node"] != "pve2" {
			t.Errorf("resources: %v", vms)
		}
		rows, _ := root.ok("GET", "/cluster/status", "").([]any)
		if len(rows) != 3 || rows[0].(map[string]any)["quorate"] != 1.0 || rows[1].(map[string]any)["local"] != 1.0 {
			t.Errorf("status: %v", rows)
		}
		l.pve.LoseQuorum(true)
		root.refused("PUT", "/nodes/pve2/qemu/100/config", "onboot=1", 500, "cluster not ready - no quorum?")
		root.refused("POST", "/nodes/pve2/qemu/100/status/start", "", 500, "cluster not ready - no quorum?")
		if rows, _ := root.ok("GET", "/cluster/status", "").([]any); len(rows) != 3 || rows[0].(map[string]any)["quorate"] != 0.0 {
			t.Errorf("status without a quorum: %v", rows)
		}
		l.pve.LoseQuorum(false)
		root.ok("PUT", "/nodes/pve2/qemu/100/config", "onboot=1")
		req, err := http.NewRequest(http.MethodGet, l.pve.URL()+"/api2/json/cluster/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "pve2:8006"
		a, err := root.do(req)
		if rows, _ := a.data.([]any); err != nil || len(rows) != 3 || rows[1].(map[string]any)["local"] != 0.0 || rows[2].(map[string]any)["local"] != 1.0 {
			t.Errorf("status of the other host: %v %v", a.data, err)
		}
	})
}

// TestNewRefuses are configurations that make no host.
func TestNewRefuses(t *testing.T) {
	w, err := world.New(world.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for name, c := range map[string]Config{
		"no world":       {},
		"flavour":        {World: w, Flavour: "7.4"},
		"host twice":     {World: w, Hosts: []Host{{Name: "a"}, {Name: "a"}}},
		"storage type":   {World: w, Hosts: []Host{{Storages: []Storage{{Name: "x", Type: "ceph"}}}}},
		"nameless store": {World: w, Hosts: []Host{{Storages: []Storage{{}}}}},
		"address":        {World: w, Addr: "nowhere"},
		"address in use": {World: w, Addr: "127.0.0.9:8006"},
	} {
		if name == "address in use" {
			l, err := w.Net.Listen(c.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		if s, err := New(c); err == nil {
			s.Close()
			t.Errorf("%s: made a server", name)
		}
	}
}

// TestCloseCutsTasks: nothing outlives Close, whatever is under way.
func TestCloseCutsTasks(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ready()
		l.world.Inject(world.Fault{System: "pve", Kind: world.HangTask, Delay: time.Hour})
		l.call("POST", "/nodes/pve1/qemu", vmForm(410))
		waiting := make(chan error, 1)
		go func() {
			_, err := l.try("PUT", "/nodes/pve1/qemu/410/config", "cores=1")
			waiting <- err
		}()
		time.Sleep(time.Second)
		l.pve.Close()
		if err := <-waiting; err == nil {
			t.Log("the request was answered before the end")
		}
		if _, err := l.try("GET", "/version", ""); err == nil || errors.Is(err, http.ErrServerClosed) {
			t.Errorf("answered after Close: %v", err)
		}
	})
}
