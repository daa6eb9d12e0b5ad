package ha

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// rule is one of rules.cfg, which Proxmox VE 9 has.
type rule struct {
	kind      string
	order     int
	resources []string // in order
	options   map[string]string
}

// ruleOptions are the options of the rules of each type, besides their resources.
var ruleOptions = map[string][]string{
	"resource-affinity": {"affinity", "comment", "disable"},
	"node-affinity":     {"nodes", "comment", "disable", "strict"},
}

// rulesDigest is that of rules.cfg. m.mu is held.
func (m *Manager) rulesDigest() string {
	return digestOf(m.rules, func(r *rule) map[string]string {
		all := maps.Clone(r.options)
		all["resources"], all["type"] = strings.Join(r.resources, ","), r.kind
		return all
	})
}

// ruleRow is how GET shows a rule. m.mu is held.
func (m *Manager) ruleRow(c Call, id string) map[string]any {
	r := m.rules[id]
	row := map[string]any{"rule": id, "type": r.kind, "resources": strings.Join(r.resources, ","), "order": r.order, "digest": m.rulesDigest()}
	for k, text := range r.options {
		row[k] = text
		if k == "disable" || k == "strict" {
			row[k] = 1
		}
	}
	if wrong := m.checkRule(c, r); len(wrong) > 0 {
		row["errors"] = map[string]any{"resources": wrong}
	}
	return row
}

// checkRule returns why a rule is not followed. Which hosts there are the manager has from its first round on, and before that there
// is none on which a resource could be kept from another. m.mu is held.
func (m *Manager) checkRule(c Call, r *rule) (wrong []string) {
	if r.kind != "resource-affinity" || r.options["disable"] == "1" {
		return nil
	}
	hosts := 0
	if m.knows {
		hosts = len(c.Hosts)
	}
	if len(r.resources) < 2 {
		wrong = append(wrong, "rule is ineffective as there are less than two resources")
	}
	if r.options["affinity"] == "negative" && len(r.resources) > hosts {
		wrong = append(wrong, "rule defines more resources than available nodes")
	}
	for _, other := range m.rules {
		if other.kind != r.kind || other.options["disable"] == "1" || other.options["affinity"] == r.options["affinity"] {
			continue
		}
		shared := slices.DeleteFunc(slices.Clone(r.resources), func(sid string) bool { return !slices.Contains(other.resources, sid) })
		if len(shared) > 1 {
			wrong = append(wrong, fmt.Sprintf("rule shares two or more resources with a %s resource affinity rule", other.options["affinity"]))
		}
	}
	return wrong
}

// ListRules answers GET /cluster/ha/rules.
func (m *Manager) ListRules(c Call) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := []map[string]any{}
	for _, id := range slices.SortedFunc(maps.Keys(m.rules), func(a, b string) int { return cmp.Compare(m.rules[a].order, m.rules[b].order) }) {
		r := m.rules[id]
		if kind, sid := c.text("type"), c.text("resource"); kind != "" && kind != r.kind || sid != "" && !slices.Contains(r.resources, sid) {
			continue
		}
		out = append(out, m.ruleRow(c, id))
	}
	return out, nil
}

// ReadRule answers GET of one.
func (m *Manager) ReadRule(c Call) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rules[c.text("rule")] == nil {
		return nil, fmt.Errorf("no such ha rule '%s'", c.text("rule"))
	}
	return m.ruleRow(c, c.text("rule")), nil
}

// checkForm holds the parameters against those of the type of rule.
func (c Call) checkForm(required ...string) error {
	wrong, kind := WrongParams{}, c.text("type")
	for k := range c.In {
		switch k {
		case "rule", "type", "resources", "digest", "delete":
		default:
			if !slices.Contains(ruleOptions[kind], k) {
				wrong[k] = "property is not defined in schema and the schema does not allow additional properties"
			}
		}
	}
	for _, k := range required {
		if c.text(k) == "" {
			wrong[k] = "property is missing and it is not optional"
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	return nil
}

// readRule returns the resources and the options that a call gives a rule.
func (c Call) readRule() (resources []string, options map[string]string) {
	options = c.pick(ruleOptions[c.text("type")])
	for _, k := range []string{"disable", "strict"} {
		if options[k] == "0" {
			delete(options, k)
		}
	}
	resources = splitList(c.text("resources"))
	slices.Sort(resources)
	return slices.Compact(resources), options
}

// mayName refuses resources and hosts that are not there. m.mu is held.
func (m *Manager) mayName(c Call, resources []string) error {
	var unmanaged, nowhere []string
	for _, sid := range resources {
		if m.resources[sid] == nil && !slices.Contains(m.fixed, sid) {
			unmanaged = append(unmanaged, sid)
		}
	}
	for _, node := range splitList(c.text("nodes")) {
		if name, _, _ := strings.Cut(node, ":"); !slices.Contains(c.Hosts, name) {
			nowhere = append(nowhere, name)
		}
	}
	switch {
	case c.text("resources") != "" && len(resources) == 0:
		return errors.New("no resources were specified")
	case len(unmanaged) > 0:
		return perlError("cannot use unmanaged resource(s) %s.", strings.Join(unmanaged, ", "))
	case len(nowhere) > 0:
		return perlError("cannot use non-existent node(s) %s.", strings.Join(nowhere, ", "))
	}
	return nil
}

// mayFollow refuses a rule that would not be followed: Perl puts the refusal of its parameters into words. m.mu is held.
func (m *Manager) mayFollow(c Call, id string, r *rule) error {
	before := m.rules[id]
	m.rules[id] = r
	wrong := m.checkRule(c, r)
	if m.rules[id] = before; before == nil {
		delete(m.rules, id)
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("400 Rule '%s' is invalid.\nresources: %s", id, strings.Join(wrong, ", "))
}

// CreateRule answers POST.
func (m *Manager) CreateRule(c Call) (any, error) {
	required := []string{"affinity", "resources"}
	if c.text("type") == "node-affinity" {
		required[0] = "nodes"
	}
	if err := c.checkForm(required...); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.groups) > 0 {
		return nil, errors.New("cannot create ha rule: ha groups have not been migrated yet")
	}
	if m.rules == nil {
		m.rules = map[string]*rule{}
	}
	const failed = "create ha rule failed: %w"
	id := c.text("rule")
	if m.rules[id] != nil {
		return nil, fmt.Errorf(failed, fmt.Errorf("HA rule '%s' already defined", id))
	}
	resources, options := c.readRule()
	r := &rule{kind: c.text("type"), order: m.ordinal + 1, resources: resources, options: options}
	if err := m.mayName(c, resources); err != nil {
		return nil, fmt.Errorf(failed, err)
	}
	if err := m.mayFollow(c, id, r); err != nil {
		return nil, fmt.Errorf(failed, err)
	}
	m.ordinal++
	m.rules[id] = r
	return nil, nil
}

// UpdateRule answers PUT.
func (m *Manager) UpdateRule(c Call) (any, error) {
	if err := c.checkForm(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.groups) > 0 {
		return nil, errors.New("cannot update ha rule: ha groups have not been migrated yet")
	}
	const failed = "update HA rules failed: %w"
	id, digest := c.text("rule"), c.text("digest")
	before := m.rules[id]
	switch {
	case digest != "" && digest != m.rulesDigest():
		return nil, fmt.Errorf(failed, errModified)
	case before == nil:
		return nil, fmt.Errorf(failed, fmt.Errorf("HA rule '%s' does not exist", id))
	}
	resources, options := c.readRule()
	r := &rule{kind: before.kind, order: before.order, resources: before.resources, options: maps.Clone(before.options)}
	if err := m.mayName(c, resources); err != nil {
		return nil, fmt.Errorf(failed, err)
	}
	if len(resources) > 0 {
		r.resources = resources
	}
	maps.Copy(r.options, options)
	if err := drop(r.options, c.text("delete"), []string{"comment", "disable", "strict"}); err != nil {
		return nil, fmt.Errorf(failed, err)
	}
	if err := m.mayFollow(c, id, r); err != nil {
		return nil, fmt.Errorf(failed, err)
	}
	m.rules[id] = r
	return nil, nil
}

// DeleteRule answers DELETE: one that is not there is removed already.
func (m *Manager) DeleteRule(c Call) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rules, c.text("rule"))
	return nil, nil
}
