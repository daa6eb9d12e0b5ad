package edits

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Edit is a field of an object that has another value than in the manifest.
type Edit struct {
	Path    string // spec.template.spec.containers[web].image
	Manager string // who set it, as it calls itself: kubectl-edit; "": it was removed, and it is not noted by whom
	At      time.Time
	// Has and Wants are "" where they are not shown: texts may be secrets.
	Has, Wants string
}

// Foreign picks the entries of managedFields that are not of Helm or a controller's way
// to write: subresources are for controllers, but for what people scale by hand.
func Foreign(entries []metav1.ManagedFieldsEntry, ours func(manager string) bool) []metav1.ManagedFieldsEntry {
	var out []metav1.ManagedFieldsEntry
	for _, e := range entries {
		// An autoscaler writes the same subresource that `kubectl scale` writes.
		scaled := e.Subresource == "scale" && (strings.HasPrefix(e.Manager, "kubectl") || e.Manager == "k9s")
		if e.FieldsV1 != nil && !ours(e.Manager) && (e.Subresource == "" || scaled) {
			out = append(out, e)
		}
	}
	return out
}

// Find returns what the managers of these entries set otherwise than a manifest has it,
// sorted by path.
func Find(wants, has map[string]any, entries []metav1.ManagedFieldsEntry) []Edit {
	secret := wants["kind"] == "Secret"
	if secret {
		wants = withData(wants)
	}
	found := map[string]Edit{}
	for _, w := range ReadWriters(entries) {
		for path := range w.fields.Leaves().All() {
			want, set := valueAt(wants, path)
			if !set || isLeft(path, want) {
				continue
			}
			have, _ := valueAt(has, path)
			if equalValues(want, have) {
				continue
			}
			edit := Edit{Path: formatPath(path), Manager: w.manager, At: w.at}
			if !secret {
				edit.Has, edit.Wants = showValues(path, have, want)
			}
			if other, ok := found[edit.Path]; !ok || other.At.Before(edit.At) {
				found[edit.Path] = edit
			}
		}
	}
	for _, path := range removedData(wants, has) {
		found[path] = Edit{Path: path}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Edit) int { return cmp.Compare(a.Path, b.Path) })
}

// removedData lists what of the data of a ConfigMap or a Secret is not there any longer. Of
// other objects the API may have dropped a field that it does not know.
func removedData(wants, has map[string]any) (paths []string) {
	if wants["apiVersion"] != "v1" || wants["kind"] != "ConfigMap" && wants["kind"] != "Secret" {
		return nil
	}
	for _, part := range []string{"data", "binaryData"} {
		want, _ := wants[part].(map[string]any)
		have, _ := has[part].(map[string]any)
		for key, v := range want {
			if _, there := have[key]; !there && !isEmpty(v) {
				paths = append(paths, clean(part+"."+key)+" (removed)")
			}
		}
	}
	return paths
}

// withData is a Secret with its texts where the API keeps them.
func withData(secret map[string]any) map[string]any {
	texts, ok := secret["stringData"].(map[string]any)
	if !ok {
		return secret
	}
	data, _ := secret["data"].(map[string]any)
	data = maps.Clone(data)
	if data == nil {
		data = map[string]any{}
	}
	for k, v := range texts {
		if text, ok := v.(string); ok {
			data[k] = base64.StdEncoding.EncodeToString([]byte(text))
		}
	}
	secret = maps.Clone(secret)
	secret["data"] = data
	return secret
}

// isLeft reports whether a manifest leaves a field to be filled in by somebody else: the
// rules of a role that is put together of others are empty, and the authority of a webhook
// is empty or a placeholder, which its own controller (cert-manager's cainjector, an
// operator) replaces.
func isLeft(path fieldpath.Path, want any) bool {
	last := path[len(path)-1]
	if last.FieldName != nil && *last.FieldName == "caBundle" {
		return true
	}
	switch want := want.(type) {
	case nil:
		return true
	case string:
		return want == ""
	case map[string]any:
		return len(want) == 0
	case []any:
		return len(want) == 0
	}
	return false
}

// valueAt finds the value at a path. An item of a list is found by its keys; one that
// leaves a key out has the default of the API there.
func valueAt(in any, path fieldpath.Path) (any, bool) {
	for _, p := range path {
		switch {
		case p.FieldName != nil:
			m, _ := in.(map[string]any)
			v, ok := m[*p.FieldName]
			if !ok {
				return nil, false
			}
			in = v
		case p.Key != nil:
			item, ok := findItem(in, p)
			if !ok {
				return nil, false
			}
			in = item
		case p.Value != nil:
			list, _ := in.([]any)
			want := (*p.Value).Unstructured()
			i := slices.IndexFunc(list, func(v any) bool { return equalValues(want, v) })
			if i < 0 {
				return nil, false
			}
			in = list[i]
		case p.Index != nil:
			list, _ := in.([]any)
			if *p.Index < 0 || *p.Index >= len(list) {
				return nil, false
			}
			in = list[*p.Index]
		}
	}
	return in, true
}

func findItem(in any, p fieldpath.PathElement) (any, bool) {
	list, _ := in.([]any)
	for _, strict := range []bool{true, false} {
		for _, item := range list {
			m, _ := item.(map[string]any)
			matches := m != nil
			for _, key := range *p.Key {
				v, ok := m[key.Name]
				matches = matches && (ok && equalValues(key.Value.Unstructured(), v) || !ok && !strict)
			}
			if matches {
				return item, true
			}
		}
	}
	return nil, false
}

// equalValues reports whether the API takes two values for the same, or the second has all
// that the first sets: the API fills in defaults.
func equalValues(want, have any) bool {
	if isEmpty(want) && isEmpty(have) {
		return true
	}
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		for k, v := range want {
			ok = ok && equalValues(v, have[k])
		}
		return ok
	case []any:
		have, ok := have.([]any)
		ok = ok && len(want) == len(have)
		for i := range want {
			ok = ok && equalValues(want[i], have[i])
		}
		return ok
	}
	if isComposite(have) || have == nil {
		return false
	}
	a, b := formatScalar(want), formatScalar(have)
	return a == b || equalQuantities(a, b) || equalDurations(a, b)
}

func isComposite(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// isEmpty reports whether a value is what the API makes of one that is not set.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case string:
		return v == ""
	case bool:
		return !v
	}
	return isVoid(v) || formatScalar(v) == "0"
}

// formatScalar writes numbers the same way, whatever read them.
func formatScalar(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if s, ok := v.(string); ok {
		return s
	}
	return string(text)
}

func equalQuantities(a, b string) bool {
	x, err := resource.ParseQuantity(a)
	if err != nil {
		return false
	}
	y, err := resource.ParseQuantity(b)
	return err == nil && x.Cmp(y) == 0
}

func equalDurations(a, b string) bool {
	x, err := time.ParseDuration(a)
	if err != nil {
		return false
	}
	y, err := time.ParseDuration(b)
	return err == nil && x == y
}

// maxShown bounds what is shown of a path, a value or a name.
const maxShown = 120

// showValues are two values as they may be shown, "" where that is not known: numbers,
// switches, images, and amounts of resources. Any other text may be a secret.
func showValues(path fieldpath.Path, has, wants any) (string, string) {
	if isComposite(has) || isComposite(wants) {
		return "", ""
	}
	last, public := "", false
	for _, p := range path {
		if p.FieldName != nil {
			public = public || last == "resources" && (*p.FieldName == "requests" || *p.FieldName == "limits")
			last = *p.FieldName
		}
	}
	public = public || last == "image"
	show := func(v any) (string, bool) {
		text, ok := v.(string)
		switch {
		case v == nil:
			return "nothing", true
		case !ok:
			return formatScalar(v), true
		}
		return clean(text), public
	}
	h, a := show(has)
	w, b := show(wants)
	if !a || !b {
		return "", ""
	}
	return h, w
}

var unclean = pattern.New(`[^\x21-\x7e]+`)

// clean makes a word of what others wrote fit to be shown.
func clean(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "..."
	}
	return unclean.ReplaceAllString(s, "?")
}

var plainName = pattern.New(`^[A-Za-z0-9_-]+$`)

// formatPath writes a path as people do: spec.template.spec.containers[web].image.
func formatPath(path fieldpath.Path) string {
	var out strings.Builder
	for _, p := range path {
		switch {
		case p.FieldName != nil && plainName.MatchString(*p.FieldName):
			if out.Len() > 0 {
				out.WriteByte('.')
			}
			out.WriteString(*p.FieldName)
		case p.FieldName != nil:
			fmt.Fprintf(&out, "[%s]", *p.FieldName)
		case p.Key != nil:
			var keys []string
			for _, k := range *p.Key {
				keys = append(keys, formatScalar(k.Value.Unstructured()))
			}
			fmt.Fprintf(&out, "[%s]", strings.Join(keys, ","))
		case p.Value != nil:
			out.WriteString("[...]") // a text, and those are not shown
		case p.Index != nil:
			fmt.Fprintf(&out, "[%d]", *p.Index)
		}
	}
	return clean(out.String())
}

// Shown is a name as it may be shown.
func Shown(name string) string { return clean(name) }
