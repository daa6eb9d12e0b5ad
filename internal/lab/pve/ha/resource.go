package ha

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Call is a request, whose parameters fit the API's description.
type Call struct {
	In     map[string]any
	Nine   bool     // Proxmox VE 9
	Hosts  []string // of the cluster
	Exists func(vmid int) bool
}

func (c Call) text(name string) string {
	v, _ := c.In[name].(string)
	return v
}

// WrongParams is a refusal of parameters, by name.
type WrongParams map[string]string

// Error implements error.
func (WrongParams) Error() string { return "Parameter verification failed." }

// perlText is an error with Proxmox VE's own text, as its Perl dies with it.
type perlText string

// Error implements error.
func (e perlText) Error() string { return string(e) }

func perlError(format string, args ...any) error { return perlText(fmt.Sprintf(format, args...)) }

// errModified is what a write with the digest of an older file comes to.
var errModified = perlError("detected modified configuration - file changed by other user? Try again.")

// resource is one of resources.cfg.
type resource struct{ options map[string]string }

func (r *resource) ignored() bool { return r.options["state"] == "ignored" }

// started: one without a state is to be started, and enabled is an older word for that.
func (r *resource) started() bool {
	switch r.options["state"] {
	case "", "enabled", "started":
		return true
	}
	return false
}

// resourceOptions are the options of resources.
var resourceOptions = []string{"state", "group", "comment", "failback", "max_restart", "max_relocate"}

// digestOf is the digest of a file with such sections.
func digestOf[T any](sections map[string]T, options func(T) map[string]string) string {
	sum := sha1.New()
	for _, id := range slices.Sorted(maps.Keys(sections)) {
		fmt.Fprintln(sum, id)
		for _, k := range slices.Sorted(maps.Keys(options(sections[id]))) {
			fmt.Fprintf(sum, "\t%s %q\n", k, options(sections[id])[k])
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// resourcesDigest is that of resources.cfg. m.mu is held.
func (m *Manager) resourcesDigest() string {
	return digestOf(m.resources, func(r *resource) map[string]string { return r.options })
}

// migrated reports whether groups have become rules. m.mu is held.
func (m *Manager) migrated(c Call) bool { return c.Nine && len(m.groups) == 0 }

// resourceRow is how GET shows a resource. m.mu is held.
func (m *Manager) resourceRow(c Call, sid string) map[string]any {
	kind, _ := splitSID(sid)
	row := map[string]any{"sid": sid, "type": kind, "digest": m.resourcesDigest()}
	r := m.resources[sid]
	if r == nil { // of Manage
		row["state"] = "started"
		return row
	}
	for k, text := range r.options {
		row[k] = text
		if n, err := strconv.Atoi(text); err == nil && (k == "failback" || strings.HasPrefix(k, "max_")) {
			row[k] = n
		}
	}
	if m.migrated(c) {
		delete(row, "group")
	}
	return row
}

// ListResources answers GET /cluster/ha/resources.
func (m *Manager) ListResources(c Call) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []map[string]any{}
	for _, sid := range append(slices.Clone(m.fixed), slices.Sorted(maps.Keys(m.resources))...) {
		row := m.resourceRow(c, sid)
		if kind := c.text("type"); kind != "" && kind != row["type"] {
			continue
		}
		if group, ok := row["group"].(string); ok && !slices.Contains(m.groups, group) {
			row["errors"] = map[string]any{"group": fmt.Sprintf("group '%s' does not exist", group)}
		}
		out = append(out, row)
	}
	return out, nil
}

// ReadResource answers GET of one.
func (m *Manager) ReadResource(c Call) (any, error) {
	sid, err := c.sid()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resources[sid] == nil && !slices.Contains(m.fixed, sid) {
		return nil, fmt.Errorf("no such resource '%s'", sid)
	}
	return m.resourceRow(c, sid), nil
}

var (
	digits = pattern.New(`^\d+$`)
	vmid   = pattern.New(`^[1-9][0-9]+$`)
)

// sid is the resource that a call names, by its id or by the number of the guest.
func (c Call) sid() (string, error) {
	sid := c.text("sid")
	if !digits.MatchString(sid) {
		return sid, nil
	}
	if n, err := strconv.Atoi(sid); err != nil || !c.Exists(n) {
		return "", fmt.Errorf("unable to detect SID from VMID - VM/CT %s does not exist", sid)
	}
	return "vm:" + sid, nil
}

// mayMake refuses a resource that cannot be one.
func (c Call) mayMake(sid string) error {
	kind, name := splitSID(sid)
	n, err := strconv.Atoi(name)
	switch {
	case c.text("type") != "" && c.text("type") != kind:
		return errors.New("types does not match")
	case kind != "vm" && kind != "ct":
		return fmt.Errorf("unknown section type '%s'", kind)
	case !vmid.MatchString(name) || err != nil:
		return errors.New("invalid VMID")
	case kind == "ct" && c.Exists(n):
		return fmt.Errorf("resource '%s' - guest with ID %d is not a CT", sid, n)
	case kind == "ct" || !c.Exists(n):
		return fmt.Errorf("resource '%s' does not exist in cluster", sid)
	}
	return nil
}

var errMigrated = errors.New("invalid parameter 'group': ha groups have been migrated to rules")

// CreateResource answers POST.
func (m *Manager) CreateResource(c Call) (any, error) {
	sid, err := c.sid()
	if err != nil {
		return nil, err
	}
	if err := c.mayMake(sid); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case c.text("group") != "" && m.migrated(c):
		return nil, errMigrated
	case m.resources[sid] != nil || slices.Contains(m.fixed, sid):
		return nil, fmt.Errorf("create resource failed: resource ID '%s' already defined", sid)
	}
	if m.resources == nil {
		m.resources = map[string]*resource{}
	}
	m.resources[sid] = &resource{c.pick(resourceOptions)}
	return nil, nil
}

// pick returns those of some options that were given.
func (c Call) pick(options []string) map[string]string {
	out := map[string]string{}
	for _, k := range options {
		if v, ok := c.In[k].(string); ok {
			out[k] = v
		}
	}
	return out
}

// refuseFailed refuses what is asked of a resource that was given up, but for what ends that. m.mu is held.
func (m *Manager) refuseFailed(sid string, r *resource, state string) error {
	if r == nil || r.ignored() || m.services[sid] != "error" || state == "disabled" {
		return nil
	}
	return fmt.Errorf("service '%s' in error state, must be disabled and fixed first", sid)
}

// UpdateResource answers PUT.
func (m *Manager) UpdateResource(c Call) (any, error) {
	sid, err := c.sid()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, group := m.resources[sid], c.text("group")
	switch {
	case group != "" && m.migrated(c):
		return nil, errMigrated
	case group != "" && !slices.Contains(m.groups, group):
		return nil, fmt.Errorf("HA group '%s' does not exist", group)
	}
	if err := m.refuseFailed(sid, r, c.text("state")); err != nil {
		return nil, err
	}
	const failed = "update resources config failed: %w"
	switch digest := c.text("digest"); {
	case digest != "" && digest != m.resourcesDigest():
		return nil, fmt.Errorf(failed, errModified)
	case r == nil:
		return nil, fmt.Errorf(failed, fmt.Errorf("no such resource '%s'", sid))
	}
	next := maps.Clone(r.options)
	maps.Copy(next, c.pick(resourceOptions))
	if err := drop(next, c.text("delete"), resourceOptions); err != nil {
		return nil, fmt.Errorf(failed, err)
	}
	r.options = next
	return nil, nil
}

// drop takes a list of options out of a section that may have some.
func drop(section map[string]string, list string, may []string) error {
	for _, k := range splitList(list) {
		if !slices.Contains(may, k) {
			return fmt.Errorf("no such option '%s'", k)
		}
		delete(section, k)
	}
	return nil
}

func splitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(",; \t\n\x00", r) })
}

// DeleteResource answers DELETE.
func (m *Manager) DeleteResource(c Call) (any, error) {
	sid, err := c.sid()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resources[sid] == nil {
		return nil, perlError("cannot delete service '%s', not HA managed!", sid)
	}
	m.remove(sid, c.text("purge") != "0")
	return nil, nil
}

// remove removes a resource, and, to purge, from the rules; one that has none left goes, too. m.mu is held.
func (m *Manager) remove(sid string, purge bool) {
	delete(m.resources, sid)
	if !purge {
		return
	}
	for id, r := range m.rules {
		if r.resources = slices.DeleteFunc(r.resources, func(s string) bool { return s == sid }); len(r.resources) == 0 {
			delete(m.rules, id)
		}
	}
}
