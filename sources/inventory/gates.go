package inventory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/gate"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/inventory/jobs"
)

// mostGates bounds how many conditions a cluster has: each is asked of Kubernetes in every pass of an upgrade.
const mostGates = 20

// resolveGates checks what must hold before a node is upgraded.
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
		l.checkKindOfGate(at, g)
		if g.Condition != "" {
			if err := gate.Check(g.Condition); err != nil {
				l.Wrong(at+".condition", hintCondition(err), "%s", err)
			} else if !l.Has(at+".objects") && !l.Misspelt(at+".objects") && g.Objects == (gateObjects{}) && gate.AsksObjects(g.Condition) {
				l.Wrong(at+".condition", "write which beside it: objects: {api_version: apps/v1, kind: Deployment}", "it is about objects, and the gate selects none")
			}
		}
		if g.Objects.Kind == "Secret" {
			l.Wrong(at+".objects.kind", "write another kind: what a condition is about may be shown in the status", "a gate is not about secrets")
		}
		out := cluster.Gate{Name: g.Name, Condition: g.Condition, Objects: cluster.ObjectSelector(g.Objects)}
		if g.Job != "" {
			out.Job = l.readJob(at+".job", g)
		}
		l.spec.Gates = append(l.spec.Gates, out)
	}
}

// hintCondition is what to write instead of a condition that is wrong.
func hintCondition(err error) string {
	if unknown, ok := errors.AsType[*gate.UnknownField](err); ok {
		if meant := language.Suggest(unknown.Field, unknown.Known); meant != "" && unknown.Of == "status" {
			return "did you mean status." + meant + "?"
		} else if meant != "" {
			return "did you mean " + meant + "?"
		}
	}
	if errors.Is(err, gate.ErrConstant) {
		return "write what it is about, or remove the gate; `upgrade: off` or `approve` holds upgrades"
	}
	if errors.Is(err, gate.ErrValue) {
		return `compare it with something, as in status.nodes[name].role == "worker"`
	}
	return "see https://cel.dev; there are objects, status and now"
}

// checkKindOfGate checks that a gate is a condition or a Job.
func (l *loader) checkKindOfGate(at string, g gateOf) {
	hasCondition, hasJob := g.Condition != "" || l.Has(at+".condition"), g.Job != "" || l.Has(at+".job")
	switch {
	case hasCondition && hasJob:
		l.Wrong(at+".job", "make two gates of it: all of them must hold", "a gate has a condition or a job, and not both")
	case hasJob && (g.Objects != gateObjects{} || l.Has(at+".objects")):
		l.Wrong(at+".objects", "remove it", "is what a condition is about, and this gate has a job")
	case !hasCondition && !hasJob && !l.Misspelt(at+".condition") && !l.Misspelt(at+".job"):
		l.Wrong(at, "write `condition`, an expression in CEL, or `job`, a file with a Job", "a gate needs a condition or a job")
	}
}

// readJob reads the file with the Job of a gate.
func (l *loader) readJob(field string, g gateOf) cluster.GateJob {
	file, data, ok := l.fetch(field, g.Job)
	if !ok {
		return cluster.GateJob{}
	}
	d := yamlschema.Document{File: file, Report: l.Report}
	root := d.Single(data)
	if root == nil {
		return cluster.GateJob{}
	}
	return jobs.Read(d, root, g.Name, formats["label"], plainValue)
}
