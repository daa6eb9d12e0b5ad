package account

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// Wish is whose account it is, and what it is let at.
type Wish struct {
	Kind       Kind
	Cluster    string
	Pool       string   // of the cluster's VMs
	Datastores []string // for a kind that makes disks
	// Stored is the token in the cluster's secrets, by its name; "": none, or one
	// without its secret.
	Stored cluster.TokenID
	// Rotate makes a new token in the place of one that is there.
	Rotate bool
}

// Plan is what an account still needs.
type Plan struct {
	Steps []setup.Step
	// Token makes the token, after all steps; its answer holds the secret, which Proxmox
	// VE shows once. nil: there is one, and the cluster's secrets have it.
	Token *setup.Step
}

// planner is one run of Make or Undo.
type planner struct {
	f setup.Facts
	w Wish
	Plan
	problems cluster.Problems
}

// Make returns what the account of a cluster still needs: nothing for one that is
// there. With an error among the problems there is no plan.
func Make(f setup.Facts, w Wish) (Plan, cluster.Problems) {
	p := &planner{f: f, w: w}
	p.check()
	if p.problems.HasErrors() {
		return Plan{}, p.problems
	}
	for _, role := range w.Kind.Roles() {
		p.role(role)
	}
	p.user()
	p.access()
	p.token()
	return p.Plan, p.problems
}

// Undo returns how an account is deleted: the user, and with it its token and its
// access, and the roles that no other user has.
func Undo(f setup.Facts, w Wish) (Plan, cluster.Problems) {
	p := &planner{f: f, w: w}
	p.quorum()
	user := w.Kind.User(w.Cluster)
	account, there := f.Users[user]
	if there {
		p.checkUser(user, account)
	}
	if p.problems.HasErrors() {
		return Plan{}, p.problems
	}
	if there {
		p.call("user "+user, "delete the user "+user+" with its token", "delete", "/access/users/"+user)
	}
	for _, role := range w.Kind.Roles() {
		_, there := f.Roles[role.Name]
		used := slices.ContainsFunc(f.ACL, func(e setup.Entry) bool { return e.Role == role.Name && !isOf(e.Who, user) })
		if there && !used {
			p.call("role "+role.Name, "delete the role "+role.Name+", which no user has any more", "delete", "/access/roles/"+role.Name)
		}
	}
	return p.Plan, p.problems
}

func (p *planner) wrong(flag, hint, format string, args ...any) {
	p.problems = append(p.problems, cluster.Problem{Severity: cluster.Error, Field: flag, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (p *planner) call(name, what, verb, path string, options ...setup.Option) {
	p.Steps = append(p.Steps, setup.Step{Name: name, What: what, Call: &setup.Call{Verb: verb, Path: path, Options: options}})
}

func (p *planner) quorum() {
	if p.f.NoQuorum {
		p.wrong("", "bring the other hosts back; `pvecm status` shows who is missing", "the Proxmox VE cluster of %s has no quorum, so nothing can be changed in it", p.f.Host)
	}
}

// isOurs reports whether a user was made for this cluster, or one of its name in
// another pool.
func (p *planner) isOurs(a setup.Account) bool {
	return strings.Contains(a.Comment, commentStart+p.w.Kind.Name)
}

// isOf reports whether an entry of the access control list is a user's or one of its
// tokens'.
func isOf(who, user string) bool { return cluster.TokenID(who).User() == user }

// check finds what keeps the account from being made.
func (p *planner) check() {
	p.quorum()
	k, w := p.w.Kind, p.w
	if _, there := p.f.Pools[w.Pool]; !there {
		p.wrong("", "run `talos-agent init` first, which makes it", "there is no pool %s", w.Pool)
	}
	for _, name := range w.Datastores {
		if !slices.ContainsFunc(p.f.DiskStorages(), func(s setup.Storage) bool { return s.Name == name }) {
			p.wrong("--datastore", "there is "+strings.Join(p.diskStorages(), ", "), "there is no storage %s that takes disks of VMs", name)
		}
	}
	if k.Storage && len(w.Datastores) == 0 {
		p.wrong("--datastore", "there is "+strings.Join(p.diskStorages(), ", "), "which storage are the volumes for?")
	}
	for _, role := range k.Roles() {
		p.checkRole(role)
	}
	user := k.User(w.Cluster)
	a, there := p.f.Users[user]
	if there {
		p.checkUser(user, a)
	}
	if stored := w.Stored; stored != "" && stored != k.Token(w.Cluster) {
		p.wrong("", "remove both values with sops first, if what makes use of them shall have the new token", "values.%s and values.%s of the cluster's secrets hold the token %s, which is not this account's", k.IDValue(), k.SecretValue(), stored)
	}
	if there && p.hasToken() && w.Stored == "" && !w.Rotate {
		p.wrong("--rotate-token", "use --rotate-token to make a new one in its place; whatever uses the old one stops working",
			"the token %s is there, and the cluster's secrets do not have its secret: Proxmox VE shows it only once", k.Token(w.Cluster))
	}
}

// checkUser refuses a user of our name that somebody else made, or that is for a cluster
// of this name in another pool: that of another agent, as a rule.
func (p *planner) checkUser(user string, a setup.Account) {
	switch {
	case !p.isOurs(a):
		p.wrong("", "delete it with `pveum user delete "+user+"` if it is not needed", "there is a user %s that talos-agent init %s did not make", user, p.w.Kind.Name)
	case a.Comment != p.w.Kind.comment(p.w):
		p.wrong("", "give one of the two clusters another name; `pveum user delete "+user+"` deletes it if it is not needed", "the user %s is for another cluster of this name: %s", user, a.Comment)
	}
}

func (p *planner) diskStorages() []string {
	var out []string
	for _, s := range p.f.DiskStorages() {
		out = append(out, s.Name)
	}
	return out
}

// checkRole refuses to change a role of our name that others have with other
// privileges.
func (p *planner) checkRole(role setup.Role) {
	have, there := p.f.Roles[role.Name]
	if !there || slices.Equal(slices.Sorted(slices.Values(have)), role.Names()) {
		return
	}
	for _, e := range p.f.ACL {
		a, known := p.f.Users[cluster.TokenID(e.Who).User()]
		if e.Role == role.Name && !(known && p.isOurs(a)) {
			p.wrong("", "give it a role of another name in its place", "there is a role %s with other privileges, which %s has at %s", role.Name, e.Who, e.Path)
			return
		}
	}
}

func (p *planner) role(role setup.Role) {
	have, there := p.f.Roles[role.Name]
	privileges := setup.Option{Name: "privs", Value: strings.Join(role.Names(), ",")}
	switch {
	case !there:
		p.call("role "+role.Name, "make the role "+role.Name, "create", "/access/roles", setup.Option{Name: "roleid", Value: role.Name}, privileges)
	case !slices.Equal(slices.Sorted(slices.Values(have)), role.Names()):
		p.call("role "+role.Name, "give the role "+role.Name+" the privileges that are needed, and no others", "set", "/access/roles/"+role.Name, privileges)
	}
}

func (p *planner) user() {
	user := p.w.Kind.User(p.w.Cluster)
	a, there := p.f.Users[user]
	switch {
	case !there:
		p.call("user "+user, "make the user "+user, "create", "/access/users", setup.Option{Name: "userid", Value: user}, setup.Option{Name: "comment", Value: p.w.Kind.comment(p.w)})
	case a.Disabled:
		p.call("user "+user, "enable the user "+user, "set", "/access/users/"+user, setup.Option{Name: "enable", Value: "1"})
	}
}

// access gives the user its roles and takes back what it has besides.
func (p *planner) access() {
	user := p.w.Kind.User(p.w.Cluster)
	wanted := map[setup.Entry]bool{}
	for _, g := range p.w.Kind.grants(p.w) {
		e := setup.Entry{Path: g.Path, Who: user, Role: g.Role, Propagate: g.Propagate}
		wanted[e] = true
		if slices.Contains(p.f.ACL, e) {
			continue
		}
		propagate := "0"
		if g.Propagate {
			propagate = "1"
		}
		p.call("access "+g.Path+" "+g.Role, fmt.Sprintf("let it at %s: %s", g.Path, g.Why), "set", "/access/acl",
			setup.Option{Name: "path", Value: g.Path}, setup.Option{Name: "roles", Value: g.Role}, setup.Option{Name: "users", Value: user}, setup.Option{Name: "propagate", Value: propagate})
	}
	for _, e := range p.f.ACL {
		other := e
		other.Propagate = !e.Propagate // setting an entry replaces one that differs in nothing else
		if e.Who != user || wanted[e] || wanted[other] {
			continue
		}
		p.call("no access "+e.Path+" "+e.Role, fmt.Sprintf("take %s at %s back from %s: it is not needed there", e.Role, e.Path, user), "set", "/access/acl",
			setup.Option{Name: "path", Value: e.Path}, setup.Option{Name: "roles", Value: e.Role}, setup.Option{Name: "users", Value: user}, setup.Option{Name: "delete", Value: "1"})
	}
}

// hasToken reports whether the account's token is there.
func (p *planner) hasToken() bool {
	return slices.Contains(p.f.Users[p.w.Kind.User(p.w.Cluster)].Tokens, p.w.Kind.Name)
}

// token makes the token unless there is one whose secret is stored. It has what the
// user has, which is for nothing else.
func (p *planner) token() {
	k := p.w.Kind
	id, path := k.Token(p.w.Cluster), "/access/users/"+k.User(p.w.Cluster)+"/token/"+k.Name
	if p.hasToken() {
		if p.w.Stored != "" && !p.w.Rotate {
			return
		}
		p.call("old token "+string(id), "delete the token "+string(id)+", which another takes the place of", "delete", path)
	}
	p.Token = &setup.Step{Name: "token " + string(id), What: "make the token " + string(id) + " and put its secret, encrypted, among the cluster's secrets",
		Call: &setup.Call{Verb: "create", Path: path, Options: []setup.Option{{Name: "privsep", Value: "0"}}}}
}
