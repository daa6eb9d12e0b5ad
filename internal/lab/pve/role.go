package pve

import (
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

func listRoles(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for _, name := range sortedKeys(c.s.roles) {
		r := c.s.roles[name]
		out = append(out, row{"roleid": name, "privs": strings.Join(sortedKeys(r.privileges), ","), "special": encodeBit(r.special)})
	}
	return out, nil
}

func createRole(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	name := c.str("roleid")
	if c.s.roles[name] != nil {
		return nil, perlError("create role failed: role '%s' already exists", name)
	}
	privileges := schema.SplitList(c.str("privs"))
	if err := c.s.knownPrivileges(privileges); err != nil {
		return nil, err
	}
	c.s.roles[name] = &role{privileges: setOf(privileges...)}
	c.s.granted = nil
	return nil, nil
}

func deleteRole(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	name := c.str("roleid")
	switch r := c.s.roles[name]; {
	case r == nil:
		return nil, perlError("delete role failed: role '%s' does not exist", name)
	case r.special:
		return nil, perlError("auto-generated role '%s' cannot be deleted", name)
	}
	delete(c.s.roles, name)
	c.s.granted = nil
	c.s.acls = slices.DeleteFunc(c.s.acls, func(a acl) bool { return a.role == name })
	return nil, nil
}

// knownPrivileges refuses a privilege that this version does not have.
// s.mu is held.
func (s *Server) knownPrivileges(names []string) error {
	for _, p := range names {
		if !s.roles["Administrator"].privileges[p] {
			return invalidParam("privs", "invalid format - invalid privilege '%s'\n", p)
		}
	}
	return nil
}

func readRole(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	r := c.s.roles[c.str("roleid")]
	if r == nil {
		return nil, perlError("role '%s' does not exist", c.str("roleid"))
	}
	out := row{}
	for p := range r.privileges {
		out[p] = 1
	}
	return out, nil
}

func updateRole(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	name := c.str("roleid")
	r := c.s.roles[name]
	switch {
	case r == nil:
		return nil, perlError("update role failed: role '%s' does not exist", name)
	case r.special:
		return nil, perlError("auto-generated role '%s' cannot be modified", name)
	}
	privileges := schema.SplitList(c.str("privs"))
	if err := c.s.knownPrivileges(privileges); err != nil {
		return nil, err
	}
	if c.flag("append") {
		privileges = append(privileges, sortedKeys(r.privileges)...)
	}
	r.privileges = setOf(privileges...)
	c.s.granted = nil
	return nil, nil
}
