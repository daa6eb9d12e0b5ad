package helm

import "strings"

// violatesSecurity is how the server begins the refusal of a pod that its
// namespace does not allow.
const violatesSecurity = "violates PodSecurity"

// hints are words of Helm, of charts and of the Kubernetes API that somebody
// can do something about. The first row that fits counts.
var hints = []struct {
	words string // contained in the message
	seen  string // where they come from
	hint  string
}{
	{"cannot be imported into the current release", "Helm 3.22, pkg/action/validate.go",
		"something else made this object, such as kubectl, Talos' own manifests or another release: delete it there, or take it out of the chart's values"},
	{"don't meet the specifications of the schema", "Helm 3.22, pkg/chartutil/jsonschema.go",
		"correct the values it names; `helm show values` on the chart lists what there is"},
	{"chart requires kubeVersion", "Helm 3.22, pkg/action/action.go",
		"use a version of the chart that supports the cluster's Kubernetes"},
	{"nested reference name", "Helm 3.22, pkg/engine/engine.go", "the chart's templates include themselves without end: use another version of the chart"},
	{"exceeded maximum template depth", "Go 1.26, text/template/exec.go", "the chart's templates call themselves without end: use another version of the chart"},
	{"execution error at (", "Helm 3.22, pkg/engine/engine.go: `required` and `fail` in a template",
		"the chart does not accept the values; the words are its own"},
	{"parse error at (", "Helm 3.22, pkg/engine/engine.go", "the chart has a template that cannot be read: use another version of the chart"},
	{"nil pointer evaluating", "Go 1.26, text/template/exec.go", "the chart uses a value that is not set: set it in the addon's values"},
	{"YAML parse error on", "Helm 3.22, pkg/releaseutil/manifest_sorter.go",
		"with these values the chart renders something that is no YAML: look at the values its template uses"},
	{"no matches for kind", "Kubernetes 0.37, apimachinery/pkg/api/meta/errors.go",
		"a custom resource definition is missing: put the addon that brings it into depends_on"},
	{"field is immutable", "Kubernetes 0.37, apimachinery/pkg/api/validation/objectmeta.go",
		"Kubernetes does not change this field of an object that is there: delete the object, and it is made anew"},
	{"is being terminated", "Kubernetes 1.36, plugin/pkg/admission/namespace/lifecycle", "wait until the namespace is gone; it is made anew"},
	{"failed calling webhook", "Kubernetes 1.36, apiserver/pkg/admission/plugin/webhook",
		"an admission webhook of the cluster does not answer: look at the pods behind it"},
	{violatesSecurity, "Talos 1.14 with Kubernetes 1.36: the answer to a pod with hostNetwork in namespace default",
		"if these pods are wanted, write `namespace_labels: {pod-security.kubernetes.io/enforce: privileged}` into the addon's file"},
	{"denied the request", "Kubernetes 1.36, apiserver/pkg/admission/plugin/webhook/errors",
		"a rule of the cluster does not allow it, and says why: change the addon's values or the rule"},
	{"hook Job", "this package", "look at what it said: `kubectl logs` of the job it names"},
	{"hook Pod", "this package", "look at what it said: `kubectl logs` of the pod it names"},
	{"Unauthorized", "Kubernetes 0.37, apimachinery/pkg/api/errors", "the API does not accept the agent's certificate: is the secrets file the one the cluster was made with?"},
}

// findHint returns what to do about a message, "" when that is unknown.
func findHint(message string) string {
	for _, c := range hints {
		if strings.Contains(message, c.words) {
			return c.hint
		}
	}
	return ""
}
