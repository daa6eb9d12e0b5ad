package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// Arguments of a kube-apiserver and of every kubelet, one of which no kube-apiserver starts with.
const (
	crashingAPI = "cluster: {apiServer: {extraArgs: {audit-log-maxage: for-ever}}}\n"
	workingAPI  = "cluster: {apiServer: {extraArgs: {audit-log-maxage: \"30\"}}}\n"
	morePods    = "machine: {kubelet: {extraArgs: {max-pods: \"120\"}}}\n"
	fewerPods   = "machine: {kubelet: {extraArgs: {max-pods: \"110\"}}}\n"
)

// TestAPIThatItsConfigKeepsDown pushes an argument with which no kube-apiserver starts, and then
// a correction that changes every node. No worker can be Ready without an API, so that the control
// planes get theirs without waiting for one.
func TestAPIThatItsConfigKeepsDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		sz      size
		founded bool // the cluster worked before
	}{
		{"one control plane, of a cluster that worked", size{ControlPlanes: 1, Workers: 2}, true},
		{"one control plane, of a new cluster", size{ControlPlanes: 1, Workers: 1}, false},
		{"three control planes, of a new cluster", size{ControlPlanes: 3, Workers: 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, c.sz, lab.Config{})
				defer s.Close()
				files := c.sz.Files()
				changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {all: [patches/kubelet.yaml], controlplane: [patches/api.yaml]}\n")
				push := func(api, kubelet, why string) {
					files["inventory/dev/patches/api.yaml"], files["inventory/dev/patches/kubelet.yaml"] = []byte(api), []byte(kubelet)
					s.Push(files, why)
				}
				if c.founded {
					s.Boot()
					s.UntilReady(20 * time.Minute)
					push(crashingAPI, fewerPods, "keep audit logs for ever")
				} else {
					push(crashingAPI, fewerPods, "keep audit logs for ever")
					s.Boot()
				}
				s.Until(2*time.Hour, "no kube-apiserver answers", func(st cluster.Status) bool {
					return st.Condition == cluster.Stalled && waitFor(st, "dev-cp-1", cluster.APIServerNotReady)+waitFor(st, "dev-cp-1", cluster.WaitingForTalos) != ""
				})
				push(workingAPI, morePods, "keep audit logs for a month")
				s.UntilReady(time.Hour)
				s.Quiet(10 * time.Minute)
				s.CheckRules(c.sz)
				s.Halt()
			})
		})
	}
}
