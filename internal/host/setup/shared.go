package setup

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// In a cluster of Proxmox VE there is one agent a host, and they share: the
// user, the roles and the user's access are there once for all of them, a pool
// may be. Only a token is one host's alone. Who takes away what init made:
//
//   - A host's token, with its access: that host's undo, and no other.
//   - Access of the user, and a pool: the undo of a host that made it, once no
//     token of another host is let at that place.
//   - The user and the roles: the undo of the last host, once the user has no
//     other token.
//
// Whoever was the first made what is shared, and the last takes it away, which
// may be another. A host's record knows only what was made there; so the user's
// comment states that init made it, and which roles, and a pool's comment that
// init made it. What neither the record nor a comment knows is somebody else's.

// poolComment is the comment of a pool that init made.
const poolComment = "VMs of talos-agent, made by talos-agent init"

// userComment begins the comment of a user that init made; roles follow.
const userComment = "talos-agent, made by talos-agent init"

// withRoles is what the user's comment states about roles that init made.
func withRoles(roles []string) string {
	if len(roles) == 0 {
		return ""
	}
	return " with " + strings.Join(roles, ", ")
}

// madeWith reads the comment of the user: whether init made it, and which roles.
func madeWith(comment string) (roles []string, made bool) {
	rest, made := strings.CutPrefix(comment, userComment)
	for _, word := range strings.FieldsFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) }) {
		if _, ours := RoleNamed(word); made && ours {
			roles = append(roles, word)
		}
	}
	return roles, made
}

// quorum is what keeps all that hosts share from being changed, if anything does.
func (f Facts) quorum() (problems cluster.Problems) {
	if f.NoQuorum {
		problems = append(problems, cluster.Problem{Severity: cluster.Error, Message: "the Proxmox VE cluster of " + f.Host + " has no quorum, so nothing can be changed in it",
			Hint: "bring the other hosts back; `pvecm status` shows who is missing"})
	}
	return problems
}

// token is the name of this host's token, with its user.
func (f Facts) token() string { return string(Token(f.Host)) }

// hasToken reports whether this host's token is there.
func (f Facts) hasToken() bool {
	return slices.Contains(f.Users[User].Tokens, TokenName(f.Host))
}

// others are the names of the user's tokens that are not this host's.
func (f Facts) others() []string {
	return slices.DeleteFunc(slices.Clone(f.Users[User].Tokens), func(name string) bool { return name == TokenName(f.Host) })
}

// Others describes in words who else in this Proxmox VE cluster has a token of the
// agents' user; "" for nobody.
func (f Facts) Others() string { return f.whose(f.others()) }

// othersAt are the names of those that have any of the agent's roles, or the
// one given, at a path.
func (f Facts) othersAt(path, role string) []string {
	return slices.DeleteFunc(f.others(), func(name string) bool {
		return !slices.ContainsFunc(f.ACL, func(e Entry) bool {
			return e.Path == path && e.Who == string(cluster.NewTokenID(User, name)) && (role == "" || e.Role == role)
		})
	})
}

// whose describes in words whose tokens these are, by their names.
func (f Facts) whose(tokens []string) string {
	var out []string
	for _, name := range tokens {
		i := slices.IndexFunc(f.Hosts, func(host string) bool { return TokenName(host) == name })
		if i >= 0 {
			out = append(out, "the agent of "+f.Hosts[i])
		} else {
			out = append(out, fmt.Sprintf("whoever has the token %s", cluster.NewTokenID(User, name)))
		}
	}
	return strings.Join(out, " and ")
}
