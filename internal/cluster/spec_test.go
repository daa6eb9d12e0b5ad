package cluster

import "testing"

// TestIsOnlyPlane: the only control plane is one, and neither one of several nor a worker beside it is.
func TestIsOnlyPlane(t *testing.T) {
	cp, other, worker := Node{Name: "cp-1", Role: ControlPlane}, Node{Name: "cp-2", Role: ControlPlane}, Node{Name: "wk-1", Role: Worker}
	for _, c := range []struct {
		nodes []Node
		n     Node
		want  bool
	}{
		{[]Node{cp, worker}, cp, true},
		{[]Node{cp, worker}, worker, false},
		{[]Node{cp, other, worker}, cp, false},
	} {
		if got := (Spec{Nodes: c.nodes}).IsOnlyPlane(c.n); got != c.want {
			t.Errorf("%s of %d nodes: %v, want %v", c.n.Name, len(c.nodes), got, c.want)
		}
	}
}
