package rendered

import (
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// TestRead: the objects of all files come in the order of these, whatever the order in which they were made.
func TestRead(t *testing.T) {
	machine := inmem.NewState(k8s.ControlPlaneNamespaceName)
	read := func(want string) {
		t.Helper()
		if got, err := Read(t.Context(), machine); err != nil || got.Objects != want {
			t.Errorf("%s, %v; want %s", got.Objects, err, want)
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

// TestLacks: what is configured and not rendered yet is lacking, be it Talos' own or of the config; a manifest that is rendered
// under its priority and name is not.
func TestLacks(t *testing.T) {
	machine := state.WrapCore(inmem.NewState(k8s.ControlPlaneNamespaceName))
	expect := func(what, want string) {
		t.Helper()
		if got, err := Read(t.Context(), machine); err != nil || got.Lacks != want {
			t.Errorf("%s: lacks %q, %v; want %q", what, got.Lacks, err, want)
		}
	}
	create := func(r resource.Resource) {
		t.Helper()
		if err := machine.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	render := func(id string) { create(k8s.NewManifest(k8s.ControlPlaneNamespaceName, id)) }
	const own = "what Talos itself deploys"
	expect("it has just booted", own)
	asks := k8s.NewBootstrapManifestsConfig()
	asks.TypedSpec().CoreDNSEnabled, asks.TypedSpec().ProxyEnabled = true, true
	create(asks)
	render("10-kube-proxy")
	expect("half of its own", own)
	render("11-core-dns")
	expect("all of its own, and no other", "")
	extra := k8s.NewExtraManifestsConfig()
	extra.TypedSpec().ExtraManifests = []k8s.ExtraManifest{{Name: "https://user:secret@example.org/a.yaml", URL: "https://user:secret@example.org/a.yaml", Priority: "99"}, {Name: "b", Priority: "99", InlineManifest: "{}"}}
	create(extra)
	render("99-b")
	expect("one is not downloaded", "1 of the 2 further manifests of its machine config")
	render("99-https://user:secret@example.org/a.yaml")
	expect("all", "")
}
