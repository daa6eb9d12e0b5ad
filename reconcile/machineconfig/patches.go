package machineconfig

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// vm is the mode a config is validated for. It is stricter than the nocloud
// platform, which a machine of ours is: that one does not ask for a place to
// install to.
type vm struct{}

func (vm) String() string        { return "cloud" }
func (vm) RequiresInstall() bool { return true }
func (vm) InContainer() bool     { return false }

// applyPatches lays a node's patches over its config, in order, and judges the
// outcome: does Talos accept it, and does it still match the inventory? Each
// problem names the patch that brought it about, and the line of its text.
func applyPatches(base config.Provider, in *input) (config.Provider, cluster.Problems) {
	w := work{in: in}
	w.add(base)
	for _, p := range in.Patches {
		w.apply(p)
	}
	if !w.problems.HasErrors() {
		w.judge()
	}
	return w.last(), w.problems
}

// work is a config on its way through the patches.
type work struct {
	in       *input
	stages   []stage // before the first patch and after each
	problems cluster.Problems
}

// stage is a config and what it held of the facts of owned when it was made: it
// shares some values with the stages after it, which a patch may change.
type stage struct {
	config config.Provider
	facts  []string
}

func (w *work) add(c config.Provider) {
	s := stage{c, make([]string, len(owned))}
	for i, o := range owned {
		fact, err := recoverPanic(func() (string, error) { return o.value(c, w.in), nil })
		if err != nil {
			fact = "gone" // a patch took away what it is part of
		}
		s.facts[i] = fact
	}
	w.stages = append(w.stages, s)
}

func (w *work) last() config.Provider { return w.stages[len(w.stages)-1].config }

func (w *work) report(sev cluster.Severity, file, message, hint string) {
	w.problems = append(w.problems, cluster.Problem{Severity: sev, File: file, Message: message, Hint: hint})
}

// apply lays one patch over the config. A patch that cannot be applied leaves
// it as it was, so that the next ones are judged too.
func (w *work) apply(p patch) {
	next := w.last()
	defer func() { w.add(next) }()

	doc, err := loadPatch(p.Text)
	if errors.Is(err, configloader.ErrNoConfig) {
		w.report(cluster.Warning, p.File, "the patch holds no settings", "remove it from the list of patches, or write something into it")
		return
	}
	if err != nil {
		for _, m := range explainPatch(err, []byte(p.Text)) {
			w.problems = append(w.problems, cluster.Problem{Severity: cluster.Error, File: p.File, Line: m.line, Column: m.column,
				Field: m.field, Message: m.message, Hint: cmp.Or(m.hint, fault.HintOf(err))})
		}
		return
	}
	known := true
	for _, d := range doc.Documents() {
		if since, ok := kindSince[d.Kind()]; ok && since > w.in.Talos {
			w.report(cluster.Error, p.File, fmt.Sprintf("%s is known from Talos v1.%d on, and this cluster runs v1.%d", d.Kind(), since, w.in.Talos),
				"raise talos_version or remove the document")
			known = false
		}
	}
	if !known {
		return
	}
	patched, err := recoverPanic(func() (config.Provider, error) {
		return configpatcher.StrategicMerge(w.last(), configpatcher.NewStrategicMergePatch(doc))
	})
	if err != nil {
		w.report(cluster.Error, p.File, "the patch does not fit: "+w.retell(err), "")
		return
	}
	next = patched
}

// loadPatch reads a strategic-merge patch of one or more documents. Every node
// gets its own copy: merging leaves parts of the patch in the config, where the
// next patch changes them.
func loadPatch(text string) (config.Provider, error) {
	doc, err := recoverPanic(func() (config.Provider, error) {
		return configloader.NewFromBytes([]byte(text), configloader.WithAllowPatchDelete(), configloader.WithNoValidation())
	})
	if err == nil {
		return doc, nil
	}
	var list []any
	if yaml.Unmarshal([]byte(text), &list) == nil && len(list) > 0 {
		return nil, &fault.Error{Op: "this is a list of JSON patch operations, which do not work on configs of several documents",
			Hint: "write what should be there as a strategic-merge patch: the same keys as in the machine config"}
	}
	return nil, err
}

// recoverPanic turns a panic of the machine library into an error: a patch is a
// foreign text, and must not take the whole agent down.
func recoverPanic[T any](f func() (T, error)) (out T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the machine library cannot take it: %v", p)
		}
	}()
	return f()
}

// judge validates the patched config and holds it against the inventory.
func (w *work) judge() {
	warnings, err := validateConfig(w.last())
	if err != nil {
		file := w.blame(func(s stage) bool { _, err := validateConfig(s.config); return err == nil })
		message := "Talos would refuse the config: "
		if file == "" {
			message = fmt.Sprintf("Talos would refuse the config of node %s: ", w.in.Name)
		}
		refusal := w.retell(err)
		w.report(cluster.Error, file, message+refusal, hintMoved(refusal))
		return
	}
	for i, o := range owned {
		same := func(s stage) bool { return s.facts[i] == w.stages[0].facts[i] }
		if !same(w.stages[len(w.stages)-1]) {
			w.report(cluster.Error, w.blame(same), "the patch changes "+o.name+", which is not a patch's to set", o.instead)
		}
	}
	for _, text := range warnings {
		file := w.blame(func(s stage) bool { ws, _ := validateConfig(s.config); return !slices.Contains(ws, text) })
		if file != "" {
			w.report(cluster.Warning, file, w.retell(errors.New(text)), "")
		}
	}
}

// blame names the patch after which a config stopped being good, for good; ""
// when it never was.
func (w *work) blame(good func(stage) bool) string {
	for i := len(w.in.Patches); i > 0; i-- {
		if good(w.stages[i-1]) {
			return w.in.Patches[i-1].File
		}
	}
	return ""
}

// retell explains what the library reports about the config, without the values
// of the patches and the secrets of the cluster.
func (w *work) retell(err error) string {
	texts := [][]byte{[]byte(w.in.Bundle)}
	for _, p := range w.in.Patches {
		texts = append(texts, []byte(p.Text))
	}
	return explainError(err, texts...)
}

// validateConfig asks the library what a machine would answer. Local leaves out
// one question, whether the Kubernetes version runs on the library's own Talos
// version, which is not the cluster's; Check asks it of the right one.
func validateConfig(c config.Provider) (warnings []string, err error) {
	return recoverPanic(func() ([]string, error) { return c.ValidateAsClient(vm{}, validation.WithLocal()) })
}
