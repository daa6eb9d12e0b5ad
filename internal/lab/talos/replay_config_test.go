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
	nodes := []node{cp(1), cp(2), wk(1)}
	n := nodes[slices.IndexFunc(nodes, func(n node) bool { return n.ip == ip })]
	fresh := r.config(n, "v1.13.9")
	r.mu.Lock()
	current, before, staged := r.applied[ip], r.before[ip], r.staged[ip]
	r.mu.Unlock()
	if current == nil {
		current = fresh
	}
	has := func(s string) bool { return strings.Contains(words, s) }
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
		r.before[ip] = r.applied[ip]
	default:
		r.applied[ip] = a.Data
	}
}
