// Package jobs reads the manifests of the Jobs that gates of an upgrade run.
package jobs

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// A Job is given up when it has run for so long, where its manifest has nothing else: one that hangs would hold the upgrade for ever.
const (
	defaultWithin = 10 * time.Minute
	mostWithin    = 24 * time.Hour
)

// mostPrefix is how many characters of the name of a Job its manifest may give: a dash and ten more follow, and its pods
// have the whole as a label.
const mostPrefix = 63 - 11

// refused are the fields that the manifest of a gate must not have, and why.
var refused = []struct{ path, why, hint string }{
	{"sops", "the file is encrypted", "write it in plain, and name what is secret in a Secret of the cluster, with `secretKeyRef`"},
	{"metadata.generateName", "the agent names each Job itself, so that it finds it again", "write `name`, of which the names begin, or nothing"},
	{"metadata.ownerReferences", "the Job belongs to the agent alone", "remove it"},
	{"metadata.finalizers", "the agent deletes the Jobs that it has started", "remove it"},
	{"status", "Kubernetes writes it", "remove it"},
	{"spec.ttlSecondsAfterFinished", "a Job that is deleted before the agent has seen how it ended would be started again", "remove it: the agent deletes the Jobs that it has started"},
	{"spec.selector", "Kubernetes makes it", "remove it"},
	{"spec.manualSelector", "Kubernetes makes the selector", "remove it"},
	{"spec.managedBy", "the controller of Kubernetes itself is to run it", "remove it"},
}

// reader reads the manifest of one Job.
type reader struct {
	d      yamlschema.Document
	root   *yaml.Node
	label  yamlschema.Format // of names
	failed bool
}

// Read reads the manifest of the Job of a gate, and checks what can be checked without Kubernetes. label is what a name is made of, and
// plain turns a value of YAML into one of JSON; false: it has reported why not.
func Read(d yamlschema.Document, root *yaml.Node, gate string, label yamlschema.Format, plain func(yamlschema.Document, *yaml.Node) (any, bool)) cluster.GateJob {
	r := &reader{d: d, root: root, label: label}
	r.checkKind()
	for _, f := range refused {
		if n := r.find(f.path); n != nil {
			r.refuse(n, path.Ext("." + f.path)[1:]+" does not go with a gate: "+f.why, f.hint)
		}
	}
	r.checkPods()
	out := cluster.GateJob{Namespace: r.name("metadata.namespace", "default", 63), Prefix: r.name("metadata.name", gate, mostPrefix), Within: r.within()}
	value, isPlain := plain(d, root)
	if manifest, isMap := value.(map[string]any); isPlain && isMap && !r.failed {
		out.Manifest = r.encode(manifest, out)
	}
	return out
}

func (r *reader) refuse(n *yaml.Node, message, hint string) {
	r.failed = true
	r.d.Problem(n.Line, n.Column, "", message, hint)
}

// find returns the value at a path of keys, nil where there is none.
func (r *reader) find(keys string) *yaml.Node {
	n := r.root
	for rest := keys; n != nil && rest != ""; {
		var key string
		if key, rest, _ = strings.Cut(rest, "."); key != "" {
			n = yamlschema.Lookup(n, key)
		}
	}
	if n != nil && yamlschema.IsNull(n) {
		return nil
	}
	return n
}

// checkKind checks that it is a Job.
func (r *reader) checkKind() {
	for _, f := range []struct{ key, want string }{{"apiVersion", "batch/v1"}, {"kind", "Job"}} {
		switch n := r.find(f.key); {
		case n == nil:
			r.refuse(r.root, f.key+" is missing", "a gate is one Job: write `"+f.key+": "+f.want+"`")
		case n.Kind != yaml.ScalarNode || n.Value != f.want:
			r.refuse(n, fmt.Sprintf("%s is not %s", f.key, f.want), "a gate is one Job: write `"+f.key+": "+f.want+"`")
		}
	}
}

// checkPods checks what of its pods Kubernetes would refuse, or what would never end.
func (r *reader) checkPods() {
	if n := r.find("spec.suspend"); n != nil && n.Value != "false" {
		r.refuse(n, "a Job that is suspended never ends", "remove suspend")
	}
	for _, key := range []string{"spec.parallelism", "spec.completions"} {
		if n := r.find(key); n != nil && n.Value == "0" {
			r.refuse(n, path.Ext("." + key)[1:]+" is 0, so that nothing would run", "write 1 or more, or remove it")
		}
	}
	list := r.find("spec.template.spec.containers")
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		r.refuse(r.root, "spec.template.spec.containers is missing", "write a container that ends with 0 when the next node may be upgraded")
		return
	}
	for _, c := range list.Content {
		if image := yamlschema.Lookup(c, "image"); image == nil || image.Value == "" {
			r.refuse(c, "a container has no image", "write `image`")
		}
	}
	const hint = "write `restartPolicy: Never`, which keeps the pods that have failed, or `OnFailure`"
	switch n := r.find("spec.template.spec.restartPolicy"); {
	case n == nil:
		r.refuse(list, "spec.template.spec.restartPolicy is missing", hint)
	case n.Value != "Never" && n.Value != "OnFailure":
		r.refuse(n, "restartPolicy is neither Never nor OnFailure", hint)
	}
}

// name reads a name, with what it is where the manifest has none.
func (r *reader) name(keys, missing string, most int) string {
	n := r.find(keys)
	switch label := r.label; {
	case n == nil:
		return missing[:min(len(missing), most)]
	case n.Kind != yaml.ScalarNode || !label.Pattern.MatchString(n.Value):
		r.refuse(n, path.Ext("." + keys)[1:]+" is not "+label.What, "write "+label.What)
	case len(n.Value) > most:
		r.refuse(n, fmt.Sprintf("%s has %d characters", path.Ext("." + keys)[1:], len(n.Value)), fmt.Sprintf("write %d at most: the agent adds to it", most))
	default:
		return n.Value
	}
	return missing
}

// within reads how long it may run.
func (r *reader) within() time.Duration {
	n := r.find("spec.activeDeadlineSeconds")
	if n == nil {
		return defaultWithin
	}
	seconds, err := strconv.Atoi(n.Value)
	if err == nil && seconds > 0 && seconds <= int(mostWithin/time.Second) {
		return time.Duration(seconds) * time.Second
	}
	r.refuse(n, "activeDeadlineSeconds is not a number from 1 to "+strconv.Itoa(int(mostWithin/time.Second)), "write in seconds how long the Job may take; without it that is ten minutes")
	return defaultWithin
}

// encode writes the manifest with what is filled in, and without its name.
func (r *reader) encode(manifest map[string]any, job cluster.GateJob) string {
	metadata, _ := manifest["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	delete(metadata, "name")
	metadata["namespace"], manifest["metadata"] = job.Namespace, metadata
	if spec, isMap := manifest["spec"].(map[string]any); isMap {
		spec["activeDeadlineSeconds"] = int64(job.Within / time.Second)
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		r.refuse(r.root, "cannot be written as JSON", "simplify its values")
	}
	return string(text)
}
