package inventory

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/talos-agent/talos-agent/internal/cluster/forward"
)

// TestPortForwards: which ports of the host lead to which nodes, and what is wrong with
// them.
func TestPortForwards(t *testing.T) {
	const plane = "controlplane:\n  - {name: cp-1, ip: 10.10.0.11}\n"
	const both = plane + "workers:\n  - {name: wk-1, ip: 10.10.0.21}\n"
	for _, c := range []struct {
		text, nodes string
		want        []forward.Forward
		wrong       string
	}{
		{"[]", both, nil, ""},
		{"[{port: 443}]", both, []forward.Forward{{Port: 443, Protocol: "tcp", To: 443}}, ""},
		{"[{port: 443}]", plane, []forward.Forward{{Port: 443, Protocol: "tcp", To: 443, ControlPlanes: true}}, ""},
		{"[{port: 53, protocol: udp, node_port: 1053, nodes: controlplanes}, {port: 53, nodes: workers}]", both,
			[]forward.Forward{{Port: 53, Protocol: "udp", To: 1053, ControlPlanes: true}, {Port: 53, Protocol: "tcp", To: 53}}, ""},
		{"[{port: 443}, {port: 80}, {port: 443, node_port: 1}]", both, nil, "port_forwards[2]: 443/tcp is listed twice (remove one)"},
		{"[{port: 443, nodes: workers}]", plane, nil, "port_forwards[0]: leads to workers, and there are none (add a worker, or write nodes: controlplanes)"},
		{"[{port: 0}]", both, nil, "port_forwards[0].port"},
		{"[{port: 65536}]", both, nil, "port_forwards[0].port"},
		{"[{node_port: 443}]", both, nil, "port_forwards[0].port"},
		{"[{port: 443, protocol: sctp}]", both, nil, "port_forwards[0].protocol"},
	} {
		snap, problems := Load(fstest.MapFS{
			"inv/dev/cluster.yaml": {Data: []byte(smallCluster + "port_forwards: " + c.text + "\n")}, "inv/dev/nodes.yaml": {Data: []byte(c.nodes)},
		}, "inv/dev", Options{})
		if c.wrong != "" {
			if !problems.HasErrors() || !strings.Contains(problems.Error(), c.wrong) {
				t.Errorf("%s: %v", c.text, problems)
			}
			continue
		}
		if problems.HasErrors() || !slices.Equal(snap.Spec.Forwards, c.want) {
			t.Errorf("%s: %+v %v", c.text, snap.Spec.Forwards, problems)
		}
	}
}
