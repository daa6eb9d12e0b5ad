package setup

import (
	"fmt"
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
	var problems cluster.Problems
	for _, pool := range u.pools() {
		var ids []string
		for _, v := range f.inPool(pool) {
			ids = append(ids, strings.TrimSpace(fmt.Sprintf("%d %s", v.ID, v.Name)))
		}
		if len(ids) > 0 && !leaveVMs {
			problems = append(problems, cluster.Problem{Severity: cluster.Error, Field: "--leave-vms",
				Message: fmt.Sprintf("the pool %s has %d VMs: %s", pool, len(ids), strings.Join(ids, ", ")),
				Hint:    "take the clusters down with `talos-agent destroy CLUSTER` first; or say --leave-vms, and they go on running without the agent"})
		}
	}
	if problems.HasErrors() {
		return Plan{}, problems
	}
	if f.Unit.Active || f.Unit.Installed && len(r.Made) > 0 {
		u.add(Step{Name: "stop", What: "stop the agent, and start it no more", Run: []string{"systemctl", "disable", "--now", UnitName}})
	}
	u.account()
	u.roles()
	for _, pool := range u.pools() {
		u.pool(pool)
	}
	u.files()
	for _, name := range r.Made {
		if storage, ok := strings.CutPrefix(name, "content "); ok {
			u.note("storage %s goes on taking images to import, and the images on it stay: other guests may use them by now", storage)
		}
	}
	return u.Plan, nil
}

type undoer struct{ planner }

// account takes the token away, and the user unless there are other tokens of
// its. Both are of the whole Proxmox VE cluster: what init did not make here
// another host's agent may be working with.
func (u *undoer) account() {
	account, there := u.f.Users[User]
	if !there {
		return
	}
	others := slices.DeleteFunc(slices.Clone(account.Tokens), func(t string) bool { return t == TokenName && u.ownToken() })
	switch {
	case !u.f.hasToken():
	case u.ownToken():
		u.call(tokenStep, "delete the token "+Token, false, "delete", "/access/users/"+User+"/token/"+TokenName)
	default:
		u.note("the token %s stays: it was there before, or nobody knows who made it", Token)
	}
	switch {
	case len(others) > 0:
		u.note("the user %s stays: it has other tokens (%s)", User, names(others))
	case !u.r.made("user " + User):
		u.note("the user %s stays: it was there before, or nobody knows who made it", User)
	default:
		u.call("user "+User, "delete the user "+User, false, "delete", "/access/users/"+User)
		return
	}
	// With the user its entries would go by themselves.
	for _, e := range u.f.ACL {
		if e.Who == User && u.ownEntry(e) {
			u.call("no access "+e.Path+" "+e.Role, fmt.Sprintf("take %s at %s back from %s", e.Role, e.Path, User), false, "set", "/access/acl",
				Option{"path", e.Path}, Option{"roles", e.Role}, Option{"users", User}, Option{"delete", "1"})
		}
	}
}

func (u *undoer) ownToken() bool { return u.r.made(tokenStep) }

// ownEntry reports whether init made an entry, which goes then, or goes with
// what does.
func (u *undoer) ownEntry(e Entry) bool {
	if _, ours := RoleNamed(e.Role); !ours {
		return false
	}
	switch e.Who {
	case User:
		return u.r.made("user "+User) || u.r.made(accessStep(e.Path, e.Role))
	case Token:
		return u.ownToken()
	}
	return false
}

// roles go unless somebody else has them: with a role Proxmox VE deletes every
// entry that gives it.
func (u *undoer) roles() {
	for _, role := range Roles() {
		if _, there := u.f.Roles[role.Name]; !there {
			continue
		}
		i := slices.IndexFunc(u.f.ACL, func(e Entry) bool { return e.Role == role.Name && !u.ownEntry(e) })
		switch {
		case i >= 0:
			u.note("the role %s stays: %s has it at %s", role.Name, u.f.ACL[i].Who, u.f.ACL[i].Path)
		case !u.r.made("role " + role.Name):
			u.note("the role %s stays: it was there before, or nobody knows who made it", role.Name)
		default:
			u.call("role "+role.Name, "delete the role "+role.Name, false, "delete", "/access/roles/"+role.Name)
		}
	}
}

// pools are those that are there of the agent's: the one that was wished last, and
// those that init made for earlier wishes.
func (u *undoer) pools() []string {
	return slices.DeleteFunc(slices.Clone(u.f.Pools), func(pool string) bool { return pool != u.w.Pool && !u.r.made(poolStep(pool)) })
}

func (u *undoer) pool(pool string) {
	switch vms := u.f.inPool(pool); {
	case len(vms) > 0:
		u.note("the pool %s stays: it has %d VMs", pool, len(vms))
	case !u.r.made(poolStep(pool)):
		u.note("the pool %s stays: it was there before, or nobody knows who made it", pool)
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
		case file == Credential(AgeKey) || file == encrypted(AgeKey):
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
