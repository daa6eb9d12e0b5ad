package setup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// poolName is what Proxmox VE takes for the name of a pool, as far as the agent
// does too.
var poolName = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Check returns what keeps a host from being set up as wished, all of it, and
// warnings. A problem's field is the flag that changes it.
func Check(f Facts, w Wishes, r Record, g Given, o Options) cluster.Problems {
	c := &checker{f: f, problems: f.quorum()}
	if !isSupported(f.Version) {
		c.wrong("", "the agent works with Proxmox VE 9 and 8.4", "this is Proxmox VE %s", f.Version)
	}
	if !f.ServiceUser {
		c.wrong("", "install the package, or make them: adduser --system --group --home /var/lib/talos-agent --no-create-home "+ServiceUser, "there are no user and group %s, which the agent runs as", ServiceUser)
	}
	c.roles(r)
	c.places(w)
	c.repository(w, g)
	if o.Start && !f.Unit.Installed {
		c.wrong("--start", "install the package, or packaging/systemd/"+UnitName+" in /etc/systemd/system", "there is no unit %s", UnitName)
	}
	p := planner{f: f}
	if f.hasToken() && !p.holds(ProxmoxToken) && !r.Token && !o.RotateToken {
		c.wrong("--rotate-token", "copy "+Credential(ProxmoxToken)+" from where it is, or use --rotate-token to make a new one in its place; whatever uses the old one stops working",
			"the token %s is there, and its secret is not on this host: Proxmox VE shows it only once", f.token())
	}
	return c.problems
}

type checker struct {
	f        Facts
	problems cluster.Problems
}

func (c *checker) report(severity cluster.Severity, flag, hint, format string, args ...any) {
	c.problems = append(c.problems, cluster.Problem{Severity: severity, Field: flag, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (c *checker) wrong(flag, hint, format string, args ...any) {
	c.report(cluster.Error, flag, hint, format, args...)
}

// roles refuses to change a role of our name that is somebody's: one that holds
// what the agent never asks for, or that others have. What init made itself it may
// change.
func (c *checker) roles(r Record) {
	for _, role := range Roles() {
		have, there := c.f.Roles[role.Name]
		if !there || r.made(roleStep(role.Name)) {
			continue
		}
		wanted := role.Names()
		has := func(list []string) func(string) bool {
			return func(name string) bool { return slices.Contains(list, name) }
		}
		strange := slices.DeleteFunc(slices.Clone(have), has(wanted))
		slices.Sort(strange)
		var others []string
		for _, e := range c.f.ACL {
			if e.Role == role.Name && !IsOurs(e.Who) {
				others = append(others, e.Who+" at "+e.Path)
			}
		}
		hint := fmt.Sprintf("make a role of another name in its place (`pveum role add NAME --privs '%s'`), give that to whoever needs it, and `pveum role delete %s`", strings.Join(have, " "), role.Name)
		switch lacks := slices.ContainsFunc(wanted, func(name string) bool { return !has(have)(name) }); {
		case len(strange) > 0:
			c.wrong("", hint, "there is a role %s with %s, which the agent never asks for: it is somebody else's", role.Name, strings.Join(strange, ", "))
		case lacks && len(others) > 0:
			c.wrong("", hint, "there is a role %s that %s has, with other privileges than the agent needs: it is somebody else's", role.Name, strings.Join(others, ", "))
		}
	}
}

// places checks what of Proxmox VE is meant.
func (c *checker) places(w Wishes) {
	if !poolName.MatchString(w.Pool) {
		c.wrong("--pool", "write one like talos", "%q is not the name of a pool", w.Pool)
	}
	if others := c.f.othersAt("/pool/"+w.Pool, ""); len(others) > 0 {
		c.report(cluster.Warning, "--pool", "take a pool that is this host's alone, or see that they never follow clusters of one name",
			"the pool %s is for %s too: both can change what is in it, and take clusters of one name for the same one", w.Pool, c.f.whose(others))
	}
	for _, b := range w.Bridges {
		i := slices.IndexFunc(c.f.Bridges, func(o Bridge) bool { return o.Name == b })
		switch {
		case i < 0:
			c.wrong("--bridge", "there is "+joinNames(sortedBy(c.f.Bridges, func(b Bridge) string { return b.Name })), "there is no bridge %s on %s", b, c.f.Host)
		case c.f.Bridges[i].Address == "":
			c.report(cluster.Warning, "--bridge", "give it one, or a route to the nodes' network", "this host has no address on %s: the agent talks to the nodes directly", b)
		}
	}
	if len(w.Bridges) == 0 {
		c.wrong("--bridge", "make one in Proxmox VE first", "there is no bridge to attach VMs to")
	}
	if len(w.Datastores) == 0 {
		c.wrong("--datastore", "give one the content type images", "no storage takes disks of VMs")
	}
	for _, d := range w.Datastores {
		s, there := c.f.storage(d)
		switch {
		case !there:
			c.wrong("--datastore", "there is "+nameStorages(c.f.DiskStorages()), "there is no storage %s", d)
		case !s.Holds("images"):
			c.wrong("--datastore", fmt.Sprintf("those that do: %s; or give it the content type images", nameStorages(c.f.DiskStorages())), "storage %s takes no disks of VMs", d)
		}
	}
	switch s, there := c.f.storage(w.Images); {
	case w.Images == "":
		c.wrong("--image-datastore", "add a directory or an NFS or CIFS share in Proxmox VE", "no storage can hold Talos images")
	case !there:
		c.wrong("--image-datastore", "there is "+nameStorages(c.f.ImageStorages()), "there is no storage %s", w.Images)
	case !s.Holds("import") && !slices.Contains(fileBased, s.Type):
		c.wrong("--image-datastore", "choose a directory or a share: "+nameStorages(c.f.ImageStorages()), "storage %s is of type %s and cannot hold images to import", s.Name, s.Type)
	}
	c.vmids(w)
}

func (c *checker) vmids(w Wishes) {
	if len(w.VMIDs) == 0 {
		c.wrong("--vmids", "write a range like 400-599", "no VMIDs are given")
	}
	for _, r := range w.VMIDs {
		var taken []string
		for _, v := range c.f.VMs {
			if r.Contains(v.ID) && v.Pool != w.Pool {
				taken = append(taken, fmt.Sprint(v.ID))
			}
		}
		if len(taken) > 0 {
			c.report(cluster.Warning, "--vmids", "the agent leaves them alone; a node that should have one of these VMIDs is refused", "of %s others have %s already", r, strings.Join(taken, ", "))
		}
	}
}

// repository checks what is to be followed, as far as it can be known without
// asking it.
func (c *checker) repository(w Wishes, g Given) {
	r := w.Repository
	has := func(given []byte, path string) bool {
		_, there := c.f.Files[path]
		return given != nil || there
	}
	switch {
	case r.URL == "" && r.Directory == "":
		c.wrong("--repository", "use --repository ssh://git@git.example.org/infra.git", "which repository is to be followed?")
	case r.SSH() && !has(g.KnownHosts, KnownHostsFile):
		c.wrong("--known-hosts-file", "give the lines of ssh-keyscan once you have compared their fingerprints: --known-host 'LINE' or --known-hosts-file FILE", "nothing proves the ssh server of %s: no server is trusted on first use", r.URL)
	}
	if strings.HasPrefix(r.URL, "http://") {
		c.report(cluster.Warning, "--repository", "choose ssh or https", "nothing protects what comes over http: whoever is on the way can change what the agent does")
	}
	p := planner{f: c.f}
	if f := w.Forge; f != nil && g.ForgeToken == nil && !p.holds(ForgeToken) {
		c.wrong("--forge-token-file", "make one there that may set commit statuses, and name the file that holds it", "there is no token for the forge")
	}
}

// nameStorages lists storages for people.
func nameStorages(list []Storage) string {
	return joinNames(sortedBy(list, func(s Storage) string { return s.Name }))
}

// joinNames lists names for people.
func joinNames(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
