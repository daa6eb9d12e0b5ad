package pve

import (
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// acl is one entry of the access control list.
type acl struct {
	path, ugid, kind, role string // kind: user or token
	propagate              bool
}

// mayCall checks what the description of a method asks of its caller. It is
// asked before anybody looks whether the thing in question exists.
func (s *Server) mayCall(c *call, m *schema.Method) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Open != "" {
		return nil
	}
	if m.Check.Op == "" {
		if c.who.isRoot() {
			return nil
		}
		return denyAccess("")
	}
	return s.evaluateExpression(c, m.Check, true)
}

// evaluateExpression decides an expression. Only a condition that stands alone
// names what was missing. s.mu is held.
func (s *Server) evaluateExpression(c *call, e schema.Expression, alone bool) error {
	switch e.Op {
	case "perm":
		return s.evaluatePath(c, e, alone)
	case "and":
		for _, part := range e.Parts {
			if err := s.evaluateExpression(c, part, alone); err != nil {
				return err
			}
		}
		return nil
	case "or":
		for _, part := range e.Parts {
			if s.evaluateExpression(c, part, false) == nil {
				return nil
			}
		}
		return denyAccess("")
	case "perm-modify":
		return s.needPrivileges(c.who, c.str("path"), "Permissions.Modify")
	case "userid-param":
		if e.Path != "self" {
			_, realm, _ := strings.Cut(c.str("userid"), "@")
			return s.needPrivileges(c.who, "/access/realm/"+realm, e.Path)
		}
		if c.str("userid") == c.who.user {
			return nil
		}
		return denyAccess("")
	default: // userid-group
		if c.str("userid") == c.who.user {
			return nil
		}
		return s.needPrivileges(c.who, "/access/groups", "User.Modify")
	}
}

func (s *Server) evaluatePath(c *call, e schema.Expression, alone bool) error {
	if e.Require != "" && !c.has(e.Require) {
		return denyAccess("")
	}
	path := pathParam.ReplaceAllStringFunc(e.Path, func(p string) string { return c.str(strings.Trim(p, "{}")) })
	if s.hasPrivileges(c.who, path, e.Any, e.Privileges...) {
		return nil
	}
	if !alone {
		return denyAccess("")
	}
	separator := ", "
	if e.Any {
		separator = "|"
	}
	return denyAccess(path + ", " + strings.Join(e.Privileges, separator))
}

var pathParam = pattern.New(`\{[a-z]+\}`)

// needPrivileges asks for all of some privileges on a path. s.mu is held.
func (s *Server) needPrivileges(who identity, path string, privileges ...string) error {
	if s.hasPrivileges(who, path, false, privileges...) {
		return nil
	}
	return denyAccess(path + ", " + strings.Join(privileges, ", "))
}

// needAny asks for one of some privileges on a path. s.mu is held.
func (s *Server) needAny(who identity, path string, privileges ...string) error {
	if s.hasPrivileges(who, path, true, privileges...) {
		return nil
	}
	return denyAccess(path + ", " + strings.Join(privileges, "|"))
}

// hasPrivileges reports whether somebody has privileges on a path. s.mu is held.
func (s *Server) hasPrivileges(who identity, path string, any bool, privileges ...string) bool {
	have := s.privilegesAt(who, path)
	has := func(p string) bool { _, ok := have[p]; return ok }
	if any {
		return slices.ContainsFunc(privileges, has)
	}
	return !slices.ContainsFunc(privileges, func(p string) bool { return !has(p) })
}

// rights are privileges at a path; one that is true holds below the path too.
type rights map[string]bool

// add gives everything that a role has.
func (r rights) add(role *role, propagate bool) {
	for p := range role.privileges {
		r[p] = r[p] || propagate
	}
}

// privilegesAt returns what somebody may do at a path. A token with separated
// privileges has only what both it and its user have. s.mu is held.
func (s *Server) privilegesAt(who identity, path string) rights {
	if who.user == rootUser && (who.token == "" || !s.isSeparated(who)) {
		return s.everything()
	}
	pool := ""
	if id, ok := strings.CutPrefix(path, "/vms/"); ok {
		if n, err := strconv.Atoi(id); err == nil {
			pool = s.member[n]
		}
		// VMs that the list does not name have all the same.
		if !slices.ContainsFunc(s.acls, func(a acl) bool { return a.path == path }) {
			path = "/vms/0"
		}
	}
	key := who.id + " " + path + " " + pool
	if have, ok := s.granted[key]; ok {
		return have
	}
	if s.granted == nil {
		s.granted = map[string]rights{}
	}
	s.granted[key] = s.computePrivileges(who, path, pool)
	return s.granted[key]
}

// everything is what root may do. s.mu is held.
func (s *Server) everything() rights {
	all := rights{}
	all.add(s.roles["Administrator"], true)
	return all
}

func (s *Server) computePrivileges(who identity, path, pool string) rights {
	user := s.aclPrivileges(who.user, "user", path, pool)
	if who.user == rootUser {
		user = s.everything()
	}
	if who.token == "" || !s.isSeparated(who) {
		return user
	}
	both := rights{}
	for p, below := range s.aclPrivileges(who.id, "token", path, pool) {
		if users, ok := user[p]; ok {
			both[p] = below && users
		}
	}
	return both
}

// isSeparated reports whether a token has only privileges of its own. One that was
// deleted since it logged in has none at all.
func (s *Server) isSeparated(who identity) bool {
	u := s.users[who.user]
	return u == nil || u.tokens[who.token] == nil || u.tokens[who.token].privsep
}

// aclPrivileges returns what the access control list gives at a path, and at
// the pool the VM there is in, if any. What the pool gives never holds below the
// VM's path, and a role that the path gives itself counts as it is given there.
// Source: pve-access-control, RPCEnvironment.pm, compile_acl_path.
func (s *Server) aclPrivileges(ugid, kind, path, pool string) rights {
	roles := s.rolesAt(ugid, kind, path)
	if pool != "" {
		for name := range s.rolesAt(ugid, kind, "/pool/"+pool) {
			if _, there := roles[name]; !there {
				roles[name] = false
			}
		}
	}
	out := rights{}
	for name, propagate := range roles {
		out.add(s.roles[name], propagate)
	}
	return out
}

// rolesAt returns the roles somebody has at a path, and whether each holds below
// it: those of the entry nearest to it, which replace those further up.
func (s *Server) rolesAt(ugid, kind, path string) map[string]bool {
	roles := map[string]bool{}
	for _, level := range listLevels(path) {
		here := map[string]bool{}
		for _, a := range s.acls {
			if a.ugid == ugid && a.kind == kind && a.path == level && (a.propagate || level == path) && s.roles[a.role] != nil {
				here[a.role] = a.propagate
			}
		}
		if len(here) > 0 {
			roles = here
		}
	}
	return roles
}

// listLevels returns a path and everything above it, from / down.
func listLevels(path string) []string {
	out := []string{"/"}
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			out = append(out, path[:i])
		}
	}
	if path != "/" {
		out = append(out, path)
	}
	return out
}

// aclPath matches the paths an access control list may name.
var aclPath = pattern.New(`^/(?:access(?:/groups(?:/[^/]+)?|/realm(?:/[^/]+)?)?|nodes(?:/[^/]+)?|pool(?:/.+)?|` +
	`sdn(?:/zones(?:/[^/]+){0,3}|/.*)?|storage(?:/[^/]+)?|vms(?:/[1-9][0-9]{2,})?|mapping(?:/.*)?)?$`)

// pool is a resource pool. Who is in it is in Server.member.
type pool struct{ comment string }

// joinPool puts a VMID into a pool, whether there is such a VM or not; "" takes it
// out of the one it is in. s.mu is held.
func (s *Server) joinPool(id int, pool string) {
	if pool == "" {
		delete(s.member, id)
		return
	}
	s.member[id] = pool
}

// inPool returns the VMs of a pool that exist. s.mu is held.
func (s *Server) inPool(name string) []*vm {
	var out []*vm
	for _, id := range sortedKeys(s.member) {
		if v := s.vms[id]; v != nil && s.member[id] == name {
			out = append(out, v)
		}
	}
	return out
}
