package talos_test

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Machine configs were removed from the recordings; what each was is described in
// words.

func (r *replay) applyRequest(x exchange, a *machineapi.ApplyConfigurationRequest) {
	words, _ := x.Request["data"].(string)
	a.DryRun, _ = x.Request["dryRun"].(bool)
	mode, _ := x.Request["mode"].(string)
	a.Mode = machineapi.ApplyConfigurationRequest_Mode(machineapi.ApplyConfigurationRequest_Mode_value[mode])
	if s, ok := x.Request["tryModeTimeout"].(string); ok {
		d, err := time.ParseDuration(s)
		if err != nil {
			r.t.Error(err)
		}
		a.TryModeTimeout = durationpb.New(d)
	}
	a.Data = r.data(x, words)
}

func (r *replay) data(x exchange, words string) []byte {
	if text, ok := strings.CutPrefix(words, "text: "); ok {
		return []byte(text)
	}
	ip, _, _ := net.SplitHostPort(x.Endpoint)
	nodes := []node{cp(1), cp(2), wk(1), atSecond(cp(1)), atSecond(wk(1))}
	n := nodes[slices.IndexFunc(nodes, func(n node) bool { return n.ip == ip })]
	fresh := r.config(n, "v1.13.9")
	r.mu.Lock()
	current, before, staged := r.applied[ip], r.before[ip], r.staged[ip]
	r.mu.Unlock()
	if current == nil {
		current = fresh
	}
	has := func(s string) bool { return strings.Contains(words, s) }
	if change, ok := strings.CutPrefix(words, "<active config patched: "); ok {
		return r.changed(x, ip, current, change)
	}
	patch := func(p string) []byte { return r.patched(current, p) }
	switch {
	case has("valid worker machine config"):
		return r.config(wk(1), "v1.13.9")
	case has("plus a second HostnameConfig"):
		return append(bytes.Clone(fresh), "---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: other\n"...)
	case has(`endpoint is "https://"`):
		return bytes.Replace(fresh, []byte("endpoint: https://10.5.0.11:6443"), []byte("endpoint: https://"), 1)
	case has("valid control plane machine config"):
		return fresh
	case has("the staged config"):
		return staged
	case has("before the try"):
		return before
	case has("the same"), has("the active config"):
		return current
	case has("machine.nodeLabels"):
		return patch(fmt.Sprintf("machine: {nodeLabels: {changed: line-%d}}", x.Seq))
	case has("machine.install.disk"):
		return patch("machine: {install: {disk: /dev/sdz}}")
	case has("machine.install.image"):
		return patch("machine: {install: {image: example.org/installer:v1}}")
	case has("machine.kubelet.image"):
		return patch("machine: {kubelet: {image: example.org/kubelet:v1.36.2}}")
	case has("cluster.clusterName"):
		return patch("cluster: {clusterName: other}")
	case has("cluster.apiServer.image"):
		return patch("cluster: {apiServer: {image: example.org/kube-apiserver:v1.36.2}}")
	case has("machine.env"):
		return patch("machine: {env: {CHANGED: yes}}")
	case has("machine.token"):
		return patch("machine: {token: abcdef.0123456789abcdef}")
	case has("machine.type"):
		return bytes.Replace(current, []byte("type: worker"), []byte("type: controlplane"), 1)
	}
	r.t.Errorf("%s/%d: what is %q?", r.name, x.Seq, words)
	return nil
}

// changes are those of the day-two recordings, as patches. What only a name is said of is made
// up.
var changes = []struct{ words, patch string }{
	{"machine.nodeLabels zone: k,", "machine: {nodeLabels: {zone: k, tier: gold}}"},
	{"machine.nodeLabels zone: ", "machine: {nodeLabels: {zone: %s}}"},
	{"machine.nodeLabels team: red", "machine: {nodeLabels: {team: red}}"},
	{"machine.nodeLabels", "machine: {nodeLabels: {team: blue, zone: a}}"},
	{"machine.nodeTaints", "machine: {nodeTaints: {dedicated: \"db:NoSchedule\"}}"},
	{"machine.sysctls", "machine: {sysctls: {net.ipv4.ip_local_port_range: \"20000 60000\"}}"},
	{"machine.kubelet.extraArgs", "machine: {kubelet: {extraArgs: {v: \"3\"}}}"},
	{"machine.registries.mirrors", "machine: {registries: {mirrors: {docker.io: {endpoints: [\"https://mirror.example.org\"]}}}}"},
	{"extra document: a new one (EthernetConfig)", "apiVersion: v1alpha1\nkind: EthernetConfig\nname: ens18\nrings: {rx: 512}\n"},
	{"LinkConfig eth0 with the address 10.5.0.121/24", "apiVersion: v1alpha1\nkind: LinkConfig\nname: ens18\naddresses: [{address: 10.5.0.21/24}, {address: 10.5.0.121/24}]\n"},
	{"LinkConfig removed", "apiVersion: v1alpha1\nkind: LinkConfig\nname: ens18\n$patch: delete\n"},
	{"machine.token", "machine: {token: abcdef.0123456789abcdef}"},
	{"cluster.id", "cluster: {id: bm90IHRoZSBzYW1lIGNsdXN0ZXIgYXMgYmVmb3JlIQ==}"},
	{"machine.install.image", "machine: {install: {image: example.org/installer:v1}}"},
	{"machine.kubelet.image v1.36.3", "machine: {kubelet: {image: ghcr.io/siderolabs/kubelet:v1.36.3}}"},
	{"machine.kubelet.image v1.36.1 (does not exist)", "machine: {kubelet: {image: ghcr.io/siderolabs/kubelet:" + missing + "}}"},
	{"machine.kubelet.image (does not exist)", "machine: {kubelet: {image: ghcr.io/siderolabs/kubelet:v1.36.99}}"},
	{"kubelet extraArgs v=4", "machine: {kubelet: {extraArgs: {v: \"4\"}}}"},
	{"sysctl", "machine: {sysctls: {net.ipv4.ip_local_port_range: \"20000 60000\"}}"},
	{"nodeLabels and nodeTaints removed", "machine: {nodeLabels: {$patch: delete}, nodeTaints: {$patch: delete}}"},
	{"cluster.scheduler.image v1.36.1 (does not exist)", "cluster: {scheduler: {image: registry.k8s.io/kube-scheduler:" + missing + "}}"},
	{"cluster.scheduler.image v1.36.3", "cluster: {scheduler: {image: registry.k8s.io/kube-scheduler:v1.36.3}}"},
	{"cluster.controlPlane.endpoint", "cluster: {controlPlane: {endpoint: https://10.5.0.99:6443}}"},
	{"machine.features.kubePrism off", "machine: {features: {kubePrism: {enabled: false}}}"},
	{"HostnameConfig other name", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: other\n"},
}

// changed is the active config with a change of a day-two recording.
func (r *replay) changed(x exchange, ip string, active []byte, change string) []byte {
	r.mu.Lock()
	tried := r.tried[ip]
	r.mu.Unlock()
	switch {
	case strings.HasPrefix(change, "nothing (the tried config"):
		return tried
	case strings.Contains(change, "(on top of the tried one)"):
		active = tried
	case strings.HasPrefix(change, "machine.type controlplane"):
		return bytes.Replace(active, []byte("type: worker"), []byte("type: controlplane"), 1)
	}
	for _, c := range changes {
		rest, ok := strings.CutPrefix(change, c.words)
		if !ok {
			continue
		}
		if strings.Contains(c.patch, "%s") {
			return r.patched(active, fmt.Sprintf(c.patch, rest[:1]))
		}
		return r.patched(active, c.patch)
	}
	r.t.Errorf("%s/%d: what is %q?", r.name, x.Seq, change)
	return nil
}

func (r *replay) patched(data []byte, patch string) []byte {
	p, err := configpatcher.LoadPatch([]byte(patch))
	if err != nil {
		r.t.Error(err)
		return nil
	}
	out, err := configpatcher.Apply(configpatcher.WithBytes(data), []configpatcher.Patch{p})
	if err != nil {
		r.t.Error(err)
		return nil
	}
	b, err := out.Bytes()
	if err != nil {
		r.t.Error(err)
	}
	return b
}

// remember keeps what was applied for later lines to refer to.
func (r *replay) remember(x exchange, req proto.Message) {
	a := req.(*machineapi.ApplyConfigurationRequest)
	if a.DryRun {
		return
	}
	ip, _, _ := net.SplitHostPort(x.Endpoint)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch a.Mode {
	case machineapi.ApplyConfigurationRequest_STAGED:
		r.staged[ip] = a.Data
	case machineapi.ApplyConfigurationRequest_TRY:
		r.before[ip], r.tried[ip] = r.applied[ip], a.Data
	default:
		r.applied[ip] = a.Data
	}
}
