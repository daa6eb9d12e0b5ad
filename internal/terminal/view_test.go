package terminal

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestForeignWordsCommandNothing: what others say is shown, and never obeyed.
func TestForeignWordsCommandNothing(t *testing.T) {
	for text, want := range map[string]string{
		"plain\tand\nlines ü€":     "plain\tand\nlines ü€",
		"\x1b[31mred\x1b[0m":       "\x1b[31mred\x1b[0m",
		"\x1b[2J\x1b[Hgone":        "?[2J?[Hgone",
		"\x1b]0;title\x07":         "?]0;title?",
		"a\rb\x00\x7f\u009b5n":     "a?b????5n"[:5] + "?5n",
		"abc\u202edef\u2066\u061c": "abc?def??",
		"broken \xff utf-8":        "broken ? utf-8",
		"\x1b[":                    "?[",
		"\x1b[99999999999m":        "?[99999999999m",
	} {
		var b bytes.Buffer
		if _, err := NewCleaner(&b).Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("%q is shown as %q, want %q", text, b.String(), want)
		}
	}
	var b bytes.Buffer
	p, err := New(&b, "text")
	if err != nil {
		t.Fatal(err)
	}
	p.PrintStatus(cluster.Status{Cluster: "dev", Message: "wiped\x1b[2J", Nodes: []cluster.NodeStatus{{Name: "cp-1", WaitsFor: "\x1b]52;c;x\x07"}}})
	if strings.ContainsAny(b.String(), "\x1b\x07") {
		t.Errorf("a status commands the terminal: %q", b.String())
	}
}

// TestFrame: a frame draws over the one before, within the terminal.
func TestFrame(t *testing.T) {
	for _, c := range []struct {
		text       string
		cols, rows int
		want       string
	}{
		{"one\ntwo\n", 10, 5, "\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J"},
		{"wide line\n", 4, 5, "\x1b[Hwid…\x1b[K\x1b[J"},
		{"äöüß\n", 3, 5, "\x1b[Häö…\x1b[K\x1b[J"},
		{"a \x1b[31mlong\x1b[0m word\n", 4, 5, "\x1b[Ha \x1b[31ml…\x1b[0m\x1b[K\x1b[J"},
		{"a \x1b[31mb\x1b[0m word\n", 4, 5, "\x1b[Ha \x1b[31mb\x1b[0m…\x1b[K\x1b[J"},
		{"  it is \x1b[31mbad\x1b[0m now\n  -> do this, or that\nNAME  WAITS FOR\n", 11, 9,
			"\x1b[H  it is \x1b[31mbad\x1b[0m\x1b[K\r\n  now\x1b[K\r\n  -> do\x1b[K\r\n     this,\x1b[K\r\n     or\x1b[K\r\n     that\x1b[K\r\nNAME  WAIT…\x1b[K\x1b[J"},
		{"  -> \n  unbreakable\n  -> x\n", 8, 9, "\x1b[H  ->\x1b[K\r\n  unbre…\x1b[K\r\n  -> x\x1b[K\x1b[J"},
		{"1\n2\n3\n4\n", 40, 3, "\x1b[H1\x1b[K\r\n2\x1b[K\r\n... 2 more lines\x1b[K\x1b[J"},
		{"1\n2\n3\n", 40, 3, "\x1b[H1\x1b[K\r\n2\x1b[K\r\n3\x1b[K\x1b[J"},
	} {
		if got := string(drawFrame([]byte(c.text), c.cols, c.rows)); got != c.want {
			t.Errorf("%q on %dx%d:\n%q\nwant\n%q", c.text, c.cols, c.rows, got, c.want)
		}
	}
}

func TestChanges(t *testing.T) {
	before := cluster.Status{Revision: "main@sha1:0123456789abcdef", Subject: "begin", Condition: cluster.Reconciling, Message: "1 of 2",
		Nodes: []cluster.NodeStatus{{Name: "cp-1", Phase: cluster.PhaseReady}, {Name: "wk-1", Phase: cluster.PhaseBooting}}}
	after := before
	after.Condition, after.Message, after.Hint = cluster.Stalled, "wk-1: boots\nfor long", "look"
	after.Nodes = []cluster.NodeStatus{before.Nodes[0], {Name: "wk-1", Phase: cluster.PhaseUnreachable}}
	after.Addons = []cluster.AddonStatus{{Name: "cilium", State: "ready"}}
	if got, want := describeChanges(before, after, false), []string{"Stalled: wk-1: boots for long", "-> look", "wk-1 is Unreachable", "addon cilium is ready"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := describeChanges(after, after, false); got != nil {
		t.Errorf("nothing has changed, and is told: %q", got)
	}
	if got, want := describeChanges(cluster.Status{}, before, true), []string{"revision main@sha1:0123456789ab begin", "Reconciling: 1 of 2", "cp-1 is Ready", "wk-1 is Booting"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestJSONNamesDeletedClusters: a program that watches reads once of a cluster that is
// not managed any more, and of it again when it is back.
func TestJSONNamesDeletedClusters(t *testing.T) {
	var b strings.Builder
	p, err := New(&b, "json")
	must(t, err)
	w := NewView(p, &b)
	dev, prod := cluster.Status{Cluster: "dev"}, cluster.Status{Cluster: "prod"}
	both, one := []cluster.Status{dev, prod}, []cluster.Status{prod}
	for _, step := range []struct {
		all     []cluster.Status
		changed *cluster.Status
	}{{[]cluster.Status{dev}, &dev}, {both, &prod}, {one, nil}, {one, nil}, {both, &dev}, {nil, nil}} {
		must(t, w.Show(step.all, step.changed, nil, nil))
	}
	var got []string
	for line := range strings.Lines(b.String()) {
		var read struct {
			Kind, APIVersion string
			Data             struct{ Cluster string }
		}
		must(t, json.Unmarshal([]byte(line), &read))
		got = append(got, read.Kind+" "+read.APIVersion+" "+read.Data.Cluster)
	}
	if want := []string{"Status v1 dev", "Status v1 prod", "StatusGone v1 dev", "Status v1 dev", "StatusGone v1 dev", "StatusGone v1 prod"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
