package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

func newConfigMap(namespace, name string, n int) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"data":     map[string]any{"n": fmt.Sprint(n)},
	}
}

// TestStoreAgainstModel commits at random and checks that lists show what a
// plain map would, and that the events after any version lead from what was
// there then to what is there now.
func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStore("seed", func() {})
		model := map[string]int{}
		past := map[uint64]map[string]int{0: {}} // what was there at a version
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			ns, name := rapid.SampledFrom([]string{"a", "a-b", "b"}).Draw(t, "namespace"), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")
			key := objectKey(ns, name)
			have := s.getObject(resConfigMaps, key)
			var next map[string]any
			if rapid.Bool().Draw(t, "keep") {
				next = newConfigMap(ns, name, n)
			}
			if have == nil && next == nil {
				continue
			}
			o, err := s.commitObject(resConfigMaps, key, have, next)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.commitObject(resConfigMaps, key, have, newConfigMap(ns, name, n)); !errors.Is(err, errRaced) {
				t.Fatalf("a commit based on an old version: %v", err)
			}
			if delete(model, key); next != nil {
				model[key] = n
			}
			past[o.rv] = maps.Clone(model)
		}
		listed := func(namespace string) map[string]int {
			objects, _ := s.listObjects(resConfigMaps, namespace)
			out := map[string]int{}
			for _, o := range objects {
				var n int
				if _, err := fmt.Sscan(rules.TextAt(o.body, "data", "n"), &n); err != nil {
					t.Fatal(err)
				}
				out[objectKey(rules.TextAt(o.body, "metadata", "namespace"), rules.TextAt(o.body, "metadata", "name"))] = n
			}
			if !slices.IsSortedFunc(objects, func(a, b *object) int { return compareKeys(a, b) }) {
				t.Fatal("the list is not sorted")
			}
			return out
		}
		if got := listed(""); !maps.Equal(got, model) {
			t.Fatalf("list %v, want %v", got, model)
		}
		for _, ns := range []string{"a", "a-b", "b", "c"} {
			want := maps.Clone(model)
			maps.DeleteFunc(want, func(key string, _ int) bool { in, _ := splitKey(key); return in != ns })
			if got := listed(ns); !maps.Equal(got, want) {
				t.Fatalf("list of %s %v, want %v", ns, got, want)
			}
		}
		for rv, then := range past {
			events, _, _, err := s.eventsSince(resConfigMaps, rv)
			if err != nil {
				t.Fatal(err)
			}
			replayed := maps.Clone(then)
			for _, e := range events {
				o := e.new
				if o == nil {
					o = e.old
				}
				key := objectKey(rules.TextAt(o.body, "metadata", "namespace"), rules.TextAt(o.body, "metadata", "name"))
				if delete(replayed, key); e.new != nil {
					var n int
					if _, err := fmt.Sscan(rules.TextAt(o.body, "data", "n"), &n); err != nil {
						t.Fatal(err)
					}
					replayed[key] = n
				}
			}
			if !maps.Equal(replayed, model) {
				t.Fatalf("events since %d lead to %v, want %v", rv, replayed, model)
			}
		}
	})
}

func compareKeys(a, b *object) int {
	key := func(o *object) string {
		return objectKey(rules.TextAt(o.body, "metadata", "namespace"), rules.TextAt(o.body, "metadata", "name"))
	}
	switch ka, kb := key(a), key(b); {
	case ka < kb:
		return -1
	case ka > kb:
		return 1
	}
	return 0
}

// TestStoreForgets fills the log of events until the oldest are dropped.
func TestStoreForgets(t *testing.T) {
	s := newStore("seed", func() {})
	first, err := s.commitObject(resConfigMaps, "a/x", nil, newConfigMap("a", "x", 0))
	if err != nil {
		t.Fatal(err)
	}
	o := first
	for n := range 2*keptEvents + 1 {
		if o, err = s.commitObject(resConfigMaps, "a/x", o, newConfigMap("a", "x", n)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, _, err := s.eventsSince(resConfigMaps, first.rv); !errors.Is(err, errExpired) {
		t.Errorf("events since the first version: %v, want %v", err, errExpired)
	}
	events, rv, _, err := s.eventsSince(resConfigMaps, o.rv-keptEvents)
	if err != nil || len(events) != keptEvents || rv != o.rv {
		t.Errorf("%d events up to %d, %v", len(events), rv, err)
	}
	if events, rv, _, err := s.eventsSince(resConfigMaps, o.rv+5); err != nil || len(events) != 0 || rv != o.rv+5 {
		t.Errorf("%d events since the future, up to %d, %v", len(events), rv, err)
	}
}

func TestGeneratedNames(t *testing.T) {
	a, b := newStore("a", func() {}), newStore("b", func() {})
	seen := map[string]bool{}
	for _, s := range []*store{a, b} {
		for range 1000 {
			meta := map[string]any{"generateName": "x-"}
			s.stampObject(resConfigMaps, meta)
			if uid := rules.TextAt(meta, "uid"); len(uid) != 36 || seen[uid] {
				t.Fatalf("uid %q", uid)
			}
			seen[rules.TextAt(meta, "uid")] = true
			if len(rules.TextAt(meta, "name")) != 7 {
				t.Fatalf("name %q", rules.TextAt(meta, "name"))
			}
		}
	}
}
