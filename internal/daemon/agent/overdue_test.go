package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestTaskThatNeverEnds: a creation hangs in Proxmox VE, as on a storage that
// does not answer. The cluster is Stalled when its time is over, in words that
// name the task, what it keeps from others and what its log ends with; and in the
// same words by the next agent, which did not begin it.
func TestTaskThatNeverEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1, Workers: 1}, lab.Config{})
		defer s.Close()
		s.Lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu", Kind: world.HangTask, Delay: 300 * time.Hour, Times: 1})
		began := time.Now()
		s.Copies = 1
		s.Boot()
		s.Until(time.Hour, "the task is overdue", func(st cluster.Status) bool {
			if st.Condition == cluster.Stalled && time.Since(began) < 29*time.Minute {
				t.Fatalf("Stalled after %v: %s", time.Since(began), st.Message)
			}
			return st.Condition == cluster.Stalled
		})
		before := s.Status()
		if before.Reason != cluster.TaskOverdue || before.Concerns != "dev-cp-1" || before.About != "qmcreate" {
			t.Errorf("cause %+v", before.Cause())
		}
		for _, want := range []string{"task qmcreate on pve1", "storage pve1/local-lvm", "its log ends: allocated target volume 'local-lvm:vm-411-disk-1'"} {
			if !strings.Contains(before.Message, want) {
				t.Errorf("%q does not name %q", before.Message, want)
			}
		}
		if !strings.Contains(before.Hint, "pvesh delete /nodes/pve1/tasks/'UPID:pve1:") {
			t.Errorf("hint %q", before.Hint)
		}
		if len(before.Running) != 1 || !before.Running[0].Overdue || before.Running[0].ExpectedMS != (30*time.Minute).Milliseconds() || len(before.Running[0].Log) == 0 {
			t.Errorf("running %+v", before.Running)
		}
		if w := s.node("dev-wk-1").WaitsFor; w != "waits for its turn on storage pve1/local-lvm until create vm of dev-cp-1 has ended" {
			t.Errorf("the other node %q", w)
		}
		s.Die()
		s.Until(time.Minute, "the next agent finds the task", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
		after := s.Status()
		if after.Message != before.Message || after.Cause() != before.Cause() || after.Hint != before.Hint {
			t.Errorf("before: %+v %s -> %s\nafter:  %+v %s -> %s", before.Cause(), before.Message, before.Hint, after.Cause(), after.Message, after.Hint)
		}
		if w := s.node("dev-wk-1").WaitsFor; w != "waits for its turn on storage pve1/local-lvm until create vm of dev-cp-1 has ended" {
			t.Errorf("the other node %q", w)
		}
		s.Halt()
	})
}

// TestImageCopyThatNeverEnds is the same of the task that puts the image in place.
func TestImageCopyThatNeverEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
		defer s.Close()
		s.Lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/storage/{storage}/upload", Kind: world.HangTask, Delay: 300 * time.Hour, Times: 1})
		began := time.Now()
		s.Boot()
		var before, after cluster.Status
		s.Until(time.Hour, "the task is overdue", func(st cluster.Status) bool {
			if st.Condition == cluster.Stalled && time.Since(began) < 29*time.Minute {
				t.Fatalf("Stalled after %v: %s", time.Since(began), st.Message)
			}
			before = st
			return st.Condition == cluster.Stalled
		})
		if before.Reason != cluster.TaskOverdue || before.About != "imgcopy" {
			t.Errorf("%+v: %s", before.Cause(), before.Message)
		}
		s.Die()
		s.Until(time.Minute, "the next agent finds the task", func(st cluster.Status) bool { after = st; return st.Condition == cluster.Stalled })
		if after.Message != before.Message || after.Cause() != before.Cause() {
			t.Errorf("before: %+v %s\nafter:  %+v %s", before.Cause(), before.Message, after.Cause(), after.Message)
		}
		s.Halt()
	})
}
