package formats

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// section is a mapping that is being read. What is not taken out of it is reported by rest.
type section struct {
	d     *draft.Draft
	file  string
	path  string // of the mapping in its file
	value *value
	taken map[string]bool
	// open is why a text is not a value yet: it has variables or templates of its tool. nil: no
	// text has.
	open func(text string) (why, hint string)
}

func newSection(d *draft.Draft, file, path string, v *value) *section {
	return &section{d: d, file: file, path: path, value: v, taken: map[string]bool{}}
}

// origin is where the value of a key comes from, or should stand.
func (s *section) origin(key string) draft.Origin {
	o := draft.Origin{File: s.file, Line: s.value.line, Name: joinPath(s.path, key)}
	for _, e := range s.value.keys {
		if e.key == key {
			o.Line = e.line
		}
	}
	return o
}

// leave reports a key that the inventory does not have in this form.
func (s *section) leave(key, message, hint string) {
	s.taken[key] = true
	o := s.origin(key)
	s.d.Leave(o, o.Name, message, hint)
}

// take returns the value of a key if it is of one of some kinds. Others are reported.
func (s *section) take(key, want string, kinds ...kind) *value {
	s.taken[key] = true
	v := s.value.get(key)
	if v == nil {
		return nil
	}
	if !slices.Contains(kinds, v.kind) {
		s.leave(key, "is "+kindNames[v.kind]+", and not "+want, "write it by hand")
		return nil
	}
	return v
}

// text takes a text; "" where there is none.
func (s *section) text(key string) string {
	if v := s.take(key, "a text", text, number); v != nil && s.isClosed(key, v) {
		return v.text
	}
	return ""
}

// isClosed reports whether a text is a value, and reports one that is not.
func (s *section) isClosed(key string, v *value) bool {
	if s.open == nil {
		return true
	}
	why, hint := s.open(v.text)
	if why != "" {
		s.d.Leave(draft.Origin{File: s.file, Line: v.line}, joinPath(s.path, key), why, hint)
	}
	return why == ""
}

// number takes a whole number that is not negative.
func (s *section) number(key string) (n int, ok bool) {
	v := s.take(key, "a number", number, text)
	if v == nil {
		return 0, false
	}
	n, err := strconv.Atoi(v.text)
	if err != nil || n < 0 || n > 1<<30 {
		s.leave(key, "is not a whole number from 0 on", "write it by hand")
		return 0, false
	}
	return n, true
}

// truth takes true or false.
func (s *section) truth(key string) (yes, ok bool) {
	v := s.take(key, "true or false", truth, text)
	if v == nil {
		return false, false
	}
	yes, err := strconv.ParseBool(v.text)
	if err != nil {
		s.leave(key, "is neither true nor false", "write it by hand")
	}
	return yes, err == nil
}

// texts takes a list of texts. Items that are none are reported.
func (s *section) texts(key string) []string {
	var out []string
	for i, item := range s.list(key) {
		switch item.kind {
		case text, number, truth:
			if s.isClosed(fmt.Sprintf("%s[%d]", key, i), item) {
				out = append(out, item.text)
			}
		case unread, null: // reported, or nothing
		default:
			o := draft.Origin{File: s.file, Line: item.line}
			s.d.Leave(o, joinPath(s.path, key)+"["+strconv.Itoa(i)+"]", "is "+kindNames[item.kind]+", and not a text", "write it by hand")
		}
	}
	return out
}

// list takes the items of a list.
func (s *section) list(key string) []*value {
	if v := s.take(key, "a list", list); v != nil {
		return v.items
	}
	return nil
}

// section takes a mapping; nil where there is none.
func (s *section) section(key string) *section {
	v := s.take(key, "a mapping", mapping)
	if v == nil {
		return nil
	}
	return s.inner(joinPath(s.path, key), v)
}

// inner is a section inside of this one.
func (s *section) inner(path string, v *value) *section {
	out := newSection(s.d, s.file, path, v)
	out.open = s.open
	return out
}

// sections takes a list of mappings, each with its place in the path.
func (s *section) sections(key string) []*section {
	var out []*section
	for i, item := range s.list(key) {
		at := fmt.Sprintf("%s[%d]", joinPath(s.path, key), i)
		if item.kind != mapping {
			s.d.Leave(draft.Origin{File: s.file, Line: item.line}, at, "is "+kindNames[item.kind]+", and not a mapping", "write it by hand")
			continue
		}
		out = append(out, s.inner(at, item))
	}
	return out
}

// put sets a key of cluster.yaml. What another file or line has set already stays, and is
// reported.
func (s *section) put(key string, v *draft.Value, path ...string) {
	putInto(s.d, s.d.Cluster, s.origin(key), v, path...)
}

// putInto sets a key, or reports that it is set already.
func putInto(d *draft.Draft, into *draft.Value, o draft.Origin, v *draft.Value, path ...string) {
	if before, ok := into.Set(o, v, path...); !ok && into.Get(path...).YAML() != v.YAML() {
		d.Leave(o, o.Name, strings.Join(path, ".")+" is set already by "+formatOrigin(before), "keep the one that is right")
	}
}

func formatOrigin(o draft.Origin) string {
	if o.Line == 0 {
		return o.File
	}
	return o.File + ":" + strconv.Itoa(o.Line)
}

// secretWord matches names of what is secret; auth is how Talos and container registries call a login.
var secretWord = pattern.New(`(?i)(^auth$|secret|token|password|passwd|passphrase|pre_?shared|credential|private_?key|auth_?key|api_?key|ssh_?key)`)

const hintCredential = "import reads no credentials: the host's config.yaml names the files with those of the agent, which `talos-agent init` makes"

// rest reports the keys that were not taken, with what to do about those that are known.
func (s *section) rest(hints map[string]string) {
	for _, e := range s.value.keys {
		if s.taken[e.key] || e.value.kind == null || e.value.kind == unread {
			continue
		}
		path := dropElements(joinPath(s.path, e.key))
		hint, known := hints[path]
		switch {
		case known:
			s.leave(e.key, "has no place in the inventory", hint)
		case secretWord.MatchString(e.key):
			s.leave(e.key, "is a credential", hintCredential)
		default:
			s.leave(e.key, "is not known to import", "if it matters, write it by hand: docs/reference/inventory.md has every key")
		}
	}
}

var element = pattern.New(`\[\d+\]`)

func dropElements(path string) string { return element.ReplaceAllString(path, "[]") }

// parseIPv4 returns an IPv4 address, without the length of its network if there is one.
func parseIPv4(s string) (a netip.Addr, bits int, ok bool) {
	s = strings.TrimSpace(s)
	if p, err := netip.ParsePrefix(s); err == nil && p.Addr().Is4() {
		return p.Addr(), p.Bits(), true
	}
	a, err := netip.ParseAddr(s)
	return a, -1, err == nil && a.Is4()
}

// offsetAddress returns the n-th address after the first of a network; false beyond its end.
func offsetAddress(p netip.Prefix, n int) (netip.Addr, bool) {
	if !p.IsValid() || !p.Addr().Is4() {
		return netip.Addr{}, false
	}
	b := p.Masked().Addr().As4()
	sum := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
	sum += uint64(n)
	a := netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
	return a, n >= 0 && sum < 1<<32 && p.Contains(a)
}

// withV is a version as the inventory writes it.
func withV(version string) string {
	if version != "" && version[0] >= '0' && version[0] <= '9' {
		return "v" + version
	}
	return version
}
