package drift

import (
	"fmt"
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
}

// ChangedOf is what is known of the last change of a VM.
func ChangedOf(vm cluster.VM) Changed {
	return Changed{By: vm.ChangedBy, With: vm.ChangedWith, After: vm.ChangedAfter}
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

// setBy is a difference with who made it, and since when it is there.
func setBy(f cluster.FieldDifference, c Changed) cluster.FieldDifference {
	f.By, f.Since = c.describe(), time.Time{} // it was after c.After, and is seen since later
	switch {
	case c.By != nil:
		f.Since = c.By.Started
	case c.With != nil:
		f.Since = c.With.At
	}
	return f
}
