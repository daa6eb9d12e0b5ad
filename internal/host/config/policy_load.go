package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/platform"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// loadPolicy reads the host's policy. The file must belong to root, or to the
// user the agent runs as, and nobody else may write it: whoever can change it
// can lift every bound of the repository.
func loadPolicy(path string) (cluster.Policy, cluster.Problems) {
	data, info, err := ReadFile(path, OnlyOwnerWrites)
	if err == nil {
		err = checkOwner(path, info)
	}
	if err != nil {
		return cluster.Policy{}, explainUnreadPolicy(path, err)
	}
	return ParsePolicy(path, data)
}

func explainUnreadPolicy(path string, err error) cluster.Problems {
	p := cluster.Problem{Severity: cluster.Error, File: path, Message: err.Error(), Hint: fault.HintOf(err)}
	if errors.Is(err, fs.ErrNotExist) {
		p.Message, p.Hint = "there is no policy, so nothing is allowed", "write one; the smallest has the lines pool: talos and vmids: [400-599]"
	}
	return cluster.Problems{p}
}

// checkOwner refuses a file of anybody but root and the user of this process.
func checkOwner(path string, info fs.FileInfo) error {
	uid, _, ok := platform.Owner(info)
	if !ok {
		return errors.New("its owner is unknown")
	}
	if uid != 0 && uid != os.Geteuid() {
		return fault.WithHint(fmt.Errorf("belongs to user %d, who can change it", uid), "chown root "+path)
	}
	return nil
}

// hostPorts are ports that a Proxmox VE host is reached at.
var hostPorts = map[int]string{22: "SSH", 8006: "Proxmox VE's API and pages", 3128: "consoles"}

// ParsePolicy decodes a policy, whoever may write it.
func ParsePolicy(path string, data []byte) (cluster.Policy, cluster.Problems) {
	d := yamlschema.Document{File: path, Report: yamlschema.NewReport()}
	d.Where[""] = cluster.Position{File: path}
	n := d.Single(data)
	if n == nil {
		return cluster.Policy{}, d.Finish()
	}
	var f policyFile
	language.Decode(d, n, "", &f)
	lines := map[string]int{}
	for _, rule := range []struct {
		field string
		list  int // how long it is; -1 for what is none
	}{
		{"pool", -1}, {"vmids", len(f.VMIDs)}, {"datastores", len(f.Datastores)}, {"bridges", len(f.Bridges)}, {"cpu_units", -1}, {"ha", -1}, {"firewall", -1}, {"port_forwards", -1}, {"pci_mappings", -1}, {"usb_mappings", -1}, {"macs", len(f.MACs)}, {"networks", len(f.Networks)},
		{"limits.nodes", -1}, {"limits.cores", -1}, {"limits.ram", -1}, {"limits.disk", -1},
		{"capacity.memory_reserve", -1}, {"capacity.thin_overcommit", -1}, {"capacity.copies_per_storage", -1}, {"heal", -1}, {"apply", -1}, {"upgrade", -1}, {"window", -1}, {"max_unavailable", -1}, {"drain.on_timeout", -1}, {"drain.timeout", -1}, {"removals", -1},
		{"sources.factory", len(f.Sources.Factory)}, {"sources.charts", len(f.Sources.Charts)},
	} {
		if !d.Has(rule.field) {
			continue
		}
		lines[rule.field] = d.Place(rule.field).Line
		if rule.list == 0 && !hasError(d.Report, rule.field) {
			// "Nothing" and "anything" are too far apart to be guessed.
			d.Wrong(rule.field, "list what is allowed; remove the line to allow anything", "is empty")
		}
	}
	for i, u := range f.Sources.Factory {
		if isPlainHTTP(u) {
			d.Wrong(yamlschema.Element("sources.factory", i), "use https; plain http is for loopback addresses", "is plain http")
		}
	}
	for i, port := range f.PortForwards {
		if own, taken := hostPorts[port]; taken {
			d.Wrong(yamlschema.Element("port_forwards", i), "take another port of the host, and let the cluster lead it to its own", "%d is the host's own, for %s: it could not be reached there any more", port, own)
		}
	}
	removals := f.Removals
	if d.Has("removals") && removals == 0 {
		removals = -1
	}
	upgrade, _ := cluster.ParseUpgradeMode(f.Upgrade) // any other was reported when it was read
	return cluster.Policy{
		File: path, Removals: removals, Window: inventory.Window(f.Window).Resolve("window", d.Report), Pool: f.Pool, VMIDs: f.VMIDs, Datastores: f.Datastores, Bridges: f.Bridges, HA: f.HA, Firewall: f.Firewall, Mappings: f.mappings(), CPUUnits: f.CPUUnits, Forwards: append([]int{}, f.PortForwards...), MACs: toUpper(f.MACs), Networks: prefixesOf(f.Networks),
		Limits:         cluster.Limits{Nodes: f.Limits.Nodes, Cores: f.Limits.Cores, MemoryMiB: int64(f.Limits.RAM) / int64(yamlschema.MiB), DiskBytes: int64(f.Limits.Disk)},
		MaxUnavailable: f.MaxUnavailable, DrainStops: f.Drain.OnTimeout == "stop", DrainWithin: f.Drain.Timeout,
		Switches:  cluster.Switches{ObserveOnly: f.Heal == "observe", ApplyOff: f.Apply == "off", ApplyApproved: f.Apply == "approve", Upgrade: upgrade},
		Capacity:  cluster.Capacity{MemoryReserveMiB: int64(f.Capacity.MemoryReserve) / int64(yamlschema.MiB), ThinPercent: f.Capacity.ThinOvercommit, CopiesPerStorage: f.Capacity.CopiesPerStorage},
		Factories: f.Sources.Factory, Charts: f.Sources.Charts, Lines: lines,
	}, d.Finish()
}

// mappings are the resource mappings that VMs may have devices of, by kind.
func (f policyFile) mappings() map[string][]string {
	out := map[string][]string{device.PCIMapping: f.PCIMappings, device.USBMapping: f.USBMappings}
	maps.DeleteFunc(out, func(_ string, names []string) bool { return len(names) == 0 })
	if len(out) == 0 {
		return nil
	}
	return out
}

// anyPrefix is a network of IPv4 or IPv6.
type anyPrefix struct{ netip.Prefix }

func parseAnyPrefix(s string) (any, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return nil, yamlschema.Hint("write one like 10.10.0.0/24 or fd00:10:10::/64")
	case p.Addr().Is4In6():
		return nil, yamlschema.Hint("write IPv4 addresses as such, like 10.10.0.0/24")
	case p != p.Masked():
		return nil, yamlschema.Hint("write " + p.Masked().String() + ": the bits after the / must be zero")
	}
	return anyPrefix{p}, nil
}

func prefixesOf(list []anyPrefix) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, p.Prefix)
	}
	return out
}

// toUpper is a list in upper case, as MAC addresses are compared.
func toUpper(list []string) (out []string) {
	for _, s := range list {
		out = append(out, strings.ToUpper(s))
	}
	return out
}

// loadPolicyFile reads the policy, whose problems stand in a file of their own. named
// reports that the config names the file.
func (l *loader) loadPolicyFile(named bool) {
	if named && (l.file.PolicyFile != "" || !l.Has("policy_file")) { // else it is wrong, which is reported
		if f, ok := l.locateFile("policy_file", cmp.Or(l.file.PolicyFile, "policy.yaml"), ""); ok {
			l.out.PolicyPath = f.path
		}
	}
	if l.out.PolicyPath == "" {
		return
	}
	l.recordUse(l.out.PolicyPath, doctor.PolicyFile)
	policy, problems := loadPolicy(l.out.PolicyPath)
	for _, p := range problems {
		l.Add(p)
		if p.Severity == cluster.Error {
			policy.Problems = append(policy.Problems, p)
		}
	}
	l.out.Policy = policy
}

// WithPolicy are the same settings under a policy that was read later. One that is in
// not verified leaves the rules as they were.
func (s Settings) WithPolicy(p cluster.Policy) Settings {
	if p.Problems != nil {
		s.Policy.Problems = p.Problems
		return s
	}
	s.Policy, s.Proxmox.Pool = p, p.Pool
	if message, hint := s.checkFactory(); message != "" {
		s.Policy.Problems = cluster.Problems{{Severity: cluster.Error, File: s.Path, Field: "factory.url", Message: message, Hint: hint}}
	}
	return s
}

// checkFactory returns why the policy does not allow the config's factory, and the
// hint; "" when it does.
func (s Settings) checkFactory() (message, hint string) {
	trimmed := func(u string) string { return strings.TrimSuffix(u, "/") }
	allowed := s.Policy.Factories
	if s.ownFactory == "" || s.Policy.Problems != nil || len(allowed) == 0 || slices.ContainsFunc(allowed, func(u string) bool { return trimmed(u) == trimmed(s.ownFactory) }) {
		return "", ""
	}
	return fmt.Sprintf("%s is not among the factories that the policy allows (%s: sources.factory)", s.ownFactory, s.Policy.Line("sources.factory")),
		"add it to the policy, or write one of " + strings.Join(allowed, ", ")
}
