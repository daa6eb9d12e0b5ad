package pve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// recordings returns the folder of the recordings of Proxmox VE, or skips.
func recordings(t testing.TB) string {
	t.Helper()
	return golden.Recordings(t, "pve")
}

// TestSchemaIsCurrent proves that the embedded schema.json is what the recorded
// API schemas state about the routes. With -update it writes it.
func TestSchemaIsCurrent(t *testing.T) {
	dir := recordings(t)
	b := &schemaBuilder{seen: map[string]int{}}
	b.file.Methods = map[string]map[string]schema.MethodFile{}
	for _, flavour := range []string{"9.2", "8.4"} {
		text, err := os.ReadFile(filepath.Join(dir, "schema-"+flavour+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.add(flavour, text); err != nil {
			t.Fatal(err)
		}
	}
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	if err := e.Encode(b.file); err != nil {
		t.Fatal(err)
	}
	// One method or property a line, so that a change can be read.
	text := bytes.ReplaceAll(want.Bytes(), []byte(`},{`), []byte("},\n{"))
	text = bytes.ReplaceAll(text, []byte(`},"`), []byte("},\n\""))
	golden.Check(t, "schema/schema.json", text)
}

// schemaBuilder gathers the descriptions of the routes.
type schemaBuilder struct {
	file schema.File
	seen map[string]int // a property's JSON -> its index
}

// treeNode is a node of the API's description as pvesh prints it.
type treeNode struct {
	Path     string     `json:"path"`
	Children []treeNode `json:"children"`
	Info     map[string]struct {
		Parameters  treeParameters `json:"parameters"`
		Permissions *struct {
			User  string          `json:"user"`
			Check json.RawMessage `json:"check"`
		} `json:"permissions"`
	} `json:"info"`
}

// treeParameters are parameters, which may stand in several places, and differ by the value of one of them.
type treeParameters struct {
	Properties map[string]treeProperty `json:"properties"`
	AllOf      []treeParameters        `json:"allOf"`
	OneOf      []treeParameters        `json:"oneOf"`
	ByName     string                  `json:"type-property"`
	By         treeProperty            `json:"type-property-schema"`
}

// all returns every parameter that there can be. Of those that differ, which is wrong with which the lab checks itself.
func (p treeParameters) all() map[string]treeProperty {
	out := maps.Clone(p.Properties)
	if out == nil {
		out = map[string]treeProperty{}
	}
	for _, part := range p.AllOf {
		maps.Copy(out, part.all())
	}
	for _, variant := range p.OneOf {
		for name, property := range variant.all() {
			property.Optional = 1
			out[name] = property
		}
		out[p.ByName] = p.By
	}
	return out
}

type treeProperty struct {
	Type       string          `json:"type"`
	Format     json.RawMessage `json:"format"`
	Enum       []string        `json:"enum"`
	Pattern    string          `json:"pattern"`
	Minimum    json.RawMessage `json:"minimum"`
	Maximum    json.RawMessage `json:"maximum"`
	MinLength  int             `json:"minLength"`
	MaxLength  int             `json:"maxLength"`
	Optional   any             `json:"optional"`
	Requires   string          `json:"requires"`
	Alias      string          `json:"alias"`
	KeyAlias   string          `json:"keyAlias"`
	DefaultKey int             `json:"default_key"`
}

// lost are the parameters called description. The recorded schemas went without
// their prose, which took these along; requests with them were recorded.
var lost = map[string]treeProperty{
	"POST /nodes/{node}/qemu":               {Type: "string", MaxLength: 8192, Optional: 1},
	"PUT /nodes/{node}/qemu/{vmid}/config":  {Type: "string", MaxLength: 8192, Optional: 1},
	"POST /nodes/{node}/qemu/{vmid}/config": {Type: "string", MaxLength: 8192, Optional: 1},
	"POST /nodes/{node}/qemu/{vmid}/clone":  {Type: "string", Optional: 1},

	"POST /nodes/{node}/qemu/{vmid}/snapshot":                  {Type: "string", Optional: 1},
	"PUT /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config": {Type: "string", Optional: 1},
}

func (b *schemaBuilder) add(flavour string, text []byte) error {
	var dump struct {
		Tree []treeNode `json:"tree"`
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, r := range routes {
		wanted[r.method+" "+r.path] = true
	}
	methods := map[string]schema.MethodFile{}
	b.file.Methods[flavour] = methods
	var walk func([]treeNode) error
	walk = func(nodes []treeNode) error {
		for _, n := range nodes {
			for _, verb := range sortedKeys(n.Info) {
				info := n.Info[verb]
				if !wanted[verb+" "+n.Path] {
					continue
				}
				m := schema.MethodFile{Params: map[string]int{}}
				params := info.Parameters.all()
				for _, name := range sortedKeys(params) {
					i, err := b.property(params[name])
					if err != nil {
						return fmt.Errorf("%s %s: %s: %w", verb, n.Path, name, err)
					}
					m.Params[name] = i
				}
				if p, ok := lost[verb+" "+n.Path]; ok {
					i, err := b.property(p)
					if err != nil {
						return err
					}
					m.Params["description"] = i
				}
				if p := info.Permissions; p != nil {
					m.User, m.Check = p.User, p.Check
				}
				methods[verb+" "+n.Path] = m
			}
			if err := walk(n.Children); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(dump.Tree)
}

// goPattern turns Perl's patterns into Go's: a compiled one is (?^:...), a
// repetition may lack its lower bound, and Go repeats a thousand times at most.
var goPattern = strings.NewReplacer("(?^:", "(?:", "{,", "{0,", "{0,4096}", "*")

// property files a property and returns its index.
func (b *schemaBuilder) property(t treeProperty) (int, error) {
	p := schema.Property{
		Type: t.Type, Enum: t.Enum, MinLength: t.MinLength, MaxLength: t.MaxLength, Requires: t.Requires,
		Alias: t.Alias, KeyAlias: t.KeyAlias, DefaultKey: t.DefaultKey == 1,
		Pattern: goPattern.Replace(t.Pattern),
	}
	switch o := fmt.Sprint(t.Optional); o {
	case "1", "true":
		p.Optional = true
	}
	for _, limit := range []struct {
		text json.RawMessage
		to   **float64
	}{{t.Minimum, &p.Minimum}, {t.Maximum, &p.Maximum}} {
		if limit.text == nil {
			continue
		}
		var n float64
		if err := json.Unmarshal(bytes.Trim(limit.text, `"`), &n); err != nil {
			return 0, err
		}
		*limit.to = &n
	}
	if len(t.Format) > 0 && t.Format[0] == '{' {
		var fields map[string]treeProperty
		if err := json.Unmarshal(t.Format, &fields); err != nil {
			return 0, err
		}
		p.Fields = map[string]int{}
		for _, name := range sortedKeys(fields) {
			i, err := b.property(fields[name])
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			p.Fields[name] = i
		}
	} else if len(t.Format) > 0 {
		if err := json.Unmarshal(t.Format, &p.Format); err != nil {
			return 0, err
		}
	}
	key, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	if i, ok := b.seen[string(key)]; ok {
		return i, nil
	}
	b.file.Properties = append(b.file.Properties, p)
	b.seen[string(key)] = len(b.file.Properties) - 1
	return b.seen[string(key)], nil
}

// TestRoutesHaveDescriptions: there is no route whose parameters and privileges
// nobody checks, in either flavour.
func TestRoutesHaveDescriptions(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		methods, err := schema.Load(flavour)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			m := methods[r.method+" "+r.path]
			if m == nil && flavour == "8.4" && (strings.HasPrefix(r.path, "/cluster/ha/rules") || strings.HasSuffix(r.path, "arm-ha")) {
				continue // it has groups, and is always armed
			}
			if m == nil {
				t.Errorf("%s: %s %s has no description", flavour, r.method, r.path)
				continue
			}
			if m.Open == "" && m.Check.Op == "" {
				t.Errorf("%s: %s %s is open to root only", flavour, r.method, r.path)
			}
			for _, segment := range strings.Split(r.path, "/") {
				if name, ok := strings.CutPrefix(segment, "{"); ok && m.Params[strings.TrimSuffix(name, "}")] == nil {
					t.Errorf("%s: %s %s: no description of %s", flavour, r.method, r.path, segment)
				}
			}
		}
	}
}

// TestParametersChecked pins the texts of what the schema refuses, all at once.
func TestParametersChecked(t *testing.T) {
	methods, err := schema.Load("9.2")
	if err != nil {
		t.Fatal(err)
	}
	create := methods["POST /nodes/{node}/qemu"]
	const format = "invalid format - "
	for _, tc := range []struct {
		in   map[string]any
		want map[string]string
	}{
		{map[string]any{"node": "pve", "vmid": "100"}, nil},
		{map[string]any{"node": "pve"}, map[string]string{"vmid": "property is missing and it is not optional"}},
		{map[string]any{"node": "pve", "vmid": "99"}, map[string]string{"vmid": format + "value does not look like a valid VM ID\n"}},
		{map[string]any{"node": "pve", "vmid": []string{"100", "101"}}, map[string]string{"vmid": "type check ('integer') failed - got ARRAY"}},
		{map[string]any{"node": "pve", "vmid": "100", "net32": "virtio", "foo": "x"}, map[string]string{
			"net32": "property is not defined in schema and the schema does not allow additional properties",
			"foo":   "property is not defined in schema and the schema does not allow additional properties",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "onboot": "yes", "cores": "0", "bios": "efi", "memory": "8"}, map[string]string{
			"onboot": "type check ('boolean') failed - got 'yes'",
			"cores":  "value must have a minimum value of 1",
			"bios":   "value 'efi' does not have a value in the enumeration 'seabios, ovmf'",
			"memory": format + "format error\nmemory.current: value must have a minimum value of 16\n",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "scsi0": "local:1,serial=" + strings.Repeat("x", 61)}, map[string]string{
			"scsi0": format + "format error\nscsi0.serial: value may only be 60 characters long\n",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "net0": "virtio,virtio", "ipconfig0": "ip=10.0.0.1", "force": "1"}, map[string]string{
			"net0":      format + "duplicate key in comma-separated list property: model\n",
			"ipconfig0": format + "format error\nipconfig0.ip: " + format + "value does not look like a valid ipv4 network configuration\n\n",
			"archive":   "missing property - 'force' requires this property",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "ipconfig0": "ip=10.0.0.1/24,gw6=fe80::1"}, map[string]string{
			"ipconfig0": format + "format error\nipconfig0.ip6: missing property - 'ipconfig0.gw6' requires this property\n",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "ipconfig0": "ip6=fd00::1"}, map[string]string{
			"ipconfig0": format + "format error\nipconfig0.ip6: " + format + "value does not look like a valid ipv6 network configuration\n\n",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "ipconfig0": "ip6=fd00::1/7"}, map[string]string{
			"ipconfig0": format + "format error\nipconfig0.ip6: " + format + "value does not look like a valid ipv6 network configuration\n\n",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "ipconfig0": "ip6=fd00::1/64,gw6=fe80::1%eth0"}, map[string]string{
			"ipconfig0": format + "format error\nipconfig0.gw6: " + format + "value does not look like a valid IPv6 address\n\n",
		}},
		{map[string]any{"node": "pve", "vmid": "100", "ipconfig0": "ip6=fd00::1/64,gw6=fe80::1"}, nil},
		{map[string]any{"node": "pve", "vmid": "100", "ipconfig0": "ip6=auto"}, nil},
	} {
		got := create.CheckParams(tc.in)
		if len(got) != len(tc.want) {
			t.Errorf("%v: %q, want %q", tc.in, got, tc.want)
		}
		for k, want := range tc.want {
			if got[k] != want {
				t.Errorf("%s: %q, want %q", k, got[k], want)
			}
		}
	}
}
