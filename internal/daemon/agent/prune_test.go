package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// has reports whether the cluster has an object.
func (s *sim) has(group, resource, namespace, name string) bool {
	return s.object(group, resource, namespace, name) != nil
}

// object is an object of the cluster, nil if there is none.
func (s *sim) object(group, resource, namespace, name string) *unstructured.Unstructured {
	for _, o := range s.Lab.Kube.Objects("", schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, namespace) {
		if o.GetName() == name {
			return &o
		}
	}
	return nil
}

// untilApplied waits until the cluster is Ready with the newest commit.
func (s *sim) untilApplied(what string) cluster.Status {
	s.T.Helper()
	return s.untilAppliedIn(30*time.Minute, what)
}

// untilAppliedIn is untilApplied for what takes longer.
func (s *sim) untilAppliedIn(within time.Duration, what string) cluster.Status {
	s.T.Helper()
	s.Until(within, what, func(st cluster.Status) bool { return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head() })
	return s.Status()
}

// TestPrune takes an addon out of the inventory: its release stays and is reported, until
// `prune: true` has it uninstalled. An agent that stops meanwhile finishes it; what the
// inventory has then is installed again.
func TestPrune(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		files := sz.Files()
		const both, one = "addons: [addons/cilium.yaml, addons/podinfo.yaml]", "addons: [addons/cilium.yaml]"
		changed(t, files, "inventory/dev/cluster.yaml", both, one)
		s.Push(files, "without podinfo")
		st := s.untilApplied("podinfo stays")
		if !s.has("apps", "deployments", "apps", "podinfo") {
			t.Error("podinfo was uninstalled without being asked for")
		}
		if text := st.Problems.Error(); !strings.Contains(text, "the release podinfo in namespace apps stays") || !strings.Contains(text, "`prune: true`") {
			t.Errorf("it is not reported: %s", text)
		}
		changed(t, files, "inventory/dev/cluster.yaml", one, one+"\nprune: true\napply: off")
		s.Push(files, "prune, and apply nothing")
		s.Until(30*time.Minute, "held by the switch", func(st cluster.Status) bool {
			return len(st.Blocked) == 1 && st.Blocked[0].Reason == cluster.ApplyingOff && st.Blocked[0].Subject == "apps/podinfo"
		})
		if !s.has("apps", "deployments", "apps", "podinfo") {
			t.Error("podinfo was uninstalled although apply is off")
		}
		changed(t, files, "inventory/dev/cluster.yaml", "\napply: off", "")
		s.Push(files, "prune")
		s.Until(30*time.Minute, "begun", func(st cluster.Status) bool {
			return len(st.Running) == 1 && st.Running[0].Action == cluster.UninstallAddon || !s.has("apps", "deployments", "apps", "podinfo")
		})
		s.Halt()
		s.Boot()
		st = s.untilApplied("pruned")
		if s.has("apps", "deployments", "apps", "podinfo") || !s.has("", "namespaces", "", "apps") || !s.has("apps", "daemonsets", "kube-system", "cilium") {
			t.Error("podinfo is there, or its namespace or cilium is not")
		}
		if text := st.Problems.Error(); strings.Contains(text, "podinfo") {
			t.Errorf("it is still reported: %s", text)
		}
		s.Quiet(10 * time.Minute)
		changed(t, files, "inventory/dev/cluster.yaml", one, both)
		s.Push(files, "with podinfo")
		s.untilApplied("installed again")
		if !s.has("apps", "deployments", "apps", "podinfo") {
			t.Error("podinfo is not installed")
		}
		s.CheckRules(sz)
		s.Halt()
	})
}
