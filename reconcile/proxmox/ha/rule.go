package ha

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// knowsNoHosts is of the refusal of a rule for more VMs than hosts (PVE 9.2 pve-ha-manager). Until the manager has had its first round, which
// comes with its first resource, it knows none.
const knowsNoHosts = "more resources than available nodes"

// affinity is the type of the rules by which resources are together, or are not.
const affinity = "resource-affinity"

// rule is a row of the rules.
type rule struct {
	Rule, Type, Affinity, Resources, Comment, Disable, Digest pveconf.Scalar
	Errors                                                    map[string][]pveconf.Scalar // by the option that is wrong
}

// RuleName is the name of the rule by which the control planes of a cluster are kept on hosts of their own.
func RuleName(clusterName string) string { return "talos-agent-" + clusterName + "-control-planes" }

func listRules(ctx context.Context, r Requests, query map[string]string) (rows []rule, err error) {
	err = r.get(ctx, rulesPath, query, &rows)
	return rows, err
}

func findRule(rules []rule, name string) *rule {
	i := slices.IndexFunc(rules, func(r rule) bool { return string(r.Rule) == name })
	if i < 0 {
		return nil
	}
	return &rules[i]
}

// describe puts a rule into the terms of the observed world.
func (r rule) describe() *availability.Rule {
	var wrong []string
	for _, option := range slices.Sorted(maps.Keys(r.Errors)) {
		for _, text := range r.Errors[option] {
			wrong = append(wrong, string(text))
		}
	}
	return &availability.Rule{VMs: r.vms(), Disabled: r.Disable.On(), Together: r.Affinity != "negative", Broken: strings.Join(wrong, "; ")}
}

// vms are the VMs that a rule names, in order.
func (r rule) vms() []int {
	var out []int
	for sid := range strings.SplitSeq(string(r.Resources), ",") {
		if vmid, ok := vmidOf(strings.TrimSpace(sid)); ok {
			out = append(out, vmid)
		}
	}
	slices.Sort(out)
	return out
}

// steady is what of a rule shows whether it was changed.
func (r rule) steady() *[2]string { return &[2]string{string(r.Digest), string(r.Resources)} }

// SetApart has the rule of a cluster keep VMs on hosts of their own. Fewer than two need none. waits is called with what is waited for.
func SetApart(ctx context.Context, r Requests, spec cluster.Spec, vmids []int, waits func(string)) error {
	vmids = slices.Compact(slices.Sorted(slices.Values(vmids)))
	name := RuleName(spec.Name)
	var last error
	var before *[2]string
	for try, began := 0, time.Now(); try < conflicts; try++ {
		rules, err := listRules(ctx, r, nil) // of every type: all have their names from one list
		if err != nil {
			return errors.Join(last, err)
		}
		have := findRule(rules, name)
		if have != nil && !isOwn(have.Comment, spec.ID) {
			if len(vmids) < 2 {
				return nil
			}
			return fault.Errorf(fmt.Sprintf("if it is not needed: `ha-manager rules remove %s`", name), "somebody else has made the HA rule %s", name)
		}
		var seen *[2]string
		if have != nil {
			seen = have.steady()
		}
		todo := planRule(have, spec, vmids)
		switch {
		case todo.method == "":
			return nil
		case try > 0 && isSame(seen, before):
			return last
		}
		if last = r.change(ctx, todo); last == nil {
			return nil
		}
		if before = seen; strings.Contains(last.Error(), knowsNoHosts) && time.Since(began) < releaseWithin {
			waits("waits until Proxmox VE's HA manager knows its hosts")
			if err := retry.Sleep(ctx, lookAgain); err != nil {
				return err
			}
			try = -1
		}
	}
	return last
}

// planRule plans how the rule of a cluster becomes what is wanted. One that somebody has disabled stays so.
func planRule(have *rule, spec cluster.Spec, vmids []int) change {
	name := RuleName(spec.Name)
	var sids []string
	for _, vmid := range vmids {
		sids = append(sids, sidOf(vmid))
	}
	in := map[string]string{"type": affinity, "affinity": "negative", "resources": strings.Join(sids, ",")}
	switch {
	case len(vmids) < 2 && have == nil:
		return change{}
	case len(vmids) < 2:
		return change{method: "DELETE", path: rulesPath + "/" + name}
	case have == nil:
		in["rule"], in["comment"] = name, fmt.Sprintf("%scontrol planes of cluster %s (%s)", own, spec.Name, spec.ID)
		return change{"POST", rulesPath, in}
	case have.Affinity == "negative" && slices.Equal(have.vms(), vmids):
		return change{}
	}
	in["digest"] = string(have.Digest)
	return change{"PUT", rulesPath + "/" + name, in}
}
