package inventory

import (
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/gate"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// mostGates bounds how many conditions a cluster has: each is asked of Kubernetes in every pass of an upgrade.
const mostGates = 20

// resolveGates checks the conditions that must hold before a node is upgraded.
func (l *loader) resolveGates() {
	if len(l.cluster.Gates) > mostGates {
		l.Wrong(yamlschema.Element("gates", mostGates), fmt.Sprintf("write %d or fewer; one condition may ask for several things with &&", mostGates), "%d gates are too many", len(l.cluster.Gates))
		return
	}
	for i, g := range l.cluster.Gates {
		at := yamlschema.Element("gates", i)
		if first := slices.IndexFunc(l.cluster.Gates, func(other gateOf) bool { return other.Name == g.Name }); first < i && g.Name != "" {
			l.Wrong(at+".name", "write another name", "two gates are called %s", g.Name)
		}
		if g.Condition != "" {
			if err := gate.Check(g.Condition); err != nil {
				l.Wrong(at+".condition", "see https://cel.dev; there are objects, status and now", "%s", err)
			}
		}
		if g.Objects.Kind == "Secret" {
			l.Wrong(at+".objects.kind", "write another kind: what a condition is about may be shown in the status", "a gate is not about secrets")
		}
		l.spec.Gates = append(l.spec.Gates, cluster.Gate{Name: g.Name, Condition: g.Condition, Objects: cluster.ObjectSelector(g.Objects)})
	}
}
