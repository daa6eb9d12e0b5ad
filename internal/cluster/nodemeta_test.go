package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// describe is an edit in words, of what is to what should be.
func (e MetaEdit) describe() string {
	show := func(p *string) string {
		if p == nil {
			return "none"
		}
		return *p
	}
	return fmt.Sprintf("%s %s>%s", e.Field(), show(e.Have), show(e.Want))
}

// many are n values, by keys that begin alike.
func many(prefix, value string, n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprintf("%s%02d", prefix, i)] = value
	}
	return out
}

// manyEdits are the edits of many, in words.
func manyEdits(prefix, edit string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s%02d %s", prefix, i, edit))
	}
	return out
}

// TestEditsOf: what the inventory has is set, what it had and the agent answers for is
// removed unless somebody has changed it, and all else is of others.
func TestEditsOf(t *testing.T) {
	type m = map[string]string
	for _, c := range []struct {
		what              string
		want, have, owned m // of labels and taints; of annotations with digests
		edits             []string
	}{
		{"nothing", nil, nil, nil, nil},
		{"it is as it should be", m{"a": "1"}, m{"a": "1"}, m{"a": "1"}, nil},
		{"it is missing", m{"a": "1"}, nil, nil, []string{"a none>1"}},
		{"it is another", m{"a": "1"}, m{"a": "2"}, nil, []string{"a 2>1"}},
		{"it is empty, and should be", m{"a": ""}, m{"a": ""}, nil, nil},
		{"it should be empty, and is missing", m{"a": ""}, nil, nil, []string{"a none>"}},
		{"of others", nil, m{"a": "1"}, nil, nil},
		{"it left the inventory", nil, m{"a": "1"}, m{"a": "1"}, []string{"a 1>none"}},
		{"it left the inventory, and somebody has changed it", nil, m{"a": "2"}, m{"a": "1"}, nil},
		{"it left the inventory, and somebody has removed it", nil, nil, m{"a": "1"}, nil},
		{"it was empty and left the inventory, and somebody has removed it", nil, nil, m{"a": ""}, nil},
		{"it is another than was noted", m{"a": "3"}, m{"a": "1"}, m{"a": "1"}, []string{"a 1>3"}},
		{"what is set comes first", m{"z": "1", "b": "1"}, m{"y": "1", "a": "1"}, m{"y": "1", "a": "1"}, []string{"b none>1", "z none>1", "a 1>none", "y 1>none"}},
		{"many are set before many are removed", many("b", "c", 20), many("a", "z", 20), many("a", "z", 20), append(manyEdits("b", "none>c", 20), manyEdits("a", "z>none", 20)...)},
	} {
		for kind, in := range map[MetaKind]func(m) NodeMeta{
			MetaLabel:      func(v m) NodeMeta { return NodeMeta{Labels: v} },
			MetaTaint:      func(v m) NodeMeta { return NodeMeta{Taints: v} },
			MetaAnnotation: func(v m) NodeMeta { return NodeMeta{Annotations: v} },
		} {
			var want, got []string
			for _, e := range c.edits {
				want = append(want, string(kind)+" "+e)
			}
			n := KubeNode{Meta: in(c.have), Owned: in(c.owned).Noted(), SetBy: map[string]Setter{string(kind) + " a": {Manager: "kubectl"}}}
			for _, e := range n.EditsFor(in(c.want)) {
				got = append(got, e.describe())
				if (e.By.Manager == "kubectl") != (e.Key == "a") {
					t.Errorf("%s: %s was set by %q", c.what, e.Field(), e.By.Manager)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", c.what, got, want)
			}
		}
	}
}

// TestNotes: an edit is of the agent's own where it takes back what was noted as it is.
func TestNotes(t *testing.T) {
	noted := NodeMeta{Labels: map[string]string{"a": "1"}, Taints: map[string]string{"a": "2"}, Annotations: map[string]string{"a": "3"}}.Noted()
	value := func(s string) *string { return &s }
	for _, c := range []struct {
		edit MetaEdit
		want bool
	}{
		{MetaEdit{Kind: MetaLabel, Key: "a", Have: value("1")}, true},
		{MetaEdit{Kind: MetaLabel, Key: "a", Have: value("2")}, false},
		{MetaEdit{Kind: MetaLabel, Key: "b", Have: value("1")}, false},
		{MetaEdit{Kind: MetaLabel, Key: "b", Have: value("")}, false},
		{MetaEdit{Kind: MetaLabel, Key: "a"}, false},
		{MetaEdit{Kind: MetaTaint, Key: "a", Have: value("2")}, true},
		{MetaEdit{Kind: MetaTaint, Key: "a", Have: value("1")}, false},
		{MetaEdit{Kind: MetaAnnotation, Key: "a", Have: value("3")}, true},
		{MetaEdit{Kind: MetaAnnotation, Key: "a", Have: value("1")}, false},
		{MetaEdit{Kind: MetaAnnotation, Key: "a", Have: value(noted.Annotations["a"])}, false},
	} {
		if got := noted.Notes(c.edit); got != c.want {
			t.Errorf("%s: noted is %v", c.edit.describe(), got)
		}
	}
}

// TestIsNoted: enough is noted where every key that may have to be taken back is there, of a
// worker's taints and of annotations with the value.
func TestIsNoted(t *testing.T) {
	type m = map[string]string
	want := NodeMeta{Labels: m{"l": "1"}, Taints: m{"t": ":NoSchedule"}, Annotations: m{"a": "1"}}
	for what, c := range map[string]struct {
		change        func(*NodeMeta)
		plane, worker bool
	}{
		"all of it":                      {func(*NodeMeta) {}, true, true},
		"another value of a label":       {func(o *NodeMeta) { o.Labels = m{"l": "2"} }, true, true},
		"no label":                       {func(o *NodeMeta) { o.Labels = nil }, true, true},
		"another label":                  {func(o *NodeMeta) { o.Labels = m{"x": "1"} }, false, false},
		"another taint":                  {func(o *NodeMeta) { o.Taints = m{"x": ":NoSchedule"} }, false, false},
		"no taint":                       {func(o *NodeMeta) { o.Taints = nil }, true, false},
		"another value of a taint":       {func(o *NodeMeta) { o.Taints = m{"t": ":NoExecute"} }, true, false},
		"another value of an annotation": {func(o *NodeMeta) { o.Annotations = m{"a": "2"} }, false, false},
		"no annotation":                  {func(o *NodeMeta) { o.Annotations = nil }, false, false},
	} {
		owned := want
		c.change(&owned)
		for role, is := range map[Role]bool{ControlPlane: c.plane, Worker: c.worker} {
			if got := want.IsNoted(owned.Noted(), role); got != is {
				t.Errorf("%s, of a %s: noted is %v", what, role, got)
			}
		}
	}
}

// TestSealedNotes: a note is read with the key and for the node it was made for, and only
// what a name, a value or a digest can be is taken out of it.
func TestSealedNotes(t *testing.T) {
	type m = map[string]string
	key, whole := SecretString("key"), NodeMeta{Labels: m{"example.org/a_b-c.d": "Z9,x:y"}, Taints: m{"t": "v:NoSchedule"}, Annotations: m{"example.org/a": "any \x1b[2J text"}}
	text := whole.Seal(key, "n/1")
	if got := OpenNodeMeta(text, key, "n/1"); fmt.Sprint(got) != fmt.Sprint(whole.Noted()) {
		t.Errorf("read as %v", got)
	}
	labels := NodeMeta{Labels: m{"a": "b"}}
	forged := fmt.Sprintf(`{"labels":{"a":"b"},"mac":%q}`, macOf(labels, Secret{}, "n/1"))
	for what, got := range map[string]NodeMeta{
		"without a key, for an agent without one": OpenNodeMeta(forged, Secret{}, "n/1"),
		"with a part that is none":                OpenNodeMeta(strings.Replace(labels.Seal(key, "n/1"), "{", `{"taints":7,`, 1), key, "n/1"),
		"of another node":                         OpenNodeMeta(text, key, "n/2"),
		"with another key":                        OpenNodeMeta(text, SecretString("k"), "n/1"),
		"without a key":                           OpenNodeMeta(text, Secret{}, "n/1"),
		"changed":                                 OpenNodeMeta(strings.Replace(text, "NoSchedule", "NoExecute", 1), key, "n/1"),
		"that is no JSON":                         OpenNodeMeta(text[1:], key, "n/1"),
		"of another author":                       OpenNodeMeta(`{"labels":{"a":"b"},"mac":""}`, key, "n/1"),
		"that is empty":                           OpenNodeMeta("", key, "n/1"),
	} {
		if !got.IsZero() {
			t.Errorf("a note %s is read as %v", what, got)
		}
	}
	if (NodeMeta{}).Seal(key, "n/1") != "" || whole.Seal(Secret{}, "n/1") != "" || (NodeMeta{}).Encode() != "" || whole.Encode() == "" {
		t.Error("nothing, or something without a key, is noted")
	}
	for _, bad := range []string{"a b", "a\n", "ä", "a\"b", "{", "a@b", "[", "`", "a;b"} {
		for what, of := range map[string]NodeMeta{"label": {Labels: m{bad: "v"}}, "value of a label": {Labels: m{"k": bad}}, "taint": {Taints: m{bad: "v"}}, "value of a taint": {Taints: m{"k": bad}}, "annotation": {Annotations: m{bad: "v"}}} {
			if got := OpenNodeMeta(of.Seal(key, "n/1"), key, "n/1"); !got.IsZero() {
				t.Errorf("%q is a %s: %v", bad, what, got)
			}
		}
	}
	for _, good := range []string{"a", "z", "A", "Z", "0", "9", "-", "_", ".", "/", ":", ","} {
		if got := OpenNodeMeta((NodeMeta{Labels: m{good: good}}).Seal(key, "n/1"), key, "n/1"); got.Labels[good] != good {
			t.Errorf("%q is left out of %v", good, got)
		}
	}
	if got := OpenNodeMeta((NodeMeta{Annotations: m{"cluster.talos.dev/x": "v"}}).Seal(key, "n/1"), key, "n/1"); !got.IsZero() {
		t.Errorf("an annotation that no inventory has is noted: %v", got)
	}
}

// TestMetaOfANode: the taints that Kubernetes sets by the state of a node are not the inventory's.
func TestMetaOfANode(t *testing.T) {
	n := Node{Taints: map[string]string{"node.kubernetes.io/unreachable": ":NoExecute", "example.org/x": ":NoSchedule"}}
	if got := n.Meta().Taints; len(got) != 1 || got["example.org/x"] == "" || len(n.Taints) != 2 {
		t.Errorf("%v", got)
	}
}

// TestAnnotationOwners: a component has its keys, a prefix all that begin with it, and Talos
// and the agent the names below theirs, too.
func TestAnnotationOwners(t *testing.T) {
	for key, want := range map[string]string{
		"talos-agent.dev/turn":                        "talos-agent",
		"x.talos-agent.dev/turn":                      "talos-agent",
		"talos.dev/owned":                             "Talos",
		"cluster.talos.dev/x":                         "Talos",
		"nottalos.dev/x":                              "",
		"node.alpha.kubernetes.io/ttl":                "kube-controller-manager",
		"node.alpha.kubernetes.io/ttl2":               "",
		"io.cilium.network.ipv4":                      "Cilium",
		"x.network.cilium.io/a":                       "",
		"volumes.kubernetes.io/x":                     "the kubelet and kube-controller-manager",
		"flannel.alpha.coreos.com/public-ip":          "flannel",
		"flannel.alpha.coreos.com/public-ip-override": "",
		"example.org/x":                               "",
	} {
		if got := AnnotationOwner(key); got != want {
			t.Errorf("%s is %q's, want %q's", key, got, want)
		}
	}
}
