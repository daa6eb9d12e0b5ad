package formats

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// language is the part of the inventory's JSON Schema with the keys that there are.
type language struct {
	Properties map[string]*language `json:"properties"`
	Items      *language            `json:"items"`
	Additional json.RawMessage      `json:"additionalProperties"`
}

// readLanguage returns the keys of a kind of file.
func readLanguage(name string) *language {
	b, err := inventory.Schema(name)
	var l language
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		panic("importing: the schema of " + name + " cannot be read") // it is part of the program
	}
	return &l
}

// below returns the language of the values of a mapping with free keys, nil where the keys
// are listed.
func (l *language) below() *language {
	var out language
	if l.Properties != nil || len(l.Additional) == 0 || json.Unmarshal(l.Additional, &out) != nil {
		return nil
	}
	return &out
}

// readCluster takes over a cluster.yaml, with its comments.
func (r *reading) readCluster(f source) {
	i := inventoryReader{r: r, file: f.Name, answers: r.answers(f, inventory.ClusterFile)}
	for _, e := range i.fields(readLanguage("cluster"), f.value, "") {
		i.put(r.d.Cluster, e.key, e)
	}
}

// readNodes takes over a nodes.yaml.
func (r *reading) readNodes(f source) {
	i := inventoryReader{r: r, file: f.Name, answers: r.answers(f, inventory.NodesFile)}
	for _, e := range i.fields(readLanguage("nodes"), f.value, "") {
		for _, item := range e.value.items {
			node := draft.Mapping()
			for _, inner := range item.keys {
				i.put(node, inner.key, inner)
			}
			switch e.key {
			case "controlplane":
				r.d.AddNode(cluster.ControlPlane, node)
			case "workers":
				r.d.AddNode(cluster.Worker, node)
			default:
				r.d.AddRow(node)
			}
		}
	}
}

// inventoryReader takes over files that are written in our own language, perhaps for
// another program.
type inventoryReader struct {
	r       *reading
	file    string
	answers map[int]cluster.Problem // of the loader, by line
}

// fields returns the keys of a mapping that the inventory has, and reports the others with
// the answer that the loader has for them.
func (i *inventoryReader) fields(l *language, v *value, path string) []entry {
	var out []entry
	for _, e := range v.keys {
		at := joinPath(path, e.key)
		next := l.Properties[e.key]
		if l.Properties == nil {
			next = l.below()
		}
		if next == nil && (l.Properties != nil || string(l.Additional) == "false") {
			i.leave(e, at)
			continue
		}
		if next == nil {
			next = &language{}
		}
		e.value = i.known(next, e.value, at)
		out = append(out, e)
	}
	return out
}

// known returns a value without what the inventory does not have in it.
func (i *inventoryReader) known(l *language, v *value, path string) *value {
	out := *v
	switch v.kind {
	case mapping:
		out.keys = i.fields(l, v, path)
	case list:
		if l.Items == nil {
			return v
		}
		out.items = nil
		for n, item := range v.items {
			out.items = append(out.items, i.known(l.Items, item, fmt.Sprintf("%s[%d]", path, n)))
		}
	}
	return &out
}

func (i *inventoryReader) leave(e entry, path string) {
	message, hint := "is no key of the inventory", "if it matters, write it by hand: docs/reference/inventory.md has every key"
	if answer, ok := i.answers[e.line]; ok && answer.Hint != "" {
		hint = answer.Hint
	}
	i.r.d.Leave(draft.Origin{File: i.file, Line: e.line}, path, message, hint)
}

func (i *inventoryReader) put(into *draft.Value, key string, e entry) {
	if e.value.kind == null {
		return
	}
	putInto(i.r.d, into, draft.Origin{File: i.file, Line: e.line}, convertValue(e.value), key)
	if e.value.above != "" {
		into.Comment(strings.Split(e.value.above, "\n"), key)
	}
}

// convertValue makes a value for the files out of one that was read.
func convertValue(v *value) *draft.Value {
	switch v.kind {
	case mapping:
		out := draft.Mapping()
		for _, e := range v.keys {
			if e.value.kind == null || e.value.kind == unread {
				continue
			}
			out.Set(draft.Origin{}, convertValue(e.value), e.key)
			if e.value.above != "" {
				out.Comment(strings.Split(e.value.above, "\n"), e.key)
			}
		}
		return out
	case list:
		out := draft.List()
		for _, item := range v.items {
			if item.kind != unread {
				out.Append(convertValue(item))
			}
		}
		return out
	case number, truth:
		return draft.Literal(v.text)
	}
	return draft.Text(v.text)
}

// answers are what the loader of inventories finds wrong with a file, by line: of unknown
// keys it has what to write here.
func (r *reading) answers(f source, name string) map[int]cluster.Problem {
	out := map[int]cluster.Problem{}
	_, problems := inventory.Load(oneFile{name, f.Data}, ".", inventory.Options{})
	for _, p := range problems {
		if _, found := out[p.Line]; p.File == name && !found {
			out[p.Line] = p
		}
	}
	return out
}

// oneFile is a file system that holds one file.
type oneFile struct {
	name string
	data []byte
}

// Open implements fs.FS.
func (o oneFile) Open(name string) (fs.File, error) {
	if name != o.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &opened{oneFile: o, Reader: strings.NewReader(string(o.data))}, nil
}

type opened struct {
	oneFile
	*strings.Reader
}

// Stat implements fs.File.
func (o *opened) Stat() (fs.FileInfo, error) { return o.oneFile, nil }

// Close implements fs.File.
func (o *opened) Close() error { return nil }

// Name implements fs.FileInfo, as do the others.
func (o oneFile) Name() string     { return o.name }
func (o oneFile) Size() int64      { return int64(len(o.data)) }
func (oneFile) Mode() fs.FileMode  { return 0o444 }
func (oneFile) ModTime() time.Time { return time.Time{} }
func (oneFile) IsDir() bool        { return false }
func (oneFile) Sys() any           { return nil }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
