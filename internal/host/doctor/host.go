package doctor

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"
)

// Host is what is seen on the host itself, by root as far as it takes root.
type Host struct {
	Wants Wants

	// Clock is the kernel's word on the host's clock.
	Clock Fact[Clock]
	// TimeServers are those of the nodes that were asked, by name; NotAsked reports for
	// the others why not.
	TimeServers map[string]Fact[time.Duration] // how far theirs is ahead
	NotAsked    map[string]string

	Files []File
	// Credentials are those in root's store, beside what the agent that runs was
	// handed when it started; not looked at where systemd does not run it.
	Credentials Fact[[]Credential]
	// Separation is what the agent's user and its token were given, in the word of
	// Proxmox VE's root: the token itself may not ask for its user.
	Separation Fact[Separation]

	// Snapshots are those of etcd, as the config has them.
	Snapshots Fact[Snapshots]
	// Reservations are those for a DHCP server of the host, as the config has them.
	Reservations Fact[Reservations]

	// Others names who else in the Proxmox VE cluster has a token of the agents' user,
	// in the word of its root; "" for nobody.
	Others Fact[string]

	// ThinPools are the thin pools of this host, in the word of Proxmox VE's root: the
	// agent may not ask for them.
	ThinPools Fact[[]ThinPool]

	// Ways are the routes to the addresses of nodes, VIPs and gateways, and who
	// answers there.
	Ways map[netip.Addr]Fact[Way]
	// Seen are all entries of the neighbour table.
	Seen Fact[[]Neighbour]
	// DHCP are the local addresses on which this host listens for DHCP requests.
	DHCP Fact[[]netip.Addr]
	// Addresses are the host's own, by interface.
	Addresses Fact[map[string][]netip.Prefix]
}

// Separation is what a user and its token may do. A token with separated
// privileges has only what both were given.
type Separation struct{ User, Token Grants }

// Grants are privileges by path; a true one holds below the path as well.
type Grants map[string]map[string]bool

// at returns what is granted at a path, there or above it.
func (g Grants) at(where string) []string {
	if here, ok := g[where]; ok {
		return slices.Sorted(maps.Keys(here))
	}
	for up := path.Dir(where); where != "/"; up = path.Dir(up) {
		var out []string
		for privilege, below := range g[up] {
			if below {
				out = append(out, privilege)
			}
		}
		if len(out) > 0 || up == "/" {
			slices.Sort(out)
			return out
		}
	}
	return nil
}

// Clock is the state of the host's clock.
type Clock struct {
	Synchronised bool
	MaxError     time.Duration
}

// File is a file or folder whose mode matters.
type File struct {
	Path  string
	Is    FileKind
	Dir   bool
	Mode  fs.FileMode // permission bits
	Owner string      // names where there are any, else numbers
	Group string
	Err   string // why it could not be looked at
}

// Credential is a key or token in root's store, and what the agent has of it.
type Credential struct {
	Path  string
	Given bool // the agent was handed one of this name
	Same  bool // and it is the one that lies there now
}

// FileKind is what a file is for.
type FileKind string

// The kinds of files.
const (
	KeyFile    FileKind = "key"        // nobody else reads it
	StoreFile  FileKind = "credential" // in root's credential store: root's alone
	ConfigFile FileKind = "config"     // nobody else changes it
	PolicyFile FileKind = "policy"     // only root changes it
	PublicFile FileKind = "public"     // nobody else changes it
)

// Way is how the host reaches an address.
type Way struct {
	Link string     // interface
	Via  netip.Addr // router; zero: on the link itself
	MAC  string     // who answers there, upper case; "" : nobody
	// Earlier is true when the MAC answered some time ago, and not when it was asked
	// again.
	Earlier bool
	// Unasked is true when nobody was asked: see Wants.MayAsk.
	Unasked bool
	// Loopback is true when the address is on this host itself.
	Loopback bool
}

// over reports whether the way leads over a bridge, or a VLAN of it.
func (w Way) over(bridge string) bool {
	return w.Link == bridge || strings.HasPrefix(w.Link, bridge+".")
}

// Neighbour is an entry of the neighbour table.
type Neighbour struct {
	Link string
	IP   netip.Addr
	MAC  string // upper case
}

// Bounds of the host's clock.
const (
	// clockError is the kernel's own bound above which its clock counts as off.
	clockError = time.Second
)

// Judge describes what the view from the host comes to.
func (h Host) Judge() []Check {
	var out []Check
	for _, f := range h.Files {
		if c, found := f.judge(); found {
			out = append(out, c)
		}
	}
	if !slices.ContainsFunc(out, func(c Check) bool { return c.Level != Skipped }) && len(h.Files) > len(out) {
		out = append(out, Check{Name: "files", Level: Pass, Message: fmt.Sprintf("%d files and folders have the right owners and modes", len(h.Files)-len(out))})
	}
	out = append(out, h.credentials()...)
	out = append(out, h.agents())
	out = append(out, h.snapshots()...)
	out = append(out, h.reservations()...)
	out = append(out, h.separation()...)
	out = append(out, h.metadata()...)
	out = append(out, h.clock())
	for _, c := range h.Wants.Clusters {
		out = append(out, h.cluster(c)...)
	}
	return append(out, h.timeServers()...)
}

// judge describes what is wrong with a file; nothing, when nothing is.
func (f File) judge() (Check, bool) {
	c := Check{Name: "files", Subject: f.Path, Level: Fail}
	if f.Err != "" {
		c.Level, c.Message = Skipped, f.Err
		return c, true
	}
	ours := func(name string) bool { return name == "root" || name == "talos-agent" }
	mode := f.Mode.Perm()
	chmod := func(drop fs.FileMode) string { return fmt.Sprintf("`chmod %04o %s`", mode&^drop, f.Path) }
	switch {
	case f.Is == StoreFile && (f.Owner != "root" || mode&0o077 != 0):
		c.Message = fmt.Sprintf("is %s's with mode %04o: credentials are root's alone, systemd hands them to the agent", f.Owner, mode)
		want := "0600"
		if f.Dir {
			want = "0700"
		}
		c.Hint = fmt.Sprintf("`chown root:root %s && chmod %s %s`", f.Path, want, f.Path)
	case f.Is == KeyFile && mode&0o007 != 0:
		c.Message, c.Hint = fmt.Sprintf("everybody can get at it (mode %04o): what it opens must be changed too", mode), chmod(0o007)
	case f.Is == KeyFile && mode&0o070 != 0 && !ours(f.Group):
		c.Message = fmt.Sprintf("the group %s can get at it (mode %04o)", f.Group, mode)
		c.Hint = "`chgrp talos-agent " + f.Path + "`, if the agent reads it; else " + chmod(0o070)
	case f.Is == PolicyFile && f.Owner != "root":
		c.Message = fmt.Sprintf("is %s's, who can lift every bound with it", f.Owner)
		c.Hint = "`chown root:root " + f.Path + "`"
	case f.Is == PolicyFile && mode&0o020 != 0 && f.Group != "root":
		c.Message = fmt.Sprintf("the group %s can change it (mode %04o), and lift every bound with it", f.Group, mode)
		c.Hint = chmod(0o022)
	case mode&0o002 != 0:
		c.Message, c.Hint = fmt.Sprintf("everybody can change it (mode %04o)", mode), chmod(0o022)
	case (f.Is == ConfigFile || f.Is == PublicFile) && mode&0o020 != 0 && f.Group != "root":
		c.Level = Warn
		c.Message, c.Hint = fmt.Sprintf("the group %s can change it (mode %04o)", f.Group, mode), chmod(0o020)
	case (f.Is == ConfigFile || f.Is == PublicFile) && f.Owner != "root":
		c.Level = Warn
		c.Message, c.Hint = fmt.Sprintf("is %s's, who can change it", f.Owner), "`chown root "+f.Path+"`"
	default:
		return c, false
	}
	return c, true
}

// credentials judges whether the agent works with the keys that lie in the
// store: systemd hands them over when it starts the agent, and not again.
func (h Host) credentials() []Check {
	switch {
	case !h.Credentials.Known && h.Credentials.Why == "":
		return nil
	case !h.Credentials.Known:
		return []Check{skipCheck("credentials", "", h.Credentials)}
	}
	const restart = "`systemctl restart talos-agent`, which disturbs nothing that runs"
	var out []Check
	for _, c := range h.Credentials.Value {
		switch {
		case !c.Given:
			_, name, _ := strings.Cut(path.Base(c.Path), ".")
			out = append(out, Check{Name: "credentials", Subject: c.Path, Level: Warn, Message: "the agent that runs was not given it",
				Hint: restart + fmt.Sprintf("; a name that the unit does not know takes `LoadCredential=%s:%s` in `systemctl edit talos-agent`", name, path.Base(c.Path))})
		case !c.Same:
			out = append(out, Check{Name: "credentials", Subject: c.Path, Level: Warn, Message: "has changed since the agent started, which still uses the old one", Hint: restart})
		}
	}
	if len(out) == 0 {
		out = []Check{{Name: "credentials", Level: Pass, Message: fmt.Sprintf("the agent that runs has the %d of the store as they are", len(h.Credentials.Value))}}
	}
	return out
}

// separation judges whether the token was given less than its user. What both
// lack, the check of privileges reports.
func (h Host) separation() []Check {
	if !h.Separation.Known {
		return []Check{skipCheck("privsep", string(h.Wants.Token), h.Separation)}
	}
	user := h.Wants.Token.User()
	var out []Check
	for _, n := range h.Wants.Needs {
		lacks := subtractNames(slices.Concat(n.Privileges, n.Optional), h.Separation.Value.Token.at(n.Path))
		has := h.Separation.Value.User.at(n.Path)
		lacks = slices.DeleteFunc(lacks, func(p string) bool { return !slices.Contains(has, p) })
		if len(lacks) > 0 {
			out = append(out, Check{Name: "privsep", Subject: n.Path, Level: Fail,
				Message: fmt.Sprintf("the user %s has %s there, and the token has not", user, strings.Join(lacks, " ")),
				Hint:    fmt.Sprintf("`pveum acl modify %s --roles %s --tokens '%s'`, or `talos-agent init`", n.Path, n.Role, h.Wants.Token)})
		}
	}
	if len(out) == 0 {
		out = []Check{{Name: "privsep", Subject: string(h.Wants.Token), Level: Pass, Message: "the token was given what its user has"}}
	}
	return out
}

// agents judges whether this agent and those of other hosts can take the same
// clusters for their own: nothing else keeps them from it that follow one repository.
func (h Host) agents() Check {
	c := Check{Name: "agents", Level: Pass}
	switch {
	case !h.Others.Known:
		return skipCheck(c.Name, "", h.Others)
	case h.Others.Value == "":
		c.Message = "no other host of the Proxmox VE cluster has one"
	case h.Wants.Chosen:
		c.Message = "the config names the clusters of this one; besides it there is " + h.Others.Value
	default:
		c.Level = Warn
		c.Message = fmt.Sprintf("besides this one there is %s, and the config does not name which clusters are whose: where they follow one repository, each takes all of them for its own, and overwrites the commit statuses of the other", h.Others.Value)
		c.Hint = "name the clusters of each agent under `clusters` in the config.yaml of its host"
	}
	return c
}

func (h Host) clock() Check {
	c := Check{Name: "clock", Level: Pass, Message: "synchronised"}
	switch {
	case !h.Clock.Known:
		return skipCheck(c.Name, "", h.Clock)
	case !h.Clock.Value.Synchronised:
		c.Level = Warn
		c.Message = "nothing synchronises the clock of the host: when it drifts, certificates that the agent mints are not valid on the nodes"
		c.Hint = "`systemctl enable --now chrony`, then `chronyc tracking`; `timedatectl` shows the state"
	case h.Clock.Value.MaxError > clockError:
		c.Level = Warn
		c.Message = fmt.Sprintf("synchronised, but it may be off by %v", h.Clock.Value.MaxError.Round(100*time.Millisecond))
		c.Hint = "`chronyc sources -v` shows which time servers answer"
	}
	return c
}

// cluster judges the network of one cluster, seen from this host.
func (h Host) cluster(c Cluster) []Check {
	var out []Check
	out = append(out, h.route(c))
	out = append(out, h.addresses(c)...)
	if c.Gateway.IsValid() {
		out = append(out, h.gateway(c))
	}
	if c.Mode == "dhcp-reservation" || slices.ContainsFunc(c.Nodes, func(n Node) bool { return !n.IP.IsValid() }) {
		out = append(out, h.dhcp(c)...)
	}
	return out
}

// route judges how the nodes are reached. All of a cluster go the same way, or
// the odd ones are reported.
func (h Host) route(c Cluster) Check {
	out := Check{Name: "route", Subject: c.Name, Level: Pass}
	var links []string
	for _, n := range c.Nodes {
		f := h.Ways[n.IP]
		if !n.IP.IsValid() {
			continue // what a DHCP server gives it is found by its MAC
		}
		if !f.Known {
			s := skipCheck("route", c.Name, f)
			if f.Why != "" {
				s.Level, s.Message = Fail, fmt.Sprintf("there is no way to %s (%s): %s", n.Name, n.IP, f.Why)
				s.Hint = "give the host an address on " + n.Bridge + " in the nodes' network, in /etc/network/interfaces, then `ifreload -a`"
			}
			return s
		}
		w := f.Value
		direct := w.over(n.Bridge) || w.Loopback
		switch {
		case w.Via.IsValid():
			out.Level = Warn
			out.Message = fmt.Sprintf("%s (%s) is reached over the router %s: the agent works, but nothing here shows who answers at the nodes' addresses", n.Name, n.IP, w.Via)
			out.Hint = "give the host an address on " + n.Bridge + " in the nodes' network"
			return out
		case !direct:
			out.Level = Warn
			out.Message = fmt.Sprintf("%s (%s) is looked for on %s, and its VM is put on %s", n.Name, n.IP, w.Link, n.Bridge)
			out.Hint = "name the bridge of that network in cluster.yaml, or give the host its address on " + n.Bridge
			return out
		case !slices.Contains(links, w.Link):
			links = append(links, w.Link)
		}
	}
	out.Message = "the nodes are reached directly, over " + strings.Join(links, ", ")
	return out
}

// addresses judges who answers at the addresses of nodes and VIP, and whether
// our MACs are anywhere else.
func (h Host) addresses(c Cluster) []Check {
	var out []Check
	ours := map[string]Node{}
	var planes []string
	for _, n := range c.Nodes {
		ours[n.MAC] = n
		if n.ControlPlane {
			planes = append(planes, n.MAC)
		}
	}
	seen, found, elsewhere := 0, 0, ""
	look := func(what string, ip netip.Addr, macs []string, hint string) {
		f := h.Ways[ip]
		if f.Known && f.Value.Loopback && !ip.IsLoopback() {
			found++
			out = append(out, Check{Name: "addresses", Subject: c.Name, Level: Fail,
				Message: fmt.Sprintf("this host itself has %s, the address of %s", ip, what), Hint: hint})
			return
		}
		if f.Value.Unasked {
			elsewhere = f.Value.Link
		}
		if !f.Known || f.Value.Via.IsValid() || f.Value.Loopback || f.Value.Unasked {
			return
		}
		seen++
		mac := f.Value.MAC
		if mac == "" || slices.Contains(macs, mac) {
			return
		}
		found++
		k := Check{Name: "addresses", Subject: c.Name, Level: Fail,
			Message: fmt.Sprintf("another machine (%s) answers at %s, the address of %s", mac, ip, what),
			Hint:    fmt.Sprintf("%s; `ip neigh show %s` shows it", hint, ip)}
		if f.Value.Earlier {
			k.Level = Warn
			k.Message = fmt.Sprintf("another machine (%s) was seen earlier at %s, the address of %s; it has not answered now", mac, ip, what)
			k.Hint = fmt.Sprintf("if it still has the address, %s; if it no longer exists, `ip neigh flush to %s` forgets it", hint, ip)
		}
		out = append(out, k)
	}
	for _, n := range c.Nodes {
		if !n.IP.IsValid() {
			continue
		}
		look(n.Name, n.IP, []string{n.MAC}, "choose another ip in nodes.yaml, or take the address away from that machine")
	}
	if c.VIP.IsValid() {
		look("the VIP", c.VIP, planes, "choose another network.vip, or take the address away from that machine")
	}
	for _, e := range h.Seen.Value {
		n, is := ours[e.MAC]
		if !is || !e.IP.Is4() || !n.IP.IsValid() || e.IP == n.IP || e.IP == c.VIP && n.ControlPlane {
			continue
		}
		found++
		out = append(out, Check{Name: "addresses", Subject: c.Name, Level: Warn,
			Message: fmt.Sprintf("the MAC of %s (%s) was last seen at %s, and should be at %s", n.Name, n.MAC, e.IP, n.IP),
			Hint:    "did a DHCP server give it that address, or has another machine the same MAC?"})
	}
	switch {
	case found > 0:
	case seen > 0:
		out = append(out, Check{Name: "addresses", Subject: c.Name, Level: Pass, Message: fmt.Sprintf("nobody else answers at the %d addresses", seen)})
	case elsewhere != "":
		out = append(out, Check{Name: "addresses", Subject: c.Name, Level: Skipped, Message: fmt.Sprintf("no address was tried: the addresses are on %s, and %s", elsewhere, notBridged)})
	default:
		out = append(out, Check{Name: "addresses", Subject: c.Name, Level: Skipped, Message: "the nodes are not on a network of this host, so that it does not see who answers"})
	}
	return out
}

func (h Host) gateway(c Cluster) Check {
	out := Check{Name: "gateway", Subject: c.Name, Level: Pass, Message: c.Gateway.String() + " answers"}
	f := h.Ways[c.Gateway]
	switch {
	case f.Known && f.Value.Loopback:
		out.Message = c.Gateway.String() + " is this host"
	case !f.Known || f.Value.Via.IsValid():
		why := f
		why.Why = "it is not on a network of this host"
		return skipCheck(out.Name, out.Subject, why)
	case f.Value.Unasked:
		out.Level, out.Message = Skipped, fmt.Sprintf("not asked: it is on %s, and %s", f.Value.Link, notBridged)
	case f.Value.MAC == "":
		out.Level, out.Message = Warn, fmt.Sprintf("no answer from %s on %s: the nodes have no way out", c.Gateway, f.Value.Link)
		out.Hint = "correct network.gateway in cluster.yaml, or start the router"
	}
	return out
}

// dhcp judges whether somebody can give the nodes their reserved addresses. A
// server elsewhere on the network cannot be seen without asking for an address.
func (h Host) dhcp(c Cluster) []Check {
	if !h.DHCP.Known {
		return []Check{skipCheck("dhcp", c.Name, h.DHCP)}
	}
	var bridges []string
	for _, n := range c.Nodes {
		if !slices.Contains(bridges, n.Bridge) {
			bridges = append(bridges, n.Bridge)
		}
	}
	var out []Check
	for _, bridge := range bridges {
		served := slices.ContainsFunc(h.DHCP.Value, func(at netip.Addr) bool {
			return at.IsUnspecified() || slices.ContainsFunc(h.Addresses.Value[bridge], func(p netip.Prefix) bool { return p.Addr() == at })
		})
		k := Check{Name: "dhcp", Subject: c.Name + "/" + bridge, Level: Pass, Message: "a DHCP server of this host listens there; `talos-agent validate` prints the reservations that it must know"}
		switch leased := c.Mode == "dhcp-discover"; {
		case leased && served:
			k.Message = "a DHCP server of this host listens there; `dhcp.leases` in config.yaml has the agent read its lease file"
		case leased:
			k.Level, k.Message = Skipped, "no DHCP server of this host listens there; one elsewhere on the network, which then gives nodes their addresses, cannot be seen"
		case !served:
			k.Level = Warn
			k.Message = "no DHCP server of this host listens there: the nodes come up only if another machine of that network has their reservations"
			k.Hint = "if none has, set up dnsmasq on the host, or write network.cidr and network.gateway, so that no server is needed"
		}
		out = append(out, k)
	}
	return out
}
