package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// listHA is what Proxmox VE's HA manager holds, as root sees it: each VM with what is asked for it, and each rule with its VMs.
func (s *sim) listHA() string {
	var out []string
	for path, key := range map[string]string{"/cluster/ha/resources": "state", "/cluster/ha/rules": "resources"} {
		_, body, _ := strings.Cut(s.askAsRoot(http.MethodGet, path, ""), "{")
		var answer struct{ Data []map[string]any }
		must(json.Unmarshal([]byte("{"+body), &answer))
		for _, row := range answer.Data {
			name := row["sid"]
			if name == nil {
				name = row["rule"]
			}
			out = append(out, fmt.Sprintf("%v=%v", name, row[key]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestHighlyAvailable brings a cluster up whose VMs are those of Proxmox VE's HA manager, changes a node, which is ignored meanwhile, has
// somebody stop a VM by way of the manager, removes a node, and takes all of it back; agents die in between.
func TestHighlyAvailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 3, Workers: 2}
		hosts := threeHosts(sz)
		for _, h := range hosts {
			h.Storages[1].Shared = true
		}
		s := newSim(t, sz, lab.Config{Hosts: hosts, HA: true})
		defer s.Close()
		s.HA = true
		push := func(ha bool, what string, more ...string) {
			t.Helper()
			files := spreadFiles(t, sz)
			if ha {
				changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\nha: {enabled: true}\n")
			}
			for i := 0; i < len(more); i += 2 {
				changed(t, files, "inventory/dev/nodes.yaml", more[i], more[i+1])
			}
			s.Push(files, what)
		}
		held := func(names ...string) string {
			var out, planes []string
			for _, n := range names {
				sid := fmt.Sprintf("vm:%d", s.vmidOf(n))
				if out = append(out, sid+"=started"); strings.HasPrefix(n, "dev-cp-") {
					planes = append(planes, sid)
				}
			}
			if len(planes) > 1 {
				out = append(out, "talos-agent-dev-control-planes="+strings.Join(planes, ","))
			}
			slices.Sort(out)
			return strings.Join(out, " ")
		}
		until := func(what, want string) {
			t.Helper()
			s.Until(20*time.Minute, what, func(st cluster.Status) bool { return st.Condition == cluster.Ready && s.listHA() == want })
		}
		all := []string{"dev-cp-1", "dev-cp-2", "dev-cp-3", "dev-wk-1", "dev-wk-2"}

		push(true, "highly available")
		s.Boot()
		s.Until(20*time.Minute, "a first VM is there", func(cluster.Status) bool { return len(s.Lab.PVE.VMs()) > 0 })
		s.Die()
		s.UntilReady(20 * time.Minute)
		until("all VMs are the manager's", held(all...))
		s.Quiet(10 * time.Minute)

		// A node is changed: the manager ignores its VM, and does not start it while it is changed; an agent dies in its turn.
		worker := fmt.Sprintf("vm:%d", s.vmidOf("dev-wk-1"))
		offBefore := s.timesOff("dev-wk-1")
		push(true, "other hardware", "{name: dev-wk-1, ", "{name: dev-wk-1, numa: true, ")
		s.Until(20*time.Minute, "it is ignored", func(cluster.Status) bool { return strings.Contains(s.listHA(), worker+"=ignored") })
		s.Die()
		s.Until(20*time.Minute, "it is off", func(cluster.Status) bool { return s.timesOff("dev-wk-1") > offBefore })
		s.UntilReady(20 * time.Minute)
		until("it is the manager's again", held(all...))
		if got := s.timesOff("dev-wk-1") - offBefore; got != 1 {
			t.Errorf("it was switched off %d times", got)
		}

		// HA is disarmed for work on the hosts: a node that is to be changed keeps its VM and its service until it is armed again.
		arm := func(call string) {
			t.Helper()
			path, form, _ := strings.Cut(call, "?")
			if answer := s.askAsRoot(http.MethodPost, "/cluster/ha/status/"+path, form); !strings.HasPrefix(answer, "200 ") {
				t.Fatal(answer)
			}
		}
		for _, mode := range []string{"freeze", "ignore"} {
			arm("disarm-ha?resource-mode=" + mode)
			s.Until(10*time.Minute, "that it is disarmed is reported", func(st cluster.Status) bool {
				return st.Condition == cluster.Ready && slices.ContainsFunc(st.Problems, func(p cluster.Problem) bool { return p.Field == "ha" && strings.Contains(p.Message, "("+mode+")") })
			})
			changes := []string{"{name: dev-wk-1, ", "{name: dev-wk-1, numa: true, "}
			if mode == "freeze" {
				changes[1] = "{name: dev-wk-1, numa: false, "
			}
			push(true, "other hardware while it is disarmed to "+mode, changes...)
			s.Until(10*time.Minute, "it waits until it is armed", func(cluster.Status) bool {
				return slices.ContainsFunc(s.node("dev-wk-1").Waiting, func(w cluster.WaitStatus) bool { return w.Reason == cluster.HADisarmed })
			})
			time.Sleep(10 * time.Minute)
			if got := s.timesOff("dev-wk-1") - offBefore; got != 1 || s.node("dev-wk-1").Phase != cluster.PhaseReady {
				t.Errorf("%s: it was switched off %d times, and is %s", mode, got, s.node("dev-wk-1").Phase)
			}
			arm("arm-ha")
			s.UntilReady(20 * time.Minute)
			until("it is changed, and the manager's", held(all...))
			if got := s.timesOff("dev-wk-1") - offBefore; got != 2 {
				t.Errorf("%s: it was switched off %d times", mode, got)
			}
			offBefore++
		}

		// Somebody stops a VM in Proxmox VE's page, which asks the manager to.
		s.putAsRoot("/cluster/ha/resources/"+worker, "state=stopped")
		s.Until(10*time.Minute, "it is off", func(cluster.Status) bool { return s.timesOff("dev-wk-1")-offBefore == 2 })
		until("it is started again", held(all...))

		// A node leaves.
		sz.Workers = 1
		push(true, "a worker less")
		s.UntilReady(20 * time.Minute)
		until("its VM is the manager's no more", held(all[:4]...))

		// It is taken back, and asked for again, and the cluster is destroyed.
		push(false, "not highly available")
		s.UntilReady(20 * time.Minute)
		until("nothing is the manager's", "")
		push(true, "again")
		until("all VMs are the manager's", held(all[:4]...))
		s.CheckRules(sz)
		s.destroy()
		if got := s.listHA(); got != "" {
			t.Errorf("after the destruction: %s", got)
		}
		s.Halt()
	})
}
