package config

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/cluster/window"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

func TestPolicy(t *testing.T) {
	path := filepath.Join(hosttest.New(t, map[string]string{"policy.yaml": `# what the host allows
pool: talos
vmids: [400-499, 600-699]
datastores:
  - local
  - local-lvm
bridges: [vmbr1]
limits: {nodes: 10, cores: 32,
  ram: 64GiB, disk: 1TiB}
sources:
  factory: [https://factory.talos.dev]
  charts:
    - https://helm.cilium.io
    - oci://ghcr.io/org
capacity: {memory_reserve: 8GiB, thin_overcommit: 150, copies_per_storage: 4}
heal: observe
apply: off
window: {days: [sat], from: "22:00", to: "05:00"}
max_unavailable: 2
drain: {on_timeout: stop, timeout: 10m}
cpu_units: 200
pci_mappings: [gpu, nic]
port_forwards: [80, 443]
macs: ["bc:24:11", "02:00:00:00:00:1A"]
firewall: true
ha: true
`}), "policy.yaml")
	got, problems := loadPolicy(path)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := cluster.Policy{File: path, Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 499}, {First: 600, Last: 699}},
		Datastores: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}, CPUUnits: 200, HA: true, Firewall: true, MACs: []string{"BC:24:11", "02:00:00:00:00:1A"}, Forwards: []int{80, 443}, Mappings: map[string][]string{device.PCIMapping: {"gpu", "nic"}},
		Limits:         cluster.Limits{Nodes: 10, Cores: 32, MemoryMiB: 65536, DiskBytes: 1 << 40},
		Capacity:       cluster.Capacity{MemoryReserveMiB: 8192, ThinPercent: 150, CopiesPerStorage: 4},
		Switches:       cluster.Switches{ObserveOnly: true, ApplyOff: true},
		MaxUnavailable: 2, DrainStops: true, DrainWithin: 10 * time.Minute,
		Window:    window.Window{Days: []time.Weekday{time.Saturday}, From: 22 * 60, To: 5 * 60, Zone: time.UTC},
		Factories: []string{"https://factory.talos.dev"}, Charts: []string{"https://helm.cilium.io", "oci://ghcr.io/org"},
		Lines: map[string]int{"pool": 2, "vmids": 3, "datastores": 4, "bridges": 7, "limits.nodes": 8, "limits.cores": 8, "limits.ram": 9, "limits.disk": 9, "sources.factory": 11, "sources.charts": 12, "capacity.memory_reserve": 15, "capacity.thin_overcommit": 15, "capacity.copies_per_storage": 15, "heal": 16, "apply": 17, "window": 18, "max_unavailable": 19, "drain.on_timeout": 20, "drain.timeout": 20, "cpu_units": 21, "pci_mappings": 22, "port_forwards": 23, "macs": 24, "firewall": 25, "ha": 26}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := got.Line("limits.ram"); got != path+":9" {
		t.Errorf("the line of limits.ram is %s", got)
	}
}

// TestSmallestPolicy: what is not written limits nothing.
func TestSmallestPolicy(t *testing.T) {
	got, problems := ParsePolicy("policy.yaml", []byte("pool: talos\nvmids: [400-599]\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if len(got.Datastores)+len(got.Bridges)+len(got.MACs)+len(got.Factories)+len(got.Charts) > 0 || got.MaxUnavailable != 0 || got.CPUUnits != 0 || got.Mappings != nil || got.Firewall || got.HA || got.Forwards == nil || len(got.Forwards) > 0 || got.DrainStops || got.DrainWithin != 0 || got.Limits != (cluster.Limits{}) || got.Capacity != (cluster.Capacity{}) || got.Capacity.Reserve() != 2<<30 || got.Capacity.Thin() != 100 || got.Capacity.Copies() != 2 || !maps.Equal(got.Lines, map[string]int{"pool": 1, "vmids": 2}) {
		t.Errorf("%+v", got)
	}
}

// TestPortsOfTheHost: a port that the host itself is reached at leads to no node.
func TestPortsOfTheHost(t *testing.T) {
	const rest = "pool: talos\nvmids: [400-599]\nport_forwards: "
	if p, problems := ParsePolicy("policy.yaml", []byte(rest+"[]\n")); len(problems) > 0 || p.Forwards == nil || len(p.Forwards) > 0 {
		t.Errorf("none: %v %v", p.Forwards, problems)
	}
	for port, want := range map[string]string{
		"22":    "policy.yaml:3:21: port_forwards[1]: 22 is the host's own, for SSH: it could not be reached there any more (take another port of the host, and let the cluster lead it to its own)",
		"8006":  "8006 is the host's own, for Proxmox VE's API and pages",
		"3128":  "3128 is the host's own, for consoles",
		"0":     "port_forwards[1]",
		"65536": "port_forwards[1]",
	} {
		if _, problems := ParsePolicy("policy.yaml", []byte(rest+"[80, "+port+"]\n")); !problems.HasErrors() || !strings.Contains(problems.Error(), want) {
			t.Errorf("%s: %v", port, problems)
		}
	}
}

// TestPolicyOfUpgrades: each mode of upgrades is read, with its line.
func TestPolicyOfUpgrades(t *testing.T) {
	for text, want := range map[string]cluster.UpgradeMode{"": cluster.UpgradeAuto, "upgrade: auto\n": cluster.UpgradeAuto, "upgrade: window\n": cluster.UpgradeInWindow,
		"upgrade: approve\n": cluster.UpgradeApproved, "upgrade: off\n": cluster.UpgradeOff} {
		got, problems := ParsePolicy("policy.yaml", []byte("pool: talos\nvmids: [400-599]\n"+text))
		if len(problems) > 0 || got.Upgrade != want || text != "" && got.Lines["upgrade"] != 3 {
			t.Errorf("%q: %s of line %d, want %s, %v", text, got.Upgrade, got.Lines["upgrade"], want, problems)
		}
	}
}

// TestPolicyOfRemovals: none is not the same as not written, which is one.
func TestPolicyOfRemovals(t *testing.T) {
	for text, want := range map[string]int{"": 0, "removals: 0\n": -1, "removals: 1\n": 1, "removals: 2\n": 2} {
		got, problems := ParsePolicy("policy.yaml", []byte("pool: talos\nvmids: [400-599]\n"+text))
		if len(problems) > 0 || got.Removals != want {
			t.Errorf("%q: %d, want %d, %v", text, got.Removals, want, problems)
		}
	}
}

// TestPolicyOfBothFamilies: networks may be of IPv4 and of IPv6, and what is neither is refused.
func TestPolicyOfBothFamilies(t *testing.T) {
	for text, want := range map[string]string{
		`[10.10.0.64/26, "fd00:10:10::/64"]`: "",
		`["2001:DB8::/32"]`:                  "",
		`["fd00:10:10::1/64"]`:               "write fd00:10:10::/64: the bits after the / must be zero",
		`["::ffff:10.10.0.0/112"]`:           "write IPv4 addresses as such, like 10.10.0.0/24",
		`["fd00:10:10::"]`:                   "write one like 10.10.0.0/24 or fd00:10:10::/64",
		`[10.10.0.1/24]`:                     "write 10.10.0.0/24: the bits after the / must be zero",
	} {
		path := filepath.Join(hosttest.New(t, map[string]string{"policy.yaml": "pool: talos\nvmids: [400-499]\nnetworks: " + text + "\n"}), "policy.yaml")
		p, problems := loadPolicy(path)
		if want == "" && (len(problems) > 0 || len(p.Networks) == 0) || want != "" && (len(problems) != 1 || problems[0].Hint != want) {
			t.Errorf("%s: %v, %v, want %q", text, p.Networks, problems, want)
		}
	}
}

func TestPolicyProblems(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", []string{"p: the file is empty"}},
		{"datastores: [local]", []string{"p:1:1: pool: is missing (write pool: talos)", "p:1:1: vmids: is missing (write vmids: [400-599])"}},
		{"pool: talos\nvmids: []", []string{"p:2:1: vmids: is empty (list what is allowed; remove the line to allow anything)"}},
		{"pool: talos\nvmids: [400-599]\nmacs: [BC:24, \"01:02:03\"]", []string{`p:3:8: macs[0]: "BC:24" is not the first three to six bytes of MAC addresses (write one like "BC:24:11")`}},
		{"pool: talos\nvmids: [400-599]\nmacs: []", []string{"p:3:1: macs: is empty (list what is allowed; remove the line to allow anything)"}},
		{"pool: talos\nvmids: 400-599", []string{"p:2:8: vmids: is a list, not the single value \"400-599\" (write [a, b], or one line with a - for each)"}},
		{"pool: talos\nvmids: [400-599]\nbridges:\nsources: {charts: []}", []string{
			"p:3:1: bridges: is empty (list what is allowed; remove the line to allow anything)",
			"p:4:11: sources.charts: is empty (list what is allowed; remove the line to allow anything)"}},
		{"pool: talos\nvmids: [400-599]\ncapacity: {memory_reserve: 4, thin_overcommit: 1.5}", []string{
			`p:3:28: capacity.memory_reserve: "4" is not an amount with a unit (write the unit too, like 64GiB)`,
			`p:3:48: capacity.thin_overcommit: "1.5" is not a percent (write a whole number like 150)`}},
		{"pool: talos\nvmids: [400-599]\nlimits: {nodes: 0, ram: 65536, disk: 1}", []string{
			"p:3:17: limits.nodes: 0 is too small for a number of nodes (write 1 or more)",
			`p:3:25: limits.ram: "65536" is not an amount with a unit (write the unit too, like 64GiB)`,
			`p:3:38: limits.disk: "1" is not an amount with a unit (write the unit too, like 64GiB)`}},
		{"pool: talos\nvmids: [400-599]\nstorages: [a]\nbridges: [\"vmbr1,tag=3\"]", []string{
			`p:3:1: unknown key "storages" (did you mean datastores?)`,
			`p:4:11: bridges[0]: "vmbr1,tag=3" is not the name of a bridge (write one like vmbr1)`}},
		{"pool: talos\nvmids: [400-599]\nsources: {factory: [\"http://f.example.org\"], charts: [\"http://c.example.org\", \"https://c.example.org/../x\"]}", []string{
			"p:3:21: sources.factory[0]: is plain http (use https; plain http is for loopback addresses)",
			`p:3:55: sources.charts[0]: "http://c.example.org" is not the https or oci address of a chart repository or registry, or repository for charts in the repository itself (write one like "https://helm.cilium.io")`,
			`p:3:79: sources.charts[1]: "https://c.example.org/../x" is not the https or oci address of a chart repository or registry, or repository for charts in the repository itself (write one like "https://helm.cilium.io")`}},
		{"pool: talos\nvmids: [400-599]\nwindow: {days: [sat], from: \"22:00\", to: \"22:00\"}", []string{
			`p:3:1: window: is no window: it ends when it opens, at 22:00 (write one like {days: [sat, sun], from: "22:00", to: "05:00", time_zone: Europe/Berlin})`}},
		{"pool: talos\nvmids: [400-599]\nwindow: {days: [sat, friday], from: \"22:00\", to: \"05:00\"}", []string{
			`p:3:22: window.days[1]: "friday" is not known (write mon or tue or wed or thu or fri or sat or sun)`}},
		{"pool: talos\nvmids: [400-599]\nwindow: {from: \"22:00\", to: \"05:00\", time_zone: Europe/Berln}", []string{
			`p:3:49: window.time_zone: time zone "Europe/Berln" is not known (write a name of the IANA database, like Europe/Berlin)`}},
		{"pool: talos\nvmids: [400-599]\nwindow: {days: [friday], from: \"22:00\", to: \"22:00\", time_zone: Europe/Berln}", []string{ // all at once
			`p:3:1: window: is no window: it ends when it opens, at 22:00 (write one like {days: [sat, sun], from: "22:00", to: "05:00", time_zone: Europe/Berlin})`,
			`p:3:17: window.days[0]: "friday" is not known (write mon or tue or wed or thu or fri or sat or sun)`,
			`p:3:65: window.time_zone: time zone "Europe/Berln" is not known (write a name of the IANA database, like Europe/Berlin)`}},
		{"pool: talos\nvmids: [400-599]\nwindow: {from: \"25:00\", to: \"22:00\", time_zone: Europe/Berln}", []string{
			`p:3:16: window.from: "25:00" is not a time of the day (write one like "22:00")`,
			`p:3:49: window.time_zone: time zone "Europe/Berln" is not known (write a name of the IANA database, like Europe/Berlin)`}},
	} {
		_, problems := ParsePolicy("p", []byte(c.text))
		if got, want := problems.Error(), strings.Join(c.want, "\n"); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", c.text, got, want)
		}
	}
}

// TestPolicyOutranksTheConfig: the two files of a host must agree.
func TestPolicyOutranksTheConfig(t *testing.T) {
	dir := hosttest.New(t, hosttest.Files(t), map[string]string{
		"config.yaml": sshConfig + "factory: {url: https://other.example.org}\n",
		"policy.yaml": "pool: talos\nvmids: [400-599]\nsources:\n  factory: [https://factory.talos.dev/]\n"})
	config := filepath.Join(dir, "config.yaml")
	_, problems := LoadFrom(config, Credentials{})
	want := config + ":4:16: factory.url: https://other.example.org is not among the factories that the policy allows (" + dir + "/policy.yaml:4: sources.factory) (add it to the policy, or write one of https://factory.talos.dev/)"
	if problems.Error() != want {
		t.Errorf("got  %v\nwant %s", problems, want)
	}
	for _, fine := range []string{"factory: {url: https://factory.talos.dev}\n", "", "mirrors: {factory: https://mirror.example.org}\n"} {
		hosttest.Write(t, config, sshConfig+fine, 0o600)
		if _, problems := LoadFrom(config, Credentials{}); len(problems) > 0 {
			t.Errorf("%s: %v", fine, problems)
		}
	}
}

// TestFactoryUnderABrokenPolicy: what a policy allows is asked of one that is whole.
func TestFactoryUnderABrokenPolicy(t *testing.T) {
	dir := hosttest.New(t, hosttest.Files(t), map[string]string{
		"config.yaml": sshConfig,
		"policy.yaml": "pool: talos\nvmids: [400-599]\nsources: {factory: [https://other.example.org]}\nbridge: vmbr1\n"})
	_, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
	if want := dir + "/policy.yaml:4:1: unknown key \"bridge\" (did you mean bridges?)"; problems.Error() != want {
		t.Errorf("got  %v\nwant %s", problems, want)
	}
}

// TestPolicyOfABrokenConfig: a config that does not name its policy leaves it where it was
// before, and the bounds of the host as they are there.
func TestPolicyOfABrokenConfig(t *testing.T) {
	for config, named := range map[string]bool{
		"owner: [\n": false,
		sshConfig + "policy_file: \"me@pve!x\"\n":      false,
		sshConfig + "owner: North\n":                   true,
		sshConfig + "policy_file: policy.yaml\nx: 1\n": true,
	} {
		before := filepath.Join(hosttest.New(t, map[string]string{"rules.yaml": "pool: before\nvmids: [400-599]\n"}), "rules.yaml")
		dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": config})
		s, problems := load(filepath.Join(dir, "config.yaml"), before, Credentials{})
		pool, path := "before", before
		if named {
			pool, path = "talos", filepath.Join(dir, "policy.yaml")
		}
		if !problems.HasErrors() || s.PolicyPath != path || s.Policy.Pool != pool {
			t.Errorf("%s: pool %q of %s, %v", config, s.Policy.Pool, s.PolicyPath, problems)
		}
	}
}

// TestSettingsUnderAPolicy: settings that stay in force are held to the policy as
// it is now. One that does not allow their factory, which no inventory names,
// leaves nothing allowed.
func TestSettingsUnderAPolicy(t *testing.T) {
	wide := cluster.Policy{File: "policy.yaml", Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 599}}}
	s := Settings{Path: "config.yaml", Policy: wide, ownFactory: "https://factory.talos.dev"}
	gone := wide
	gone.Problems = cluster.Problems{{File: "policy.yaml", Message: "there is no policy"}}
	tight := cluster.Policy{File: "policy.yaml", Pool: "other", Factories: []string{"https://factory.example.org"}, Lines: map[string]int{"sources.factory": 3}}
	mirrored := s
	mirrored.ownFactory = ""
	for _, c := range []struct {
		what  string
		s     Settings
		p     cluster.Policy
		pool  string
		doubt string
	}{
		{"the same", s, wide, "talos", ""},
		{"none", s, cluster.Policy{Problems: gone.Problems}, "talos", "policy.yaml: there is no policy"},
		{"one again", s.WithPolicy(gone), wide, "talos", ""},
		{"another pool and factory", s, tight, "other", "config.yaml: factory.url: https://factory.talos.dev is not among the factories that the policy allows (policy.yaml:3: sources.factory) (add it to the policy, or write one of https://factory.example.org)"},
		{"another factory, and a mirror", mirrored, tight, "other", ""},
	} {
		got := c.s.WithPolicy(c.p)
		if got.Policy.Pool != c.pool || got.Policy.Problems.Error() != c.doubt || c.p.Problems == nil && got.Proxmox.Pool != c.pool {
			t.Errorf("%s: pool %q, asked for in %q, doubt %q", c.what, got.Policy.Pool, got.Proxmox.Pool, got.Policy.Problems)
		}
	}
}

// TestPolicyIsReadAlone: a policy is read when it stays as it is, whatever is
// being written beside it.
func TestPolicyIsReadAlone(t *testing.T) {
	dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": sshConfig})
	s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
	must(problems.Err())
	own := Watch{used: s.Used}
	key, looks := filepath.Join(dir, "age.key"), 0
	look := func() bool {
		looks++
		must(os.WriteFile(key, []byte(strings.Repeat("#", looks)), 0o600))
		return own.Poll()
	}
	for range 3 {
		if look() {
			t.Fatal("a key is read while it is being written")
		}
	}
	hosttest.Write(t, filepath.Join(dir, "policy.yaml"), "pool: talos\nvmids: [500-599]\nbridges: [vmbr1]\n", 0o600)
	if look() {
		t.Error("a policy is read before it has settled")
	}
	if !look() {
		t.Error("a policy is not read while a key is being written")
	}
}

// TestPolicyIsReadFirst: one that changes before anybody has looked is read when it stays as
// it is; another file that does waits for all.
func TestPolicyIsReadFirst(t *testing.T) {
	for file, alone := range map[string]bool{"policy.yaml": true, "proxmox.token": false} {
		dir := hosttest.New(t, hosttest.Files(t), map[string]string{"config.yaml": sshConfig})
		s, problems := LoadFrom(filepath.Join(dir, "config.yaml"), Credentials{})
		must(problems.Err())
		own := NewWatch(s.Used)
		hosttest.Write(t, filepath.Join(dir, file), "# changed\n", 0o600)
		var got []bool
		for i := range 3 {
			hosttest.Write(t, filepath.Join(dir, "age.key"), strings.Repeat("#", i+1), 0o600)
			got = append(got, own.Poll())
		}
		if !slices.Equal(got, []bool{false, alone, alone}) {
			t.Errorf("%s: %v", file, got)
		}
	}
}

// TestPolicyOwner: a policy of somebody else's is no policy.
func TestPolicyOwner(t *testing.T) {
	path := filepath.Join(hosttest.New(t, map[string]string{"policy.yaml": "pool: talos\nvmids: [400-599]\n"}), "policy.yaml")
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	_, problems := loadPolicy(path)
	if got, want := problems.Error(), path+": belongs to user 65534, who can change it (chown root "+path+")"; got != want {
		t.Errorf("got %s", got)
	}
}

func FuzzPolicy(f *testing.F) {
	for _, s := range []string{"", "pool: talos\nvmids: [400-599]\nlimits: {ram: 64GiB}\nsources: {charts: [oci://a.b]}", "vmids: ~", "limits: {disk: 99999999999999TiB}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, problems := ParsePolicy("policy.yaml", data)
		for _, p := range problems {
			if line := p.String(); p.Message == "" || strings.ContainsAny(line, "\n\r\x00\x1b") {
				t.Errorf("problem %q", line)
			}
		}
		if problems.HasErrors() {
			return
		}
		// Zero means no limit, so no limit that is written may become zero.
		for field, limit := range map[string]int64{"limits.nodes": int64(p.Limits.Nodes), "limits.cores": int64(p.Limits.Cores), "limits.ram": p.Limits.MemoryMiB, "limits.disk": p.Limits.DiskBytes} {
			if p.Lines[field] > 0 && limit <= 0 {
				t.Errorf("%s is written and %d", field, limit)
			}
		}
		for field, list := range map[string]int{"vmids": len(p.VMIDs), "datastores": len(p.Datastores), "bridges": len(p.Bridges), "sources.factory": len(p.Factories), "sources.charts": len(p.Charts)} {
			if p.Lines[field] > 0 && list == 0 {
				t.Errorf("%s is written and empty", field)
			}
		}
		if p.Pool == "" || len(p.VMIDs) == 0 {
			t.Error("no pool or no VMIDs")
		}
	})
}
