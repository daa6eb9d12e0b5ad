package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/availability"
)

// Bounds of what passes.
const (
	// expiresSoon: Proxmox VE renews its own certificates two weeks before they
	// end (pveupdate); one that is closer to its end is not being renewed.
	expiresSoon = 13 * 24 * time.Hour
	// skewWarn and skewFail: etcd complains of a second between its members, and
	// a certificate minted by a clock that is minutes ahead is not valid yet.
	skewWarn = 5 * time.Second
	skewFail = 5 * time.Minute
)

// Judge describes what an agent's own view of its host comes to.
func (a Agent) Judge() []Check {
	var out []Check
	if a.Doubt != "" {
		out = append(out, Check{Name: "config", Subject: "the daemon", Level: Fail, Message: "nothing is changed while it is not known what the host allows: " + a.Doubt,
			Hint: "fix what it names; the daemon checks every second"})
	}
	out = append(out, a.door()...)
	out = append(out, a.privileges()...)
	out = append(out, a.excess(), a.pool(), a.quorum())
	out = append(out, a.others()...)
	out = append(out, a.accessLog()...)
	out = append(out, a.places()...)
	return append(out, a.sources()...)
}

// accessLog judges whether the agent can read who changed a VM, where it is to.
func (a Agent) accessLog() []Check {
	if a.AccessLog == nil {
		return nil
	}
	c := Check{Name: "accesslog", Subject: a.AccessLog.Value, Level: Pass, Message: "the agent can read it"}
	switch {
	case !a.AccessLog.Known:
		c.Level, c.Message, c.Hint = Warn, a.AccessLog.Why+"; who edited a VM by a request that left no task stays unknown", a.AccessLog.Hint
	case a.InPlace:
		c.Level, c.Message, c.Hint = Skipped, "this user can read it; whether the agent's own can, only the daemon sees", "`systemctl start talos-agent`, and run it again"
	}
	return []Check{c}
}

// door judges the way to the API up to the token, step by step: what lies behind
// a step that failed is skipped.
func (a Agent) door() []Check {
	f := a.API.Fault
	if !a.API.Door.Known && f == "" {
		f = FaultOther
	}
	at := func(level Level, name, message, hint string) Check {
		return Check{Name: name, Subject: a.API.URL, Level: level, Message: message, Hint: hint}
	}
	behind := func(names ...string) (out []Check) {
		for _, n := range names {
			out = append(out, at(Skipped, n, "the API was not reached", ""))
		}
		return out
	}
	why, hint := a.API.Door.Why, a.API.Door.Hint
	switch f {
	case "":
		d := a.API.Door.Value
		return []Check{at(Pass, "api", "answers", ""), a.certificate(d), versionCheck(d.Version), a.token(), skewCheck(a.API.URL, d)}
	case FaultAddress:
		return append([]Check{at(Fail, "api", why, cmp.Or(hint, "is it Proxmox VE's address (proxmox.url)? `systemctl status pveproxy` on that host; `curl -k "+a.API.URL+"`"))},
			behind("certificate", "version", "token", "skew")...)
	case FaultAuthority, FaultName, FaultExpired, FaultPin:
		return append([]Check{at(Pass, "api", "a server answers", ""), at(Fail, "certificate", why, a.distrusted(f, hint))}, behind("version", "token", "skew")...)
	case FaultToken:
		return append([]Check{at(Pass, "api", "answers", ""), at(Pass, "certificate", "trusted", ""), at(Fail, "token", why, hint)}, behind("version", "skew")...)
	default:
		return append([]Check{at(Fail, "api", why, cmp.Or(hint, "`systemctl status pveproxy` and `journalctl -u pveproxy` on that host"))},
			behind("certificate", "version", "token", "skew")...)
	}
}

// distrusted is the hint for a certificate that is refused.
func (a Agent) distrusted(f Fault, hint string) string {
	switch f {
	case FaultAuthority:
		return "if it is Proxmox VE's own: `install -m 0644 /etc/pve/pve-root-ca.pem /etc/talos-agent/`, and proxmox.ca_file: pve-root-ca.pem; " +
			"if it is your own, proxmox.ca_file is your authority, or proxmox.fingerprint what `pvenode cert info` shows"
	case FaultName:
		if len(a.API.Names) > 0 {
			return "write one of the certificate's names into proxmox.url: " + strings.Join(a.API.Names, ", ")
		}
	}
	return hint
}

func (a Agent) certificate(d Door) Check {
	c := Check{Name: "certificate", Subject: a.API.URL, Level: Pass}
	left := d.NotAfter.Sub(a.Now)
	switch {
	case d.NotAfter.IsZero():
		c.Message = "it is the pinned one"
	case left < expiresSoon:
		c.Level, c.Message = Warn, fmt.Sprintf("trusted, but only until %s, and it has not been renewed", d.NotAfter.Format(time.DateOnly))
		c.Hint = "Proxmox VE renews its own: `systemctl status pve-daily-update.timer`, or `pvecm updatecerts --force && systemctl restart pveproxy`; another one its issuer has to renew"
	default:
		c.Message = "trusted, until " + d.NotAfter.Format(time.DateOnly)
	}
	return c
}

// versionCheck judges the version of Proxmox VE: 8.4, or any of 9.
func versionCheck(version string) Check {
	c := Check{Name: "version", Level: Pass, Message: "Proxmox VE " + version}
	parts := append(strings.Split(version, "."), "0", "0")
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	switch {
	case err != nil || err2 != nil:
		c.Level, c.Message = Skipped, fmt.Sprintf("%q is no version of Proxmox VE", version)
	case major < 8 || major == 8 && minor < 4:
		c.Level, c.Message = Fail, "Proxmox VE "+version+" is too old: the agent uses what 8.4 brought"
		c.Hint = "upgrade the host to 8.4 or 9"
	case major > 9:
		c.Level, c.Message = Warn, "Proxmox VE "+version+" is newer than what the agent was tried with (8.4 and 9)"
		c.Hint = "look for a newer talos-agent"
	}
	return c
}

func skewCheck(url string, d Door) Check {
	c := Check{Name: "skew", Subject: url, Level: Pass}
	// What lies within the blur of the measurement is no difference.
	off := max(d.Skew.Abs()-d.Blur, 0).Round(time.Second)
	way := "ahead of"
	if d.Skew < 0 {
		way = "behind"
	}
	switch {
	case off < skewWarn:
		c.Message = "both clocks agree"
	case off < skewFail:
		c.Level = Warn
	default:
		c.Level = Fail
	}
	if c.Level != Pass {
		c.Message = fmt.Sprintf("the API's clock is %v %s ours: certificates that one mints may not be valid for the other", off, way)
		c.Hint = "synchronise both: `chronyc tracking` on each"
	}
	return c
}

// token judges whether the token, which was accepted, can do anything.
func (a Agent) token() Check {
	c := Check{Name: "token", Subject: string(a.Wants.Token), Level: Pass, Message: "accepted"}
	switch {
	case !a.Granted.Known:
		return skipCheck(c.Name, c.Subject, a.Granted)
	case len(a.Granted.Value) == 0:
		user, name := a.Wants.Token.User(), a.Wants.Token.Name()
		c.Level = Fail
		c.Message = "accepted, but it has no privilege at all, so that every list it is shown is empty. Its user may have some: a token with separated privileges has only what both were given"
		c.Hint = fmt.Sprintf("`talos-agent init` gives them to both; `pveum user permissions %s` and `pveum user token permissions %s %s` show what each has", user, user, name)
	default:
		a.borrowed(&c)
	}
	return c
}

// borrowed judges whether the token is another host's: what happens to that one
// happens to this agent too. One of any other name a person has made for it.
func (a Agent) borrowed(c *Check) {
	named := func(m Machine) bool { return m.Name == a.Machine }
	i := slices.IndexFunc(a.Hosts, func(m Machine) bool { return m.Token == a.Wants.Token })
	if i < 0 || named(a.Hosts[i]) || !slices.ContainsFunc(a.Hosts, named) {
		return
	}
	other := a.Hosts[i].Name
	c.Level = Warn
	c.Message = fmt.Sprintf("accepted, but it is the token of the host %s, and this is %s: once it is changed or removed for %s, this agent is locked out", other, a.Machine, other)
	c.Hint = "`talos-agent init` on this host makes one of its own, and asks before it replaces the file that holds this one"
}

func (a Agent) privileges() []Check {
	var out []Check
	if a.Granted.Known && len(a.Granted.Value) == 0 {
		return []Check{{Name: "privileges", Subject: string(a.Wants.Token), Level: Skipped, Message: "the token has none"}}
	}
	if !a.Granted.Known {
		return []Check{skipCheck("privileges", string(a.Wants.Token), a.Granted)}
	}
	for _, n := range a.Wants.Needs {
		held := a.Held[n.Path]
		if !held.Known {
			out = append(out, skipCheck("privileges", n.Path, held))
			continue
		}
		c := Check{Name: "privileges", Subject: n.Path, Level: Pass, Message: n.Why}
		missing, unseen := subtractNames(n.Privileges, held.Value), subtractNames(n.Optional, held.Value)
		switch {
		case len(missing) > 0:
			c.Level, c.Message = Fail, fmt.Sprintf("missing: %s (to %s)", strings.Join(missing, " "), n.Why)
		case len(unseen) > 0:
			c.Level, c.Message = Warn, fmt.Sprintf("not given: %s (to %s); the agent works without", strings.Join(unseen, " "), n.Why)
		}
		if c.Level != Pass {
			c.Hint = a.grant(n)
		}
		out = append(out, c)
	}
	return out
}

// grant is the command that gives what is needed at a path.
func (a Agent) grant(n Need) string {
	propagate := ""
	if strings.HasPrefix(n.Path, "/mapping/") { // which init grants to no user
		return fmt.Sprintf("`pveum acl modify %s --roles %s --users %s --tokens '%s'`; the token has only what its user has too", n.Path, n.Role, a.Wants.Token.User(), a.Wants.Token)
	}
	if n.Path == "/" {
		propagate = " --propagate 0"
	}
	if strings.Contains(n.Role, availability.Role) { // nor this one
		return availability.FormatGrant(a.Wants.Token.User(), string(a.Wants.Token)) + "; or take `ha: true` out of the policy"
	}
	return fmt.Sprintf("`talos-agent init`, or, where the role %s has them: `pveum acl modify %s --roles %s --users %s --tokens '%s'%s`; the token has only what its user has too",
		n.Role, n.Path, n.Role, a.Wants.Token.User(), a.Wants.Token, propagate)
}

// subtractNames returns what of want is not in have.
func subtractNames(want, have []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(p string) bool { return slices.Contains(have, p) })
}

// excess judges what the token may do beyond what is needed: whoever can read it
// could do the same.
func (a Agent) excess() Check {
	c := Check{Name: "excess", Subject: string(a.Wants.Token), Level: Pass, Message: "the token may do nothing but what is needed"}
	if !a.Granted.Known {
		return skipCheck(c.Name, c.Subject, a.Granted)
	}
	needed := map[string][]string{}
	for _, n := range a.Wants.Needs {
		needed[n.Path] = append(append(needed[n.Path], n.Privileges...), n.Optional...)
	}
	atTop := a.Granted.Value["/"]
	var excess []string
	for _, path := range slices.Sorted(maps.Keys(a.Granted.Value)) {
		// What comes down from / is reported there.
		extra := subtractNames(subtractNames(a.Granted.Value[path], slices.Concat(needed[path], harmless)), slices.Concat(a.offered(path), a.pooled(path)))
		if path != "/" {
			extra = subtractNames(extra, atTop)
		}
		if len(extra) == 0 {
			continue
		}
		slices.Sort(extra)
		words := strings.Join(extra, " ")
		if n := len(extra); n > 4 {
			words = fmt.Sprintf("%s and %d more", strings.Join(extra[:4], " "), n-4)
		}
		excess = append(excess, fmt.Sprintf("%s: %s", path, words))
	}
	if len(excess) > 0 {
		c.Level, c.Message = Warn, "the token may do more than it needs: "+strings.Join(excess, "; ")
		c.Hint = fmt.Sprintf("if that is not meant, `pveum acl list | grep '%s'` shows where it comes from, and `pveum acl delete PATH --roles ROLE --tokens '%s'` takes it away", a.Wants.Token, a.Wants.Token)
	}
	return c
}

// offered is what the token may do at a path because the policy offers the
// storage or bridge to clusters, whether or not one has taken it up.
func (a Agent) offered(path string) []string {
	within := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	if name, ok := strings.CutPrefix(path, "/storage/"); ok && (within(a.Wants.Datastores, name) || name == a.Wants.Images) {
		return []string{"Datastore.AllocateSpace", "Datastore.AllocateTemplate"}
	}
	if name, ok := strings.CutPrefix(path, "/sdn/zones/localnetwork/"); ok && within(a.Wants.Bridges, name) {
		return []string{"SDN.Use"}
	}
	if m, ok := strings.CutPrefix(path, "/mapping/"); ok && slices.Contains(a.Wants.Mappings, m) {
		return []string{"Mapping.Audit", "Mapping.Use"}
	}
	return nil
}

// pooled is what the token may do at a path because of a pool that it may work in,
// which is reported at the pool. Proxmox VE lists every VM and every storage of a
// pool by itself.
func (a Agent) pooled(path string) []string {
	if strings.HasPrefix(path, "/storage/") {
		// What a pool gives for its VMs comes to nothing at its storages.
		return slices.DeleteFunc(slices.Clone(a.Granted.Value[path]), func(p string) bool {
			return strings.HasPrefix(p, "Datastore.") || strings.HasPrefix(p, "Permissions.")
		})
	}
	text, ok := strings.CutPrefix(path, "/vms/")
	id, err := strconv.Atoi(text)
	if !ok || err != nil {
		return nil
	}
	pool, seen := a.VMs.Value[id]
	if !seen {
		pool = a.Wants.Pool // it was made or deleted meanwhile
	}
	return a.Granted.Value["/pool/"+pool]
}

// harmless are privileges that an administrator may well add: they show
// something, or let the agent remove old images.
var harmless = []string{"Datastore.Allocate", "Datastore.Audit", "VM.GuestAgent.Audit", "VM.Monitor", "VM.Clone", "SDN.Audit", "Sys.Audit", "Pool.Audit", "VM.Audit"}

func (a Agent) pool() Check {
	c := Check{Name: "pool", Subject: a.Wants.Pool, Level: Pass, Message: "exists"}
	switch {
	case !a.Pool.Known:
		return skipCheck(c.Name, c.Subject, a.Pool)
	case !a.Pool.Value:
		c.Level, c.Message, c.Hint = Fail, "there is no such pool", "`pveum pool add "+a.Wants.Pool+"`, or correct `pool` in the policy"
	}
	return c
}

func (a Agent) quorum() Check {
	c := Check{Name: "quorum", Level: Pass, Message: "the cluster of Proxmox VE can be written to"}
	switch {
	case !a.Quorum.Known:
		return skipCheck(c.Name, "", a.Quorum)
	case !a.Quorum.Value:
		c.Level, c.Message, c.Hint = Fail, "the cluster of Proxmox VE has no quorum: nothing can be changed", "bring the other hosts back; `pvecm status` shows who is missing"
	}
	return c
}

// others judges who else acts on our VMs.
func (a Agent) others() []Check {
	names := map[int]string{}
	hosts, available := map[int]string{}, map[int]bool{}
	for _, c := range a.Wants.Clusters {
		for _, n := range c.Nodes {
			names[n.VMID], hosts[n.VMID], available[n.VMID] = n.Name, n.Host, c.HA
		}
	}
	if len(names) == 0 {
		none := "there is no VM of ours yet, and no inventory that asks for one"
		return []Check{{Name: "ha", Level: Skipped, Message: none}, {Name: "backup", Level: Skipped, Message: none}}
	}
	return append(a.ha(names, available), a.backups(names, hosts)...)
}

func (a Agent) ha(names map[int]string, available map[int]bool) []Check {
	if !a.HA.Known {
		return []Check{skipCheck("ha", "", a.HA)}
	}
	var out []Check
	ours := 0
	for _, sid := range a.HA.Value {
		id, err := strconv.Atoi(strings.TrimPrefix(sid, "vm:"))
		if err == nil && available[id] {
			ours++
		} else if name := names[id]; err == nil && name != "" {
			out = append(out, Check{Name: "ha", Subject: sid, Level: Warn,
				Message: fmt.Sprintf("high availability manages the VM of %s: it starts and moves it by itself, against the agent", name),
				Hint:    "`ha-manager remove " + sid + "`, and `ha: {enabled: true}` in the inventory if that is wanted"})
		}
	}
	switch {
	case len(out) > 0:
	case ours > 0:
		out = []Check{{Name: "ha", Level: Pass, Message: fmt.Sprintf("high availability manages %d of our VMs, as their inventories have it", ours)}}
	default:
		out = []Check{{Name: "ha", Level: Pass, Message: "high availability manages none of our VMs"}}
	}
	return out
}

func (a Agent) backups(names, hosts map[int]string) []Check {
	if !a.Backups.Known {
		return []Check{skipCheck("backup", "", a.Backups)}
	}
	var out []Check
	gentle := 0
	for _, job := range a.Backups.Value {
		var hit []string
		for _, id := range slices.Sorted(maps.Keys(names)) {
			if job.covers(id, hosts[id], a.Wants.Pool) {
				hit = append(hit, names[id])
			}
		}
		switch {
		case len(hit) == 0:
		case job.Mode == "snapshot" || job.Mode == "":
			gentle++
		default:
			out = append(out, Check{Name: "backup", Subject: job.ID, Level: Warn,
				Message: fmt.Sprintf("backs %s up in mode %s: their nodes are away meanwhile", strings.Join(hit, ", "), job.Mode),
				Hint:    "exclude them from the job, or give it mode snapshot (Datacenter, Backup); what a cluster holds is better saved from inside"})
		}
	}
	if len(out) == 0 {
		c := Check{Name: "backup", Level: Pass, Message: "no job suspends or stops our VMs"}
		if gentle > 0 {
			c.Message += "; while one is backed up in mode snapshot the agent waits with its changes"
		}
		out = []Check{c}
	}
	return out
}

// covers reports whether the job backs a VM up.
func (b Backup) covers(vmid int, host, pool string) bool {
	if !b.Enabled || b.Host != "" && b.Host != host {
		return false
	}
	if b.All || b.Pool != "" && b.Pool == pool {
		return !slices.Contains(b.Exclude, vmid)
	}
	return slices.Contains(b.VMIDs, vmid)
}
