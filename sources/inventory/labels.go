package inventory

import (
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// The alphabets of Kubernetes labels, taints and annotations.
var (
	labelName  = pattern.New(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelValue = pattern.New(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`)
)

const qualifiedName = "write a name like zone or example.org/zone: letters, digits and - _ . , at most 63; a domain before the slash is in lower case"

// isQualifiedName reports whether a key is one of Kubernetes: a name, before
// it possibly a DNS name and a slash.
func isQualifiedName(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return labelName.MatchString(key)
	}
	return isDNSName(prefix) && prefix == strings.ToLower(prefix) && labelName.MatchString(name)
}

func (l *loader) checkLabels(d draft) {
	for _, key := range slices.Sorted(maps.Keys(d.Labels)) {
		field := d.field + ".labels." + key
		switch {
		case !isQualifiedName(key):
			l.Wrong(field, qualifiedName, "%s is not the name of a label", yamlschema.Quote(key))
		case !labelValue.MatchString(d.Labels[key]):
			l.Wrong(field, "use letters, digits and - _ . , at most 63", "%s is not the value of a label", yamlschema.Quote(d.Labels[key]))
		case d.role == cluster.Worker && strings.HasPrefix(key, "node-role.kubernetes.io/"):
			l.Wrong(field, "label the node with kubectl, or use a label of your own", "Kubernetes lets no worker give itself a role")
		}
	}
}

// Limits of the annotations of a node, in bytes. Kubernetes has 256 KiB for all
// annotations of an object, and others write theirs, too; every pass reads them, and a
// short value is all that anything in use takes.
const (
	maxNodeAnnotation  = 16 << 10
	maxNodeAnnotations = 64 << 10
)

func (l *loader) checkAnnotations(d draft) {
	total := 0
	for _, key := range slices.Sorted(maps.Keys(d.Annotations)) {
		field, size := d.field+".annotations."+key, len(d.Annotations[key])
		total += len(key) + size
		switch owner := cluster.AnnotationOwner(key); {
		case !isQualifiedName(key):
			l.Wrong(field, qualifiedName, "%s is not the name of an annotation", yamlschema.Quote(key))
		case owner != "":
			l.Wrong(field, "remove it, or use a key of your own, like example.org/"+key[strings.LastIndex(key, "/")+1:], "this annotation belongs to %s", owner)
		case size > maxNodeAnnotation:
			l.Wrong(field, "shorten it, or keep it in a ConfigMap and write the ConfigMap's name here", "the value is %d bytes long, of at most %d", size, maxNodeAnnotation)
		}
	}
	if total > maxNodeAnnotations {
		l.Wrong(d.field+".annotations", "shorten them", "the annotations of the node are together %d bytes long, of at most %d", total, maxNodeAnnotations)
	}
}

// effects are the effects of a taint.
var effects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// taints checks the taints of a node and writes them as value:Effect.
func (l *loader) taints(d draft) map[string]string {
	if d.Taints == nil {
		return nil
	}
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(d.Taints)) {
		field := d.field + ".taints." + key
		value, effect, found := strings.Cut(d.Taints[key], ":")
		if !found {
			value, effect = "", value
		}
		switch {
		case !isQualifiedName(key):
			l.Wrong(field, qualifiedName, "%s is not the name of a taint", yamlschema.Quote(key))
		case !slices.Contains(effects, effect):
			l.Wrong(field, "write value:Effect with one of "+strings.Join(effects, ", "), "%s has no effect of a taint", yamlschema.Quote(d.Taints[key]))
		case !labelValue.MatchString(value):
			l.Wrong(field, "use letters, digits and - _ . , at most 63", "%s is not the value of a taint", yamlschema.Quote(value))
		}
		out[key] = value + ":" + effect
	}
	return out
}

// tags are all tags of a node's VM in the form Proxmox VE keeps them: lower
// case, sorted, each once.
func (l *loader) tags(d draft) []string {
	out := []string{cluster.OwnTag}
	if l.spec.Name != "" {
		out = append(out, l.spec.Name)
	}
	if d.role != "" {
		out = append(out, string(d.role))
	}
	add := func(field string, tags []string) {
		for i, t := range tags {
			if t == "" {
				continue
			}
			clean := sanitizeTag(t)
			if clean != t {
				l.Note(yamlschema.Element(field, i), "", "Proxmox VE cannot keep the tag %s: it is written as %s", yamlschema.Quote(t), clean)
			}
			out = append(out, clean)
		}
	}
	add("proxmox.tags", l.cluster.Proxmox.Tags)
	add(d.field+".tags", d.Tags)
	slices.Sort(out)
	return slices.Compact(out)
}

// sanitizeTag writes a tag in the alphabet of Proxmox VE: it begins with a letter,
// a digit or _ and goes on with these and - + . as well.
func sanitizeTag(tag string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(tag) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			b.WriteRune(r)
		case b.Len() == 0:
			b.WriteByte('_')
		case r == '-', r == '+', r == '.':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	return b.String()
}
