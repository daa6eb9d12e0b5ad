package rules

import "testing"

func TestRequestsOf(t *testing.T) {
	container := func(cpu, memory, restart string) any {
		c := map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": cpu, "memory": memory}}}
		if restart != "" {
			c["restartPolicy"] = restart
		}
		return c
	}
	for name, c := range map[string]struct {
		init, containers []any
		want             Amounts
	}{
		"nothing":        {nil, []any{map[string]any{}}, Amounts{0, 0, 1}},
		"together":       {nil, []any{container("250m", "1Gi", ""), container("0.5", "512Mi", "")}, Amounts{750, 1536 << 20, 1}},
		"more before":    {[]any{container("2", "1Mi", "")}, []any{container("1", "2Mi", "")}, Amounts{2000, 2 << 20, 1}},
		"beside":         {[]any{container("100m", "1Mi", "Always")}, []any{container("1", "2Mi", "")}, Amounts{1100, 3 << 20, 1}},
		"before, beside": {[]any{container("100m", "1Mi", "Always"), container("2", "1Mi", "")}, []any{container("1", "2Mi", "")}, Amounts{2100, 3 << 20, 1}},
		"no quantity":    {nil, []any{container("many", "1Mi", "")}, Amounts{0, 1 << 20, 1}},
	} {
		pod := map[string]any{"spec": map[string]any{"containers": c.containers, "initContainers": c.init}}
		if got := RequestsOf(pod); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	var v Verdict
	if got := v.String(); got != "no nodes available to schedule pods" {
		t.Errorf("without nodes: %s", got)
	}
	n := Node{Allocatable: Amounts{1000, 1 << 30, 2}}
	for _, used := range []Amounts{{600, 0, 1}, {600, 1 << 29, 2}} {
		lacks, never := n.LackFor(Amounts{500, 1 << 30, 1}, used)
		v.Refuse(never, lacks...)
	}
	v.Refuse(true, "node(s) were unschedulable")
	const want = "0/3 nodes are available: 1 Insufficient memory, 1 Too many pods, 1 node(s) were unschedulable, 2 Insufficient cpu. " +
		"no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
	if got := v.String(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
