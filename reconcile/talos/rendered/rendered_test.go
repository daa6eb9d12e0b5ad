package rendered

import (
	"testing"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// TestRead: the objects of all files come in the order of these, whatever the order in which they were made.
func TestRead(t *testing.T) {
	machine := inmem.NewState(k8s.ControlPlaneNamespaceName)
	read := func(want string) {
		t.Helper()
		if got, err := Read(t.Context(), machine); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	read("[]")
	for _, id := range []string{"10-kube-proxy", "01-csr"} {
		m := k8s.NewManifest(k8s.ControlPlaneNamespaceName, id)
		for _, part := range []string{"a", "b"} {
			m.TypedSpec().Items = append(m.TypedSpec().Items, k8s.SingleManifest{Object: map[string]any{"kind": id, "name": part}})
		}
		if err := state.WrapCore(machine).Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	read(`[{"kind":"01-csr","name":"a"},{"kind":"01-csr","name":"b"},{"kind":"10-kube-proxy","name":"a"},{"kind":"10-kube-proxy","name":"b"}]`)
}
