package agent_test

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestForecastIsWhatHappens: what `plan` shows of a push is what is begun after its approval, to
// the end and in that order; and so is what `plan --dir` shows, where no node has to be asked what
// its new machine config takes.
func TestForecastIsWhatHappens(t *testing.T) {
	t.Parallel()
	patched := func(patch string) func(*testing.T, map[string][]byte) {
		return func(t *testing.T, files map[string][]byte) {
			changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "cni: cilium\npatches: {all: [patches/all.yaml]}\n")
			files["inventory/dev/patches/all.yaml"] = []byte(patch)
		}
	}
	for what, c := range map[string]struct {
		edit  func(*testing.T, map[string][]byte)
		asked bool // what a config takes
	}{
		"a replacement": {edit: func(t *testing.T, files map[string][]byte) {
			changed(t, files, "inventory/dev/nodes.yaml", "{name: dev-wk-1,", "{name: dev-wk-1, replace: now,")
		}},
		"a config that takes no reboot": {patched("machine: {sysctls: {vm.max_map_count: \"262144\"}}\n"), true},
		"a config that takes a reboot":  {patched("machine: {env: {ROUND: \"1\"}}\n"), true},
		"other sizes": {edit: func(t *testing.T, files map[string][]byte) {
			files["inventory/dev/nodes.yaml"] = []byte(strings.ReplaceAll(string(files["inventory/dev/nodes.yaml"]), "cpu: 4", "cpu: 2"))
		}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sz := size{ControlPlanes: 1, Workers: 2}
				s := newSim(t, sz, lab.Config{})
				defer s.Close()
				s.Boot()
				s.UntilReady(20 * time.Minute)
				files, dir := sz.Files(), fstest.MapFS{}
				c.edit(t, files)
				changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "apply: approve\ncni: cilium\n")
				for name, data := range files {
					dir[name] = &fstest.MapFile{Data: data}
				}
				ofDir, err := s.Cluster().ForecastDir(t.Context(), dir)
				if err != nil {
					t.Fatal(err)
				}
				s.Push(files, what)
				s.Until(time.Hour, "held", func(st cluster.Status) bool {
					return (st.Reason == cluster.ChangeUnapproved || st.Reason == cluster.RemovalUnapproved) && st.Revision.Commit() == s.Head()
				})
				shown, err := s.Cluster().Forecast(t.Context())
				if err != nil || len(shown.Blocked)+len(shown.Waiting) > 0 {
					t.Fatalf("%+v, %v", shown, err)
				}
				approved := time.Now().Add(-1)
				must(s.Cluster().Approve(shown.Digest))
				var begun []string
				for last := approved; ; { // the status keeps the passes of a moment only
					var ready bool
					s.Until(2*time.Hour, "another pass", func(st cluster.Status) bool {
						ready = st.Condition == cluster.Ready
						return ready || len(st.Passes) > 0 && st.Passes[0].At.After(last)
					})
					passes := s.Status().Passes
					for _, p := range slices.Backward(passes) {
						if p.At.After(last) {
							begun, last = append(begun, p.Started...), p.At
						}
					}
					if ready || t.Failed() {
						break
					}
				}
				if want := textsOf(shown); !slices.Equal(begun, want) {
					t.Errorf("begun:\n%s\nshown before:\n%s", strings.Join(begun, "\n"), strings.Join(want, "\n"))
				}
				if want := textsOf(ofDir); !c.asked && !slices.Equal(begun, want) {
					t.Errorf("begun:\n%s\nshown of the directory before:\n%s", strings.Join(begun, "\n"), strings.Join(want, "\n"))
				}
				s.Halt()
			})
		})
	}
}

// TestForecastOfAddons: what `plan --dir` shows of an upgrade is why there is one, as it is shown
// when that is pushed, also of a chart that was not fetched.
func TestForecastOfAddons(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		for want, edit := range map[string]func(map[string][]byte){
			"": func(map[string][]byte) {},
			"upgrade addon podinfo in apps: color of its values": func(files map[string][]byte) {
				files["inventory/dev/addons/podinfo.yaml"] = append(files["inventory/dev/addons/podinfo.yaml"], "values: {color: blue}\n"...)
			},
			"fetch chart https://charts.example.org/podinfo-6.9.1 for addon podinfo\nupgrade addon podinfo in apps: chart version from 6.9.0 to 6.9.1": func(files map[string][]byte) {
				changed(t, files, "inventory/dev/addons/podinfo.yaml", "6.9.0", "6.9.1")
			},
		} {
			files, dir := sz.Files(), fstest.MapFS{}
			edit(files)
			for name, data := range files {
				dir[name] = &fstest.MapFile{Data: data}
			}
			f, err := s.Cluster().ForecastDir(t.Context(), dir)
			if got := strings.Join(textsOf(f), "\n"); err != nil || got != want || len(f.Notes) > 0 {
				t.Errorf("shown:\n%s\nwant:\n%s\n%v %v", got, want, f.Notes, err)
			}
		}
		s.Halt()
	})
}

func textsOf(f cluster.Forecast) (texts []string) {
	for _, s := range f.Steps {
		texts = append(texts, s.Text)
	}
	return texts
}

// TestPlanNamesLostPods: the plan that waits for approval, and that of a directory before the push, name
// the pod of a node that is to be drained which no controller starts again, and none of another.
func TestPlanNamesLostPods(t *testing.T) {
	t.Parallel()
	sz := size{ControlPlanes: 1, Workers: 2}
	files := sz.Files()
	inReadyCluster(t, sz, files, func(t *testing.T, s *sim) {
		for _, node := range []string{"dev-wk-1", "dev-wk-2"} {
			s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodPost, "/api/v1/namespaces/default/pods",
				`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"on-`+node+`"},"spec":{"nodeName":"`+node+`","containers":[{"name":"c","image":"registry.example.org/c:1"}]}}`)
		}
		withoutNode(t, files, "dev-wk-2")
		changed(t, files, "inventory/dev/cluster.yaml", "cni: cilium\n", "apply: approve\ncni: cilium\n")
		dir := fstest.MapFS{}
		for name, data := range files {
			dir[name] = &fstest.MapFile{Data: data}
		}
		ofDir, err := s.Cluster().ForecastDir(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		s.Push(files, "one worker less")
		s.Until(time.Hour, "held", func(st cluster.Status) bool { return st.Reason == cluster.RemovalUnapproved })
		pushed, err := s.Cluster().Forecast(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const want = "drain dev-wk-2 to remove it; deletes pods that no controller starts again: default/on-dev-wk-2"
		for what, f := range map[string]cluster.Forecast{"the directory": ofDir, "the push": pushed} {
			if texts := textsOf(f); len(f.Notes) > 0 || len(texts) == 0 || texts[0] != want {
				t.Errorf("of %s: %q, notes %q", what, texts, f.Notes)
			}
		}
	})
}
