package terminal

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/text"
)

// PrintRendering prints what a cluster would be given as a stream of YAML documents, with
// a comment before each that names it.
func (p Printer) PrintRendering(r cluster.Rendering) error {
	p.Printf("# cluster %s", r.Cluster)
	if r.Revision != "" {
		p.Printf(" at %s", r.Revision)
	}
	p.Printf("\n")
	for _, note := range r.Notes {
		p.Printf("# %s\n", note)
	}
	for _, n := range r.Nodes {
		if err := p.printDocument("node "+n.Node+": vm", n.VM); err != nil {
			return err
		}
		if !n.Object.IsZero() {
			if err := p.printDocument("node "+n.Node+": Node object", n.Object); err != nil {
				return err
			}
		}
		title := "node " + n.Node + ": machine config"
		if n.Base != "" {
			title += " of " + n.Base.Short()
		}
		if n.MachineConfig == "" {
			p.Printf("# %s: none: %s\n", title, n.Unrendered)
			continue
		}
		// Whatever is in a document is indented, but its own keys.
		for doc := range strings.SplitSeq(n.MachineConfig, "\n---\n") {
			p.Printf("---\n# %s\n%s\n", title, strings.TrimSuffix(doc, "\n"))
		}
	}
	for _, a := range r.Addons {
		if err := p.printDocument(fmt.Sprintf("addon %s", a.Addon), a); err != nil {
			return err
		}
	}
	return nil
}

// printDocument prints a value as a YAML document, with the keys that it has in JSON.
func (p Printer) printDocument(title string, v any) error {
	text, err := formatYAML(v)
	if err == nil {
		p.Printf("---\n# %s\n%s", title, text)
	}
	return err
}

// formatYAML writes a value as YAML, with the keys and in the order that it has in JSON.
func formatYAML(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node // JSON is YAML
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	restyleNode(&doc)
	return yaml.Marshal(&doc)
}

// restyleNode writes a node as people do: in lines, and without quotes where none are
// needed.
func restyleNode(n *yaml.Node) {
	switch {
	case n.Kind != yaml.ScalarNode:
		if n.Style = 0; len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
	case strings.TrimSpace(n.Value) == n.Value && !strings.Contains(n.Value, "\n") && !isAmbiguous(n.Value):
		n.Style = 0
	}
	for _, c := range n.Content {
		restyleNode(c)
	}
}

// isAmbiguous reports whether some readers of YAML take a text for a truth value.
func isAmbiguous(text string) bool {
	return slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(text))
}

// PrintDifference prints how a cluster differs from what it should be.
func (p Printer) PrintDifference(d cluster.Difference) {
	for _, n := range d.Nodes {
		p.Printf("node %s\n", n.Node)
		p.printFields(n.VM)
		p.printFields(n.Machine)
		p.printFields(n.Object)
		p.printFields(n.Etcd)
		p.printDiff("machine config"+formatOrigin(n.MachineConfigBy, n.MachineConfigSince), n.MachineConfig)
	}
	for _, a := range d.Addons {
		p.Printf("addon %s\n", a.Addon)
		p.printFields(a.Fields)
		for _, object := range a.Missing {
			p.Printf("  %s is missing\n", object)
		}
		for _, change := range a.Altered {
			p.Printf("  %s\n", change)
		}
		p.printDiff("values", a.Values)
	}
	for _, u := range d.Unknown {
		p.Printf("%s: %s is %s: %s\n", u.Subject, u.Part, p.Paint("unknown", Yellow), u.Why)
	}
	if len(d.Nodes)+len(d.Addons)+len(d.Unknown) == 0 {
		p.Printf("%s: no difference\n", d.Cluster)
	}
}

// printFields prints what is not what it should be.
func (p Printer) printFields(fields []cluster.FieldDifference) {
	for _, f := range fields {
		p.Printf("  %s\n", formatField(f))
	}
}

// formatField is one thing that is not what it should be: from what to what, what it takes, who made
// it so, and since when.
func formatField(f cluster.FieldDifference) string {
	how := ""
	if f.How != "" {
		how = " (" + f.How + ")"
	}
	return fmt.Sprintf("%s: %s -> %s%s%s", f.Field, f.Has, f.Wants, how, formatOrigin(f.By, f.Since))
}

// isDigest matches what a machine config is compared by.
var isDigest = pattern.New(`^[0-9a-f]{64}$`).MatchString

// formatDrift is what differs, and the message of its wait or block does not have: which field, from what
// to what, or who made it so. Digests of machine configs, which mean nothing to a person, count as there.
func formatDrift(message string, drift []cluster.FieldDifference) (lines []string) {
	for _, f := range drift {
		if isDigest(f.Has) && isDigest(f.Wants) && f.Field == cluster.FieldSchematic {
			f.Has, f.Wants = f.Has[:12], f.Wants[:12]
		} else if isDigest(f.Has) && isDigest(f.Wants) {
			f.Has, f.Wants = "another than the inventory's", "the inventory's"
			if strings.Contains(message, f.Field) && strings.Contains(message, f.By) {
				continue
			}
		}
		for _, part := range []string{f.Field, f.Has, f.Wants, f.By} {
			if !strings.Contains(message, part) {
				lines = append(lines, formatField(f))
				break
			}
		}
	}
	return lines
}

// printDrift prints what formatDrift has below its wait or block.
func (p Printer) printDrift(message string, drift []cluster.FieldDifference) {
	for _, line := range formatDrift(message, drift) {
		p.Printf("    %s\n", text.OneLine(line))
	}
}

// formatOrigin is who made a difference, and since when it is there, where that is known.
func formatOrigin(by string, since time.Time) string {
	out := ""
	if by != "" {
		out = ", " + by
	}
	if !since.IsZero() {
		out += ", since " + text.Moment(since)
	}
	return out
}

// printDiff prints a unified diff, indented.
func (p Printer) printDiff(title, diff string) {
	if diff == "" {
		return
	}
	p.Printf("  %s:\n", title)
	for line := range strings.Lines(diff) {
		line = strings.TrimSuffix(line, "\n")
		switch line[:min(1, len(line))] {
		case "-":
			line = p.Paint(line, Red)
		case "+":
			line = p.Paint(line, Green)
		}
		p.Printf("    %s\n", line)
	}
}
