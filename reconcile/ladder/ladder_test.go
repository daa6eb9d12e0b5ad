package ladder

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func run(talos, kubernetes string) cluster.Versions {
	return cluster.Versions{Talos: talos, Kubernetes: kubernetes}
}

func TestFind(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to cluster.Versions
		want     string // the way, or what the refusal has
	}{
		"nothing":          {run("v1.13.9", "v1.36.1"), run("v1.13.9", "v1.36.1"), ""},
		"a patch":          {run("v1.13.8", "v1.36.1"), run("v1.13.9", "v1.36.1"), "Talos v1.13.9"},
		"unknown patch":    {run("v1.13.8", "v1.36.1"), run("v1.13.99", "v1.36.1"), "Talos v1.13.99"},
		"a minor":          {run("v1.13.9", "v1.36.1"), run("v1.14.0", "v1.36.1"), "Talos v1.14.0"},
		"its patches":      {run("v1.13.0", "v1.36.1"), run("v1.14.1", "v1.36.1"), "Talos v1.13.9, then Talos v1.14.1"},
		"a newer one":      {run("v1.13.12", "v1.36.1"), run("v1.14.1", "v1.36.1"), "Talos v1.14.1"},
		"release":          {run("v1.14.0-rc.1", "v1.36.1"), run("v1.14.0", "v1.36.1"), "Talos v1.14.0"},
		"before a release": {run("v1.13.7", "v1.36.1"), run("v1.14.0-beta.1", "v1.36.1"), "Talos v1.13.9, then Talos v1.14.0-beta.1"},
		"its release":      {run("v1.14.0-beta.1", "v1.36.1"), run("v1.14.1", "v1.36.1"), "Talos v1.14.1"},
		"the tenth":        {run("v1.14.0-rc.9", "v1.36.1"), run("v1.14.0-rc.10", "v1.36.1"), "Talos v1.14.0-rc.10"},
		"back before it":   {run("v1.14.0", "v1.36.1"), run("v1.14.0-rc.1", "v1.36.1"), "refused: a downgrade of Talos, from v1.14.0 to v1.14.0-rc.1, is not made"},
		"zombie members":   {run("v1.10.7", "v1.33.1"), run("v1.11.0", "v1.33.1"), "Talos v1.10.9, then Talos v1.11.0"},
		"kubernetes":       {run("v1.13.9", "v1.34.2"), run("v1.13.9", "v1.36.1"), "Kubernetes v1.35.10, then Kubernetes v1.36.1"},
		"both":             {run("v1.13.9", "v1.36.1"), run("v1.14.1", "v1.37.1"), "Talos v1.14.1, then Kubernetes v1.37.1"},
		"along": {run("v1.11.2", "v1.33.1"), run("v1.14.1", "v1.36.1"),
			"Talos v1.11.6, then Talos v1.12.11, then Talos v1.13.9, then Talos v1.14.1, then Kubernetes v1.34.13, then Kubernetes v1.35.10, then Kubernetes v1.36.1"},
		"Kubernetes is too old for the next Talos": {run("v1.11.6", "v1.29.3"), run("v1.14.1", "v1.32.1"),
			"Kubernetes v1.30.14, then Talos v1.12.11, then Kubernetes v1.31.14, then Talos v1.13.9, then Kubernetes v1.32.1, then Talos v1.14.1"},

		"older Talos":      {run("v1.13.9", "v1.36.1"), run("v1.13.8", "v1.36.1"), "refused: a downgrade of Talos, from v1.13.9 to v1.13.8, is not made"},
		"older Kubernetes": {run("v1.13.9", "v1.36.1"), run("v1.14.1", "v1.35.1"), "refused: a downgrade of Kubernetes, from v1.36.1 to v1.35.1, is not made"},
		"window":           {run("v1.13.9", "v1.36.1"), run("v1.13.9", "v1.37.0"), "refused: on Talos v1.13.9 Kubernetes v1.37.0 does not run, but v1.31 to v1.36"},
		"stays too old":    {run("v1.11.6", "v1.29.3"), run("v1.12.1", "v1.29.3"), "refused: on Talos v1.12.1 Kubernetes v1.29.3 does not run, but v1.30 to v1.35"},
		"runs in none":     {run("v1.13.9", "v1.30.1"), run("v1.14.1", "v1.36.1"), "refused: what runs is not meant for each other: on Talos v1.13.9 Kubernetes v1.30.1, and not v1.31 to v1.36"},
		"too new":          {run("v1.14.1", "v1.37.1"), run("v1.15.0", "v1.37.1"), "refused: which Kubernetes runs on Talos v1.15.0 is not known"},
		"too old":          {run("v1.7.1", "v1.28.1"), run("v1.8.4", "v1.28.1"), "refused: which Kubernetes runs on Talos v1.7.1 is not known"},
		"no version":       {run("v1.13", "v1.36.1"), run("v1.14.1", "v1.36.1"), `refused: version of Talos: "v1.13" is not a version like v1.13.9`},
		"no version yet":   {run("v1.13.9", ""), run("v1.14.1", "v1.36.1"), `refused: version of Kubernetes: "" is not a version like v1.13.9`},
	} {
		hops, err := Find(tc.from, tc.to)
		got := cluster.DescribeHops(hops)
		if err != nil {
			got = "refused: " + err.Error()
		}
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

func TestCompare(t *testing.T) {
	for _, tc := range []struct {
		a, b          string
		order, minors int
		ok            bool
	}{
		{"v1.36.1", "v1.36.1", 0, 0, true}, {"v1.9.12", "v1.10.2", -1, 1, true}, {"v1.36.1", "v1.33.9", 1, -3, true},
		{"v1.36.0-rc.1", "v1.36.0", -1, 0, true}, {"v1.36.0-rc.2", "v1.36.0-rc.10", -1, 0, true}, {"v1.36.0-rc.1", "v1.36.0-beta.2", 1, 0, true}, {"v1.36.0-rc", "v1.36.0-rc.0", -1, 0, true}, {"v1.36", "v1.36.0", 0, 0, false}, {"", "v1.36.0", 0, 0, false},
	} {
		if order, ok := Compare(tc.a, tc.b); order != tc.order || ok != tc.ok {
			t.Errorf("%s and %s: %d, %t", tc.a, tc.b, order, ok)
		}
		if minors, ok := MinorsApart(tc.a, tc.b); ok != tc.ok || ok && minors != tc.minors {
			t.Errorf("%s and %s: %d minor versions apart, %t", tc.a, tc.b, minors, ok)
		}
	}
}

// TestEveryWay: between all pairs of versions there is a way, unless the end is older, or a pair does not
// work together; by Talos' own library every hop of it is possible and leads to two that do.
func TestEveryWay(t *testing.T) {
	talos, kubernetes := allOf(lastTalos), allOf(lastKubernetes)
	rapid.Check(t, func(t *rapid.T) {
		from := cluster.Versions{Talos: rapid.SampledFrom(talos).Draw(t, "talos"), Kubernetes: rapid.SampledFrom(kubernetes).Draw(t, "kubernetes")}
		to := cluster.Versions{Talos: rapid.SampledFrom(talos).Draw(t, "new talos"), Kubernetes: rapid.SampledFrom(kubernetes).Draw(t, "new kubernetes")}
		checkWay(t, from, to)
	})
}

// TestEveryMinor is the same for the newest patches of all minor versions, each pair of pairs.
func TestEveryMinor(t *testing.T) {
	for a, p := range lastTalos {
		for b, q := range lastTalos {
			for c, r := range lastKubernetes {
				for d, s := range lastKubernetes {
					checkWay(t, cluster.Versions{Talos: fmt.Sprintf("v1.%d.%d", a, p), Kubernetes: fmt.Sprintf("v1.%d.%d", c, r)}, cluster.Versions{Talos: fmt.Sprintf("v1.%d.%d", b, q), Kubernetes: fmt.Sprintf("v1.%d.%d", d, s)})
				}
			}
		}
	}
}

// TestTablesAgree holds the windows against those of Talos' own library, which knows no others.
func TestTablesAgree(t *testing.T) {
	for minor := range 40 {
		talos := libraryTalos(t, fmt.Sprintf("v1.%d.0", minor))
		for k := range 60 {
			kubernetes, err := compatibility.ParseKubernetesVersion(fmt.Sprintf("v1.%d.0", k))
			if err != nil {
				t.Fatal(err)
			}
			w, known := windows[minor]
			if !known && minor < 8 {
				continue // older than those that are managed
			}
			if has, want := known && w.has(version{minor: k}), kubernetes.SupportedWith(talos) == nil; has != want {
				t.Errorf("Talos 1.%d with Kubernetes 1.%d: %t, and %t by the library", minor, k, has, want)
			}
			if _, ok := lastKubernetes[k]; !ok && known && w.has(version{minor: k}) {
				t.Errorf("no patch of Kubernetes 1.%d is known", k)
			}
		}
		if _, ok := lastTalos[minor]; ok != (windows[minor] != window{}) {
			t.Errorf("Talos 1.%d is in one of the tables only", minor)
		}
	}
}

// failer is what reports, of a test and of a property.
type failer interface {
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

func checkWay(t failer, from, to cluster.Versions) {
	hops, err := Find(from, to)
	pairs := []cluster.Versions{from, to}
	possible := !isOlder(t, to.Talos, from.Talos) && !isOlder(t, to.Kubernetes, from.Kubernetes)
	for _, v := range pairs {
		possible = possible && worksTogether(t, v)
	}
	if possible != (err == nil) {
		t.Fatalf("%v to %v: %v, and possible is %t", from, to, err, possible)
	}
	if err != nil {
		return
	}
	at := from
	for _, h := range hops {
		have := &at.Talos
		if h.Kind == cluster.HopKubernetes {
			have = &at.Kubernetes
		}
		if *have != h.From || !isOlder(t, h.From, h.To) || minorOf(t, h.To)-minorOf(t, h.From) > 1 {
			t.Fatalf("%v to %v: a hop from %s to %s at %s", from, to, h.From, h.To, *have)
		}
		if h.Kind == cluster.HopTalos {
			if err := libraryTalos(t, h.To).UpgradeableFrom(libraryTalos(t, h.From)); err != nil {
				t.Fatalf("%v to %v: %v", from, to, err)
			}
			if strings.HasPrefix(h.From, "v1.10.") && strings.HasPrefix(h.To, "v1.11.") && isOlder(t, h.From, "v1.10.9") {
				t.Fatalf("%v to %v: etcd 3.6 after one that brings members back: %v", from, to, h)
			}
		}
		*have = h.To
		if !worksTogether(t, at) {
			t.Fatalf("%v to %v: comes by %v", from, to, at)
		}
	}
	if at != to {
		t.Fatalf("%v to %v: ends at %v", from, to, at)
	}
}

func allOf(last map[int]int) (out []string) {
	for minor, patch := range last {
		for p := range patch + 2 {
			out = append(out, fmt.Sprintf("v1.%d.%d", minor, p))
		}
	}
	slices.Sort(out)
	return out
}

func libraryTalos(t failer, s string) *compatibility.TalosVersion {
	v, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: s})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func worksTogether(t failer, v cluster.Versions) bool {
	kubernetes, err := compatibility.ParseKubernetesVersion(v.Kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.SupportedWith(libraryTalos(t, v.Talos)) == nil
}

func isOlder(t failer, a, b string) bool {
	v, err := parseVersion(a)
	if err != nil {
		t.Fatal(err)
	}
	w, err := parseVersion(b)
	if err != nil {
		t.Fatal(err)
	}
	return v.isOlder(w)
}

func minorOf(t failer, s string) int {
	v, err := parseVersion(s)
	if err != nil {
		t.Fatal(err)
	}
	return v.minor
}

// TestOldEtcd: which hops bring etcd 3.6, and from which etcd none leads there.
func TestOldEtcd(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"v1.10.9", "v1.11.6", true}, {"v1.9.6", "v1.10.9", false}, {"v1.11.6", "v1.12.11", false}, {"", "v1.11.6", true}, {"", "v1.10.9", false}, {"v1.13.9", "v1.14.1", false}, {"v1.10.9", "other", false}, {"other", "v1.11.6", false},
	} {
		if got := BringsNewEtcd(c.from, c.to); got != c.want {
			t.Errorf("%q to %q: %v", c.from, c.to, got)
		}
	}
	for version, want := range map[string]bool{"3.5.21": true, "3.5.25": true, "3.5.26": false, "3.6.4": false, "3.5.26-0": false, "3.5.9-0": true, "": false, "latest": false} {
		if got := IsOldEtcd(version); got != want {
			t.Errorf("%s: %v", version, got)
		}
	}
}

// TestVersionOfImages: a version is read of whatever registry an image is from, and of nothing else.
func TestVersionOfImages(t *testing.T) {
	for image, want := range map[string]string{
		"registry.k8s.io/kube-apiserver:v1.36.1": "v1.36.1", "localhost:5000/k/kube-apiserver:v1.36.1-rc.0@sha256:00": "v1.36.1-rc.0",
		"localhost:5000/kube-apiserver": "", "kube-apiserver:latest": "", "": "", "kube-apiserver@sha256:00": "",
	} {
		if got := VersionOf(image); got != want {
			t.Errorf("%s: %q", image, got)
		}
	}
}

// TestHasNewerEtcd: of a version that is not known it is not known that its etcd is newer.
func TestHasNewerEtcd(t *testing.T) {
	for _, c := range []struct {
		talos, than string
		want        bool
	}{
		{"v1.14.1", "v1.13.9", true}, {"v1.13.9", "v1.12.11", false}, {"v1.11.6", "v1.10.9", true}, {"v1.13.9", "v1.14.1", false}, {"", "v1.13.9", false}, {"v1.14.1", "", false}, {"v1.99.0", "v1.13.9", false}, {"v1.14.1", "v1.1.0", false},
	} {
		if got := HasNewerEtcd(c.talos, c.than); got != c.want {
			t.Errorf("%s than %s: %v", c.talos, c.than, got)
		}
	}
}
