package setup

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Undo returns how what init made on a host is taken back, and in its notes what
// stays and why. leaveVMs allows it while the pool has VMs, which then go on
// without an agent.
func Undo(f Facts, r Record, leaveVMs bool) (Plan, cluster.Problems) {
	u := &undoer{planner{f: f, r: r, w: r.Wishes}}
	problems := f.quorum()
	for _, pool := range u.pools() {
		if vms := f.inPool(pool); len(vms) > 0 && !leaveVMs {
			problems = append(problems, u.inhabited(pool, vms))
		}
	}
	if problems.HasErrors() {
		return Plan{}, problems
	}
	if f.Unit.Active || f.Unit.Installed && len(r.Made) > 0 {
		u.add(Step{Name: "stop", What: "stop the agent, and start it no more", Run: []string{"systemctl", "disable", "--now", UnitName}})
	}
	// The user goes last: its comment names who made what goes with it, should
	// undo be interrupted.
	u.token()
	u.roles()
	for _, pool := range append(u.pools(), u.leftPools()...) {
		u.pool(pool)
	}
	u.user()
	u.files()
	if dir := r.Wishes.Repository.Directory; dir != "" {
		u.note("%s stays: it describes the clusters", dir)
	}
	for _, name := range r.Made {
		if storage, ok := strings.CutPrefix(name, "content "); ok {
			u.note("storage %s goes on taking images to import, and the images on it stay: other guests may use them by now", storage)
		}
	}
	return u.Plan, nil
}

// inhabited is why nothing is undone while there are VMs in a pool.
func (u *undoer) inhabited(pool string, vms []VM) cluster.Problem {
	var names []string
	for _, v := range vms {
		one := strings.TrimSpace(fmt.Sprintf("%d %s", v.ID, v.Name))
		if v.Host != u.f.Host && v.Host != "" {
			one += " on " + v.Host
		}
		names = append(names, one)
	}
	p := cluster.Problem{Severity: cluster.Error, Field: "--leave-vms",
		Message: fmt.Sprintf("the pool %s has %d VMs: %s", pool, len(vms), strings.Join(names, ", ")),
		Hint:    "take the clusters down with `talos-agent destroy CLUSTER` first; or use --leave-vms, and they go on running without the agent"}
	if others := u.f.othersAt("/pool/"+pool, ""); len(others) > 0 {
		p.Message += "; the pool is for " + u.f.whose(others) + " too"
		p.Hint = "take this agent's clusters down with `talos-agent destroy CLUSTER` first; with --leave-vms those of others stay as they are, and those of this one go on running without it"
	}
	return p
}

type undoer struct{ planner }

// token takes this host's token away. Another host's is its own affair.
func (u *undoer) token() {
	token := u.f.token()
	switch {
	case !u.f.hasToken():
	case u.r.made(tokenStep(u.f.Host)):
		u.call(tokenStep(u.f.Host), "delete the token "+token, false, "delete", "/access/users/"+User+"/token/"+TokenName(u.f.Host))
	default:
		u.note("the token %s stays: it was there before, or its origin is unknown", token)
	}
}

// staying are the names of the user's tokens that stay.
func (u *undoer) staying() []string {
	if u.f.hasToken() && !u.r.made(tokenStep(u.f.Host)) {
		return u.f.Users[User].Tokens
	}
	return u.f.others()
}

// userGoes reports whether nobody needs the user any more, and init made it.
func (u *undoer) userGoes() bool {
	_, made := madeWith(u.f.Users[User].Comment)
	return len(u.staying()) == 0 && (made || u.r.made(userStep))
}

// user takes the user away; where it stays, what it was given here for this
// host's token alone.
func (u *undoer) user() {
	_, there := u.f.Users[User]
	switch staying := u.staying(); {
	case !there:
		return
	case u.userGoes():
		u.call(userStep, "delete the user "+User, false, "delete", "/access/users/"+User)
		return
	case len(staying) > 0:
		u.note("the user %s and the roles stay: %s needs them. The last host's undo takes them; where an agent is no more, remove its token before: `pveum user token remove %s %s`",
			User, u.f.whose(staying), User, staying[0])
		u.recordRoles()
	default:
		u.note("the user %s stays: it was there before, or its origin is unknown", User)
	}
	for _, e := range u.f.ACL {
		if e.Who == User && u.ownEntry(e) {
			u.noAccess(e, "this host's agent needed it")
		}
	}
}

// ownEntry reports whether an entry goes, by itself or with what does.
func (u *undoer) ownEntry(e Entry) bool {
	if _, ours := RoleNamed(e.Role); !ours {
		return false
	}
	switch e.Who {
	case User:
		return u.userGoes() || u.r.made(accessStep(e)) && len(u.f.othersAt(e.Path, e.Role)) == 0
	case u.f.token():
		return u.r.made(tokenStep(u.f.Host))
	}
	return false
}

// roles go unless somebody else has them: with a role Proxmox VE deletes every
// entry that gives it.
func (u *undoer) roles() {
	if len(u.staying()) > 0 {
		return // reported with the user
	}
	known, _ := madeWith(u.f.Users[User].Comment)
	for _, role := range Roles() {
		if _, there := u.f.Roles[role.Name]; !there {
			continue
		}
		i := slices.IndexFunc(u.f.ACL, func(e Entry) bool { return e.Role == role.Name && !u.ownEntry(e) })
		switch {
		case i >= 0:
			u.note("the role %s stays: %s has it at %s", role.Name, u.f.ACL[i].Who, u.f.ACL[i].Path)
		case !u.r.made(roleStep(role.Name)) && !slices.Contains(known, role.Name):
			u.note("the role %s stays: it was there before, or its origin is unknown", role.Name)
		default:
			u.call(roleStep(role.Name), "delete the role "+role.Name, false, "delete", "/access/roles/"+role.Name)
		}
	}
}

// pools are those that are there of the agent's: the one that was wished last, and
// those that init made for earlier wishes.
func (u *undoer) pools() []string {
	all := slices.Sorted(maps.Keys(u.f.Pools))
	return slices.DeleteFunc(all, func(pool string) bool { return pool != u.w.Pool && !u.r.made(poolStep(pool)) })
}

// leftPools are those that init made on other hosts, for the last one.
func (u *undoer) leftPools() []string {
	all, own := slices.Sorted(maps.Keys(u.f.Pools)), u.pools()
	return slices.DeleteFunc(all, func(pool string) bool {
		return len(u.staying()) > 0 || u.f.Pools[pool] != poolComment || slices.Contains(own, pool)
	})
}

// pool goes when it is empty and nobody else is let at it: with a pool Proxmox VE
// deletes every entry that is for it.
func (u *undoer) pool(pool string) {
	vms := u.f.inPool(pool)
	i := slices.IndexFunc(u.f.ACL, func(e Entry) bool { return e.Path == "/pool/"+pool && !u.ownEntry(e) })
	switch others := u.f.othersAt("/pool/"+pool, ""); {
	case len(vms) > 0:
		u.note("the pool %s stays: it has %d VMs", pool, len(vms))
	case len(others) > 0:
		u.note("the pool %s stays: it is for %s too", pool, u.f.whose(others))
	case i >= 0:
		u.note("the pool %s stays: %s has %s there", pool, u.f.ACL[i].Who, u.f.ACL[i].Role)
	case u.f.Pools[pool] != poolComment && !u.r.made(poolStep(pool)):
		u.note("the pool %s stays: it was there before, or its origin is unknown", pool)
	default:
		u.call(poolStep(pool), "delete the pool "+pool+", which is empty", false, "delete", "/pools", Option{"poolid", pool})
	}
}

// files that hold what init wrote go; the age key does not.
func (u *undoer) files() {
	for _, file := range Files() {
		have, there := u.f.Files[file]
		name := strings.TrimPrefix(path.Base(file), credentialMark[1:])
		switch {
		case !there || file == ConfigDir || file == CredentialDir:
		case file == Credential(AgeKey) || file == encryptedPath(AgeKey):
			u.note("%s stays: it may be all that opens the secrets in the repository. Keep a copy before you remove it", file)
		case strings.HasPrefix(file, EncryptedDir):
			u.note("%s stays: init did not write it", file)
		case !u.r.wrote(file, have.Data):
			u.note("%s stays: it was changed, or init did not write it", file)
		default:
			u.add(Step{Name: "file " + file, What: "remove " + file, Remove: file})
			if name == SSHKey {
				u.note("the deploy key is known to the forge still: remove it there too")
			}
			if name == ForgeToken || name == GitToken {
				u.note("the token of %s is good still: revoke it at the forge", file)
			}
		}
	}
}
