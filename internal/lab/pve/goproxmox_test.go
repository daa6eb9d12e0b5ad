package pve

import (
	"bytes"
	"context"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	proxmox "github.com/luthermonson/go-proxmox"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestGoProxmox drives the service with the client library the agent uses, in
// virtual time and over real loopback.
func TestGoProxmox(t *testing.T) {
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { goProxmox(t, Config{}, world.Config{}) })
	})
	t.Run("loopback", func(t *testing.T) {
		goProxmox(t, Config{Addr: "127.0.0.1:0"}, world.Config{Network: world.Loopback{}, Speed: 100})
	})
}

func goProxmox(t *testing.T, c Config, wc world.Config) {
	l := newTestLab(t, c, wc)
	defer l.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	id, secret, _ := strings.Cut(l.token, "=")
	client := proxmox.NewClient(l.pve.URL()+"/api2/json", proxmox.WithHTTPClient(l.http), proxmox.WithAPIToken(id, secret))
	fatal := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	wait := func(what string, task *proxmox.Task, err error) *proxmox.Task {
		t.Helper()
		fatal(what, err)
		fatal(what, task.Wait(ctx, 20*time.Millisecond, time.Minute))
		return task
	}
	succeed := func(what string, task *proxmox.Task, err error) {
		t.Helper()
		if wait(what, task, err); !task.IsSuccessful {
			t.Fatalf("%s: %s", what, task.ExitStatus)
		}
	}

	version, err := client.Version(ctx)
	fatal("version", err)
	if version.Version != "9.2.11" {
		t.Errorf("version %s", version.Version)
	}
	node, err := client.Node(ctx, "pve1")
	fatal("node", err)
	if node.CPUInfo.CPUs != 16 || node.Memory.Total != 64<<30 {
		t.Errorf("node: %+v %+v", node.CPUInfo, node.Memory)
	}
	storages, err := node.Storages(ctx)
	fatal("storages", err)
	if len(storages) != 2 {
		t.Errorf("%d storages", len(storages))
	}
	image := fileBytes(4096, 1246<<20)
	l.world.KnowImage(sumOf(image), world.Image{Platform: "nocloud"})
	var upid proxmox.UPID
	fatal("upload", client.UploadReader("/nodes/pve1/storage/local/upload", map[string]string{"content": "import"}, imageName, bytes.NewReader(image), int64(len(image)), &upid))
	succeed("upload", proxmox.NewTask(upid, client), nil)

	cluster, err := client.Cluster(ctx)
	fatal("cluster", err)
	if free, err := cluster.CheckID(ctx, 410); err != nil || !free {
		t.Errorf("410 is free: %v %v", free, err)
	}
	form, err := url.ParseQuery(vmForm(410))
	fatal("form", err)
	var options []proxmox.VirtualMachineOption
	for k := range form {
		if k != "vmid" {
			options = append(options, proxmox.VirtualMachineOption{Name: k, Value: form.Get(k)})
		}
	}
	task, err := node.NewVirtualMachine(ctx, 410, options...)
	succeed("create", task, err)
	if free, err := cluster.CheckID(ctx, 410); err != nil || free {
		t.Errorf("410 is free: %v %v", free, err)
	}
	vm, err := node.VirtualMachine(ctx, 410)
	fatal("read", err)
	if vm.Name != "dev-cp-410" || vm.VirtualMachineConfig.Cores == nil || *vm.VirtualMachineConfig.Cores != 2 || vm.VirtualMachineConfig.Memory != 2048 {
		t.Errorf("vm: %s %+v", vm.Name, vm.VirtualMachineConfig)
	}
	fatal("tag", vm.ConfigSync(ctx, proxmox.VirtualMachineOption{Name: "tags", Value: "talos-agent"}, proxmox.VirtualMachineOption{Name: "digest", Value: l.vm(410).Digest}))
	task, err = vm.ResizeDisk(ctx, "scsi0", "40G")
	succeed("resize", task, err)
	task, err = vm.Start(ctx)
	succeed("start", task, err)
	// A failed task is no error to the library.
	task, err = vm.Start(ctx)
	if wait("second start", task, err); task.ExitStatus != "VM 410 already running" || !task.IsFailed {
		t.Errorf("second start: %s", task.ExitStatus)
	}
	tasks, err := node.Tasks(ctx, &proxmox.NodeTasksOptions{VMID: 410})
	fatal("tasks", err)
	if len(tasks) != 4 || tasks[0].Type != "qmstart" {
		t.Errorf("tasks: %v", tasks)
	}
	rows, err := cluster.Resources(ctx, "vm")
	fatal("resources", err)
	if len(rows) != 1 || rows[0].VMID != 410 || rows[0].Tags != "talos-agent" {
		t.Errorf("resources: %+v", rows)
	}
	if _, err := node.VirtualMachine(ctx, 999); !proxmox.IsNotAuthorized(err) {
		t.Errorf("a VM that is not there: %v", err)
	}
	if err := client.Put(ctx, "/nodes/pve1/qemu/410/config", map[string]any{"cores": 3, "digest": "0"}, nil); err == nil || !strings.Contains(err.Error(), "checksum mismatch") {
		t.Errorf("stale digest: %v", err)
	}
	task, err = vm.Stop(ctx)
	succeed("stop", task, err)
	var gone proxmox.UPID
	fatal("delete", client.DeleteWithParams(ctx, "/nodes/pve1/qemu/410", map[string]any{"purge": 1}, &gone))
	succeed("delete", proxmox.NewTask(gone, client), nil)
	if n := len(l.pve.VMs()); n != 0 {
		t.Errorf("%d VMs left", n)
	}
	l.noViolations()
	if n := l.world.CountCalls(func(c world.CallRecord) bool { return c.Mutating && c.Subject == "410" }); n != 8 {
		t.Errorf("%d mutating calls about vm 410, want 8", n)
	}
}
