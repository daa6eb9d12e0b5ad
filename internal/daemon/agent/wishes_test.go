package agent_test

import (
	"fmt"
	"slices"
	"strings"
)

// wishes is what a repository asks for besides the size of its cluster.
type wishes struct {
	vip               bool // the endpoint is what the cluster was made with
	cpRAM, wkRAM      int
	cpCores, wkCores  int
	wkDisk            int // in GiB; it only grows
	sysctl, env, pods int // of the machine config: at once, with a reboot, of the kubelet
	replicas          int // of podinfo
	unavailable       int // how many workers may be out of service
	zones             map[string]string
	dedicated         map[string]bool   // by node, whether it has the taint
	tokens            map[string]string // by node, of those that are to be replaced
}

func newWishes(sz size) wishes {
	return wishes{vip: sz.ControlPlanes > 1, cpRAM: 8192, wkRAM: 8192, cpCores: 4, wkCores: 4, wkDisk: 60, replicas: 1, unavailable: 1,
		zones: map[string]string{}, dedicated: map[string]bool{}, tokens: map[string]string{}}
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
		cores, ram := w.wkCores, w.wkRAM
		if strings.HasPrefix(name, "dev-cp-") {
			cores, ram = w.cpCores, w.cpRAM
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
	if w.unavailable != 1 {
		spec += fmt.Sprintf("max_unavailable: %d\n", w.unavailable)
	}
	if patch := w.patch(); patch != "" {
		spec += "patches: {all: [patches/all.yaml]}\n"
		files["inventory/dev/patches/all.yaml"] = []byte(patch)
	}
	files["inventory/dev/cluster.yaml"] = []byte(spec)
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
		want := ""
		if z := w.zones[name]; z != "" {
			want = "zone=" + z
		}
		if w.dedicated[name] {
			want = strings.TrimSpace(want + " dedicated=db:PreferNoSchedule")
		}
		if got := s.metaOf(name); got != want {
			s.T.Errorf("%s: labels and taints %q, want %q", name, got, want)
		}
	}
}
