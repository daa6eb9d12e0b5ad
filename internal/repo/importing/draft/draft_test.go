package draft

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSet: what stands at a path stays, and the answer is where it comes from.
func TestSet(t *testing.T) {
	v := Mapping()
	first := Origin{File: "a", Line: 3}
	if _, ok := v.Set(first, Text("x"), "network", "cidr"); !ok {
		t.Error("a new key is not set")
	}
	if before, ok := v.Set(Origin{File: "b"}, Text("y"), "network", "cidr"); ok || before != first {
		t.Errorf("%v %v", before, ok)
	}
	if got := v.Get("network", "cidr").String(); got != "x" {
		t.Errorf("%q", got)
	}
	for _, path := range [][]string{{"network", "cidr", "deeper"}, {"absent"}, {"absent", "key"}} {
		if got := v.Get(path...); got != nil {
			t.Errorf("%v: %v", path, got)
		}
	}
	if got := v.Get("network").String(); got != "" {
		t.Errorf("a mapping is the text %q", got)
	}
}

// TestPrint: keys are in the order of the reference, with what they are called elsewhere, and
// with what is left to fill in.
func TestPrint(t *testing.T) {
	d := New()
	d.AddSource("a.tfvars")
	o := func(name string) Origin { return Origin{File: "a.tfvars", Name: name} }
	d.Cluster.Set(o("pool"), Text("talos dev"), "proxmox", "pool")
	d.Cluster.Ask("the host,\nlike pve1", "proxmox", "node")
	d.Cluster.Ask("no question", "proxmox", "pool")
	d.Cluster.Set(o("cluster_name"), Text("dev"), "cluster_name")
	d.Cluster.Set(Origin{}, Literal("true"), "ha_enabled")
	d.Cluster.Set(Origin{}, Mapping(), "placement")
	d.Cluster.Set(Origin{}, List(), "addons")
	d.Cluster.Set(Origin{}, Texts(strings.Repeat("a", 60), strings.Repeat("b", 60)), "network", "cert_sans")
	d.Cluster.Set(Origin{}, Number(4), "pve_capacity", "ram", "cpu")
	d.Cluster.Set(Origin{}, Number(4), "pve_capacity", "cpu", "cpu")
	d.Cluster.Comment([]string{"# Why.", "more"}, "ha_enabled")
	d.Cluster.Comment([]string{"nothing"}, "absent", "key")
	node := Mapping()
	node.Ask("its address", "ip")
	node.Set(Origin{}, Text("dev-cp-1"), "name")
	node.Comment([]string{"First."}, "name")
	node.Set(Origin{}, List(Mapping(), List(), List(Text("x"), Number(1))), "disks")
	d.AddNode(cluster.ControlPlane, node)
	d.AddRow(Mapping())
	files := d.Files()
	want := map[string]string{"cluster.yaml": `# The cluster dev, imported by ` + "`talos-agent import`" + ` from a.tfvars.
# A comment behind a value is its name there.

cluster_name: dev
# Why.
# more
ha_enabled: true

network:
  cert_sans:
    - ` + strings.Repeat("a", 60) + `
    - ` + strings.Repeat("b", 60) + `

proxmox:
  # Fill in node: the host, like pve1
  pool: "talos dev"  # pool

placement: {}

pve_capacity:
  ram:
    cpu: 4
  cpu:
    cpu: 4

addons: []
`, "nodes.yaml": `# The nodes of dev, imported by ` + "`talos-agent import`" + ` from a.tfvars.

controlplane:
    # First.
  - name: dev-cp-1
    # Fill in ip: its address
    disks:
      - {}
      - []
      - - x
        - 1

counted:
  - {}
`}
	if !maps.Equal(files, want) {
		t.Errorf("got\n%s\n%s", files["cluster.yaml"], files["nodes.yaml"])
	}
	if empty := New().Files()["nodes.yaml"]; !strings.Contains(empty, "# Fill in: controlplane") {
		t.Errorf("without nodes nothing asks for them: %s", empty)
	}
}

// TestSeveralSources: comments name the file where there are several.
func TestSeveralSources(t *testing.T) {
	d := New()
	d.AddSource("a")
	d.AddSource("b")
	d.Cluster.Set(Origin{File: "b", Name: "cluster_name"}, Text("dev"), "cluster_name")
	d.Cluster.Set(Origin{Name: "a derived value"}, Text("lab"), "environment")
	text := d.Files()["cluster.yaml"]
	for _, want := range []string{"from a, b.\n", "\ncluster_name: dev  # b: cluster_name\n", "\nenvironment: lab  # a derived value\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// TestAddPatch: each patch has a file of its own, and the same one has one file.
func TestAddPatch(t *testing.T) {
	d := New()
	var names []string
	for _, p := range []struct{ name, text string }{{"all", "a: 1"}, {"all", "a: 2"}, {"all", "a: 1"}, {"worker", "a: 1\n\n"}} {
		names = append(names, d.AddPatch(Origin{File: "x\ny", Line: 7, Name: "patches[0]"}, p.name, p.text))
	}
	if want := []string{"patches/all.yaml", "patches/all-2.yaml", "patches/all.yaml", "patches/worker.yaml"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	if got := d.Files()["patches/worker.yaml"]; got != "# From x y, line 7: patches[0].\na: 1\n" {
		t.Errorf("%q", got)
	}
}

// TestLeft: what is left is sorted, once each, on one line each, and bounded.
func TestLeft(t *testing.T) {
	d := New()
	leave := func(file string, line int, field string) {
		d.Leave(Origin{File: file, Line: line}, field, "is unknown", "write it")
	}
	leave("b", 2, "nodes[0].x")
	leave("b", 9, "nodes[1].x")
	leave("b", 9, "nodes[1].x")
	leave("b", 1, "y\n\x1b[31m"+strings.Repeat("z", 500))
	leave("a", 5, "nodes[0].x")
	var got []string
	for _, p := range d.Left() {
		got = append(got, p.String())
	}
	want := []string{"a:5: nodes[0].x: is unknown (write it)", "b:1: y  [31m" + strings.Repeat("z", 113) + "...: is unknown (write it)", "b:2: nodes[0].x: is unknown (and 1 more like it) (write it)"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for i := range maxLeft + 5 {
		leave("c", i+1, fmt.Sprintf("key%d", i))
	}
	left := d.Left()
	if last := left[len(left)-1]; len(left) != maxLeft+1 || last.Message != "8 more lines were not taken over" {
		t.Errorf("%d, %v", len(left), last)
	}
}
