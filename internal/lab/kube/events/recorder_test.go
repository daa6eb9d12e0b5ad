package events

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// pod is a pod as it is stored.
func pod(name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default", "uid": "u-" + name}}
}

// TestReportsCount: a report that is repeated is one event, whoever else reports meanwhile.
func TestReportsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder()
		var name, began string
		for i := range int64(3) {
			e := r.Record(LosePod(pod("a")))
			if other := r.Record(LosePod(pod("b"))); rules.TextAt(other, "metadata", "name") == rules.TextAt(e, "metadata", "name") {
				t.Error("two objects have one event")
			}
			if i == 0 {
				name, began = rules.TextAt(e, "metadata", "name"), rules.TextAt(e, "firstTimestamp")
			}
			if rules.TextAt(e, "metadata", "name") != name || rules.NumberAt(e, "count") != i+1 || rules.TextAt(e, "firstTimestamp") != began {
				t.Errorf("report %d is %v", i+1, e)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestReportsAreLimited: of one object no more than 25 events are taken at once, and those
// that differ in the text are combined.
func TestReportsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder()
		names := map[string]bool{}
		taken := 0
		for i := range 40 {
			if e := r.Record(FailPod(pod("a"), "x", fmt.Errorf("reason %d", i))); e != nil {
				taken++
				names[rules.TextAt(e, "metadata", "name")] = true
			}
		}
		if taken != 25 || len(names) != 10 {
			t.Errorf("%d of 40 reports are taken, in %d events", taken, len(names))
		}
		time.Sleep(5 * time.Minute)
		if r.Record(FailPod(pod("a"), "x", fmt.Errorf("later"))) == nil {
			t.Error("after five minutes none is taken")
		}
	})
}

// TestSeries: reports of the scheduler are a series, which ends.
func TestSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder()
		first := r.Record(FailSchedule(pod("a"), "no", "cp-1"))
		if first["series"] != nil || rules.TextAt(first, "eventTime") == "" {
			t.Errorf("the first is %v", first)
		}
		time.Sleep(5 * time.Minute)
		second := r.Record(FailSchedule(pod("a"), "still no", "cp-1"))
		if rules.NumberAt(second, "series", "count") != 2 || rules.TextAt(second, "metadata", "name") != rules.TextAt(first, "metadata", "name") {
			t.Errorf("the second is %v", second)
		}
		have := first
		Repeat(have, second)
		if at := Expires(have); !at.Equal(time.Now().Add(Kept)) || rules.TextAt(have, "message") != "no" {
			t.Errorf("expires at %v: %v", at, have)
		}
		time.Sleep(7 * time.Minute)
		if third := r.Record(FailSchedule(pod("a"), "no", "cp-1")); third["series"] != nil || rules.TextAt(third, "metadata", "name") == rules.TextAt(first, "metadata", "name") {
			t.Errorf("the third is %v", third)
		}
		for i := range 2 * manySeries {
			r.Record(FailSchedule(pod(fmt.Sprint(i)), "no", "cp-1"))
		}
		time.Sleep(7 * time.Minute)
		r.Record(FailSchedule(pod("a"), "no", "cp-1"))
		if len(r.series) != 1 {
			t.Errorf("%d series are kept", len(r.series))
		}
	})
}

// TestKubeletsName: kubelets know the uid of their Node since v1.37.
func TestKubeletsName(t *testing.T) {
	for version, want := range map[string]string{"v1.36.1": "", "v1.37.0": "u", "": ""} {
		node := map[string]any{"metadata": map[string]any{"name": "n", "uid": "u"}, "status": map[string]any{"nodeInfo": map[string]any{"kubeletVersion": version}}}
		if got := string(Cordon(node).About.UID); got != want {
			t.Errorf("kubelet %q names the uid %q, want %q", version, got, want)
		}
	}
}
