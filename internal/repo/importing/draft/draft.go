package draft

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Draft is a cluster on its way from a foreign description to an inventory.
type Draft struct {
	// Cluster is cluster.yaml, a mapping.
	Cluster *Value

	sources []string
	nodes   map[cluster.Role][]*Value
	rows    []*Value
	patches []patch
	left    cluster.Problems
}

type patch struct {
	file, text string
	origin     Origin
}

// New returns an empty draft.
func New() *Draft { return &Draft{Cluster: Mapping(), nodes: map[cluster.Role][]*Value{}} }

// AddSource names a file that was read. The files that are written name it.
func (d *Draft) AddSource(file string) { d.sources = append(d.sources, file) }

// Name is the name of the cluster, "" where no source has it.
func (d *Draft) Name() string { return d.Cluster.Get("cluster_name").String() }

// AddNode adds a node to nodes.yaml, a mapping.
func (d *Draft) AddNode(role cluster.Role, node *Value) {
	d.nodes[role] = append(d.nodes[role], node)
}

// AddRow adds a row of equal nodes to nodes.yaml, a mapping.
func (d *Draft) AddRow(row *Value) { d.rows = append(d.rows, row) }

// HasNodes reports whether there are nodes or rows of them.
func (d *Draft) HasNodes() bool { return len(d.nodes)+len(d.rows) > 0 }

// AddPatch adds a patch of the machine config and returns its path in the folder of the
// cluster, which is its own. A text that is a patch already is not added again.
func (d *Draft) AddPatch(o Origin, name, text string) string {
	same := func(p patch) bool { return p.text == text && strings.HasPrefix(path.Base(p.file), name) }
	if i := slices.IndexFunc(d.patches, same); i >= 0 {
		return d.patches[i].file
	}
	file := "patches/" + name + ".yaml"
	for n := 2; slices.ContainsFunc(d.patches, func(p patch) bool { return p.file == file }); n++ {
		file = fmt.Sprintf("patches/%s-%d.yaml", name, n)
	}
	d.patches = append(d.patches, patch{file, text, o})
	return file
}

// AddFile adds a patch at a path in the folder of the cluster that the inventory names already.
func (d *Draft) AddFile(o Origin, file, text string) {
	d.patches = append(d.patches, patch{file, text, o})
}

// Leave records something that the inventory does not have in this form: field is what the
// source calls it, and hint what to do about it.
func (d *Draft) Leave(o Origin, field, message, hint string) {
	d.left = append(d.left, cluster.Problem{File: o.File, Line: o.Line, Field: shorten(field, 120), Message: shorten(message, 300), Hint: shorten(hint, 600)})
}

// shorten keeps a text, which foreign files may be part of, on a line of some length.
func shorten(s string, most int) string {
	all := []rune(oneLine(strings.ToValidUTF8(s, "?")))
	if len(all) > most {
		return string(all[:most]) + "..."
	}
	return string(all)
}

// maxLeft is how many entries Left has.
const maxLeft = 200

// Left is everything that was left, once each, by file and line. What was left for the same
// reason at several lines of a list is one entry.
func (d *Draft) Left() cluster.Problems {
	type reason struct{ file, field, message, hint string }
	first, more := map[reason]int{}, map[reason]int{}
	all := slices.Clone(d.left)
	all.Sort()
	var out cluster.Problems
	for _, p := range slices.Compact(all) {
		r := reason{p.File, elements.ReplaceAllString(p.Field, "[]"), p.Message, p.Hint}
		if _, found := first[r]; found {
			more[r]++
			continue
		}
		first[r] = len(out)
		out = append(out, p)
	}
	for r, n := range more {
		out[first[r]].Message += fmt.Sprintf(" (and %d more like it)", n)
	}
	if more := len(out) - maxLeft; more > 0 {
		out = append(out[:maxLeft], cluster.Problem{File: out[maxLeft].File, Message: fmt.Sprintf("%d more lines were not taken over", more), Hint: "compare the files that were written"})
	}
	return out
}
