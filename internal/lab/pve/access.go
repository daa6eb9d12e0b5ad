package pve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// sortedKeys returns the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func encodeBit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func createUser(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	id := c.str("userid")
	if c.s.users[id] != nil {
		return nil, perlError("create user failed: user '%s' already exists", id)
	}
	u := &user{id: id, enabled: true, tokens: map[string]*token{}, password: c.str("password")}
	u.changeUser(c)
	c.s.users[id] = u
	return nil, nil
}

// changeUser takes over the parameters that creation and update share.
func (u *user) changeUser(c *call) {
	if c.has("comment") {
		u.comment = c.str("comment")
	}
	if c.has("email") {
		u.email = c.str("email")
	}
	if c.has("enable") {
		u.enabled = c.flag("enable")
	}
	if c.has("expire") {
		u.expire = int64(c.num("expire", 0))
	}
}

func updateUser(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	u := c.s.users[c.str("userid")]
	if u == nil {
		return nil, perlError("update user failed: no such user ('%s')", c.str("userid"))
	}
	u.changeUser(c)
	return nil, nil
}

func deleteUser(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	id := c.str("userid")
	if c.s.users[id] == nil {
		return nil, perlError("delete user failed: no such user ('%s')", id)
	}
	delete(c.s.users, id)
	c.s.granted = nil
	c.s.acls = slices.DeleteFunc(c.s.acls, func(a acl) bool { return a.ugid == id || strings.HasPrefix(a.ugid, id+"!") })
	return nil, nil
}

func readUser(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	u := c.s.users[c.str("userid")]
	if u == nil {
		return nil, perlError("no such user ('%s')", c.str("userid"))
	}
	tokens := row{}
	for name, t := range u.tokens {
		tokens[name] = t.row()
	}
	return row{"enable": encodeBit(u.enabled), "expire": u.expire, "groups": []string{}, "comment": u.comment, "email": u.email, "tokens": tokens}, nil
}

// listUsers answers GET /access/users, of which everybody sees themselves and
// only auditors and administrators the rest.
func listUsers(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	all := c.s.needAny(c.who, "/access/groups", "User.Modify", "Sys.Audit") == nil
	out := []row{}
	for _, id := range sortedKeys(c.s.users) {
		u := c.s.users[id]
		if !all && id != c.who.user || c.has("enabled") && c.flag("enabled") != u.enabled {
			continue
		}
		_, realm, _ := strings.Cut(id, "@")
		r := row{"userid": id, "enable": encodeBit(u.enabled), "expire": u.expire, "realm-type": realm}
		for key, value := range map[string]string{"comment": u.comment, "email": u.email} {
			if value != "" {
				r[key] = value
			}
		}
		if c.flag("full") {
			r["groups"] = ""
			if len(u.tokens) > 0 {
				r["tokens"] = u.tokenRows()
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// tokenRows lists an account's tokens.
func (u *user) tokenRows() []row {
	out := []row{}
	for _, name := range sortedKeys(u.tokens) {
		r := u.tokens[name].row()
		r["tokenid"] = name
		out = append(out, r)
	}
	return out
}

func listTokens(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	u := c.s.users[c.str("userid")]
	if u == nil {
		return nil, perlError("no such user ('%s')", c.str("userid"))
	}
	return u.tokenRows(), nil
}

func readToken(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	_, t, err := findToken(c)
	if err != nil {
		return nil, err
	}
	return t.row(), nil
}

func (t *token) row() row {
	r := row{"expire": t.expire, "privsep": encodeBit(t.privsep)}
	if t.comment != "" {
		r["comment"] = t.comment
	}
	return r
}

func createToken(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	u := c.s.users[c.str("userid")]
	name := c.str("tokenid")
	if u == nil {
		return nil, perlError("no such user ('%s')", c.str("userid"))
	}
	if u.tokens[name] != nil {
		return nil, invalidParam("tokenid", "Token already exists.")
	}
	t := &token{secret: newUUID(), privsep: true}
	info := row{"privsep": "1"}
	if c.has("privsep") {
		t.privsep = c.flag("privsep")
		info["privsep"] = c.str("privsep")
	}
	if c.has("comment") {
		t.comment = c.str("comment")
		info["comment"] = t.comment
	}
	if c.has("expire") {
		t.expire = int64(c.num("expire", 0))
		info["expire"] = c.str("expire")
	}
	u.tokens[name] = t
	c.s.granted = nil
	return row{"value": t.secret, "full-tokenid": u.id + "!" + name, "info": info}, nil
}

// findToken returns the token the path names. s.mu is held.
func findToken(c *call) (*user, *token, error) {
	u := c.s.users[c.str("userid")]
	if u == nil {
		return nil, nil, perlError("no such user ('%s')", c.str("userid"))
	}
	t := u.tokens[c.str("tokenid")]
	if t == nil {
		return nil, nil, perlError("no such token '%s' for user '%s'", c.str("tokenid"), u.id)
	}
	return u, t, nil
}

func updateToken(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	_, t, err := findToken(c)
	if err != nil {
		return nil, err
	}
	answer := t.row()
	if c.has("privsep") {
		t.privsep = c.flag("privsep")
		c.s.granted = nil
		answer["privsep"] = c.str("privsep")
	}
	if c.has("comment") {
		t.comment = c.str("comment")
		answer["comment"] = t.comment
	}
	if c.has("expire") {
		t.expire = int64(c.num("expire", 0))
		answer["expire"] = c.str("expire")
	}
	if t.comment == "" {
		delete(answer, "comment")
	}
	return answer, nil
}

func deleteToken(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	u, _, err := findToken(c)
	if err != nil {
		return nil, err
	}
	delete(u.tokens, c.str("tokenid"))
	c.s.granted = nil
	full := u.id + "!" + c.str("tokenid")
	c.s.acls = slices.DeleteFunc(c.s.acls, func(a acl) bool { return a.ugid == full })
	return nil, nil
}

func listACL(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	if c.s.needAny(c.who, "/access", "Sys.Audit", "Permissions.Modify") != nil {
		return out, nil
	}
	for _, a := range c.s.acls {
		out = append(out, row{"path": a.path, "ugid": a.ugid, "type": a.kind, "roleid": a.role, "propagate": encodeBit(a.propagate)})
	}
	return out, nil
}

func updateACL(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.has("groups") {
		return nil, perlError("ACL update failed: group '%s' does not exist", schema.SplitList(c.str("groups"))[0])
	}
	path := strings.TrimSuffix(c.str("path"), "/")
	if path == "" {
		path = "/"
	}
	if !aclPath.MatchString(path) {
		return nil, invalidParam("path", "invalid ACL path '%s'", c.str("path"))
	}
	var whom []acl
	for _, id := range schema.SplitList(c.str("users")) {
		if c.s.users[id] == nil {
			return nil, perlError("ACL update failed: user '%s' does not exist", id)
		}
		whom = append(whom, acl{ugid: id, kind: "user"})
	}
	for _, id := range schema.SplitList(c.str("tokens")) {
		userID, name, _ := strings.Cut(id, "!")
		if u := c.s.users[userID]; u == nil || u.tokens[name] == nil {
			return nil, perlError("ACL update failed: no such token '%s' for user '%s'", name, userID)
		}
		whom = append(whom, acl{ugid: id, kind: "token"})
	}
	for _, name := range schema.SplitList(c.str("roles")) {
		if c.s.roles[name] == nil {
			return nil, perlError("ACL update failed: role '%s' does not exist", name)
		}
		for _, a := range whom {
			a.path, a.role, a.propagate = path, name, !c.has("propagate") || c.flag("propagate")
			c.s.setACL(a, c.flag("delete"))
		}
	}
	return nil, nil
}

// setACL adds, changes or removes one entry. s.mu is held.
func (s *Server) setACL(a acl, remove bool) {
	s.granted = nil
	s.acls = slices.DeleteFunc(s.acls, func(o acl) bool {
		return o.path == a.path && o.ugid == a.ugid && o.kind == a.kind && o.role == a.role
	})
	if !remove {
		s.acls = append(s.acls, a)
	}
}

func readPermissions(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	who := c.who
	if id := c.str("userid"); id != "" {
		userID, name, _ := strings.Cut(id, "!")
		// One may ask for oneself, and a user for the tokens that are his; a token
		// may not ask for its user (pve-access-control 9, API2/AccessControl.pm).
		if who.id != id && who.id != userID {
			if err := c.s.needPrivileges(c.who, "/access", "Sys.Audit"); err != nil {
				return nil, err
			}
		}
		who = identity{id: id, user: userID, token: name}
	}
	paths := setOf("/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms")
	for _, a := range c.s.acls {
		paths[a.path] = true
	}
	for id := range c.s.member {
		paths[fmt.Sprintf("/vms/%d", id)] = true
	}
	if p := c.str("path"); p != "" {
		paths = setOf(p)
	}
	out := row{}
	for path := range paths {
		have := row{}
		for p, below := range c.s.privilegesAt(who, path) {
			have[p] = encodeBit(below)
		}
		if len(have) > 0 {
			out[path] = have
		}
	}
	return out, nil
}

func listPools(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	for _, name := range sortedKeys(c.s.pools) {
		if one := c.str("poolid"); one != "" && one != name || !c.s.hasPrivileges(c.who, "/pool/"+name, false, "Pool.Audit") {
			continue
		}
		r := row{"poolid": name}
		if comment := c.s.pools[name].comment; comment != "" {
			r["comment"] = comment
		}
		if c.has("poolid") {
			r["members"] = c.s.listMembers(name)
		}
		out = append(out, r)
	}
	if one := c.str("poolid"); one != "" && len(out) == 0 {
		if err := c.s.needPrivileges(c.who, "/pool/"+one, "Pool.Audit"); err != nil {
			return nil, err
		}
		return nil, perlError("pool '%s' does not exist", one)
	}
	return out, nil
}

func readPool(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	name := c.str("poolid")
	p := c.s.pools[name]
	if p == nil {
		return nil, perlError("pool '%s' does not exist", name)
	}
	r := row{"poolid": name, "members": c.s.listMembers(name)}
	if p.comment != "" {
		r["comment"] = p.comment
	}
	return r, nil
}

// listMembers lists a pool's VMs. s.mu is held.
func (s *Server) listMembers(name string) []row {
	out := []row{}
	for _, v := range s.inPool(name) {
		r := s.resourceRow(v)
		delete(r, "pool")
		delete(r, "tags")
		delete(r, "lock")
		out = append(out, r)
	}
	return out
}

func createPool(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	name := c.str("poolid")
	if c.s.pools[name] != nil {
		return nil, perlError("create pool failed: pool '%s' already exists", name)
	}
	if i := strings.LastIndex(name, "/"); i >= 0 && c.s.pools[name[:i]] == nil {
		return nil, perlError("create pool failed: parent '%s' of pool '%s' does not exist", name[:i], name)
	}
	c.s.pools[name] = &pool{comment: c.str("comment")}
	return nil, nil
}

func updatePool(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	name := c.str("poolid")
	p := c.s.pools[name]
	if p == nil {
		return nil, perlError("update pools failed: pool '%s' does not exist", name)
	}
	if c.has("comment") {
		p.comment = c.str("comment")
	}
	for _, text := range schema.SplitList(c.str("vms")) {
		id, err := strconv.Atoi(text)
		if err != nil {
			return nil, invalidParam("vms", "invalid format - value does not look like a valid VM ID\n")
		}
		if err := c.s.needAny(c.who, "/vms/"+text, "VM.Allocate", "Permissions.Modify"); err != nil {
			return nil, err
		}
		switch in := c.s.member[id]; {
		case c.flag("delete") && in != name:
			return nil, perlError("update pools failed: VM %d is not a pool member", id)
		case c.flag("delete"):
			c.s.joinPool(id, "")
		case in != "" && in != name && !c.flag("allow-move"):
			return nil, perlError("update pools failed: VM %d belongs already to pool '%s'", id, in)
		default:
			c.s.joinPool(id, name)
		}
	}
	return nil, nil
}

func deletePool(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	name := c.str("poolid")
	if c.s.pools[name] == nil {
		return nil, perlError("delete pool failed: pool '%s' does not exist", name)
	}
	if members := c.s.inPool(name); len(members) > 0 {
		return nil, perlError("delete pool failed: pool '%s' is not empty (contains VM %d)", name, members[0].id)
	}
	for _, other := range sortedKeys(c.s.pools) {
		if strings.HasPrefix(other, name+"/") {
			return nil, perlError("delete pool failed: pool '%s' is not empty (contains pool '%s')", name, other)
		}
	}
	delete(c.s.pools, name)
	c.s.granted = nil
	c.s.acls = slices.DeleteFunc(c.s.acls, func(a acl) bool { return a.path == "/pool/"+name })
	maps.DeleteFunc(c.s.member, func(_ int, pool string) bool { return pool == name })
	return nil, nil
}

// noSuchPool is what naming an unknown pool comes to, whatever the rights.
func noSuchPool(name string) error {
	return denyAccess(fmt.Sprintf("pool '%s' does not exist", name))
}
