package inventory

import (
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

const (
	// podSecurity begins the labels that define how secure the pods of a namespace must
	// be; Kubernetes refuses a namespace that has another value.
	podSecurity = "pod-security.kubernetes.io/"
	// nameLabel is the one label of a namespace that Kubernetes sets itself.
	nameLabel = "kubernetes.io/metadata.name"
	// maxAnnotations bounds all annotations of one object together, in bytes.
	maxAnnotations = 256 << 10
)

var (
	securityLevels  = []string{"privileged", "baseline", "restricted"}
	securityModes   = []string{"enforce", "audit", "warn"}
	securityVersion = pattern.New(`^(latest|v1\.(0|[1-9][0-9]*))$`)
)

// checkNamespace checks what an addon asks of its namespace.
func (l *loader) checkNamespace(field string, a cluster.Addon) {
	for _, key := range []string{"namespace_labels", "namespace_annotations"} {
		if l.Has(field+"."+key) && cluster.SharedNamespace(a.Namespace) {
			why := "%s belongs to Kubernetes: one addon does not decide for everything in it"
			if a.Namespace == "kube-system" {
				why += ", and Talos lets pods there do anything"
			}
			l.Wrong(field+"."+key, "remove it, or give the addon a namespace of its own, like namespace: "+a.Name, why, a.Namespace)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a.Asks.Labels)) {
		at, value := field+".namespace_labels."+key, a.Asks.Labels[key]
		switch {
		case !isQualifiedName(key):
			l.Wrong(at, qualifiedName, "%s is not the name of a label", yamlschema.Quote(key))
		case !labelValue.MatchString(value):
			l.Wrong(at, "use letters, digits and - _ . , at most 63", "%s is not the value of a label", yamlschema.Quote(value))
		case key == nameLabel:
			l.Wrong(at, "remove it", "Kubernetes sets this label itself")
		case strings.HasPrefix(key, podSecurity):
			l.checkSecurityLabel(at, strings.TrimPrefix(key, podSecurity), value)
		}
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(a.Asks.Annotations)) {
		size += len(key) + len(a.Asks.Annotations[key])
		if !isQualifiedName(key) {
			l.Wrong(field+".namespace_annotations."+key, qualifiedName, "%s is not the name of an annotation", yamlschema.Quote(key))
		}
	}
	if size > maxAnnotations {
		l.Wrong(field+".namespace_annotations", "shorten them", "annotations are %d bytes long, and Kubernetes takes %d", size, maxAnnotations)
	}
}

// checkSecurityLabel checks a label of Pod Security, of which kind is what follows
// the prefix.
func (l *loader) checkSecurityLabel(field, kind, value string) {
	mode, versioned := strings.CutSuffix(kind, "-version")
	switch {
	case !slices.Contains(securityModes, mode):
		l.Wrong(field, "write one of "+strings.Join(securityModes, ", ")+", or one of them with -version, after "+podSecurity, "Pod Security has no label %s", yamlschema.Quote(kind))
	case versioned && !securityVersion.MatchString(value):
		l.Wrong(field, "write latest or a version like v1.36", "%s is no version of Pod Security", yamlschema.Quote(value))
	case !versioned && !slices.Contains(securityLevels, value):
		l.Wrong(field, "write one of "+strings.Join(securityLevels, ", "), "%s is no level of Pod Security", yamlschema.Quote(value))
	}
}

// checkNamespaces finds addons that ask for different things of one namespace.
// fields are those of the addons by name.
func (l *loader) checkNamespaces(fields map[string]string) {
	type asked struct{ value, field string }
	first := map[string]asked{}
	check := func(a cluster.Addon, part string, values map[string]string) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			id, field := a.Namespace+" "+part+" "+key, fields[a.Name]+"."+part+"."+key
			before, ok := first[id]
			if !ok {
				first[id] = asked{values[key], field}
				continue
			}
			if before.value != values[key] {
				l.Wrong(field, "write the same value in both files, or give one of the addons another namespace",
					"namespace %s cannot have two values: %s here and %s at %s", a.Namespace, yamlschema.Quote(values[key]), yamlschema.Quote(before.value), l.Cite(before.field))
			}
		}
	}
	for _, a := range l.spec.Addons {
		check(a, "namespace_labels", a.Asks.Labels)
		check(a, "namespace_annotations", a.Asks.Annotations)
	}
}
