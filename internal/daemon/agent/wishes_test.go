package agent_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
)

// wishes is what a repository asks for besides the size of its cluster.
type wishes struct {
	vip               bool // else the address of the first control plane is the endpoint
	cpRAM, wkRAM      int
	cpCores, wkCores  int
	wkDisk            int    // in GiB; it only grows
	wkData            int    // in GiB, 0: none; it only grows
	cpuType           string // of the workers; "": the usual
	bridge            string
	vlan              int
	tag               string // "": none
	web               string // the CPUs that an addon asks for; "": there is none
	prune             bool   // an addon that the inventory no longer has is uninstalled
	sysctl, env, pods int    // of the machine config: at once, with a reboot, of the kubelet
	replicas          int    // of podinfo
	unavailable       int    // how many workers may be out of service
	zones             map[string]string
	dedicated         map[string]bool   // by node, whether it has the taint
	locked            map[string]bool   // by node, whether it is left alone
	tokens            map[string]string // by node, of those that are to be replaced
	window            span              // when nodes may be taken out of service
	apply             string            // the switch: auto, approve or off
	observe           bool              // the other switch: what somebody has changed stays
	replaceDead       bool              // after the shortest time that there is
	allowEven         bool              // a control plane may leave an even number of them behind
	protected         map[string]bool   // by node, whether its VM is kept
	drain             drain             // what becomes of pods that may not be evicted
	budget            budget            // of a pod that there is one of
	firewall          string            // a patch; "": none
	kubelet           string            // the image, without its version; "": what Talos has
	again             int               // pushes that change nothing, for what is tried again then
}

// drain is how long pods may take to leave a node, and whether they are deleted then; the zero value
// is what the agent has.
type drain struct {
	within  time.Duration
	deletes bool
}

// resolve is the drain as the agent has it.
func (d drain) resolve() drain {
	return drain{cluster.Drain{Timeout: d.within}.Patience(), d.deletes}
}

// budget is whether there is a pod with a disruption budget, and whether that ever lets it be evicted.
type budget string

const (
	noBudget budget = ""
	tightest budget = "it never yields"
	roomy    budget = "it yields"
)

// span is a maintenance window, in full minutes of UTC; the zero value is always.
type span struct{ from, to time.Time }

// resolve is the window as the agent has it.
func (s span) resolve() window.Window {
	if s.from.IsZero() {
		return window.Window{}
	}
	w, err := window.New(nil, s.from.Format("15:04"), s.to.Format("15:04"), "UTC")
	must(err)
	return w
}

func newWishes(sz size) wishes {
	return wishes{vip: sz.ControlPlanes > 1, cpRAM: 8192, wkRAM: 8192, cpCores: 4, wkCores: 4, wkDisk: 60, bridge: "vmbr1", replicas: 1, unavailable: 1, apply: "auto",
		zones: map[string]string{}, dedicated: map[string]bool{}, locked: map[string]bool{}, tokens: map[string]string{}, protected: map[string]bool{}}
}

// order is what bounds what may be done to a cluster of that size with these wishes.
func (w wishes) order(sz size) order {
	o := order{size: sz, window: w.window.resolve(), apply: w.apply, observe: w.observe, tokens: maps.Clone(w.tokens), locked: maps.Clone(w.locked), replaceDead: w.replaceDead, unavailable: w.unavailable,
		allowEven: w.allowEven, protected: maps.Clone(w.protected), drain: w.drain.resolve(), of: map[string]string{}}
	for n := range sz.ControlPlanes + sz.Workers {
		name := sz.Name(n)
		hardware := []any{w.wkCores, w.wkRAM, w.wkDisk, w.wkData, w.cpuType}
		if n < sz.ControlPlanes {
			hardware = []any{w.cpCores, w.cpRAM}
		}
		// The configs of all nodes may have something of how many control planes there are.
		o.of[name] = fmt.Sprint(sz.ControlPlanes, sz.Left, w.vip, hardware, w.bridge, w.vlan, w.tag, w.patch(), w.firewall, w.kubeletPatch(), w.zones[name], w.dedicated[name], w.tokens[name])
	}
	// The inventory has nothing of a node that it does not have.
	maps.DeleteFunc(o.protected, func(name string, _ bool) bool { return o.of[name] == "" })
	return o
}

// files is the repository of a cluster of that size with these wishes.
func (w wishes) files(sz size) map[string][]byte {
	files := sz.Files()
	lines := strings.Split(string(files["inventory/dev/nodes.yaml"]), "\n")
	for i, line := range lines {
		_, rest, ok := strings.Cut(line, "{name: ")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(rest, ",")
		more := ""
		if t := w.tokens[name]; t != "" {
			more += " replace: " + t + ","
		}
		if z := w.zones[name]; z != "" {
			more += " labels: {zone: " + z + "},"
		}
		if w.dedicated[name] {
			more += ` taints: {dedicated: "db:PreferNoSchedule"},`
		}
		if w.locked[name] {
			more += " locked: true,"
		}
		if w.protected[name] {
			more += " protect: true,"
		}
		cores, ram := w.wkCores, w.wkRAM
		switch {
		case strings.HasPrefix(name, "dev-cp-"):
			cores, ram = w.cpCores, w.cpRAM
		default:
			if w.cpuType != "" {
				more += " cpu_type: " + w.cpuType + ","
			}
			if w.wkData > 0 {
				more += fmt.Sprintf(" disks: [{name: data, size: %dG}],", w.wkData)
			}
		}
		rest = strings.Replace(rest, "cpu: 4, ram: 8192", fmt.Sprintf("cpu: %d, ram: %d", cores, ram), 1)
		rest = strings.Replace(rest, "disk: 60G", fmt.Sprintf("disk: %dG", w.wkDisk), 1)
		lines[i] = "  - {name: " + name + "," + more + rest
	}
	files["inventory/dev/nodes.yaml"] = []byte(strings.Join(lines, "\n"))
	spec := strings.Replace(string(files["inventory/dev/cluster.yaml"]), "  vip: 10.10.0.5\n", "", 1)
	if w.vip {
		spec = strings.Replace(spec, "proxmox:\n", "  vip: 10.10.0.5\nproxmox:\n", 1)
	}
	spec = strings.Replace(spec, "  bridge: vmbr1\n", "  bridge: "+w.bridge+"\n", 1)
	if w.vlan != 0 {
		spec = strings.Replace(spec, "proxmox:\n", fmt.Sprintf("  vlan: %d\nproxmox:\n", w.vlan), 1)
	}
	if w.tag != "" {
		spec = strings.Replace(spec, "proxmox:\n", "proxmox:\n  tags: ["+w.tag+"]\n", 1)
	}
	if w.prune {
		spec += "prune: true\n"
	}
	if w.unavailable != 1 {
		spec += fmt.Sprintf("max_unavailable: %d\n", w.unavailable)
	}
	if w.window != (span{}) {
		spec += fmt.Sprintf("window: {from: %q, to: %q}\n", w.window.from.Format("15:04"), w.window.to.Format("15:04"))
	}
	if w.apply != "auto" {
		spec += "apply: " + w.apply + "\n"
	}
	if w.allowEven {
		spec += "allow_even: true\n"
	}
	if d := w.drain.resolve(); w.drain != (drain{}) {
		spec += fmt.Sprintf("drain: {timeout: %s, on_timeout: %s}\n", d.within, map[bool]string{false: "stop", true: "delete"}[d.deletes])
	}
	if w.observe {
		spec += "heal: observe\n"
	}
	if w.replaceDead {
		spec += "replace_dead: {worker: 10m, controlplane: 10m}\n"
	}
	var patches []string
	for name, patch := range map[string]string{"all": w.patch(), "firewall": w.firewall, "kubelet": w.kubeletPatch()} {
		if patch != "" {
			patches = append(patches, "patches/"+name+".yaml")
			files["inventory/dev/patches/"+name+".yaml"] = []byte(patch)
		}
	}
	if slices.Sort(patches); len(patches) > 0 {
		spec += "patches: {all: [" + strings.Join(patches, ", ") + "]}\n"
	}
	if w.again > 0 {
		files["inventory/dev/README.md"] = fmt.Appendf(nil, "pushed again: %d\n", w.again)
	}
	files["inventory/dev/cluster.yaml"] = []byte(spec)
	if w.web != "" {
		webAddon(files, w.web)
	}
	if w.budget != noBudget {
		stuckAddon(files)
	}
	if w.budget == roomy {
		const chart = "inventory/dev/charts/stuck/templates/all.yaml"
		files[chart] = []byte(strings.Replace(string(files[chart]), "minAvailable: 1", "minAvailable: 0", 1))
	}
	if w.replicas != 1 {
		files["inventory/dev/addons/podinfo.yaml"] = fmt.Appendf(files["inventory/dev/addons/podinfo.yaml"], "values: {replicaCount: %d}\n", w.replicas)
	}
	return files
}

// patch is the patch of the machine config of every node; "": there is none.
func (w wishes) patch() string {
	var b strings.Builder
	if w.sysctl > 0 {
		fmt.Fprintf(&b, "  sysctls: {vm.swappiness: \"%d\"}\n", w.sysctl)
	}
	if w.env > 0 {
		fmt.Fprintf(&b, "  env: {ROUND: \"%d\"}\n", w.env)
	}
	if w.pods > 0 {
		fmt.Fprintf(&b, "  kubelet: {extraArgs: {max-pods: \"%d\"}}\n", w.pods)
	}
	if b.Len() == 0 {
		return ""
	}
	return "machine:\n" + b.String()
}

// kubeletPatch is the patch with the kubelet's image; "": there is none.
func (w wishes) kubeletPatch() string {
	if w.kubelet == "" {
		return ""
	}
	return "machine: {kubelet: {image: \"" + w.kubelet + ":v1.36.1\"}}\n"
}

// checkConfig compares the machine config that a node runs with what was asked for.
func (w wishes) checkConfig(s *sim, name string, vmid int) {
	s.T.Helper()
	running, saved := s.Lab.Talos.ConfigsOf(vmid)
	if running != saved {
		s.T.Errorf("%s: another machine config than it runs waits for its next boot", name)
	}
	for _, c := range []struct {
		text string
		want bool
	}{
		{fmt.Sprintf("vm.swappiness: \"%d\"", w.sysctl), w.sysctl > 0},
		{fmt.Sprintf("ROUND: \"%d\"", w.env), w.env > 0},
		{fmt.Sprintf("max-pods: \"%d\"", w.pods), w.pods > 0},
		{"kind: NetworkDefaultActionConfig", w.firewall != ""},
		{"image: " + w.kubelet + ":", w.kubelet != ""},
		{handMark, false},
	} {
		if strings.Contains(running, c.text) != c.want {
			s.T.Errorf("%s: its machine config has %q: %v, want %v", name, c.text, !c.want, c.want)
		}
	}
}

// checkVM compares what else a VM has with what was asked for, and looks for what people have edited.
func (w wishes) checkVM(s *sim, name string, vm vmView) {
	s.T.Helper()
	isWorker, data := strings.HasPrefix(name, "dev-wk-"), ""
	for key, text := range vm.Config {
		if strings.HasPrefix(key, "scsi") && strings.Contains(text, "serial=talos-data") {
			data = text
		}
	}
	cards, tags := strings.Split(vm.Config["net0"], ","), strings.FieldsFunc(vm.Config["tags"], func(r rune) bool { return r == ';' || r == ',' })
	vlan, usual := slices.Contains(cards, fmt.Sprintf("tag=%d", w.vlan)), "cpu="+strings.Split(vm.Config["cpu"], ",")[0]
	for what, ok := range map[string]bool{
		"a card of its own":  strings.HasPrefix(vm.Config["net0"], "virtio=BC:24:11:"),
		"the bridge":         slices.Contains(cards, "bridge="+w.bridge),
		"the VLAN":           vlan == (w.vlan != 0) && (w.vlan != 0 || !strings.Contains(vm.Config["net0"], "tag=")),
		"to start at boot":   vm.Config["onboot"] == "1",
		"to boot its disk":   strings.HasPrefix(vm.Config["boot"], "order=scsi0"),
		"the agent's tag":    slices.Contains(tags, "talos-agent"),
		"the tag":            w.tag == "" || slices.Contains(tags, w.tag),
		"the agent's mark":   strings.Contains(vm.Config["description"], "talos-agent"),
		"the processor":      usual == "cpu="+map[bool]string{true: "host", false: "x86-64-v2-AES"}[isWorker && w.cpuType != ""],
		"the data disk":      !isWorker || w.wkData == 0 && data == "" || w.wkData > 0 && strings.Contains(data, fmt.Sprintf("size=%dG", w.wkData)),
		"no disk of anybody": vm.Config[foreignDrive] == "" && vm.Config["unused0"] == "",
	} {
		if !ok {
			s.T.Errorf("%s has not %s: %v", name, what, vm.Config)
		}
	}
}

// checkAddons compares the addons that come and go with what was asked for.
func (w wishes) checkAddons(s *sim) {
	s.T.Helper()
	if has := s.has("apps", "deployments", "apps", "web"); has != (w.web != "") {
		s.T.Errorf("the addon web is there: %v, want %v", has, !has)
	}
}

// check compares what runs with what was asked for, by what the world shows.
func (w wishes) check(s *sim, sz size) {
	s.T.Helper()
	var names []string
	for n := range sz.ControlPlanes + sz.Workers {
		names = append(names, sz.Name(n))
	}
	slices.Sort(names)
	if got := s.nodeObjects(); !slices.Equal(got, names) {
		s.T.Errorf("nodes in Kubernetes: %v, want %v", got, names)
	}
	if got := s.members(); len(got) != sz.ControlPlanes {
		s.T.Errorf("members of etcd: %v", got)
	}
	w.checkAddons(s)
	for _, vm := range s.Lab.PVE.VMs() {
		name := vm.Config["name"]
		if !slices.Contains(names, name) {
			continue
		}
		cores, ram, disk := w.wkCores, w.wkRAM, w.wkDisk
		if strings.HasPrefix(name, "dev-cp-") {
			cores, ram, disk = w.cpCores, w.cpRAM, 40
		}
		if vm.Config["cores"] != fmt.Sprint(cores) || vm.Config["memory"] != fmt.Sprint(ram) || len(vm.Pending) > 0 || !strings.Contains(vm.Config["scsi0"], fmt.Sprintf("size=%dG", disk)) {
			s.T.Errorf("%s: %s cores, memory %s, %s, pending %v; want %d, %d, %dG", name, vm.Config["cores"], vm.Config["memory"], vm.Config["scsi0"], vm.Pending, cores, ram, disk)
		}
		w.checkVM(s, name, vm)
		w.checkConfig(s, name, vm.VMID)
		want := ""
		if z := w.zones[name]; z != "" {
			want = "zone=" + z
		}
		if w.dedicated[name] {
			want = strings.TrimSpace(want + " dedicated=db:PreferNoSchedule")
		}
		got := strings.Replace(" "+s.metaOf(name), " mine=1:PreferNoSchedule", "", 1)
		if got = strings.TrimSpace(strings.Replace(got, " mine=1", "", 1)); got != want {
			s.T.Errorf("%s: labels and taints %q, want %q", name, got, want)
		}
	}
}
