package draft

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// elements are the positions in lists that a path names.
var elements = pattern.New(`\[\d+\]`)

// order is the order of keys in the files: that of the reference of the inventory. Keys that
// are not listed follow as they were added.
var order = rankKeys(`cluster_name environment talos_version kubernetes_version config_contract ha_enabled
	network cidr gateway address_mode nameservers time_servers pod_cidr svc_cidr vip endpoint cert_sans vlan mac_prefix
	proxmox role count name ip first_ip vmid first_vmid mac cpu cpu_type ram disk disks
	node nodes datastore image_datastore cloudinit_datastore bridge pool scsihw tags vmid_ranges
	placement pve_capacity heal apply upgrade canary soak gates max_unavailable drain window replace_dead allow_even
	cni talos profiles labels taints annotations patches addons prune`)

// free are the mappings whose keys are anybody's.
var free = []string{"labels", "annotations", "taints", "pve_capacity"}

func rankKeys(keys string) map[string]int {
	out := map[string]int{}
	for i, key := range strings.Fields(keys) {
		out[key] = i + 1
	}
	return out
}

// Files are the files of the draft, by their paths in the folder of the cluster.
func (d *Draft) Files() map[string]string {
	from, name := "imported by `talos-agent import` from "+oneLine(strings.Join(d.sources, ", ")), oneLine(d.Name())
	p := printer{files: len(d.sources) > 1}
	p.printf("# The cluster %s, %s.\n# A comment behind a value is its name there.\n\n", name, from)
	p.mapping(d.Cluster, "", 0)
	out := map[string]string{"cluster.yaml": p.b.String()}

	p.b.Reset()
	p.printf("# The nodes of %s, %s.\n", name, from)
	all := Mapping()
	for key, nodes := range map[string][]*Value{"controlplane": d.nodes[cluster.ControlPlane], "workers": d.nodes[cluster.Worker], "counted": d.rows} {
		if len(nodes) > 0 {
			all.Set(Origin{}, List(nodes...), key)
		}
	}
	slices.SortFunc(all.fields, func(a, b *field) int { return rankOf(a) - rankOf(b) })
	for _, f := range all.fields {
		p.printf("\n")
		p.field(f, "", 0)
	}
	if len(all.fields) == 0 {
		p.printf("# Fill in: controlplane, a list of {name: %s-cp-1, ip: ADDRESS}, and workers likewise.\n", name)
	}
	out["nodes.yaml"] = p.b.String()

	for _, patch := range d.patches {
		where := patch.origin.File
		if patch.origin.Line > 0 {
			where += fmt.Sprintf(", line %d", patch.origin.Line)
		}
		if patch.origin.Name != "" {
			where += ": " + patch.origin.Name
		}
		out[patch.file] = "# From " + oneLine(where) + ".\n" + strings.TrimRight(patch.text, "\n") + "\n"
	}
	return out
}

// rankOf orders the lists of nodes.yaml.
func rankOf(f *field) int { return slices.Index([]string{"controlplane", "workers", "counted"}, f.key) }

// YAML prints a value by itself, without comments.
func (v *Value) YAML() string {
	p := printer{plain: true}
	switch {
	case v == nil:
		return ""
	case v.kind == mapping:
		p.mapping(v, "", 0)
	case v.kind == list:
		p.list(v, 0)
	default:
		p.printf("%s\n", scalar(v))
	}
	return p.b.String()
}

// printer writes YAML in blocks.
type printer struct {
	b     strings.Builder
	files bool // comments name the file
	plain bool // keys stay as they were added
}

func (p *printer) printf(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

// mapping prints the keys of a mapping that stands at a path, or of the whole file.
func (p *printer) mapping(v *Value, path string, indent int) {
	fields := slices.Clone(v.fields)
	if !p.plain && !slices.Contains(free, path[strings.LastIndex(path, ".")+1:]) {
		rank := func(f *field) int {
			if n := order[f.key]; n > 0 {
				return n
			}
			return len(order) + 1
		}
		slices.SortStableFunc(fields, func(a, b *field) int { return rank(a) - rank(b) })
	}
	nested := func(f *field) bool { return f.value != nil && f.value.kind == mapping }
	for i, f := range fields {
		if indent == 0 && i > 0 && !p.plain && (nested(f) || nested(fields[i-1])) {
			p.printf("\n")
		}
		p.field(f, path, indent)
	}
}

// field prints a key and its value.
func (p *printer) field(f *field, path string, indent int) {
	path = strings.TrimPrefix(path+"."+f.key, ".")
	space := strings.Repeat(" ", indent)
	for _, line := range f.above {
		p.printf("%s# %s\n", space, strings.TrimPrefix(strings.TrimPrefix(oneLine(line), "#"), " "))
	}
	key, note := quoteText(f.key), p.note(f, path)
	switch v := f.value; {
	case v == nil:
		p.printf("%s# Fill in %s: %s\n", space, key, oneLine(f.ask))
	case v.kind == mapping && len(v.fields) == 0:
		p.printf("%s%s: {}%s\n", space, key, note)
	case v.kind == list && len(v.items) == 0:
		p.printf("%s%s: []%s\n", space, key, note)
	case v.kind == mapping:
		p.printf("%s%s:%s\n", space, key, note)
		p.mapping(v, path, indent+2)
	case v.kind == list && isFlow(v):
		var all []string
		for _, item := range v.items {
			all = append(all, scalar(item))
		}
		p.printf("%s%s: [%s]%s\n", space, key, strings.Join(all, ", "), note)
	case v.kind == list:
		p.printf("%s%s:%s\n", space, key, note)
		p.list(v, indent+2)
	default:
		p.printf("%s%s: %s%s\n", space, key, scalar(v), note)
	}
}

// list prints the items of a list.
func (p *printer) list(v *Value, indent int) {
	space := strings.Repeat(" ", indent)
	for _, item := range v.items {
		switch {
		case item.kind <= bare:
			p.printf("%s- %s\n", space, scalar(item))
		case item.Len() == 0:
			p.printf("%s- %s\n", space, map[kind]string{list: "[]", mapping: "{}"}[item.kind])
		default:
			inner := printer{files: p.files, plain: p.plain}
			if item.kind == list {
				inner.list(item, indent+2)
			} else {
				inner.mapping(item, "", indent+2)
			}
			p.b.WriteString(addDash(inner.b.String(), indent))
		}
	}
}

// addDash puts the dash of an item before the first of its lines that is no comment.
func addDash(text string, indent int) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if trimmed := strings.TrimLeft(line, " "); trimmed != "" && trimmed[0] != '#' {
			lines[i] = line[:indent] + "-" + line[indent+1:]
			break
		}
	}
	return strings.Join(lines, "")
}

// note is the comment behind a value: what it is called where it comes from, unless that is
// what it is called here.
func (p *printer) note(f *field, path string) string {
	switch {
	case f.origin.Name == "", p.plain, !p.files && f.origin.Name == path:
		return ""
	case p.files && f.origin.File != "":
		return "  # " + oneLine(f.origin.File+": "+f.origin.Name)
	default:
		return "  # " + oneLine(f.origin.Name)
	}
}

// longestFlow is how many characters a list may have in one line.
const longestFlow = 90

// isFlow reports whether a list is short enough for one line.
func isFlow(v *Value) bool {
	n := 0
	for _, item := range v.items {
		if item.kind > bare {
			return false
		}
		n += len(scalar(item)) + 2
	}
	return n <= longestFlow
}

func scalar(v *Value) string {
	if v.kind == bare {
		return v.text
	}
	return quoteText(v.text)
}

var (
	// plain are texts that YAML reads as texts in blocks and between brackets.
	plain = pattern.New(`^[A-Za-z][A-Za-z0-9._/-]*(:[0-9]{1,5})?$`)
	url   = pattern.New(`^(https?|oci)://[A-Za-z0-9.:/_-]*[A-Za-z0-9/]$`)
	size  = pattern.New(`^[1-9][0-9]*[MGT]$`)
	span  = pattern.New(`^[1-9][0-9]*-[1-9][0-9]*$`)
	// words have a meaning of their own in one of YAML's dialects.
	words = pattern.New(`(?i)^(true|false|yes|no|on|off|y|n|null)$`)
)

// quoteText writes a text, in quotes where YAML would read something else.
func quoteText(s string) string {
	switch {
	case words.MatchString(s):
	case plain.MatchString(s), url.MatchString(s), size.MatchString(s), span.MatchString(s):
		return s
	case isAddress(s):
		return s
	}
	b, err := json.Marshal(s) // JSON's strings are YAML's
	if err != nil {
		return `""` // no string fails
	}
	var out strings.Builder
	for _, r := range string(b) {
		if isUnprintable(r) {
			fmt.Fprintf(&out, `\u%04x`, r) // which YAML takes in this form only
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// isUnprintable reports whether a character cannot stand in YAML as it is, and can in JSON.
func isUnprintable(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r == 0xfeff || r == 0xfffe || r == 0xffff
}

// isAddress reports whether a text is an IPv4 address or network as programs write it.
func isAddress(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Is4() && a.String() == s
	}
	p, err := netip.ParsePrefix(s)
	return err == nil && p.Addr().Is4() && p.String() == s
}

// oneLine keeps what is written as a comment on its line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x2028 || r == 0x2029 || isUnprintable(r) {
			return ' '
		}
		return r
	}, s)
}
