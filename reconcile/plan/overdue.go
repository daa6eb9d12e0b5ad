package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/readiness"
)

// ownTask is a task of ours in Proxmox VE, begun by this agent or by one before
// it, and the action that it is part of.
type ownTask struct {
	cluster.Task
	host   string
	action cluster.ActionID
}

// planOverdue waits for what takes longer than it should: tasks first, because
// they show more and outlive the agent that began them, then actions.
func (m *planner) planOverdue() {
	for _, t := range m.ownTasks() {
		within := action.Within(t.action.Kind, m.o.Usual)
		if m.overdue[t.action] || m.o.Now.Sub(t.Started) <= within {
			continue
		}
		m.overdue[t.action] = true
		m.wait(cluster.Wait{Subject: t.action.Subject, Reason: cluster.TaskOverdue, About: t.Type, Within: within, Began: t.Started,
			Message: fmt.Sprintf("task %s on %s has run since %s%s%s", t.Type, t.host, text.Moment(t.Started), m.keeps(t.action), readiness.EndOfLog(t.Log)),
			Hint: fmt.Sprintf("as root on %s: `pvesm status` shows whether a storage hangs; `pvesh delete /nodes/%s/tasks/'%s'` ends the task, and what it was for is tried again",
				t.host, t.host, t.UPID)})
	}
	for _, r := range m.o.Running {
		within := action.Within(r.Kind, m.o.Usual)
		if m.overdue[r.ActionID] || r.Since.IsZero() || m.o.Now.Sub(r.Since) <= within {
			continue
		}
		m.overdue[r.ActionID] = true
		m.wait(cluster.Wait{Subject: r.Subject, Reason: cluster.ActionOverdue, About: string(r.Kind), Within: within, Began: r.Since,
			Message: fmt.Sprintf("%s has run since %s%s%s", r.Kind, text.Moment(r.Since), m.keeps(r.ActionID), text.Colon(r.Waits)),
			Hint:    "`journalctl -u talos-agent` has what it did; `systemctl restart talos-agent` starts it again"})
	}
}

// ownTasks are the tasks of ours that run, as far as they are about this cluster.
func (m *planner) ownTasks() []ownTask {
	var out []ownTask
	for _, host := range slices.Sorted(maps.Keys(m.o.Hosts)) {
		for _, t := range m.o.Hosts[host].Tasks.Value {
			if id, ok := m.actionOf(t, host); t.Ours && ok {
				out = append(out, ownTask{t, host, id})
			}
		}
	}
	return out
}

// actionOf is the action that a task is part of: the one that waits for it; else,
// of a task that an earlier agent began, the one it must have been begun for.
func (m *planner) actionOf(t cluster.Task, host string) (cluster.ActionID, bool) {
	for _, r := range m.o.Running {
		if r.UPID == t.UPID {
			return r.ActionID, true
		}
	}
	if t.Type == "imgcopy" {
		i := slices.IndexFunc(m.d.Spec.Nodes, func(n cluster.Node) bool {
			return m.plan.Phases[n.Name] == cluster.PhaseAbsent && !n.Locked && m.placeNode(n) == host
		})
		if i < 0 {
			return cluster.ActionID{}, false
		}
		return action.UploadImage{Image: m.d.Image, Host: host, Datastore: m.d.Spec.Nodes[i].ImageDatastore}.Info().ID(), true
	}
	for _, vm := range slices.Concat(slices.Collect(maps.Values(m.o.VMs)), m.o.Orphans.Value) {
		if vm.VMID == t.VMID && t.VMID != 0 {
			return cluster.ActionID{Kind: action.KindOfTask(t.Type), Subject: vm.Node}, true
		}
	}
	return cluster.ActionID{}, false
}

// copiesImage reports whether a task of ours copies an image into a storage of a
// host: until it ends, it is not known what is there.
func (m *planner) copiesImage(host string) bool {
	return slices.ContainsFunc(m.o.Hosts[host].Tasks.Value, func(t cluster.Task) bool { return t.Ours && t.Type == "imgcopy" })
}

// keeps names the storages that an action keeps from others meanwhile, alone or with others.
func (m *planner) keeps(id cluster.ActionID) string {
	var out []string
	for c, by := range m.held {
		switch n := m.p.Capacity.Copies(); {
		case !slices.Contains(by, id) || !c.OfStorage():
		case n > 1 && !m.alone[c]:
			out = append(out, fmt.Sprintf(" and keeps one of %d places on %s", n, c))
		default:
			out = append(out, fmt.Sprintf(" and keeps %s from others", c))
		}
	}
	return strings.Join(slices.Sorted(slices.Values(out)), "")
}
