package doctor

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/fault"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

var errUnseen = fault.WithHint(errors.New("it was out of sight"), "the cure")

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// well is what a healthy host shows an agent with one cluster on it.
func well() Agent {
	w := Wants{Token: "talos-agent@pve!pve1", Pool: "talos", Images: "local",
		Needs: []Need{
			{Path: "/pool/talos", Role: "TalosAgentVM", Privileges: []string{"VM.Allocate", "VM.Audit"}, Optional: []string{"VM.Console"}, Why: "make VMs"},
			{Path: "/", Role: "TalosAgentHost", Optional: []string{"Sys.Audit"}, Why: "see quorum"},
		},
		Clusters: []Cluster{{
			Name: "dev", Mode: "static", Gateway: ip("10.10.0.1"), VIP: ip("10.10.0.5"), TimeServers: []string{"10.10.0.1"},
			Nodes: []Node{
				{Name: "dev-cp-1", ControlPlane: true, Host: "pve1", VMID: 411, IP: ip("10.10.0.11"), MAC: "BC:24:11:00:00:11", Bridge: "vmbr1", Images: "local", CloudInit: "local-lvm", Disks: []Disk{{"local-lvm", 40 << 30}}},
				{Name: "dev-wk-1", Host: "pve1", VMID: 521, IP: ip("10.10.0.21"), MAC: "BC:24:11:00:00:21", Bridge: "vmbr1", Images: "local", CloudInit: "local-lvm", Disks: []Disk{{"local-lvm", 40 << 30}, {"data", 100 << 30}}},
			},
		}}}
	forge, accessLog := Saw("org/infra"), Saw("/var/log/pveproxy/access.log")
	return Agent{
		Now: now, Wants: w, AccessLog: &accessLog,
		API:     API{URL: "https://127.0.0.1:8006", Door: Saw(Door{Version: "9.2.11", Blur: time.Second, NotAfter: now.AddDate(1, 0, 0)})},
		Granted: Saw(map[string][]string{"/pool/talos": {"VM.Allocate", "VM.Audit", "VM.Console"}, "/": {"Sys.Audit"}}),
		Held:    map[string]Fact[[]string]{"/pool/talos": Saw([]string{"VM.Allocate", "VM.Audit", "VM.Console"}), "/": Saw([]string{"Sys.Audit"})},
		Pool:    Saw(true), Quorum: Saw(true), VMs: Saw(map[int]string{411: "talos"}), HA: Saw([]string{"vm:100"}), Backups: Saw([]Backup{{ID: "nightly", Enabled: true, Mode: "snapshot", All: true}}),
		Hosts: []Machine{{Name: "pve1",
			Storages: Saw(map[string]Storage{
				"local":     {Type: "dir", Active: true, Content: []string{"import", "iso"}, Total: 100 << 30, Free: 60 << 30},
				"local-lvm": {Type: "lvmthin", Active: true, Content: []string{"images"}, Total: 500 << 30, Free: 400 << 30},
				"data":      {Type: "lvm", Active: true, Content: []string{"images"}, Total: 500 << 30, Free: 400 << 30},
			}),
			Bridges: Saw(map[string]Bridge{"vmbr1": {Active: true, Address: "10.10.0.2/24"}}),
		}},
		Repository: Saw("main@sha1:0123456789ab"), Inventories: []Inventory{{Cluster: "dev"}}, Forge: &forge,
		Sources: []Source{{What: "image factory", Address: "factory.talos.dev", Seen: Saw("answers")}, {What: "registry", Address: "ghcr.io", Seen: Saw("answers"), Guests: true}},
	}
}

// twoHosts makes the agent's host one of two in a Proxmox VE cluster.
func twoHosts(a *Agent) {
	a.Machine, a.Hosts[0].Token = "pve1", "talos-agent@pve!pve1"
	a.Hosts = append(a.Hosts, Machine{Name: "pve2", Token: "talos-agent@pve!pve2"})
}

// grantsOf is an access control list with some privileges on the pool.
func grantsOf(privileges ...string) Grants {
	g := Grants{"/": {"Sys.Audit": false}, "/pool/talos": {}}
	for _, p := range privileges {
		g["/pool/talos"][p] = true
	}
	return g
}

// rootsView is what root sees on it.
func rootsView() Host {
	direct := func(mac string) Fact[Way] { return Saw(Way{Link: "vmbr1", MAC: mac}) }
	return Host{
		Wants: well().Wants, Separation: Saw(Separation{User: grantsOf("VM.Allocate", "VM.Audit", "VM.Console"), Token: grantsOf("VM.Allocate", "VM.Audit", "VM.Console")}), Clock: Saw(Clock{Synchronised: true, MaxError: time.Millisecond}), TimeServers: map[string]Fact[time.Duration]{"10.10.0.1": Saw(time.Duration(0))},
		ThinPools: Saw([]ThinPool{{Name: "pve/data", MetadataBytes: 1 << 30, MetadataUsed: 1 << 28}, {Name: "pve/unknown"}}),
		Files: []File{
			{Path: "/etc/talos-agent/config.yaml", Is: ConfigFile, Mode: 0o640, Owner: "root", Group: "talos-agent"},
			{Path: "/etc/talos-agent/policy.yaml", Is: PolicyFile, Mode: 0o644, Owner: "root", Group: "root"},
			{Path: "/etc/talos-agent/age.key", Is: KeyFile, Mode: 0o640, Owner: "root", Group: "talos-agent"},
			{Path: "/etc/credstore", Is: StoreFile, Dir: true, Mode: 0o700, Owner: "root", Group: "root"},
		},
		Others:    Saw(""),
		Snapshots: Saw(Snapshots{Directory: "/mnt/backup", Keys: 2}), Reservations: Saw(Reservations{Directory: "/var/lib/talos-agent-dhcp"}),
		Credentials: Saw([]Credential{{Path: "/etc/credstore/talos-agent.age.key", Given: true, Same: true}, {Path: "/etc/credstore/talos-agent.proxmox.token", Given: true, Same: true}}),
		Ways:        map[netip.Addr]Fact[Way]{ip("10.10.0.1"): direct("AA:AA:AA:AA:AA:AA"), ip("10.10.0.5"): direct("BC:24:11:00:00:11"), ip("10.10.0.11"): direct("BC:24:11:00:00:11"), ip("10.10.0.21"): direct("")},
		Seen:        Saw([]Neighbour{{"vmbr1", ip("10.10.0.11"), "BC:24:11:00:00:11"}}), DHCP: Saw([]netip.Addr{ip("0.0.0.0")}), Addresses: Saw(map[string][]netip.Prefix{}),
	}
}

// verdict is a check by its kind and level, with words of its message or hint.
type verdict struct {
	name  string
	level Level
	words string
}

// told looks for a verdict among checks.
func told(checks []Check, v verdict) bool {
	return slices.ContainsFunc(checks, func(c Check) bool {
		return c.Name == v.name && c.Level == v.level && strings.Contains(c.Subject+" "+c.Message+" -> "+c.Hint, v.words)
	})
}

var agentCases = []struct {
	what   string
	change func(*Agent)
	want   verdict
}{
	{"connection refused", func(a *Agent) { a.API.Door, a.API.Fault = Unseen[Door](errors.New("connection refused")), FaultAddress }, verdict{"api", Fail, "systemctl status pveproxy"}},
	{"nobody listens: the rest", func(a *Agent) { a.API.Door, a.API.Fault = Unseen[Door](errors.New("connection refused")), FaultAddress }, verdict{"certificate", Skipped, "not reached"}},
	{"another authority", func(a *Agent) {
		a.API.Door, a.API.Fault = Unseen[Door](errors.New("unknown authority")), FaultAuthority
	}, verdict{"certificate", Fail, "pve-root-ca.pem"}},
	{"another name", func(a *Agent) {
		a.API.Door, a.API.Fault, a.API.Names = Unseen[Door](errors.New("wrong name")), FaultName, []string{"pve1.example.org", "10.77.0.2"}
	}, verdict{"certificate", Fail, "pve1.example.org, 10.77.0.2"}},
	{"expired", func(a *Agent) { a.API.Door, a.API.Fault = Unseen[Door](errUnseen), FaultExpired }, verdict{"certificate", Fail, "the cure"}},
	{"about to expire", func(a *Agent) { a.API.Door.Value.NotAfter = now.AddDate(0, 0, 12) }, verdict{"certificate", Warn, "only until 2026-12-04"}},
	{"pinned", func(a *Agent) { a.API.Door.Value.NotAfter = time.Time{} }, verdict{"certificate", Pass, "pinned"}},
	{"the token is refused", func(a *Agent) { a.API.Door, a.API.Fault = Unseen[Door](errUnseen), FaultToken }, verdict{"token", Fail, "the cure"}},
	{"the token is refused: the version", func(a *Agent) { a.API.Door, a.API.Fault = Unseen[Door](errUnseen), FaultToken }, verdict{"version", Skipped, ""}},
	{"too old", func(a *Agent) { a.API.Door.Value.Version = "8.3.5" }, verdict{"version", Fail, "upgrade"}},
	{"old, but new enough", func(a *Agent) { a.API.Door.Value.Version = "8.4.21" }, verdict{"version", Pass, ""}},
	{"unheard of", func(a *Agent) { a.API.Door.Value.Version = "10.0" }, verdict{"version", Warn, "newer"}},
	{"no version", func(a *Agent) { a.API.Door.Value.Version = "x" }, verdict{"version", Skipped, ""}},
	{"the token of another host", func(a *Agent) { twoHosts(a); a.Wants.Token = "talos-agent@pve!pve2" }, verdict{"token", Warn, "the token of the host pve2, and this is pve1"}},
	{"one's own token in a Proxmox VE cluster", twoHosts, verdict{"token", Pass, "accepted"}},
	{"a token made by hand", func(a *Agent) { twoHosts(a); a.Wants.Token = "talos-agent@pve!mine" }, verdict{"token", Pass, "accepted"}},
	{"an agent on no host of Proxmox VE", func(a *Agent) { twoHosts(a); a.Machine, a.Wants.Token = "elsewhere", "talos-agent@pve!pve2" }, verdict{"token", Pass, "accepted"}},
	{"the privsep trap", func(a *Agent) { a.Granted = Saw(map[string][]string{}) }, verdict{"token", Fail, "pveum user token permissions talos-agent@pve pve1"}},
	{"the privsep trap: privileges", func(a *Agent) { a.Granted = Saw(map[string][]string{}) }, verdict{"privileges", Skipped, "none"}},
	{"not told", func(a *Agent) { a.Granted = Unseen[map[string][]string](errUnseen) }, verdict{"token", Skipped, "the cure"}},
	{"a privilege is missing", func(a *Agent) { a.Held["/pool/talos"] = Saw([]string{"VM.Audit"}) },
		verdict{"privileges", Fail, "/pool/talos missing: VM.Allocate (to make VMs) -> `talos-agent init`, or, where the role TalosAgentVM has them: `pveum acl modify /pool/talos --roles TalosAgentVM --users talos-agent@pve --tokens 'talos-agent@pve!pve1'`"}},
	{"an optional one is missing", func(a *Agent) { a.Held["/"] = Saw([]string{}) }, verdict{"privileges", Warn, "--propagate 0"}},
	{"the use of a mapping is missing", func(a *Agent) {
		a.Wants.Needs = append(a.Wants.Needs, Need{Path: "/mapping/pci/gpu", Role: "PVEMappingUser", Privileges: []string{"Mapping.Use"}, Why: "pass its devices to VMs"})
		a.Held["/mapping/pci/gpu"] = Saw([]string{})
	}, verdict{"privileges", Fail, "/mapping/pci/gpu missing: Mapping.Use (to pass its devices to VMs) -> `pveum acl modify /mapping/pci/gpu --roles PVEMappingUser --users talos-agent@pve --tokens 'talos-agent@pve!pve1'`"}},
	{"the right to HA is missing", func(a *Agent) {
		a.Wants.Needs = append(a.Wants.Needs, Need{Path: "/", Role: "TalosAgentHost,TalosAgentHA", Privileges: []string{"Sys.Audit", "Sys.Console"}, Why: "have Proxmox VE's HA manager keep VMs running"})
	}, verdict{"privileges", Fail, "/ missing: Sys.Console (to have Proxmox VE's HA manager keep VMs running) -> `pveum role add TalosAgentHA --privs 'Sys.Audit Sys.Console'`, then `pveum acl modify / --propagate 0 --roles TalosAgentHA --users talos-agent@pve --tokens 'talos-agent@pve!pve1'`; or take `ha: true` out of the policy"}},
	{"a mapping that the policy allows", func(a *Agent) {
		a.Wants.Mappings = []string{"pci/gpu"}
		a.Granted.Value["/mapping/pci/gpu"] = []string{"Mapping.Audit", "Mapping.Use"}
	}, verdict{"excess", Pass, ""}},
	{"a mapping that the policy does not allow", func(a *Agent) {
		a.Wants.Mappings = []string{"usb/gpu"}
		a.Granted.Value["/mapping/pci/gpu"] = []string{"Mapping.Use"}
	}, verdict{"excess", Warn, "/mapping/pci/gpu: Mapping.Use"}},
	{"one path is not told", func(a *Agent) { a.Held["/"] = Unseen[[]string](errUnseen) }, verdict{"privileges", Skipped, "the cure"}},
	{"too much", func(a *Agent) {
		a.Granted.Value["/"] = []string{"Sys.Audit", "Sys.Modify", "VM.Allocate"}
		a.Granted.Value["/vms"] = []string{"Sys.Modify"}
	}, verdict{"excess", Warn, "more than it needs: /: Sys.Modify VM.Allocate -> "}},
	{"what the policy offers", func(a *Agent) {
		a.Wants.Bridges, a.Wants.Datastores = []string{"vmbr1", "vmbr2"}, []string{"spare"}
		a.Granted.Value["/sdn/zones/localnetwork/vmbr2"] = []string{"SDN.Use"}
		a.Granted.Value["/storage/spare"] = []string{"Datastore.AllocateSpace"}
	}, verdict{"excess", Pass, ""}},
	// Proxmox VE lists the VMs and storages of a pool, with the privileges there.
	{"members of the pool", func(a *Agent) {
		for _, path := range []string{"/vms/411", "/vms/521", "/storage/data"} { // one was made meanwhile
			a.Granted.Value[path] = slices.Clone(a.Granted.Value["/pool/talos"])
		}
	}, verdict{"excess", Pass, ""}},
	{"more at a member of the pool", func(a *Agent) {
		a.Granted.Value["/vms/411"] = []string{"VM.Allocate", "VM.Audit", "VM.Migrate"}
	}, verdict{"excess", Warn, "more than it needs: /vms/411: VM.Migrate -> "}},
	{"a VM outside the pool", func(a *Agent) {
		a.VMs.Value[100] = ""
		a.Granted.Value["/vms/100"] = []string{"VM.Allocate", "VM.Audit"}
	}, verdict{"excess", Warn, "/vms/100: VM.Allocate -> if that is not meant, `pveum acl list | grep 'talos-agent@pve!pve1'`"}},
	{"what the policy does not offer", func(a *Agent) {
		a.Wants.Bridges, a.Wants.Datastores = []string{"vmbr1"}, []string{"spare"}
		a.Granted.Value["/sdn/zones/localnetwork/vmbr2"] = []string{"SDN.Use"}
		a.Granted.Value["/storage/data"] = []string{"Datastore.AllocateSpace"}
	}, verdict{"excess", Warn, "/sdn/zones/localnetwork/vmbr2: SDN.Use; /storage/data: Datastore.AllocateSpace"}},
	{"excess is not told", func(a *Agent) { a.Granted = Unseen[map[string][]string](errUnseen) }, verdict{"excess", Skipped, ""}},
	{"no pool", func(a *Agent) { a.Pool.Value = false }, verdict{"pool", Fail, "pveum pool add talos"}},
	{"the pool is out of sight", func(a *Agent) { a.Pool = Unseen[bool](errUnseen) }, verdict{"pool", Skipped, "out of sight"}},
	{"no quorum", func(a *Agent) { a.Quorum.Value = false }, verdict{"quorum", Fail, "pvecm status"}},
	{"quorum is out of sight", func(a *Agent) { a.Quorum = Unseen[bool](errUnseen) }, verdict{"quorum", Skipped, "the cure"}},
	{"HA", func(a *Agent) { a.HA.Value = []string{"vm:411"} }, verdict{"ha", Warn, "ha-manager remove vm:411"}},
	{"HA as the inventory has it", func(a *Agent) { a.HA.Value, a.Wants.Clusters[0].HA = []string{"vm:411"}, true }, verdict{"ha", Pass, "1 of our VMs"}},
	{"HA is out of sight", func(a *Agent) { a.HA = Unseen[[]string](errUnseen) }, verdict{"ha", Skipped, ""}},
	{"no inventory", func(a *Agent) { a.Wants.Clusters = nil }, verdict{"ha", Skipped, "no inventory"}},
	{"backups that stop", func(a *Agent) { a.Backups.Value[0].Mode = "stop" }, verdict{"backup", Warn, "dev-cp-1, dev-wk-1 up in mode stop"}},
	{"backups that leave one out", func(a *Agent) { a.Backups.Value[0].Mode, a.Backups.Value[0].Exclude = "stop", []int{411} }, verdict{"backup", Warn, "backs dev-wk-1 up"}},
	{"backups of our pool", func(a *Agent) { a.Backups.Value[0] = Backup{ID: "p", Enabled: true, Mode: "suspend", Pool: "talos"} }, verdict{"backup", Warn, "suspend"}},
	{"backups of another pool", func(a *Agent) { a.Backups.Value[0] = Backup{ID: "p", Enabled: true, Mode: "stop", Pool: "other"} }, verdict{"backup", Pass, ""}},
	{"backups that are off", func(a *Agent) { a.Backups.Value[0] = Backup{ID: "p", Mode: "stop", All: true} }, verdict{"backup", Pass, ""}},
	{"backups of another host", func(a *Agent) {
		a.Backups.Value[0] = Backup{ID: "p", Enabled: true, Mode: "stop", All: true, Host: "pve2"}
	}, verdict{"backup", Pass, ""}},
	{"backups by number", func(a *Agent) { a.Backups.Value[0] = Backup{ID: "p", Enabled: true, Mode: "stop", VMIDs: []int{521}} }, verdict{"backup", Warn, "dev-wk-1"}},
	{"gentle backups", func(a *Agent) {}, verdict{"backup", Pass, "waits"}},
	{"backups are out of sight", func(a *Agent) { a.Backups = Unseen[[]Backup](errUnseen) }, verdict{"backup", Skipped, ""}},

	{"no storage", func(a *Agent) { delete(a.Hosts[0].Storages.Value, "data") }, verdict{"storage", Fail, "pve1/data there is no such storage"}},
	{"a storage that the token may not see", func(a *Agent) {
		delete(a.Hosts[0].Storages.Value, "data")
		a.Held["/storage/data"] = Saw([]string{})
	}, verdict{"storage", Skipped, "Datastore.Audit on /storage/data"}},
	{"a storage is away", func(a *Agent) { change(a, "data", func(s *Storage) { s.Active = false }) }, verdict{"storage", Fail, "not active"}},
	{"no images are taken", func(a *Agent) { change(a, "local", func(s *Storage) { s.Content = []string{"iso"} }) }, verdict{"storage", Fail, "`pvesm set local --content iso,import`"}},
	{"no images can be taken", func(a *Agent) { a.Wants.Clusters[0].Nodes[0].Images = "local-lvm" }, verdict{"storage", Fail, "holds no files"}},
	{"no disks are taken", func(a *Agent) { change(a, "data", func(s *Storage) { s.Content = []string{"rootdir"} }) }, verdict{"storage", Fail, "`pvesm set data --content rootdir,images`"}},
	{"storages are out of sight", func(a *Agent) { a.Hosts[0].Storages = Unseen[map[string]Storage](errUnseen) }, verdict{"storage", Skipped, "the cure"}},
	{"another host", func(a *Agent) { a.Wants.Clusters[0].Nodes[0].Host = "pve9" }, verdict{"storage", Fail, "the hosts are pve1"}},
	{"no host is known", func(a *Agent) { a.Wants.Clusters, a.Hosts = nil, nil }, verdict{"storage", Skipped, "which hosts"}},
	{"nothing was reached", func(a *Agent) { a.API.Door, a.API.Fault, a.Hosts = Unseen[Door](errUnseen), FaultSilent, nil }, verdict{"storage", Skipped, "not reached"}},
	{"a thin pool that will not do", func(a *Agent) { change(a, "local-lvm", func(s *Storage) { s.Free = 30 << 30 }) }, verdict{"space", Warn, "30 GiB free, and the 1 VM still to be made may grow to 40 GiB"}},
	{"a thick one that will not do", func(a *Agent) { change(a, "data", func(s *Storage) { s.Free = 30 << 30 }) }, verdict{"space", Fail, "ask for 100 GiB"}},
	{"nearly full", func(a *Agent) { change(a, "local", func(s *Storage) { s.Free = 9 << 30 }) }, verdict{"space", Warn, "91% are in use"}},
	{"the VMs are there already", func(a *Agent) {
		a.VMs.Value = map[int]string{411: "talos", 521: "talos"}
		change(a, "data", func(s *Storage) { s.Free = 60 << 30 })
	}, verdict{"space", Pass, "pve1/data 60 GiB free"}},
	{"space is out of sight", func(a *Agent) { a.Hosts[0].Storages = Unseen[map[string]Storage](errUnseen) }, verdict{"space", Skipped, ""}},
	{"no bridge", func(a *Agent) { delete(a.Hosts[0].Bridges.Value, "vmbr1") }, verdict{"bridge", Fail, "no such bridge"}},
	{"a bridge that the token may not see", func(a *Agent) {
		delete(a.Hosts[0].Bridges.Value, "vmbr1")
		a.Held["/sdn/zones/localnetwork/vmbr1"] = Saw([]string{})
	}, verdict{"bridge", Skipped, "SDN.Use on /sdn/zones/localnetwork/vmbr1"}},
	{"a bridge that is down", func(a *Agent) { a.Hosts[0].Bridges.Value["vmbr1"] = Bridge{} }, verdict{"bridge", Fail, "ifup vmbr1"}},
	{"a bridge without an address", func(a *Agent) { a.Hosts[0].Bridges.Value["vmbr1"] = Bridge{Active: true} }, verdict{"bridge", Warn, "/etc/network/interfaces"}},
	{"a bridge over which no node is reached", func(a *Agent) {
		a.Wants.Clusters[0].Nodes[0].Further = []Link{{Bridge: "vmbr7"}}
		a.Hosts[0].Bridges.Value["vmbr7"] = Bridge{Active: true}
	}, verdict{"bridge", Pass, "vmbr7 up; no node is reached over it"}},
	{"no bridge for a further network card", func(a *Agent) { a.Wants.Clusters[0].Nodes[0].Further = []Link{{Bridge: "vmbr7"}} }, verdict{"bridge", Fail, "no such bridge"}},
	{"the VLAN trap of a further network card", func(a *Agent) {
		a.Wants.Clusters[0].Nodes[0].Further = []Link{{Bridge: "vmbr7", VLAN: 30}}
		a.Hosts[0].Bridges.Value["vmbr7"] = Bridge{Active: true}
	}, verdict{"vlan", Fail, "asks for VLAN 30"}},
	{"a vnet", func(a *Agent) { a.Hosts[0].Bridges.Value["vmbr1"] = Bridge{Vnet: true} }, verdict{"bridge", Pass, "vnet"}},
	{"the VLAN trap", func(a *Agent) { a.Wants.Clusters[0].VLAN = 20 }, verdict{"vlan", Fail, "bridge-vlan-aware yes"}},
	{"a VLAN on a port", func(a *Agent) {
		a.Wants.Clusters[0].VLAN = 20
		a.Hosts[0].Bridges.Value["vmbr1"] = Bridge{Active: true, Ports: "eno1"}
	}, verdict{"vlan", Pass, "VLAN 20 of dev"}},
	{"a VLAN on an aware bridge", func(a *Agent) {
		a.Wants.Clusters[0].VLAN = 20
		a.Hosts[0].Bridges.Value["vmbr1"] = Bridge{Active: true, VLANAware: true}
	}, verdict{"vlan", Pass, ""}},
	{"bridges are out of sight", func(a *Agent) { a.Hosts[0].Bridges = Unseen[map[string]Bridge](errUnseen) }, verdict{"bridge", Skipped, ""}},
	{"VLANs are out of sight", func(a *Agent) { a.Hosts[0].Bridges = Unseen[map[string]Bridge](errUnseen) }, verdict{"vlan", Skipped, ""}},

	{"a clock ahead", func(a *Agent) { a.API.Door.Value.Skew = time.Minute }, verdict{"skew", Warn, "59s ahead"}},
	{"a clock far behind", func(a *Agent) { a.API.Door.Value.Skew = -time.Hour }, verdict{"skew", Fail, "behind"}},
	{"within the blur", func(a *Agent) { a.API.Door.Value.Skew, a.API.Door.Value.Blur = 8*time.Second, 4*time.Second }, verdict{"skew", Pass, ""}},
	{"no clock", func(a *Agent) { a.API.Door, a.API.Fault = Unseen[Door](errUnseen), FaultOther }, verdict{"skew", Skipped, ""}},

	{"nobody knows the policy", func(a *Agent) { a.Doubt = "policy.yaml: there is no policy" }, verdict{"config", Fail, "the daemon nothing is changed while it is not known what the host allows: policy.yaml: there is no policy"}},
	{"no repository", func(a *Agent) { a.Repository = Unseen[string](errUnseen) }, verdict{"repository", Fail, "the cure"}},
	{"an empty repository", func(a *Agent) { a.Repository, a.Vacant = Unseen[string](errUnseen), true }, verdict{"repository", Warn, "the cure"}},
	{"an invalid inventory", func(a *Agent) { a.Inventories[0].Problem = "cluster.yaml:1: no" }, verdict{"inventory", Fail, "dev cluster.yaml:1"}},
	{"the forge refuses", func(a *Agent) { f := Unseen[string](errUnseen); a.Forge = &f }, verdict{"forge", Fail, "the cure"}},
	{"no access log is to be read", func(a *Agent) { a.AccessLog = nil }, verdict{"backup", Pass, ""}},
	{"an access log that cannot be read", func(a *Agent) {
		unread := Unseen[string](fault.Errorf("`setfacl`", "read /var/log/x: permission denied"))
		a.AccessLog = &unread
	}, verdict{"accesslog", Warn, "read /var/log/x: permission denied; who edited a VM by a request that left no task stays unknown -> `setfacl`"}},
	{"an access log that root can read", func(a *Agent) { a.InPlace = true }, verdict{"accesslog", Skipped, "only the daemon sees"}},
	{"no forge", func(a *Agent) { a.Forge = nil }, verdict{"repository", Pass, "main@"}},
	{"no factory", func(a *Agent) { a.Sources[0].Seen = Unseen[string](errUnseen) }, verdict{"source", Fail, "the cure"}},
	{"no registry", func(a *Agent) { a.Sources[1].Seen = Unseen[string](errUnseen) }, verdict{"source", Warn, "another way"}},
}

func change(a *Agent, storage string, f func(*Storage)) {
	s := a.Hosts[0].Storages.Value[storage]
	f(&s)
	a.Hosts[0].Storages.Value[storage] = s
}

var hostCases = []struct {
	what   string
	change func(*Host)
	want   verdict
}{
	{"reservations", func(*Host) {}, verdict{"reservations", Pass, "`dhcp-hostsdir=/var/lib/talos-agent-dhcp` in its config"}},
	{"reservations nowhere", func(h *Host) { h.Reservations.Value.Missing = true }, verdict{"reservations", Warn, "`install -d -m 0755 -o talos-agent -g talos-agent /var/lib/talos-agent-dhcp`"}},
	{"reservations out of reach", func(h *Host) { h.Reservations.Value.Closed = "/srv/closed" }, verdict{"reservations", Warn, "`chmod o+rx /srv/closed`"}},
	{"reservations that are not known", func(h *Host) { h.Reservations = Unseen[Reservations](errUnseen) }, verdict{"reservations", Skipped, "it was out of sight"}},
	{"no snapshots", func(h *Host) { h.Snapshots.Value.Disabled = true }, verdict{"snapshots", Warn, "remove `snapshots: {disabled: true}`"}},
	{"one key for snapshots", func(h *Host) { h.Snapshots.Value.Keys = 1 }, verdict{"snapshots", Warn, "run `age-keygen` on another machine"}},
	{"snapshots beside the state", func(h *Host) { h.Snapshots.Value.Beside = true }, verdict{"snapshots", Warn, "name a folder of another storage"}},
	{"snapshots that are not known", func(h *Host) { h.Snapshots = Unseen[Snapshots](errUnseen) }, verdict{"snapshots", Skipped, "it was out of sight"}},
	{"a key for everybody", func(h *Host) { h.Files[2].Mode = 0o644 }, verdict{"files", Fail, "`chmod 0640 /etc/talos-agent/age.key`"}},
	{"a key for another group", func(h *Host) { h.Files[2].Group = "users" }, verdict{"files", Fail, "chgrp talos-agent"}},
	{"a policy of the agent's", func(h *Host) { h.Files[1].Owner = "talos-agent" }, verdict{"files", Fail, "chown root:root /etc/talos-agent/policy.yaml"}},
	{"a policy that the agent can change", func(h *Host) { h.Files[1].Mode, h.Files[1].Group = 0o664, "talos-agent" }, verdict{"files", Fail, "`chmod 0644 /etc/talos-agent/policy.yaml`"}},
	{"a policy that everybody can change", func(h *Host) { h.Files[1].Mode = 0o646 }, verdict{"files", Fail, "everybody can change"}},
	{"a config that a group can change", func(h *Host) { h.Files[0].Mode = 0o660 }, verdict{"files", Warn, "`chmod 0640"}},
	{"a config of somebody's", func(h *Host) { h.Files[0].Owner = "jo" }, verdict{"files", Warn, "chown root"}},
	{"a token that was replaced", func(h *Host) { h.Credentials.Value[1].Same = false }, verdict{"credentials", Warn, "/etc/credstore/talos-agent.proxmox.token has changed since the agent started, which still uses the old one -> `systemctl restart"}},
	{"a key that came later", func(h *Host) { h.Credentials.Value[0] = Credential{Path: "/etc/credstore/talos-agent.notify-phone"} }, verdict{"credentials", Warn, "LoadCredential=notify-phone:talos-agent.notify-phone"}},
	{"credentials that may not be read", func(h *Host) { h.Credentials = Unseen[[]Credential](errUnseen) }, verdict{"credentials", Skipped, "the cure"}},
	{"an open store", func(h *Host) { h.Files[3].Mode = 0o755 }, verdict{"files", Fail, "`chown root:root /etc/credstore && chmod 0700 /etc/credstore`"}},
	{"a credential that a group reads", func(h *Host) { h.Files[3].Mode, h.Files[3].Dir = 0o640, false }, verdict{"files", Fail, "chmod 0600"}},
	{"a file out of sight", func(h *Host) { h.Files[0].Err = "permission denied" }, verdict{"files", Skipped, "permission denied"}},

	{"the privsep trap", func(h *Host) { h.Separation.Value.Token = Grants{} },
		verdict{"privsep", Fail, "/pool/talos the user talos-agent@pve has VM.Allocate VM.Audit VM.Console there, and the token has not -> `pveum acl modify /pool/talos --roles TalosAgentVM --tokens 'talos-agent@pve!pve1'`"}},
	{"one privilege less", func(h *Host) { h.Separation.Value.Token = grantsOf("VM.Allocate", "VM.Audit") }, verdict{"privsep", Fail, "has VM.Console there"}},
	{"inherited", func(h *Host) {
		h.Separation.Value = Separation{User: Grants{"/pool": {"VM.Allocate": true, "VM.Audit": false}}, Token: Grants{"/pool/talos": {"VM.Allocate": true}}}
	}, verdict{"privsep", Pass, ""}},
	{"neither has it", func(h *Host) { h.Separation.Value = Separation{} }, verdict{"privsep", Pass, ""}},
	{"no Proxmox VE here", func(h *Host) { h.Separation = Unseen[Separation](errUnseen) }, verdict{"privsep", Skipped, "out of sight"}},
	{"metadata with room", func(*Host) {}, verdict{"metadata", Pass, "pve/data 25 % of it are used"}},
	{"metadata nearly full", func(h *Host) { h.ThinPools.Value[0].MetadataUsed = 900 << 20 }, verdict{"metadata", Warn, "87 %"}},
	{"metadata full", func(h *Host) { h.ThinPools.Value[0].MetadataUsed = 1 << 30 }, verdict{"metadata", Fail, "pve/data 100 % of it are used: when it is full the pool stops, with every VM on it -> `lvextend --poolmetadatasize +1G pve/data`"}},
	{"no thin pool", func(h *Host) { h.ThinPools.Value = nil }, verdict{"privsep", Pass, ""}},
	{"pools out of sight", func(h *Host) { h.ThinPools = Unseen[[]ThinPool](errUnseen) }, verdict{"metadata", Skipped, "out of sight"}},
	{"no synchronisation", func(h *Host) { h.Clock.Value.Synchronised = false }, verdict{"clock", Warn, "chronyc"}},
	{"a rough clock", func(h *Host) { h.Clock.Value.MaxError = 3 * time.Second }, verdict{"clock", Warn, "off by 3s"}},
	{"no clock", func(h *Host) { h.Clock = Unseen[Clock](errUnseen) }, verdict{"clock", Skipped, ""}},
	{"a silent time server", func(h *Host) { h.TimeServers["10.10.0.1"] = Unseen[time.Duration](errUnseen) }, verdict{"timeserver", Fail, "network.time_servers"}},
	{"Talos' own is silent", func(h *Host) {
		h.Wants.Clusters[0].TimeServers, h.TimeServers = nil, map[string]Fact[time.Duration]{TalosTimeServer: Unseen[time.Duration](errUnseen)}
	}, verdict{"timeserver", Warn, "no other is named"}},
	{"Talos' own answers", func(h *Host) {
		h.Wants.Clusters[0].TimeServers, h.TimeServers = nil, map[string]Fact[time.Duration]{TalosTimeServer: Saw(time.Duration(0))}
	}, verdict{"timeserver", Pass, TalosTimeServer}},
	{"a time server that is not asked", func(h *Host) {
		h.TimeServers, h.NotAsked = nil, map[string]string{"10.10.0.1": "there is no route"}
	}, verdict{"timeserver", Skipped, "not asked: there is no route -> name one on a network of the nodes under network.time_servers; or ask it yourself: `chronyd -Q 'server 10.10.0.1 iburst'`"}},
	{"a time server that is off", func(h *Host) { h.TimeServers["10.10.0.1"] = Saw(-time.Minute) }, verdict{"timeserver", Warn, "1m0s"}},

	{"no way", func(h *Host) { h.Ways[ip("10.10.0.21")] = Unseen[Way](errors.New("network is unreachable")) }, verdict{"route", Fail, "no way to dev-wk-1"}},
	{"over a router", func(h *Host) { h.Ways[ip("10.10.0.21")] = Saw(Way{Link: "vmbr0", Via: ip("192.168.1.1")}) }, verdict{"route", Warn, "router 192.168.1.1"}},
	{"over another bridge", func(h *Host) { h.Ways[ip("10.10.0.21")] = Saw(Way{Link: "vmbr0"}) }, verdict{"route", Warn, "looked for on vmbr0"}},
	{"over a VLAN of the bridge", func(h *Host) { h.Ways[ip("10.10.0.21")] = Saw(Way{Link: "vmbr1.20"}) }, verdict{"route", Pass, "vmbr1, vmbr1.20"}},
	{"nobody looked", func(h *Host) { h.Ways = nil }, verdict{"route", Skipped, ""}},
	{"another machine has the address", func(h *Host) { h.Ways[ip("10.10.0.21")] = Saw(Way{Link: "vmbr1", MAC: "AA:AA:AA:AA:AA:01"}) }, verdict{"addresses", Fail, "AA:AA:AA:AA:AA:01) answers at 10.10.0.21, the address of dev-wk-1"}},
	{"another host's agent", func(h *Host) { h.Others = Saw("the agent of pve2") }, verdict{"agents", Warn, "besides this one there is the agent of pve2, and"}},
	{"another host's agent, and each has its clusters", func(h *Host) { h.Others, h.Wants.Chosen = Saw("the agent of pve2"), true }, verdict{"agents", Pass, "the agent of pve2"}},
	{"agents out of sight", func(h *Host) { h.Others = Unseen[string](errUnseen) }, verdict{"agents", Skipped, "out of sight"}},
	{"another machine had the address", func(h *Host) {
		h.Ways[ip("10.10.0.21")] = Saw(Way{Link: "vmbr1", MAC: "AA:AA:AA:AA:AA:01", Earlier: true})
	}, verdict{"addresses", Warn, "seen earlier at 10.10.0.21, the address of dev-wk-1; it has not answered now -> if it still has the address, choose another ip"}},
	{"addresses on a network that is not the nodes'", func(h *Host) {
		for at := range h.Ways {
			h.Ways[at] = Saw(Way{Link: "storage0", Unasked: true})
		}
	}, verdict{"addresses", Skipped, "on storage0, and not on a bridge"}},
	{"a gateway on such a network", func(h *Host) { h.Ways[ip("10.10.0.1")] = Saw(Way{Link: "storage0", Unasked: true}) }, verdict{"gateway", Skipped, "on storage0, and not on a bridge"}},
	{"another machine has the VIP", func(h *Host) { h.Ways[ip("10.10.0.5")] = Saw(Way{Link: "vmbr1", MAC: "BC:24:11:00:00:21"}) }, verdict{"addresses", Fail, "network.vip"}},
	{"the host has the address", func(h *Host) { h.Ways[ip("10.10.0.21")] = Saw(Way{Link: "lo", Loopback: true}) }, verdict{"addresses", Fail, "this host itself has 10.10.0.21"}},
	{"our MAC is elsewhere", func(h *Host) {
		h.Seen.Value = append(h.Seen.Value, Neighbour{"vmbr1", ip("10.10.0.99"), "BC:24:11:00:00:21"})
	}, verdict{"addresses", Warn, "was last seen at 10.10.0.99, and should be at 10.10.0.21"}},
	{"addresses out of sight", func(h *Host) { h.Ways = nil }, verdict{"addresses", Skipped, ""}},
	{"a dead gateway", func(h *Host) { h.Ways[ip("10.10.0.1")] = Saw(Way{Link: "vmbr1"}) }, verdict{"gateway", Warn, "no answer from 10.10.0.1"}},
	{"the host is the gateway", func(h *Host) { h.Ways[ip("10.10.0.1")] = Saw(Way{Link: "lo", Loopback: true}) }, verdict{"gateway", Pass, "this host"}},
	{"a gateway elsewhere", func(h *Host) { h.Ways[ip("10.10.0.1")] = Saw(Way{Via: ip("192.168.1.1")}) }, verdict{"gateway", Skipped, ""}},
	{"a DHCP server", func(h *Host) { h.Wants.Clusters[0].Mode = "dhcp-reservation" }, verdict{"dhcp", Pass, "dev/vmbr1"}},
	{"no DHCP server", func(h *Host) { h.Wants.Clusters[0].Mode, h.DHCP.Value = "dhcp-reservation", nil }, verdict{"dhcp", Warn, "dnsmasq"}},
	{"a DHCP server on another bridge", func(h *Host) {
		h.Wants.Clusters[0].Mode, h.DHCP.Value = "dhcp-reservation", []netip.Addr{ip("10.99.0.1")}
		h.Addresses.Value["vmbr1"] = []netip.Prefix{netip.MustParsePrefix("10.10.0.2/24")}
	}, verdict{"dhcp", Warn, ""}},
	{"a DHCP server on this bridge", func(h *Host) {
		h.Wants.Clusters[0].Mode, h.DHCP.Value = "dhcp-reservation", []netip.Addr{ip("10.10.0.2")}
		h.Addresses.Value["vmbr1"] = []netip.Prefix{netip.MustParsePrefix("10.10.0.2/24")}
	}, verdict{"dhcp", Pass, ""}},
	{"a DHCP server for leases", func(h *Host) {
		h.Wants.Clusters[0].Mode, h.Wants.Clusters[0].Nodes[1].IP = "dhcp-discover", netip.Addr{}
	}, verdict{"dhcp", Pass, "`dhcp.leases`"}},
	{"no DHCP server for leases", func(h *Host) {
		h.Wants.Clusters[0].Mode, h.Wants.Clusters[0].Nodes[1].IP, h.DHCP.Value = "dhcp-discover", netip.Addr{}, nil
	}, verdict{"dhcp", Skipped, "cannot be seen"}},
	{"a node without address is anywhere", func(h *Host) {
		h.Wants.Clusters[0].Mode, h.Wants.Clusters[0].Nodes[1].IP = "dhcp-discover", netip.Addr{}
		h.Seen.Value = append(h.Seen.Value, Neighbour{"vmbr1", ip("10.10.0.99"), h.Wants.Clusters[0].Nodes[1].MAC})
	}, verdict{"addresses", Pass, "nobody else answers"}},
	{"the way to a node with an address, beside one without", func(h *Host) {
		h.Wants.Clusters[0].Mode, h.Wants.Clusters[0].Nodes[1].IP = "dhcp-discover", netip.Addr{}
	}, verdict{"route", Pass, "over vmbr1"}},
	{"DHCP out of sight", func(h *Host) {
		h.Wants.Clusters[0].Mode, h.DHCP = "dhcp-reservation", Unseen[[]netip.Addr](errUnseen)
	}, verdict{"dhcp", Skipped, ""}},
}

// TestJudge: a healthy host passes everything, and every way in which one can be
// wrong is reported, at the level that the catalogue gives and with its hint.
func TestJudge(t *testing.T) {
	seen := map[string]map[Level]bool{}
	note := func(what string, checks []Check) {
		for _, c := range checks {
			if seen[c.Name] == nil {
				seen[c.Name] = map[Level]bool{}
			}
			seen[c.Name][c.Level] = true
			if (c.Level == Fail || c.Level == Warn) && c.Hint == "" && c.Name != "inventory" {
				t.Errorf("%s: %+v has no cure", what, c)
			}
			if c.Message == "" {
				t.Errorf("%s: %+v says nothing", what, c)
			}
		}
	}
	healthy := append(well().Judge(), rootsView().Judge()...)
	note("a healthy host", healthy)
	for _, c := range healthy {
		if c.Level != Pass {
			t.Errorf("a healthy host: %+v", c)
		}
	}
	for _, tc := range agentCases {
		a := well()
		tc.change(&a)
		checks := a.Judge()
		note(tc.what, checks)
		if !told(checks, tc.want) {
			t.Errorf("%s: want %v of %+v", tc.what, tc.want, checks)
		}
	}
	for _, tc := range hostCases {
		h := rootsView()
		tc.change(&h)
		checks := h.Judge()
		note(tc.what, checks)
		if !told(checks, tc.want) {
			t.Errorf("%s: want %v of %+v", tc.what, tc.want, checks)
		}
	}
	for _, k := range Catalogue {
		// The command tells these two itself.
		if k.Name == "config" || k.Name == "daemon" {
			delete(seen, k.Name)
			continue
		}
		for _, l := range []Level{Pass, Warn, Fail, Skipped} {
			promised := l == Pass || slices.Contains(strings.Split(k.Levels, ", "), string(l))
			if promised != seen[k.Name][l] {
				t.Errorf("%s at %s: the catalogue says %v, and it is %v", k.Name, l, promised, seen[k.Name][l])
			}
		}
		delete(seen, k.Name)
	}
	for name := range seen {
		t.Errorf("%s is not in the catalogue", name)
	}
}

// TestPolicyBeforeTheInventory: while the repository asks for nothing, what the
// policy allows is looked at, on every host.
func TestPolicyBeforeTheInventory(t *testing.T) {
	a := well()
	a.Wants.Clusters, a.Wants.Datastores, a.Wants.Bridges = nil, []string{"local", "data"}, []string{"vmbr9"}
	checks := a.Judge()
	for _, v := range []verdict{{"storage", Pass, "pve1/local "}, {"storage", Pass, "pve1/data"}, {"bridge", Fail, "pve1/vmbr9"}} {
		if !told(checks, v) {
			t.Errorf("want %v of %+v", v, checks)
		}
	}
}

func TestReport(t *testing.T) {
	r := NewReport([]Check{{Name: "source", Level: Warn}, {Name: "api", Level: Pass}, {Name: "files", Level: Fail}, {Name: "api", Level: Skipped}})
	var names []string
	for _, c := range r.Checks {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{"files", "api", "api", "source"}) || r.Summary != (Summary{Pass: 1, Warn: 1, Fail: 1, Skipped: 1}) {
		t.Errorf("%v, %+v", names, r.Summary)
	}
	if r := NewReport(nil); r.Checks == nil {
		t.Error("no checks are null in JSON")
	}
}

// TestClusterOf: what a spec asks for is taken over.
func TestClusterOf(t *testing.T) {
	if lb := ClusterOf(cluster.Spec{Network: cluster.Network{VIP: ip("10.0.0.5"), VIPBy: cluster.VIPByExternal}}); lb.VIP.IsValid() {
		t.Errorf("the address of a load balancer is looked for at control planes: %v", lb.VIP)
	}
	c := ClusterOf(cluster.Spec{Name: "dev", Network: cluster.Network{Mode: cluster.AddressStatic, VLAN: 7, VIP: ip("10.0.0.5")}, Nodes: []cluster.Node{{
		Name: "a", Role: cluster.ControlPlane, Placement: cluster.Placement{Pin: "pve1"}, VMID: 400, Datastore: "d", DiskBytes: 1, Disks: []cluster.Disk{{Name: "x", Bytes: 2, Datastore: "e"}}, ImageDatastore: "i", CloudInitDatastore: "c", Bridge: "b", Devices: device.Set{Cards: []device.Card{{Bridge: "f", VLAN: 9}}, PCI: []device.PCI{{Mapping: "gpu"}}, USB: []device.USB{{Mapping: "key"}}}}}})
	n := c.Nodes[0]
	if c.VLAN != 7 || c.VIP != ip("10.0.0.5") || !n.ControlPlane || !slices.Equal(n.Disks, []Disk{{"d", 1}, {"e", 2}}) || n.Images != "i" || n.CloudInit != "c" || n.Bridge != "b" || !slices.Equal(n.Further, []Link{{"f", 9}}) || !slices.Equal(n.Mappings, []string{"pci/gpu", "usb/key"}) || !slices.Equal(Wants{Clusters: []Cluster{c}}.Places(nil)[0].Mappings, n.Mappings) {
		t.Errorf("%+v", c)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 MiB", -5: "0 MiB", 3 << 20: "3 MiB", 40 << 30: "40 GiB", 3 << 39: "1.5 TiB"} {
		if got := Size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
