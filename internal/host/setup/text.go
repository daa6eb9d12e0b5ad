package setup

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// page is a commented YAML file of the package whose keys are filled in. Keys
// stand at the top or one level below; one that is commented out is put into
// force where it stands.
type page []string

// keyLine matches a line with a key, commented out or not: the comment's sign,
// the indentation, the key, and what follows.
var keyLine = pattern.New(`^(# ?)?( *)([a-z_]+):(.*)$`)

// find returns the line of a key below a section ("" is the top), and the line
// after the section's last.
func (p page) find(section, key string) (line, end int) {
	within := section == ""
	line, end = -1, len(p)
	for i, text := range p {
		m := keyLine.FindStringSubmatch(text)
		switch {
		case m == nil:
			// A section that is commented out ends with the comment, and any with
			// an empty line.
			if within && section != "" && text == "" {
				return line, i
			}
		case m[2] == "" && within && section != "":
			return line, i
		case m[2] == "" && section != "" && m[3] == section:
			within = true
		case within && m[3] == key && (section == "") == (m[2] == ""):
			if line < 0 || m[1] == "" {
				line = i
			}
		}
	}
	return line, end
}

// set writes a value, with its section.
func (p *page) set(section, key, value string) {
	indent := ""
	if section != "" {
		indent = "  "
		if at, _ := p.find("", section); at >= 0 {
			(*p)[at] = section + ":"
		} else {
			*p = append(*p, "", section+":")
		}
	}
	text := indent + key + ": " + value
	at, end := p.find(section, key)
	if at < 0 {
		*p = slices.Insert(*p, end, text)
		return
	}
	(*p)[at] = text
}

// unset comments a key out.
func (p *page) unset(section, key string) {
	at, _ := p.find(section, key)
	if at < 0 || strings.HasPrefix((*p)[at], "#") {
		return
	}
	indent := (*p)[at][:len((*p)[at])-len(strings.TrimLeft((*p)[at], " "))]
	(*p)[at] = indent + "# " + strings.TrimLeft((*p)[at], " ")
}

// pageOf takes a file apart, and bytes puts it together again.
func pageOf(text []byte) page { return strings.Split(strings.TrimRight(string(text), "\n"), "\n") }

func (p page) bytes() []byte { return []byte(strings.Join(p, "\n") + "\n") }

// formatList writes a flow sequence.
func formatList(words []string) string { return "[" + strings.Join(words, ", ") + "]" }

// Config fills in the config. Keys and tokens are not named in it: they are the
// credentials that the unit loads.
func Config(template []byte, w Wishes) []byte {
	p := pageOf(template)
	if w.Repository.Directory != "" {
		p.unset("repository", "url")
		p.unset("repository", "branch")
		p.set("repository", "directory", w.Repository.Directory)
	} else {
		p.set("repository", "url", w.Repository.URL)
		p.set("repository", "branch", w.Repository.Branch)
	}
	if w.Repository.SSH() {
		p.set("repository", "known_hosts_file", trimConfigDir(KnownHostsFile))
	} else {
		p.unset("repository", "known_hosts_file")
	}
	p.set("repository", "path", w.Repository.Path)
	if w.ProxmoxURL != "" {
		p.set("proxmox", "url", w.ProxmoxURL)
	}
	switch {
	case w.Fingerprint != "":
		p.unset("proxmox", "ca_file")
		p.set("proxmox", "fingerprint", `"`+w.Fingerprint+`"`)
	case w.SystemTrust:
		p.unset("proxmox", "ca_file")
	}
	p.set("proxmox", "image_datastore", w.Images)
	if f := w.Forge; f != nil {
		p.set("forge", "kind", f.Kind)
		p.set("forge", "repository", f.Repository)
		if f.URL != "" {
			p.set("forge", "url", f.URL)
		}
	}
	if w.Mirrors.Factory != "" {
		p.set("mirrors", "factory", w.Mirrors.Factory)
	}
	if len(w.Mirrors.Charts) > 0 {
		var pairs []string
		for _, from := range slices.Sorted(maps.Keys(w.Mirrors.Charts)) {
			pairs = append(pairs, fmt.Sprintf("%q: %q", from, w.Mirrors.Charts[from]))
		}
		p.set("mirrors", "charts", "{"+strings.Join(pairs, ", ")+"}")
	}
	if w.Authorities {
		p.set("", "ca_file", trimConfigDir(AuthoritiesFile))
	}
	if w.Root != "" {
		p.set("", "socket", w.Root+"/run/talos-agent/agent.sock")
		p.set("", "state_dir", w.Root+"/var/lib/talos-agent")
		p.set("", "cache_dir", w.Root+"/var/cache/talos-agent")
	}
	return p.bytes()
}

// trimConfigDir is the name of a file of ConfigDir: the config names what lies beside it
// so.
func trimConfigDir(path string) string { return strings.TrimPrefix(path, ConfigDir+"/") }

// Policy fills in the policy.
func Policy(template []byte, w Wishes) []byte {
	p := pageOf(template)
	p.set("", "pool", w.Pool)
	var vmids []string
	for _, r := range w.VMIDs {
		vmids = append(vmids, fmt.Sprintf("%d-%d", r.First, r.Last)) // a single one too
	}
	p.set("", "vmids", formatList(vmids))
	p.set("", "datastores", formatList(w.allDatastores()))
	p.set("", "bridges", formatList(w.Bridges))
	for _, limit := range []struct{ key, value string }{
		{"nodes", writeNumber(w.Limits.Nodes)}, {"cores", writeNumber(w.Limits.Cores)}, {"ram", w.Limits.RAM}, {"disk", w.Limits.Disk},
	} {
		if limit.value != "" {
			p.set("limits", limit.key, limit.value)
		}
	}
	return p.bytes()
}

func writeNumber(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
