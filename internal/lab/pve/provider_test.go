package pve

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// The configuration of OpenTofu: a pool and a VM like one of the agent's, imported from
// an image, and a clone of a template.
const tofuMain = `
terraform {
  required_providers {
    proxmox = { source = "bpg/proxmox" }
  }
}

provider "proxmox" {}

variable "memory" { default = 2048 }
variable "tags" {
  type    = list(string)
  default = ["talos", "tofu"]
}
variable "data" {
  type    = list(number)
  default = []
}
variable "system" { default = 10 }

resource "proxmox_virtual_environment_pool" "tofu" {
  pool_id = "tofu"
  comment = "made by OpenTofu"
}

resource "proxmox_virtual_environment_vm" "node" {
  name            = "tofu-cp-1"
  description     = "made by OpenTofu"
  node_name       = "pve1"
  vm_id           = 601
  pool_id         = proxmox_virtual_environment_pool.tofu.pool_id
  tags            = var.tags
  machine         = "q35"
  bios            = "ovmf"
  scsi_hardware   = "virtio-scsi-single"
  on_boot         = true
  started         = true
  stop_on_destroy = true

  cpu {
    cores = 2
    type  = "x86-64-v2-AES"
  }
  memory { dedicated = var.memory }
  agent { enabled = false }
  operating_system { type = "l26" }
  serial_device {}
  efi_disk {
    datastore_id = "local-lvm"
    type         = "4m"
  }
  disk {
    datastore_id = "local-lvm"
    import_from  = "local:import/IMAGE"
    interface    = "scsi0"
    size         = var.system
    discard      = "on"
    ssd          = true
    iothread     = true
  }
  dynamic "disk" {
    for_each = var.data
    content {
      datastore_id = "local-lvm"
      interface    = "scsi1"
      size         = disk.value
      iothread     = true
      file_format  = "raw"
    }
  }
  network_device {
    bridge   = "vmbr1"
    firewall = false
  }
  initialization {
    datastore_id = "local-lvm"
    type         = "nocloud"
    dns { servers = ["10.10.0.1"] }
    ip_config {
      ipv4 {
        address = "10.10.0.61/24"
        gateway = "10.10.0.1"
      }
    }
  }
}

resource "proxmox_virtual_environment_vm" "clone" {
  name            = "tofu-wk-1"
  node_name       = "pve1"
  vm_id           = 602
  pool_id         = proxmox_virtual_environment_pool.tofu.pool_id
  tags            = var.tags
  started         = true
  stop_on_destroy = true
  clone { vm_id = 500 }
  cpu { cores = 4 }
  memory { dedicated = var.memory }
  agent { enabled = false }
}

data "proxmox_virtual_environment_nodes" "all" {}

data "proxmox_virtual_environment_version" "it" {}

data "proxmox_virtual_environment_datastores" "all" { node_name = "pve1" }

data "proxmox_virtual_environment_vms" "tofu" {
  tags       = ["tofu"]
  depends_on = [proxmox_virtual_environment_vm.node, proxmox_virtual_environment_vm.clone]
}

output "seen" {
  value = {
    nodes   = data.proxmox_virtual_environment_nodes.all.names
    version = data.proxmox_virtual_environment_version.it.release
    stores  = sort([for s in data.proxmox_virtual_environment_datastores.all.datastores : s.id])
    vms     = sort([for v in data.proxmox_virtual_environment_vms.tofu.vms : v.name])
  }
}
`

// tofu is a real OpenTofu with the real bpg/proxmox provider, in a directory.
type tofu struct {
	t       *testing.T
	program string
	dir     string
	env     []string
}

// newTofu prepares what .ci/clients builds to work on a lab.
func newTofu(t *testing.T, l *testLab, main string) *tofu {
	t.Helper()
	dir := t.TempDir()
	provider, err := filepath.Abs(os.Getenv("TALOS_AGENT_BPG"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"main.tf": strings.Replace(main, "IMAGE", imageName, 1),
		"ca.pem":  string(l.world.PKI.PEM),
		"tofurc":  fmt.Sprintf("provider_installation {\n  dev_overrides {\n    \"bpg/proxmox\" = %q\n  }\n  direct {}\n}\n", filepath.Dir(provider)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &tofu{t: t, program: os.Getenv("TALOS_AGENT_TOFU"), dir: dir, env: append(os.Environ(),
		"HOME="+dir, "TF_CLI_CONFIG_FILE="+filepath.Join(dir, "tofurc"), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "SSL_CERT_FILE="+filepath.Join(dir, "ca.pem"),
		"PROXMOX_VE_ENDPOINT="+l.pve.URL(), "PROXMOX_VE_API_TOKEN="+l.admin)}
}

// run runs a command, and returns what it prints and its exit code.
func (o *tofu) run(args ...string) (string, int) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.program, args...)
	cmd.Dir, cmd.Env = o.dir, o.env
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		o.t.Fatalf("tofu %s: %v", strings.Join(args, " "), err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// apply applies the configuration with variables, after which nothing is left to do.
func (o *tofu) apply(vars ...string) {
	o.t.Helper()
	var args []string
	for _, v := range vars {
		args = append(args, "-var", v)
	}
	if out, code := o.run(slices.Concat([]string{"apply", "-auto-approve", "-no-color", "-input=false"}, args)...); code != 0 {
		o.t.Fatalf("tofu apply %v: exit code %d\n%s", vars, code, out)
	}
	if out, code := o.run(slices.Concat([]string{"plan", "-detailed-exitcode", "-no-color", "-input=false"}, args)...); code != 0 {
		o.t.Errorf("tofu plan after apply %v: exit code %d\n%s", vars, code, out)
	}
}

// TestRealProvider has a real OpenTofu with the real bpg/proxmox provider make, change
// and destroy VMs over https.
func TestRealProvider(t *testing.T) {
	if os.Getenv("TALOS_AGENT_TOFU") == "" || os.Getenv("TALOS_AGENT_BPG") == "" {
		t.Skip("TALOS_AGENT_TOFU and TALOS_AGENT_BPG do not name the programs built from internal/lab/clients; .ci/clients builds them")
	}
	l := newTestLab(t, Config{Addr: "127.0.0.1:0"}, world.Config{Network: world.Loopback{}, Speed: 100})
	defer l.close()
	l.ready()
	root := l.as(l.admin)
	root.ok("POST", "/nodes/pve1/qemu", vmForm(500))
	root.ok("POST", "/nodes/pve1/qemu/500/template", "")

	o := newTofu(t, l, tofuMain)
	o.apply()
	v := l.vm(601)
	if v.Power != Running || v.Pool != "tofu" || v.Config["memory"] != "2048" || v.Config["tags"] != "talos;tofu" || v.Config["ipconfig0"] != "gw=10.10.0.1,ip=10.10.0.61/24" {
		t.Errorf("after apply: %+v", v)
	}
	if c := l.vm(602); c.Power != Running || c.Config["cores"] != "4" || c.Disks["scsi0"] == nil {
		t.Errorf("the clone after apply: %+v", c)
	}
	out, code := o.run("output", "-json", "seen")
	var seen struct {
		Nodes, Stores, VMs []string
		Version            string
	}
	if err := json.Unmarshal([]byte(out), &seen); code != 0 || err != nil || fmt.Sprint(seen) != "{[pve1] [local local-lvm] [tofu-cp-1 tofu-wk-1] 9.2}" {
		t.Errorf("outputs: %v %v\n%s", seen, err, out)
	}

	more := []string{"memory=4096", `tags=["changed","tofu"]`}
	o.apply(more...)
	if v := l.vm(601); v.Config["memory"] != "4096" || v.Config["tags"] != "changed;tofu" {
		t.Errorf("after changing memory and tags: %+v", v)
	}
	o.apply(append(more, "data=[5]", "system=20")...)
	if v := l.vm(601); v.Disks["scsi1"] == nil || v.Disks["scsi1"].Bytes != 5<<30 || v.Disks["scsi0"].Bytes != 20<<30 {
		t.Errorf("after adding a disk and resizing another: %+v", v)
	}

	if out, code := o.run("destroy", "-auto-approve", "-no-color", "-input=false"); code != 0 {
		t.Errorf("tofu destroy: exit code %d\n%s", code, out)
	}
	for _, id := range []int{601, 602} {
		if v, ok := l.pve.VM(id); ok {
			t.Errorf("after destroy: %+v", v)
		}
	}
	l.noViolations()
}

// tofuThree are three VMs like those of a cluster of one control plane and two workers.
const tofuThree = `
terraform {
  required_providers {
    proxmox = { source = "bpg/proxmox" }
  }
}

provider "proxmox" {}

resource "proxmox_virtual_environment_vm" "node" {
  count           = 3
  name            = "node-${count.index}"
  node_name       = "pve1"
  vm_id           = 601 + count.index
  tags            = ["talos"]
  machine         = "q35"
  scsi_hardware   = "virtio-scsi-single"
  on_boot         = true
  started         = true
  stop_on_destroy = true

  cpu {
    cores = 4
    type  = "host"
  }
  memory { dedicated = 4096 }
  agent { enabled = false }
  operating_system { type = "l26" }
  serial_device {}
  disk {
    datastore_id = "local-lvm"
    import_from  = "local:import/IMAGE"
    interface    = "scsi0"
    size         = 40
    discard      = "on"
    ssd          = true
    iothread     = true
  }
  network_device { bridge = "vmbr1" }
  initialization {
    datastore_id = "local-lvm"
    type         = "nocloud"
    ip_config {
      ipv4 {
        address = "10.10.0.6${count.index}/24"
        gateway = "10.10.0.1"
      }
    }
  }
}
`

// TestCallsOfARealProvider counts what a real OpenTofu with the real bpg/proxmox provider asks to
// make three VMs from an image that is there, and to find that nothing is left to do, in the lab's own
// time. The agent's own table is internal/daemon/agent/testdata/calls.
func TestCallsOfARealProvider(t *testing.T) {
	if os.Getenv("TALOS_AGENT_TOFU") == "" || os.Getenv("TALOS_AGENT_BPG") == "" {
		t.Skip("TALOS_AGENT_TOFU and TALOS_AGENT_BPG do not name the programs built from internal/lab/clients; .ci/clients builds them")
	}
	l := newTestLab(t, Config{Addr: "127.0.0.1:0"}, world.Config{Network: world.Loopback{}})
	defer l.close()
	l.ready()
	o := newTofu(t, l, tofuThree)
	count := func(what string, args ...string) {
		l.world.ForgetCalls()
		if out, code := o.run(append(args, "-no-color", "-input=false")...); code != 0 {
			t.Fatalf("tofu %s: exit code %d\n%s", args[0], code, out)
		}
		calls, all := map[string]int{}, 0
		for _, c := range l.world.Calls() {
			calls[c.Op]++
			all++
		}
		t.Logf("%s: %d calls", what, all)
		for _, op := range sortedKeys(calls) {
			t.Logf("%6d  %s", calls[op], op)
		}
		if all == 0 {
			t.Errorf("%s asked nothing", what)
		}
	}
	count("three VMs made", "apply", "-auto-approve")
	count("nothing left to do", "plan", "-detailed-exitcode")
	count("three VMs destroyed", "destroy", "-auto-approve")
}
