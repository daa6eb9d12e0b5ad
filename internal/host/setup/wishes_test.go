package setup

import (
	"fmt"
	"testing"
)

// TestDefaults: what fits a host is found on it.
func TestDefaults(t *testing.T) {
	f := installed()
	f.Bridges = []Bridge{{Name: "vmbr0"}, {Name: "vmbr1", Address: "10.0.0.1/24"}}
	f.Storages = []Storage{
		{Name: "backup", Type: "nfs", Content: []string{"backup"}}, {Name: "fast", Type: "dir", Content: []string{"images", "import"}},
		{Name: "local", Type: "dir", Content: []string{"iso"}}, {Name: "tank", Type: "zfspool", Content: []string{"images"}},
	}
	f.VMs = []VM{{ID: 450, Name: "web"}, {ID: 620, Name: "mail", Pool: "office"}, {ID: 405, Name: "dev-cp-1", Pool: "talos"}}
	w := Defaults(f)
	if fmt.Sprintf("%v %s %v %v", w.Datastores, w.Images, w.Bridges, w.VMIDs) != "[tank] fast [vmbr1] [700-899]" {
		t.Errorf("%+v", w)
	}
	f.Certificate = &Certificate{Fingerprint: "AA:BB", Names: []string{"pve1.example.org"}, Trusted: true}
	if w := Defaults(f); w.ProxmoxURL != "https://pve1.example.org:8006" || !w.SystemTrust || w.Fingerprint != "" {
		t.Errorf("with a certificate that is trusted: %+v", w)
	}
	for name, names := range map[string][]string{"pve.example.org": {"*.example.org", "pve.example.org"}, "pve1.example.org": {"*.example.org"}} {
		f.Certificate.Names = names
		if w := Defaults(f); w.ProxmoxURL != "https://"+name+":8006" {
			t.Errorf("with a certificate for %v: %s", names, w.ProxmoxURL)
		}
	}
	f.Certificate.Trusted = false
	if w := Defaults(f); w.ProxmoxURL != "" || w.SystemTrust || w.Fingerprint != "AA:BB" {
		t.Errorf("with a certificate of one's own: %+v", w)
	}
	if w := Defaults(Facts{}); len(w.Datastores)+len(w.Bridges) > 0 || w.Images != "" {
		t.Errorf("of nothing: %+v", w)
	}
}

// TestLimits: limits are read as they are written.
func TestLimits(t *testing.T) {
	for _, text := range []string{"none", "nodes=7", "nodes=7,cores=20,ram=64GiB,disk=1TiB", "disk=500GiB"} {
		if l, err := ParseLimits(text); err != nil || l.String() != text {
			t.Errorf("%s: %v %v", text, l, err)
		}
	}
	for _, text := range []string{"", "7", "ram=64", "nodes=0", "nodes=7GiB", "vmids=400-500", "nodes=7,", "none,ram=1GiB"} {
		if l, err := ParseLimits(text); err == nil {
			t.Errorf("%q is taken for %v", text, l)
		}
	}
	for text, want := range map[string]string{
		"nodes=7,ram=64": "ram=64 has no unit (write ram=64GiB)",
		"cpu=3":          `"cpu=3" is no limit (write some of nodes=10,cores=32,ram=64GiB,disk=1TiB, or none)`,
	} {
		if _, err := ParseLimits(text); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestProject: what a forge calls a repository is in its address.
func TestProject(t *testing.T) {
	for url, want := range map[string]string{
		"ssh://git@git.example.org/org/infra.git":      "org/infra",
		"ssh://git@git.example.org:2222/org/infra.git": "org/infra",
		"git@github.com:org/infra.git":                 "org/infra",
		"https://gitlab.com/group/sub/infra":           "group/sub/infra",
		"/srv/infra":                                   "",
		"":                                             "",
	} {
		if got := (Repository{URL: url}).Project(); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}
