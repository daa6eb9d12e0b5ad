package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// labelled is wk-1 as an inventory has it.
func labelled(labels, taints map[string]string) cluster.Node {
	return cluster.Node{Name: "wk-1", Role: cluster.Worker, Labels: labels, Taints: taints}
}

// label gives wk-1 labels and taints, and fails unless that is possible.
func (b *drains) label(n cluster.Node) {
	b.Helper()
	if err := b.cluster.Label(context.Background(), b.desired, n, nil); err != nil {
		b.Error(err)
	}
}

// notedOn is what is noted on a Node, without the code that makes it the agent's.
func notedOn(n *corev1.Node) string {
	return regexp.MustCompile(`,"mac":"[0-9a-f]{32}"`).ReplaceAllString(n.Annotations[cluster.AnnotationOwned], "")
}

// mustHave checks labels, taints and what is noted, but those that every node has.
func (b *drains) mustHave(what, want string) {
	b.Helper()
	n := b.node("wk-1")
	for key := range n.Labels {
		if strings.Contains(key, "kubernetes.io/") {
			delete(n.Labels, key)
		}
	}
	var taints []string
	for _, t := range n.Spec.Taints {
		taints = append(taints, t.ToString())
	}
	if got := fmt.Sprintf("%v %v %s", n.Labels, taints, notedOn(n)); got != want {
		b.Errorf("%s: %s, want %s", what, got, want)
	}
}

// TestMetaOfNodes: what is kept of a Node is what the inventory names and what the agent
// has noted, and it is the same after it was trimmed.
func TestMetaOfNodes(t *testing.T) {
	note := cluster.NodeMeta{Labels: map[string]string{"old": "x", "\x1b[2J": "z"}, Taints: map[string]string{"left": ":NoSchedule"},
		Annotations: map[string]string{"text": "left", cluster.AnnotationTurn: "t", "network.cilium.io/wg-pub-key": "z"}}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1", Labels: map[string]string{"zone": "a", "old": "x", "other": "y"},
		Annotations: map[string]string{"rack": "7", "text": "left", "other": "z", cluster.AnnotationTurn: "t",
			cluster.AnnotationOwned: note.Seal(seal, "n/1")}}}
	n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "gpu", Effect: "NoSchedule"}, {Key: "dedicated", Effect: "NoExecute"}, {Key: "other", Effect: "NoSchedule"}}
	r := nodeReader{metaKeys{"zone": true, "dedicated": true, "rack": true}, seal}
	for _, obj := range []any{n, r.trimNode(n)} {
		got, err := r.nodeOf(obj)
		want := cluster.NodeMeta{Labels: map[string]string{"zone": "a", "old": "x"}, Taints: map[string]string{"dedicated": ":NoExecute,gpu:NoSchedule"},
			Annotations: map[string]string{"rack": "7", "text": "left"}}
		owned := cluster.NodeMeta{Labels: map[string]string{"old": "x"}, Taints: map[string]string{"left": ":NoSchedule"}, Annotations: map[string]string{"text": "360f84035942243c"}}
		if err != nil || !reflect.DeepEqual(got.Meta, want) || !reflect.DeepEqual(got.Owned, owned) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if body, err := json.Marshal(r.trimNode(n)); err != nil || strings.Contains(string(body), "other") {
		t.Errorf("trimmed it is %s, %v", body, err)
	}
	other := cluster.NodeMeta{Labels: map[string]string{"old": "x"}}
	for what, text := range map[string]string{"text": "not ours", "no code": `{"labels":{"old":"x"}}`, "of another node": other.Seal(seal, "m/1"), "of a node before": other.Seal(seal, "n/2"),
		"with another key": other.Seal(cluster.SecretString("z"), "n/1"), "changed": strings.Replace(other.Seal(seal, "n/1"), "old", "other", 1)} {
		n.Annotations[cluster.AnnotationOwned] = text
		if got, err := r.nodeOf(n); err != nil || !got.Owned.IsZero() || text == "" {
			t.Errorf("%s: %+v, %v", what, got.Owned, err)
		}
	}
	n.Annotations[cluster.AnnotationOwned] = other.Seal(seal, "n/1")
	if got, err := (nodeReader{r.metaKeys, cluster.Secret{}}).nodeOf(n); err != nil || !got.Owned.IsZero() || other.Seal(cluster.Secret{}, "n/1") != "" {
		t.Errorf("without a key: %+v, %v", got.Owned, err)
	}
}

func TestLabel(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.patchNode("wk-1", `{"metadata":{"labels":{"mine":"1","zone":"hand"}},"spec":{"taints":[{"key":"mine","effect":"NoSchedule"},{"key":"dedicated","value":"x","effect":"NoExecute"}]}}`)
		n := labelled(map[string]string{"zone": "a", "empty": ""}, map[string]string{"dedicated": "gpu:NoSchedule", "plain": ":PreferNoSchedule"})
		b.label(n)
		noted := `{"labels":{"empty":"","zone":"a"},"taints":{"dedicated":"gpu:NoSchedule","plain":":PreferNoSchedule"}}`
		b.mustHave("labelled", "map[empty: mine:1 zone:a] [mine:NoSchedule dedicated=gpu:NoSchedule plain:PreferNoSchedule] "+noted)
		before := b.node("wk-1").ResourceVersion
		b.calls()
		b.label(n)
		if calls := b.calls(); len(calls) != 1 || b.node("wk-1").ResourceVersion != before {
			t.Errorf("again it asks %v", calls)
		}
		// One of ours that somebody has made his own stays when it leaves the inventory.
		b.patchNode("wk-1", `{"metadata":{"labels":{"zone":"hand"}}}`)
		b.label(labelled(nil, map[string]string{"plain": ":PreferNoSchedule"}))
		b.mustHave("less", `map[mine:1 zone:hand] [mine:NoSchedule plain:PreferNoSchedule] {"taints":{"plain":":PreferNoSchedule"}}`)
		b.label(labelled(nil, nil))
		b.mustHave("nothing", "map[mine:1 zone:hand] [mine:NoSchedule] ")
		if err := b.cluster.Label(context.Background(), b.desired, cluster.Node{Name: "wk-9", Labels: n.Labels}, nil); err != nil {
			t.Errorf("a node that is not there: %v", err)
		}
	})
}

// TestLabelLeaves: what is left of a node is neither set nor taken back, and stays noted as it was.
func TestLabelLeaves(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.label(labelled(map[string]string{"zone": "a", "rack": "1", "old": "x"}, map[string]string{"dedicated": "gpu:NoSchedule"}))
		b.patchNode("wk-1", `{"metadata":{"labels":{"zone":"hand"}}}`)
		n := labelled(map[string]string{"zone": "b", "rack": "2", "new": "y"}, nil)
		if err := b.cluster.Label(context.Background(), b.desired, n, []string{"label zone", "label old", "label new", "taint dedicated"}); err != nil {
			t.Fatal(err)
		}
		b.mustHave("some are left", `map[old:x rack:2 zone:hand] [dedicated=gpu:NoSchedule] {"labels":{"old":"x","rack":"2","zone":"a"},"taints":{"dedicated":"gpu:NoSchedule"}}`)
		b.label(n)
		b.mustHave("none is", `map[new:y rack:2 zone:b] [] {"labels":{"new":"y","rack":"2","zone":"b"}}`)
	})
}

// TestAnnotate: annotations are set and taken back as labels are, with digests in the note,
// and those of others stay.
func TestAnnotate(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		mustHave := func(what, want string) {
			b.Helper()
			n := b.node("wk-1")
			if got := fmt.Sprintf("%q %q %q %s", n.Annotations["rack"], n.Annotations["text"], n.Annotations["mine"], notedOn(n)); got != want {
				b.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		annotated := func(annotations map[string]string) cluster.Node {
			return cluster.Node{Name: "wk-1", Role: cluster.Worker, Annotations: annotations}
		}
		b.patchNode("wk-1", `{"metadata":{"annotations":{"mine":"1","rack":"hand"}}}`)
		all := map[string]string{"rack": "7", "text": "line\n\u00e4 {}", "empty": ""}
		b.label(annotated(all))
		noted := `{"annotations":{"empty":"e3b0c44298fc1c14","rack":"7902699be42c8a8e","text":"f890e9dc20b10512"}}`
		mustHave("annotated", `"7" "line\nä {}" "1" `+noted)
		b.calls()
		b.label(annotated(all))
		if calls := b.calls(); len(calls) != 1 {
			t.Errorf("again it asks %v", calls)
		}
		b.patchNode("wk-1", `{"metadata":{"annotations":{"text":"hand"}}}`)
		b.label(annotated(nil))
		mustHave("removed", `"" "hand" "1" `)
	})
}

// TestForgedNote: a kubelet may write the annotations of its own Node. What it notes there,
// or has changed of the agent's note, or has from another Node, takes nothing off the Node
// that somebody else has set; what the inventory has is set all the same.
func TestForgedNote(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.patchNode("wk-1", `{"metadata":{"labels":{"node-restriction.kubernetes.io/tier":"public"}},"spec":{"taints":[{"key":"dedicated","value":"public","effect":"NoSchedule"}]}}`)
		owns := cluster.NodeMeta{Labels: map[string]string{"node-restriction.kubernetes.io/tier": "public"}, Taints: map[string]string{"dedicated": "public:NoSchedule"}}
		has := func(what string) {
			b.Helper()
			n := b.node("wk-1")
			if n.Labels["node-restriction.kubernetes.io/tier"] != "public" || len(n.Spec.Taints) != 1 || n.Labels["zone"] != "a" {
				b.Errorf("%s: %v %v", what, n.Labels, n.Spec.Taints)
			}
		}
		n := labelled(map[string]string{"zone": "a"}, nil)
		b.label(n)
		agents := b.node("wk-1").Annotations[cluster.AnnotationOwned]
		for what, text := range map[string]string{
			"without a code":     owns.Encode(),
			"of another node":    owns.Seal(seal, "wk-2/1"),
			"with a guessed key": owns.Seal(cluster.SecretString("guess"), identityOf(b.node("wk-1"))),
			"changed":            strings.Replace(agents, `"zone":"a"`, `"zone":"a","node-restriction.kubernetes.io/tier":"public"`, 1),
			"as it is":           agents,
		} {
			b.patchNode("wk-1", fmt.Sprintf(`{"metadata":{"labels":{"zone":null},"annotations":{%q:%q}}}`, cluster.AnnotationOwned, text))
			b.label(n)
			has(what)
			if now := b.node("wk-1").Annotations[cluster.AnnotationOwned]; now != agents {
				b.Errorf("%s: noted is %s", what, now)
			}
		}
	})
}

// TestWhoSetIt: of what differs from the inventory it is known who has set it and when, as
// the API server notes it, and no call is made for that; of what is as the agent has set
// it, and of what was removed, it is not. A manager's name is a word, whatever it is.
func TestWhoSetIt(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		n := labelled(map[string]string{"zone": "a", "tier": "x"}, map[string]string{"dedicated": "gpu:NoSchedule"})
		n.Annotations = map[string]string{"example.org/rack": "7"}
		b.desired.Spec.Nodes = append(b.desired.Spec.Nodes, n)
		b.look()
		b.label(n)
		setBy := func() map[string]cluster.Setter {
			time.Sleep(time.Second)
			return b.look().Nodes.Value["wk-1"].SetBy
		}
		if got := setBy(); len(got) != 0 {
			t.Errorf("as the agent has set it: %v", got)
		}
		shared := reflect.ValueOf(b.look().Nodes.Value).Pointer()
		if again := reflect.ValueOf(b.look().Nodes.Value).Pointer(); again != shared {
			t.Error("without an edit the nodes are copied")
		}
		edit := func(manager, patch string) time.Time {
			b.Helper()
			if _, err := b.set.CoreV1().Nodes().Patch(context.Background(), "wk-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager}); err != nil {
				b.Fatal(err)
			}
			return time.Now().UTC().Truncate(time.Second)
		}
		labelled := edit("kubectl-label", `{"metadata":{"labels":{"zone":"b","mine":"1","tier":null}}}`)
		time.Sleep(time.Minute)
		annotated := edit("me (set by\tyou), 2026\u202e", `{"metadata":{"annotations":{"example.org/rack":"8"}}}`)
		time.Sleep(time.Minute)
		tainted := edit("kubectl-taint", `{"spec":{"taints":[{"key":"mine","effect":"NoSchedule"}]}}`)
		b.look()
		b.calls()
		got := setBy()
		want := map[string]cluster.Setter{"label zone": {Manager: "kubectl-label", At: labelled}, "annotation example.org/rack": {Manager: "me?(set?by?you),?2026?", At: annotated},
			"taint dedicated": {Manager: "kubectl-taint", At: tainted}}
		if len(got) != len(want) {
			t.Errorf("%v, want %v", got, want)
		}
		for field, w := range want {
			if g := got[field]; g.Manager != w.Manager || !g.At.Equal(w.At) {
				t.Errorf("%s: %v, want %v", field, g, w)
			}
		}
		if calls := b.calls(); calls["GET /api/v1/nodes"]+calls["GET /api/v1/nodes/{name}"]+calls["WATCH /api/v1/nodes"] != 0 {
			t.Errorf("calls %v", calls)
		}
		// What the agent has set, and the inventory has otherwise now, was set by the agent.
		b.label(n)
		b.desired.Spec.Nodes[len(b.desired.Spec.Nodes)-1].Labels = map[string]string{"zone": "c", "tier": "x"}
		if got := setBy(); len(got) != 0 || b.node("wk-1").Labels["zone"] != "a" {
			t.Errorf("of the agent: %v", got)
		}
	})
}

// TestWritingsOfDeletedNodes: of a Node object that is deleted nothing is kept, whether the
// watch or the next list shows it: names may come and go for as long as the agent runs.
func TestWritingsOfDeletedNodes(t *testing.T) {
	w := &writings{}
	f := &follower[cluster.KubeNode]{kind: kindOfNodes(corev1client.New(nil), nodeReader{}, w), moved: make(chan struct{}), change: func() {}, seen: map[string]cluster.KubeNode{}}
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{}`)}}}}
	}
	must := func(what string, err error, want ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(w.of)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: kept of %v, want %v (%v)", what, got, want, err)
		}
	}
	must("listed", f.Replace([]any{node("a"), node("b"), node("c")}, ""), "a", "b", "c")
	must("deleted", f.Delete(node("a")), "b", "c")
	must("listed again", f.Replace([]any{node("c")}, ""), "c")
}

// interloper changes a Node right before the first patch of it.
type interloper struct {
	once   *sync.Once
	change func()
	next   http.RoundTripper
}

func (i interloper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch {
		i.once.Do(i.change)
	}
	return i.next.RoundTrip(r)
}

// TestLabelAmongOthers: the list of taints is written as a whole, and one that somebody
// adds at the same instant is not lost.
func TestLabelAmongOthers(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.cluster.Close()
		b.cluster = New(Config{Dial: b.link.DialContext, Wrap: func(next http.RoundTripper) http.RoundTripper {
			return interloper{new(sync.Once), func() { b.patchNode("wk-1", `{"spec":{"taints":[{"key":"mine","effect":"NoSchedule"}]}}`) }, next}
		}})
		b.look()
		n := labelled(nil, map[string]string{"dedicated": "gpu:NoSchedule"})
		b.label(n)
		b.mustHave("labelled", `map[] [mine:NoSchedule dedicated=gpu:NoSchedule] {"taints":{"dedicated":"gpu:NoSchedule"}}`)
		b.world.Inject(world.Fault{Op: "PATCH /api/v1/nodes/{name}", Kind: world.Answer, Status: 422, Text: "not you", Times: 1})
		if err := b.cluster.Label(context.Background(), b.desired, labelled(nil, nil), nil); err == nil || !strings.Contains(err.Error(), "label wk-1: change its Node object: it answers: not you") {
			t.Error(err)
		}
		b.world.Inject(world.Fault{Op: "PATCH /api/v1/nodes/{name}", Kind: world.LoseReply, Times: 1})
		b.label(labelled(nil, nil))
		b.mustHave("taken back", "map[] [mine:NoSchedule] ")
	})
}

// TestSeesWhatTheInventoryNames: other keys in the inventory take one list; while they
// stay, looking costs nothing, and labels of others call for no look.
func TestSeesWhatTheInventoryNames(t *testing.T) {
	onDrains(t, 1, func(b *drains) {
		b.look()
		b.patchNode("wk-1", `{"metadata":{"labels":{"zone":"a","rack":"7"}},"spec":{"taints":[{"key":"dedicated","value":"gpu","effect":"NoSchedule"}]}}`)
		b.desired.Spec.Nodes = append(b.desired.Spec.Nodes, labelled(map[string]string{"zone": "b"}, map[string]string{"dedicated": "gpu:NoSchedule"}))
		b.calls()
		meta := func() cluster.NodeMeta { return b.look().Nodes.Value["wk-1"].Meta }
		want := cluster.NodeMeta{Labels: map[string]string{"zone": "a"}, Taints: map[string]string{"dedicated": "gpu:NoSchedule"}}
		if got := meta(); !reflect.DeepEqual(got, want) {
			t.Errorf("seen is %v", got)
		}
		if calls := b.calls(); calls["WATCH /api/v1/nodes"] != 1 || calls["WATCH /api/v1/namespaces/{namespace}/pods"] != 0 {
			t.Errorf("calls %v", calls)
		}
		if pods := b.look().SystemPods; !pods.Known {
			t.Errorf("the pods are unknown: %s", pods.Why)
		}
		shared := b.look().Nodes.Value
		b.patchNode("wk-1", `{"metadata":{"labels":{"rack":"8"}}}`)
		time.Sleep(time.Second)
		if now := b.look().Nodes.Value; reflect.ValueOf(now).Pointer() != reflect.ValueOf(shared).Pointer() {
			t.Error("a label that the inventory does not name counts as a change")
		}
		b.patchNode("wk-1", `{"metadata":{"labels":{"zone":"c"}}}`)
		time.Sleep(time.Second)
		if got := meta(); got.Labels["zone"] != "c" {
			t.Errorf("seen is %v", got)
		}
		if calls := b.calls(); calls["WATCH /api/v1/nodes"]+calls["GET /api/v1/nodes"] != 0 {
			t.Errorf("calls %v", calls)
		}
	})
}
