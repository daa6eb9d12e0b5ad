package setup

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Given is what files are filled with. nil is: keep what is there; where there
// is nothing, keys are made, and the rest is left out.
type Given struct {
	RootCA      []byte // Proxmox VE's own authority
	KnownHosts  []byte // the host keys of the ssh server
	Authorities []byte // to trust besides the system's
	AgeKey      []byte
	SSHKey      []byte
	GitToken    []byte
	ForgeToken  []byte

	// Config and Policy are the commented files of the package, which are filled
	// in.
	Config, Policy []byte
}

// Options are what a person allows for one run.
type Options struct {
	// Force replaces files that somebody else wrote or changed.
	Force bool
	// RotateToken makes a new token in the place of one that is there.
	RotateToken bool
	// Start enables the unit and starts it.
	Start bool
	// NewDirectory is made, for the repository.
	NewDirectory string
}

// planner is one run of Make.
type planner struct {
	f Facts
	w Wishes
	g Given
	r Record
	o Options
	Plan
}

// Make returns what a host still needs: nothing for one that is set up. Check
// has found nothing wrong with the wishes.
func Make(f Facts, w Wishes, g Given, r Record, o Options) Plan {
	p := &planner{f: f, w: w, g: g, r: r, o: o}
	// What a person has given comes first: a run that is interrupted then knows it.
	p.directories()
	p.keys()
	p.publicFiles()
	p.pool()
	p.roles()
	renewed := p.account()
	p.access(renewed)
	p.content()
	p.files()
	p.share()
	p.unused()
	p.unit()
	return p.Plan
}

func (p *planner) add(s Step) { p.Steps = append(p.Steps, s) }

// call adds a call. makes: it makes what bears the step's name.
func (p *planner) call(name, what string, makes bool, verb, path string, options ...Option) {
	s := Step{Name: name, What: what, Call: &Call{Verb: verb, Path: path, Options: options}}
	if makes {
		s.Makes = []string{name}
	}
	p.add(s)
}

// directories are made where there is none yet. Of one that is there nothing is
// changed: it may be the package's, or systemd's.
func (p *planner) directories() {
	for _, d := range []NewFile{{Path: ConfigDir, Mode: 0o755}, {Path: CredentialDir, Mode: 0o700}} {
		if _, there := p.f.Files[d.Path]; !there {
			p.add(Step{Name: "directory " + d.Path, What: "make the directory " + d.Path, Makes: []string{"directory " + d.Path}, Dir: &d})
		}
	}
	// What comes to be there is a person's, so that undo leaves it.
	if dir := p.o.NewDirectory; dir != "" {
		p.add(Step{Name: "directory " + dir, What: "make the directory " + dir + ", which the agent follows", Dir: &NewFile{Path: dir, Mode: 0o755}})
	}
}

func (p *planner) pool() {
	if _, there := p.f.Pools[p.w.Pool]; there {
		return
	}
	p.call(poolStep(p.w.Pool), "make the pool "+p.w.Pool+", which is the wall between the agent and everything else here", true,
		"create", "/pools", Option{"poolid", p.w.Pool}, Option{"comment", poolComment})
}

func poolStep(pool string) string { return "pool " + pool }

func (p *planner) roles() {
	for _, role := range Roles() {
		privileges := strings.Join(role.Names(), ",")
		have, there := p.f.Roles[role.Name]
		have = slices.Clone(have)
		slices.Sort(have)
		switch {
		case !there:
			p.call(roleStep(role.Name), "make the role "+role.Name, true, "create", "/access/roles", Option{"roleid", role.Name}, Option{"privs", privileges})
		case !slices.Equal(have, role.Names()):
			p.call(roleStep(role.Name), "give the role "+role.Name+" the privileges that the agent needs, and no others", false, "set", "/access/roles/"+role.Name, Option{"privs", privileges})
		}
	}
}

// account makes the user, and this host's token. It reports whether the token is a
// new one.
func (p *planner) account() bool {
	p.user()
	token := p.f.token()
	path := "/access/users/" + User + "/token/" + TokenName(p.f.Host)
	stored := p.holds(ProxmoxToken)
	if _, sealed := p.f.Files[encryptedPath(ProxmoxToken)]; sealed && (p.o.RotateToken || p.r.Token) {
		p.note("%s holds the old token: encrypt the new one in its place, or remove it and what the unit sets for it", encryptedPath(ProxmoxToken))
	}
	if p.f.hasToken() {
		// One that was under way has given its secret to nobody.
		if !p.o.RotateToken && !p.r.Token && stored {
			return false
		}
		p.call("old token "+token, "delete the token "+token+", which another takes the place of", false, "delete", path)
	}
	name, file := tokenStep(p.f.Host), NewFile{Path: Credential(ProxmoxToken), Mode: 0o600, Origin: FromProxmoxVE, Secret: true}
	have, there := p.f.Files[file.Path]
	// Somebody's, such as a copy of another host's.
	if there && !p.r.wrote(file.Path, have.Data) && !p.r.Token && !p.o.RotateToken && !p.o.Force {
		p.Conflicts = append(p.Conflicts, Conflict{Path: file.Path, Have: have.Data, Secret: true})
	}
	p.add(Step{Name: name, What: "make the token " + token + ", with privileges of its own", Makes: []string{name}, Call: &Call{Verb: "create", Path: path,
		Options: []Option{{"privsep", "1"}, {"comment", "talos-agent on " + p.f.Host}}, SecretTo: &file}})
	return true
}

// user makes the user that all hosts share.
func (p *planner) user() {
	account, there := p.f.Users[User]
	if !there {
		p.call(userStep, "make the user "+User, true, "create", "/access/users", Option{"userid", User}, Option{"comment", userComment + withRoles(p.ownRoles())})
		return
	}
	if account.Disabled {
		p.call(userStep, "enable the user "+User, false, "set", "/access/users/"+User, Option{"enable", "1"})
	}
	p.recordRoles()
}

// ownRoles are those that this plan makes, or that were made on this host before.
func (p *planner) ownRoles() []string {
	var roles []string
	for _, role := range Roles() {
		if _, there := p.f.Roles[role.Name]; !there || p.r.made(roleStep(role.Name)) {
			roles = append(roles, role.Name)
		}
	}
	return roles
}

// recordRoles writes into the comment of a user that init made which roles init made on
// this host: another host's undo may be the last.
func (p *planner) recordRoles() {
	comment := p.f.Users[User].Comment
	known, made := madeWith(comment)
	unknown := slices.DeleteFunc(p.ownRoles(), func(role string) bool { return slices.Contains(known, role) })
	if made && len(unknown) > 0 {
		p.call("comment "+User, "write into the comment of the user "+User+" which roles init made", false, "set", "/access/users/"+User,
			Option{"comment", comment + withRoles(unknown)})
	}
}

// access gives the roles to the user and the token, where either lacks one, and
// takes back those of its own that are not needed any more. A token that is new
// has none.
func (p *planner) access(renewed bool) {
	token := p.f.token()
	has := func(e Entry) bool {
		return slices.Contains(p.f.ACL, e) && !(renewed && e.Who == token)
	}
	wanted := map[Entry]bool{}
	for _, g := range Grants(p.w.Scope(p.f.Hosts)) {
		var lacking []string
		for _, who := range []string{User, token} {
			e := Entry{g.Path, who, g.Role, g.Propagate}
			wanted[e] = true
			if !has(e) {
				lacking = append(lacking, accessStep(e))
			}
		}
		if len(lacking) == 0 {
			continue
		}
		p.add(Step{Name: "access " + g.Path + " " + g.Role, What: fmt.Sprintf("let the agent at %s: %s", g.Path, g.Why), Makes: lacking, Call: &Call{Verb: "set", Path: "/access/acl",
			Options: []Option{{"path", g.Path}, {"roles", g.Role}, {"users", User}, {"tokens", token}, {"propagate", formatBit(g.Propagate)}}}})
	}
	for _, e := range p.f.ACL {
		_, ours := RoleNamed(e.Role)
		// Setting an entry replaces one that differs in nothing but whether it
		// goes for what is below.
		other := e
		other.Propagate = !e.Propagate
		if !ours || wanted[e] || wanted[other] || e.Who != User && e.Who != token || renewed && e.Who == token {
			continue
		}
		switch {
		case e.Who == User && len(p.f.othersAt(e.Path, e.Role)) > 0: // another host needs it
		case p.r.made(accessStep(e)):
			p.noAccess(e, "it is not needed there any more")
		case e.Who == User:
			p.note("%s has %s at %s still: init did not give it here, and its purpose is unknown", User, e.Role, e.Path)
		}
	}
}

// noAccess takes an entry of the access control list away.
func (p *planner) noAccess(e Entry, why string) {
	who := Option{"users", e.Who}
	if e.Who != User {
		who.Name = "tokens"
	}
	p.call("no "+accessStep(e), fmt.Sprintf("take %s at %s back from %s: %s", e.Role, e.Path, e.Who, why), false, "set", "/access/acl",
		Option{"path", e.Path}, Option{"roles", e.Role}, who, Option{"delete", "1"})
}

// The names of what steps make. Access is named for each who has it: what a host
// found there for the user it makes for its token only.
const userStep = "user " + User

func accessStep(e Entry) string { return "access " + e.Path + " " + e.Role + " " + e.Who }

func tokenStep(host string) string { return "token " + string(Token(host)) }

func roleStep(role string) string { return "role " + role }

func formatBit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// content lets the storage for images hold some to import.
func (p *planner) content() {
	s, ok := p.f.storage(p.w.Images)
	if !ok || s.Holds("import") {
		return
	}
	content := strings.Join(append(slices.Clone(s.Content), "import"), ",")
	if !p.w.Import {
		p.note("storage %s does not take images to import, and is left so: no VM can be made from a disk image until `pvesh set /storage/%s --content %s`", s.Name, s.Name, content)
		return
	}
	options := []Option{{"content", content}}
	if s.Digest != "" {
		options = append(options, Option{"digest", s.Digest})
	}
	p.call("content "+s.Name, "let storage "+s.Name+" hold images to import", true, "set", "/storage/"+s.Name, options...)
}

// holds reports whether a credential is there, in clear or encrypted.
func (p *planner) holds(name string) bool {
	_, clear := p.f.Files[Credential(name)]
	_, sealed := p.f.Files[encryptedPath(name)]
	return clear || sealed
}

// keys are the credentials but the token of Proxmox VE.
func (p *planner) keys() {
	for _, k := range []struct {
		name, what string
		given      []byte
		make       Origin
		needed     bool
	}{
		{AgeKey, "the age key, which opens the secrets of the clusters", p.g.AgeKey, FromAgeKey, true},
		{SSHKey, "the deploy key, which reads the repository", p.g.SSHKey, FromSSHKey, p.w.Repository.SSH()},
		{GitToken, "the token that reads the repository", p.g.GitToken, "", false},
		{ForgeToken, "the token that sets commit statuses", p.g.ForgeToken, "", false},
	} {
		file := NewFile{Path: Credential(k.name), Mode: 0o600, Content: k.given, Secret: true}
		switch {
		case k.given != nil:
			p.file(k.what, file, false)
		case k.needed && !p.holds(k.name):
			file.Origin = k.make
			p.add(Step{Name: "file " + file.Path, What: "make " + k.what, Makes: []string{"file " + file.Path}, File: &file})
		default:
			p.mode(k.what, file)
		}
	}
}

// share notes for a host that gets its config the agents that were there before.
func (p *planner) share() {
	if _, there := p.f.Files[ConfigFile]; !there && len(p.f.others()) > 0 {
		p.note("besides this one there is %s: where they follow one repository, name each one's clusters under `clusters` in %s of its host, because a cluster is for one agent", p.f.Others(), ConfigFile)
	}
}

// unused reports what an earlier run put there and the config names no more.
func (p *planner) unused() {
	if p.w.Forge == nil && p.r.Wishes.Forge != nil {
		p.note("no commit statuses are sent any more; the token that set them stays: remove %s, and revoke it at the forge", Credential(ForgeToken))
	}
	if !p.w.Authorities && p.r.Wishes.Authorities {
		p.note("%s stays, and nothing in it is trusted any more", AuthoritiesFile)
	}
}

// publicFiles are those that the config names, which hold no secret.
func (p *planner) publicFiles() {
	for _, f := range []struct {
		path, what string
		given      []byte
	}{
		{RootCAFile, "a copy of Proxmox VE's authority, which the agent's user cannot read itself", p.g.RootCA},
		{KnownHostsFile, "the host keys of the ssh server", p.g.KnownHosts},
		{AuthoritiesFile, "the authorities to trust besides the system's", p.g.Authorities},
	} {
		if f.given != nil {
			p.file(f.what, NewFile{Path: f.path, Mode: 0o644, Content: f.given}, reflect.DeepEqual(p.w, p.r.Wishes))
		}
	}
}

// files are the policy and the config. The config comes last: without it the unit
// does not start.
func (p *planner) files() {
	policy, config := Policy(p.g.Policy, p.w), Config(p.g.Config, p.w)
	p.file("the policy: what the repository may ask of this host", NewFile{Path: PolicyFile, Mode: 0o644, Content: policy},
		bytes.Equal(policy, Policy(p.g.Policy, p.r.Wishes)))
	p.file("the config", NewFile{Path: ConfigFile, Mode: 0o640, Group: ServiceUser, Content: config},
		bytes.Equal(config, Config(p.g.Config, p.r.Wishes)))
}

// file writes a file, unless it is as it should be, or somebody else's. same
// reports that what is wanted of it is what was wanted last.
func (p *planner) file(what string, f NewFile, same bool) {
	have, there := p.f.Files[f.Path]
	step := Step{Name: "file " + f.Path, What: "write " + what, Makes: []string{"file " + f.Path}, File: &f}
	switch {
	case !there:
		p.add(step)
	case bytes.Equal(have.Data, f.Content):
		p.mode(what, f)
	// An age key is never replaced unasked, not even one that init made: it may be
	// all that opens the secrets of a repository.
	case p.o.Force || p.r.wrote(f.Path, have.Data) && f.Path != Credential(AgeKey) || bytes.Equal(have.Data, p.g.Config) || bytes.Equal(have.Data, p.g.Policy):
		step.What, step.Makes = "replace "+what, nil
		p.add(step)
	case same && p.r.made(step.Name):
		p.note("%s was changed by hand since, and is left as it is", f.Path)
		p.mode(what, f)
	default:
		p.Conflicts = append(p.Conflicts, Conflict{Path: f.Path, Have: have.Data, Want: f.Content, Secret: f.Secret})
	}
}

// mode gives a file that is there its permissions and its group.
func (p *planner) mode(what string, f NewFile) {
	have, there := p.f.Files[f.Path]
	if !there || have.Mode == f.Mode && (have.Group == "" || have.Group == fileOwner(f)) {
		return
	}
	f.Content, f.Origin, f.Kept = have.Data, FromContent, true
	p.add(Step{Name: "file " + f.Path, What: fmt.Sprintf("give %s its owner and mode (mode was %04o)", what, have.Mode), File: &f})
}

func fileOwner(f NewFile) string {
	if f.Group == "" {
		return "root"
	}
	return f.Group
}

// The names of the steps that end a plan.
const (
	startStep   = "start"
	restartStep = "restart"
)

// unit starts the daemon, or has it take over what has changed.
func (p *planner) unit() {
	switch {
	case !p.f.Unit.Installed:
	case !p.f.Unit.Active && p.o.Start:
		p.add(Step{Name: startStep, What: "enable the agent and start it", Run: []string{"systemctl", "enable", "--now", UnitName}})
	case p.f.Unit.Active && (len(p.Steps) > 0 || p.r.Restart):
		// Credentials are handed over when it starts, and only then.
		p.add(Step{Name: restartStep, What: "restart the agent with what has changed", Run: []string{"systemctl", "restart", UnitName}})
	}
}
