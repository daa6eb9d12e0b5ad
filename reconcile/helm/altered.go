package helm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// alteration is what somebody changed of one object of a release.
type alteration struct {
	object string
	edits  []edits.Edit // at least one
}

// String implements fmt.Stringer. It has no text that may be a secret.
func (a alteration) String() string {
	first := a.edits[0]
	if i := slices.IndexFunc(a.edits, func(e edits.Edit) bool { return e.Manager != "" }); i >= 0 {
		first = a.edits[i]
	}
	out := a.object + ": " + first.Path
	if first.Has != "" {
		out += " " + first.Wants + " -> " + first.Has
	}
	if n := len(a.edits) - 1; n > 0 {
		out += fmt.Sprintf(" (and %d more)", n)
	}
	if first.Manager != "" {
		out += ", changed by " + edits.Shown(first.Manager)
	}
	if !first.At.IsZero() {
		out += " at " + text.Moment(first.At)
	}
	return out
}

const (
	// fieldManager is who owns the fields of the definitions we apply.
	fieldManager = "talos-agent"
	// namespaceManager owns the labels and annotations that addons ask of their
	// namespaces. It is not that of definitions: a chart that brings a namespace in
	// its folder crds/ would take them away.
	namespaceManager = "talos-agent-namespaces"
)

// isOurs reports whether a manager of fields writes what releases have: this program, as
// Helm 3.22 calls it (pkg/kube/client.go, getManagedFieldsManager) and as definitions and
// what addons ask of their namespaces are applied, and the helm command.
func isOurs(manager string) bool {
	return slices.Contains([]string{"helm", fieldManager, namespaceManager, filepath.Base(os.Args[0])}, manager)
}

// alterationOf compares a workload with the document of the manifest that describes it.
func alterationOf(o object, document, touched string) (alteration, bool) {
	found := edits.FindTouched(document, touched)
	return alteration{o.String(), found}, len(found) > 0
}

// againWithin is how long something has to stay as it was put back: who changes it again
// before is something in the cluster that will go on, rather than somebody.
const againWithin = 24 * time.Hour

// The marks of what a revision put back: a hash each, of an object and who had changed
// it. A label holds 63 characters.
const (
	markLength = 6
	maxMarks   = 10
	// markAll stands for more than there is room for: all are left.
	markAll = "all"
)

// markOfEdit is the mark of who changed an object.
func markOfEdit(object, manager string) string {
	h := sha256.Sum256([]byte(object + "\n" + manager))
	return hex.EncodeToString(h[:])[:markLength]
}

// marksOf is the label of a revision that puts these back, and of which an earlier one, not
// long ago, has put back others.
func marksOf(all []alteration, before string) string {
	if before == markAll {
		return markAll
	}
	var marks []string
	for ; len(before) >= markLength; before = before[markLength:] {
		marks = append(marks, before[:markLength])
	}
	for _, a := range all {
		for _, e := range a.edits {
			if mark := markOfEdit(a.object, e.Manager); !slices.Contains(marks, mark) {
				marks = append(marks, mark)
			}
		}
	}
	if len(marks) > maxMarks {
		return markAll
	}
	return strings.Join(marks, "")
}

// wasPutBack reports whether a revision that was made then put the same back, and it did
// not last.
func wasPutBack(object string, e edits.Edit, marks string, made time.Time) bool {
	at := e.At
	if at.IsZero() {
		at = time.Now() // when something is removed is not noted: it is seen now
	}
	if !at.Before(made.Add(againWithin)) {
		return false
	}
	if marks == markAll {
		return true
	}
	for ; len(marks) >= markLength; marks = marks[markLength:] {
		if marks[:markLength] == markOfEdit(object, e.Manager) {
			return true
		}
	}
	return false
}

// splitAltered shortens what somebody changed of a release to what is to be put back, and
// what was put back already with the revision that was made then.
func splitAltered(all []alteration, marks string, made time.Time) (once, again string) {
	var news, old []string
	for _, a := range all {
		var left, fresh []edits.Edit
		for _, e := range a.edits {
			if wasPutBack(a.object, e, marks, made) {
				left = append(left, e)
			} else {
				fresh = append(fresh, e)
			}
		}
		if len(left) > 0 {
			old = append(old, alteration{a.object, left}.String())
		}
		if len(fresh) > 0 {
			news = append(news, alteration{a.object, fresh}.String())
		}
	}
	return listObjects(news), listObjects(old)
}

// listObjects shortens a list of objects.
func listObjects(objects []string) string {
	switch n := len(objects); n {
	case 0:
		return ""
	case 1:
		return objects[0]
	default:
		return fmt.Sprintf("%s (and %d more)", objects[0], n-1)
	}
}
