package drift

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// byConfigEdit is who edited a machine config on its node.
const byConfigEdit = "edited on the node; Talos does not note by whom"

// DescribeConfigEdit is a machine config that somebody edited on the node, for people.
func DescribeConfigEdit(since time.Time) string {
	if since.IsZero() {
		return " (" + byConfigEdit + ")"
	}
	return fmt.Sprintf(" (edited on the node; it runs that since %s, and Talos does not note by whom)", text.Moment(since))
}

// Changed is who changed a VM, and since when. The zero value is unknown.
type Changed struct {
	By    *cluster.Task
	With  *cluster.Request // where no task shows who it was
	After time.Time        // when it was last seen as it was before
	Noted string           // who it was, as an earlier look noted it, in words
}

// at is when it was; zero: that is not known.
func (c Changed) at() time.Time {
	switch {
	case c.By != nil:
		return c.By.Started
	case c.With != nil:
		return c.With.At
	}
	return time.Time{}
}

// ChangedOf is who is known to have changed some fields of the VM of a node last.
func ChangedOf(o cluster.Observed, node string, fields ...string) Changed {
	var out Changed
	for _, field := range fields {
		if field == string(cluster.FieldMedium) { // that is the agent's own
			continue
		}
		note := o.DriftNotes[keyOf(node, field)]
		if c := changedField(o, node, field, note.Has); out == (Changed{}) || c.at().After(out.at()) {
			out = c
		}
	}
	return out
}

// keyOf is the key of a field of the VM of a node.
func keyOf(node, field string) cluster.DriftKey {
	return cluster.DriftKey{Subject: node, Part: cluster.PartVM, Field: field}
}

// changedField is who is known to have made a field of the VM of a node what it is, of which
// has is the digest. What it was when it was noted, it was not made by whoever came later.
func changedField(o cluster.Observed, node, field, has string) Changed {
	note, noted := o.DriftNotes[keyOf(node, field)]
	noted = noted && note.Has == has
	if noted && note.By != "" {
		return Changed{Noted: note.By}
	}
	c := lastChange(o.VMs[node], field)
	if noted && (!c.After.Before(note.Since) || c.at().After(note.Since)) {
		return Changed{}
	}
	return c
}

// lastChange is the last change of a VM that may have been one of a field: without a name where
// it was the agent's own.
func lastChange(vm cluster.VM, field string) Changed {
	c := Changed{After: vm.ChangedAfter}
	if i := slices.IndexFunc(vm.ChangedBy, func(t cluster.Task) bool { return mayChange(vm, field, t.Type) }); i >= 0 {
		c.By = &vm.ChangedBy[i]
	}
	for _, r := range vm.ChangedWith {
		leavesTask := r.Method != "PUT" || r.Call == "resize" // a request that the task follows at once
		if kind := taskOf(r); mayChange(vm, field, kind) && (c.By == nil || !leavesTask && r.At.After(c.By.Started)) {
			c.By, c.With = nil, &r
			break
		}
	}
	if c.By != nil && c.By.Ours || c.With != nil && c.With.Ours {
		c.By, c.With = nil, nil
	}
	return c
}

// taskOf is the type of the task that does what a request does.
func taskOf(r cluster.Request) string {
	switch call := strings.TrimPrefix(r.Call, "status/"); {
	case r.Call == "":
		return "qmdestroy"
	case r.Call == "config", r.Call == "unlink":
		return "qmconfig"
	case r.Call == "move_disk":
		return "qmmove"
	case strings.HasSuffix(r.Call, "/rollback"):
		return "qmrollback"
	case call != r.Call, r.Call == "template":
		return "qm" + call
	}
	return r.Call
}

// mayChange reports whether a task of a type may have made a field of a VM what it is.
//
// PVE 9.2, PVE::API2::Qemu: the types of tasks, and what each does.
func mayChange(vm cluster.VM, field, kind string) bool {
	switch kind {
	case "qmrestore", "qmrollback":
		return true
	case "qmconfig":
		return field != FieldPower && field != FieldPool && vm.Presence != cluster.Absent
	case "qmdestroy":
		return field == FieldVM
	case "resize":
		return strings.HasSuffix(field, " size")
	case "qmmove":
		return strings.HasSuffix(field, " datastore") || strings.HasSuffix(field, " size")
	case "qmstop", "qmshutdown", "qmreboot", "qmreset", "qmsuspend", "qmpause", "qmtemplate":
		return field == FieldPower
	}
	return false
}

// String is it for people, "" where it is not known.
func (c Changed) String() string {
	if c == (Changed{}) {
		return ""
	}
	return " (" + c.describe() + ")"
}

// describe is it in words.
func (c Changed) describe() string {
	switch {
	case c.Noted != "":
		return c.Noted
	case c.By != nil:
		return fmt.Sprintf("%s by %s at %s, %s", c.By.Type, c.By.User, text.Moment(c.By.Started), c.By.UPID)
	case c.With != nil:
		what := strings.TrimSpace(c.With.Method + " " + c.With.Call)
		return fmt.Sprintf("%s by %s at %s, in the host's access log", what, c.With.User, text.Moment(c.With.At))
	case !c.After.IsZero():
		return fmt.Sprintf("changed after %s; no task shows who it was", text.Moment(c.After))
	}
	return ""
}

// setBy is a difference of the VM of a node with who made it, and since when it is there.
func setBy(o cluster.Observed, node string, f cluster.FieldDifference) cluster.FieldDifference {
	c := changedField(o, node, f.Field, hashHas(f.Has))
	f.By, f.Since = c.describe(), c.at() // where that is not known, it was after c.After, and is seen since later
	return f
}

// pendingStart marks what a VM has from its next start on, for people.
const pendingStart = " (pending its next start)"

// hashHas identifies what a VM has in a field, whether it was started with that or not.
func hashHas(has string) string { return hashField(strings.TrimSuffix(has, pendingStart)) }
