package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// common are licences whose text every Debian has, and which Debian wants not to
// be repeated.
var common = map[string]string{
	"Apache-2.0": "/usr/share/common-licenses/Apache-2.0",
	"MPL-2.0":    "/usr/share/common-licenses/MPL-2.0",
	"GPL-2.0":    "/usr/share/common-licenses/GPL-2",
}

// beside are licences whose text is beside a copyright file that is in no package.
var beside = map[string]string{"Apache-2.0": "LICENSE"}

// copyright is a copyright file: the licence of the program, and of everything that
// is linked into it with its text and notices, where that is not known to be elsewhere.
func copyright(modules []module, elsewhere map[string]string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `talos-agent: GitOps for Talos Linux clusters on a Proxmox VE host
Source: https://github.com/talos-agent/talos-agent

Copyright: the talos-agent authors
Licence: Apache-2.0, see %s

The program is one statically linked file. These modules are part of it, each
under its own licence, whose text or place follows the list. The source of each
is the module of that path and version.

`, elsewhere["Apache-2.0"])
	for _, m := range modules {
		fmt.Fprintf(&b, "  %s %s: %s\n", m.path, m.version, strings.Join(m.licences(), ", "))
	}
	for _, s := range sections(modules, elsewhere) {
		fmt.Fprintf(&b, "\n%s\n\n", strings.Repeat("-", 79))
		for _, m := range s.modules {
			b.WriteString(m + "\n")
		}
		fmt.Fprintf(&b, "\n%s\n", s.body)
	}
	return b.Bytes()
}

// licences names the licences of a module. Of those that a text leaves the choice
// between, it names the choice.
func (m module) licences() []string {
	var ids []string
	for _, t := range m.texts {
		if t.choice != "" {
			ids = append(ids, t.choice)
			continue
		}
		for _, l := range t.licences {
			ids = append(ids, l.id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// section is one text and whose it is.
type section struct {
	body    string
	modules []string
}

// sections gathers modules that come with the same text.
func sections(modules []module, elsewhere map[string]string) []section {
	var out []section
	at := map[string]int{}
	for _, m := range modules {
		for _, t := range m.texts {
			body := t.body(elsewhere)
			i, ok := at[body]
			if !ok {
				i = len(out)
				at[body] = i
				out = append(out, section{body: body})
			}
			if name := m.path + " (" + t.file + ")"; !slices.Contains(out[i].modules, name) {
				out[i].modules = append(out[i].modules, name)
			}
		}
	}
	return out
}

var (
	holder   = regexp.MustCompile(`(?im)^[\s*#/]*((?:portions )?(?:copyright|\(c\)|©).*[0-9]{4}.*)$`)
	template = regexp.MustCompile(`(?i)[\[{]yyyy[\]}]|copyright holder`)
)

// whole is how long, in bytes, a licence is that stands in a text with all its
// words: those that every Debian has are longer, and what only speaks of them is
// shorter.
const whole = 5000

// body is what is told of a text: all of it, but of a licence whose text is elsewhere,
// where that is and who holds the copyright.
func (t text) body(elsewhere map[string]string) string {
	var b strings.Builder
	told := 0
	for _, l := range t.licences {
		if elsewhere[l.id] == "" || l.end-l.start < whole {
			continue
		}
		b.WriteString(t.content[told:l.start])
		fmt.Fprintf(&b, "%s, see %s\n", l.id, elsewhere[l.id])
		for _, m := range holder.FindAllStringSubmatch(t.content[l.start:l.end], -1) {
			if !template.MatchString(m[1]) {
				b.WriteString(strings.TrimSpace(m[1]) + "\n")
			}
		}
		told = l.end
	}
	b.WriteString(t.content[told:])
	return strings.TrimSpace(strings.ReplaceAll(b.String(), "\r\n", "\n"))
}
