package cluster

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// AnnotationOwned holds, on a Node object, the labels, taints and annotations that the
// agent answers for, with the values that it has set, of annotations their digests: once
// they leave the inventory it takes them back.
const AnnotationOwned = AgentPrefix + "owned"

// NodeMeta are labels, taints and annotations of a Node object. The taints are by key, each
// as "value:Effect"; where a key has several, with commas between them. In what is noted on
// the Node the annotations are digests of their values.
type NodeMeta struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Taints      map[string]string `json:"taints,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ownTaints begin the keys of the taints that Kubernetes itself sets and removes: by the
// state of a node, whatever anybody asks for.
const ownTaints = "node.kubernetes.io/"

// Meta is what the inventory has of the node's Node object.
func (n Node) Meta() NodeMeta {
	m := NodeMeta{Labels: n.Labels, Taints: maps.Clone(n.Taints), Annotations: n.Annotations}
	maps.DeleteFunc(m.Taints, func(key, _ string) bool { return strings.HasPrefix(key, ownTaints) })
	return m
}

// IsZero reports whether there are none.
func (m NodeMeta) IsZero() bool { return len(m.Labels)+len(m.Taints)+len(m.Annotations) == 0 }

// Noted is what is noted on a Node object that is given m.
func (m NodeMeta) Noted() NodeMeta {
	if len(m.Annotations) > 0 {
		digests := map[string]string{}
		for key, value := range m.Annotations {
			digests[key] = digestValue(value)
		}
		m.Annotations = digests
	}
	return m
}

// digestLength is how much is kept of the digest of a value, in bytes: it is compared with
// what somebody has set by hand, and there is nothing to win in another value with the same.
const digestLength = 8

// digestValue stands for the value of an annotation, which may be long.
func digestValue(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:digestLength])
}

// Encode writes what is noted of m, the same always; "" : there is nothing.
func (m NodeMeta) Encode() string {
	if m.IsZero() {
		return ""
	}
	text, err := json.Marshal(m.Noted()) // maps are sorted
	if err != nil {
		panic(err) // texts
	}
	return string(text)
}

// note is what the annotation holds. A kubelet may write the annotations of its own Node,
// and must not have labels and taints removed that it may not touch itself: the note is
// authenticated.
type note struct {
	NodeMeta
	MAC string `json:"mac"`
}

// macLength is how much is kept of the code of a note, in bytes.
const macLength = 16

// macOf is the code of what is noted on one Node object.
func macOf(noted NodeMeta, key Secret, node string) string {
	text, err := json.Marshal(noted)
	if err != nil {
		panic(err) // texts
	}
	h := hmac.New(sha256.New, key.Reveal())
	fmt.Fprintf(h, "%d %s %s", len(node), node, text)
	return hex.EncodeToString(h.Sum(nil)[:macLength])
}

// Seal writes for AnnotationOwned what is noted of m on one Node object; "" : there is
// nothing, or no key. node is what no other Node object is called, this one's successors
// included.
func (m NodeMeta) Seal(key Secret, node string) string {
	return m.SealExcept(nil, NodeMeta{}, key, node)
}

// SealExcept is Seal for a Node object of which some fields, in the names of MetaEdit.Field,
// are left as they are: of those it has what was noted before, owned.
func (m NodeMeta) SealExcept(left []string, owned NodeMeta, key Secret, node string) string {
	noted := m.Noted().Except(left, owned)
	if noted.IsZero() || key.IsZero() {
		return ""
	}
	text, err := json.Marshal(note{noted, macOf(noted, key, node)})
	if err != nil {
		panic(err) // texts
	}
	return string(text)
}

// Except is m with some fields, in the names of MetaEdit.Field, as another has them.
func (m NodeMeta) Except(fields []string, other NodeMeta) NodeMeta {
	if len(fields) == 0 {
		return m
	}
	mix := func(kind MetaKind, ours, theirs map[string]string) map[string]string {
		isLeft := func(key, _ string) bool { return slices.Contains(fields, MetaEdit{Kind: kind, Key: key}.Field()) }
		out := map[string]string{}
		maps.Copy(out, ours)
		maps.DeleteFunc(out, isLeft)
		for key, value := range theirs {
			if isLeft(key, value) {
				out[key] = value
			}
		}
		return out
	}
	return NodeMeta{Labels: mix(MetaLabel, m.Labels, other.Labels), Taints: mix(MetaTaint, m.Taints, other.Taints), Annotations: mix(MetaAnnotation, m.Annotations, other.Annotations)}
}

// OpenNodeMeta reads what Seal wrote with the same key for the same Node object. In an
// annotation anybody may write anything: a note that is another's, or was changed, is none.
// What cannot be a name, the value of a label or taint, or a digest is left out, and so is an
// annotation that no inventory can have.
func OpenNodeMeta(text string, key Secret, node string) NodeMeta {
	var n note
	if text == "" || key.IsZero() || json.Unmarshal([]byte(text), &n) != nil || !hmac.Equal([]byte(n.MAC), []byte(macOf(n.NodeMeta, key, node))) {
		return NodeMeta{}
	}
	strange := func(key, value string) bool { return !isPlain(key) || !isPlain(value) }
	maps.DeleteFunc(n.Labels, strange)
	maps.DeleteFunc(n.Taints, strange)
	maps.DeleteFunc(n.Annotations, func(key, digest string) bool { return strange(key, digest) || AnnotationOwner(key) != "" })
	return n.NodeMeta
}

// isPlain reports whether a text has only what names, values of labels and taints, and
// digests are made of.
func isPlain(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./:,", r)
	})
}

// MetaKind is a part of what people give to a Node object.
type MetaKind string

// The parts of a NodeMeta.
const (
	MetaLabel      MetaKind = "label"
	MetaTaint      MetaKind = "taint"
	MetaAnnotation MetaKind = "annotation"
)

// MetaEdit is a label, a taint or an annotation of a Node object that is to become another.
type MetaEdit struct {
	Kind       MetaKind
	Key        string
	Have, Want *string // nil: none
	By         Setter  // who has set what it is, where that is known
}

// Field is its name for people: "label zone".
func (e MetaEdit) Field() string { return string(e.Kind) + " " + e.Key }

// Setter is who has set a field of an object, and when, as the API server noted it. The
// zero value is unknown. The name is what a client calls itself: it is for people, and
// nothing depends on it.
type Setter struct {
	Manager string
	At      time.Time // zero: unknown
}

// EditsFor is what makes the Node object what the inventory has, with who has set what it
// is now.
func (n KubeNode) EditsFor(want NodeMeta) []MetaEdit {
	out := want.EditsOf(n.Meta, n.Owned)
	for i, e := range out {
		out[i].By = n.SetBy[e.Field()]
	}
	return out
}

// Notes reports whether an edit changes what is noted in m, as it was noted.
func (m NodeMeta) Notes(e MetaEdit) bool {
	if e.Have == nil {
		return false
	}
	of, value := m.Labels, *e.Have
	switch e.Kind {
	case MetaLabel:
	case MetaTaint:
		of = m.Taints
	case MetaAnnotation:
		of, value = m.Annotations, digestValue(value)
	}
	noted, ok := of[e.Key]
	return ok && noted == value
}

// asItIs compares values that are noted as they are.
func asItIs(value string) string { return value }

// EditsOf is what makes a Node object what the inventory has. What the agent answers for
// and the inventory has no more is removed, unless somebody has changed it since. All else
// is of others.
func (m NodeMeta) EditsOf(have, owned NodeMeta) []MetaEdit {
	return slices.Concat(
		editsOf(MetaLabel, m.Labels, have.Labels, owned.Labels, asItIs),
		editsOf(MetaTaint, m.Taints, have.Taints, owned.Taints, asItIs),
		editsOf(MetaAnnotation, m.Annotations, have.Annotations, owned.Annotations, digestValue))
}

// editsOf are those of one kind, of which a value is noted as note has it.
func editsOf(kind MetaKind, want, have, owned map[string]string, note func(string) string) []MetaEdit {
	var out []MetaEdit
	at := func(of map[string]string, key string) *string {
		if value, ok := of[key]; ok {
			return &value
		}
		return nil
	}
	for key, value := range want {
		if now, ok := have[key]; !ok || now != value {
			out = append(out, MetaEdit{Kind: kind, Key: key, Have: at(have, key), Want: at(want, key)})
		}
	}
	for key, noted := range owned {
		_, wanted := want[key]
		if value, ok := have[key]; ok && !wanted && note(value) == noted {
			out = append(out, MetaEdit{Kind: kind, Key: key, Have: at(have, key)})
		}
	}
	// Those that are set come first. Most nodes have none, and every pass asks.
	slices.SortFunc(out, func(a, b MetaEdit) int {
		if removes := b.Want == nil; removes != (a.Want == nil) {
			if removes {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Key, b.Key)
	})
	return out
}

// IsNoted reports whether enough is noted on a Node object to take back later what the
// inventory has now, and nothing of others. Talos takes back labels that it has set, and
// the taints of a control plane; a worker is registered with its taints, and only the agent
// removes them. Annotations are of the agent alone.
func (m NodeMeta) IsNoted(owned NodeMeta, role Role) bool {
	within := func(a, b map[string]string) bool { // keys
		for key := range a {
			if _, ok := b[key]; !ok {
				return false
			}
		}
		return true
	}
	return within(owned.Labels, m.Labels) && within(owned.Taints, m.Taints) && (role != Worker || maps.Equal(owned.Taints, m.Taints)) &&
		maps.Equal(owned.Annotations, m.Noted().Annotations)
}

// AgentPrefix begins the keys of labels and annotations that are the agent's own.
const AgentPrefix = "talos-agent.dev/"

// annotationOwners are the components that write annotations of Node objects by themselves:
// what the inventory had of them would be written again and again, or a component would
// believe it. A key that ends in / or . stands for all that begin with it. Sources:
// kubernetes 1.36 pkg/controller/volume, pkg/controller/ttl, pkg/kubelet and
// cloud-provider/api; talos 1.13 pkg/machinery/constants; cilium 1.19 pkg/annotation;
// flannel 0.27 pkg/subnet/kube; calico 3.31 libcalico-go/lib/backend/k8s; node feature
// discovery 0.18 pkg/apis/nfd/v1alpha1.
var annotationOwners = []struct{ key, owner string }{
	{AgentPrefix, "talos-agent"},
	{"talos.dev/", "Talos"},
	{"node.alpha.kubernetes.io/ttl", "kube-controller-manager"},
	{"volumes.kubernetes.io/", "the kubelet and kube-controller-manager"},
	{"volumes.alpha.kubernetes.io/", "the kubelet and kube-controller-manager"},
	{"csi.volume.kubernetes.io/", "the kubelet"},
	{"alpha.kubernetes.io/provided-node-ip", "the kubelet"},
	{"kubeadm.alpha.kubernetes.io/", "kubeadm"},
	{"kubeadm.kubernetes.io/", "kubeadm"},
	{"kubectl.kubernetes.io/", "kubectl"},
	{"nfd.node.kubernetes.io/", "node feature discovery"},
	{"network.cilium.io/", "Cilium"},
	{"io.cilium.network.", "Cilium"},
	{"flannel.alpha.coreos.com/backend-data", "flannel"},
	{"flannel.alpha.coreos.com/backend-v6-data", "flannel"},
	{"flannel.alpha.coreos.com/backend-type", "flannel"},
	{"flannel.alpha.coreos.com/kube-subnet-manager", "flannel"},
	{"flannel.alpha.coreos.com/public-ip", "flannel"},
	{"flannel.alpha.coreos.com/public-ipv6", "flannel"},
	{"projectcalico.org/", "Calico"},
}

// AnnotationOwner is the component that writes an annotation of Node objects by itself, ""
// where the inventory may have it. A prefix of Talos or of the agent has all names below
// it, too (cluster.talos.dev/).
func AnnotationOwner(key string) string {
	for _, o := range annotationOwners {
		every := strings.HasSuffix(o.key, "/") || strings.HasSuffix(o.key, ".")
		if key == o.key || every && strings.HasPrefix(key, o.key) {
			return o.owner
		}
	}
	for _, o := range annotationOwners[:2] {
		if strings.Contains(key, "."+o.key) {
			return o.owner
		}
	}
	return ""
}
