package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
	"github.com/talos-agent/talos-agent/reconcile/upgrade"
)

func addWorker(s *cluster.Spec) {
	n := s.Nodes[len(s.Nodes)-1]
	n.Name, n.VMID = "wk-9", 590
	n.UUID = cluster.NodeUUID(s.ID, n.Name)
	s.Nodes = append(s.Nodes, n)
}

func (f *fake) loseVM(name string) {
	f.set(func() { delete(f.vms, name); delete(f.machines, name); delete(f.kubelets, name) })
}

// runs waits until a node was made and runs, and returns with what.
func (f *fake) runs(t *testing.T, name string) (versions [2]string, config string) {
	t.Helper()
	for range 600 {
		time.Sleep(time.Second)
		f.mu.Lock()
		m, kubelet := f.machines[name], f.kubelets[name]
		f.mu.Unlock()
		if m.Reach == cluster.Configured {
			return [2]string{m.Talos, kubelet}, m.ConfigDigest
		}
	}
	t.Fatalf("%s was never made", name)
	return
}

// TestNewNodesGetWhatRuns: while an upgrade does not go on, a node that is added, or made
// again, gets the versions of the others, and the plan says so; also after a restart,
// and when nobody answers.
func TestNewNodesGetWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 2), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		f.installs = errors.New("the registry does not answer")
		old := [2]string{"v1.13.9", "v1.36.1"}
		f.change(rev(2), rev(1), func(s *cluster.Spec) {
			s.Versions = cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.37.0", Contract: "v1.14"}
			addWorker(s)
		})
		if got, _ := f.runs(t, "wk-9"); got != old {
			t.Errorf("an added node has %v, and the cluster runs %v", got, old)
		}
		s := until(t, a, cluster.Stalled)
		if s.Reason != cluster.ActionFailed {
			t.Errorf("%s: %s", s.Reason, s.Message)
		}
		if !strings.Contains(fmt.Sprint(s.Passes), "; with Talos v1.13.9 and Kubernetes v1.36.1, which the cluster runs") {
			t.Errorf("the plan does not say so: %+v", s.Passes)
		}
		f.loseVM("wk-2")
		if got, _ := f.runs(t, "wk-2"); got != old {
			t.Errorf("a node that was made again has %v", got)
		}
		a.stop()
		f.loseVM("wk-2")
		f.set(func() { clear(f.kubelets) }) // Kubernetes shows nothing
		a = start(t, f, files)
		defer a.stop()
		if got, _ := f.runs(t, "wk-2"); got != old {
			t.Errorf("after a restart: %v", got)
		}
	})
}

func patched(text string) []cluster.Patch {
	return []cluster.Patch{{File: "patches/all.yaml", Document: cluster.SecretString(text)}}
}

// TestNewNodesGetTheConfigThatRuns: while a change of the config is refused, a node
// gets the config of the revision that the others have. One that cannot be read any
// more holds it back.
func TestNewNodesGetTheConfigThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 3), journaltest.NewFiles()
		f.refuses = "unknown keys"
		digest := func(name, patch string) string {
			d, _ := f.Desired(cluster.Snapshot{Spec: cluster.Spec{Versions: f.spec.Versions, Nodes: []cluster.Node{{Name: name, Patches: patched(patch)}}}}, cluster.Facts{}, time.Time{})
			return d.Configs[name].Digest
		}
		setPatch := func(text string) func(*cluster.Spec) {
			return func(s *cluster.Spec) {
				for i := range s.Nodes {
					s.Nodes[i].Patches = patched(text)
				}
			}
		}
		setPatch("one")(&f.spec)
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		f.change(rev(2), rev(1), func(s *cluster.Spec) { setPatch("two")(s); addWorker(s) })
		if _, got := f.runs(t, "wk-9"); got != digest("wk-9", "one") {
			t.Errorf("an added node has %s", got)
		}
		if s := until(t, a, cluster.Stalled); s.Reason != cluster.ConfigRefused || !strings.Contains(fmt.Sprint(s.Passes), "; with the config of main@sha1:000000000000, which the cluster runs") {
			t.Errorf("%s: %+v", s.Message, s.Passes)
		}
		a.stop()
		f.loseVM("wk-2")
		a = start(t, f, files)
		if _, got := f.runs(t, "wk-2"); got != digest("wk-2", "one") {
			t.Errorf("made again after a restart: %s", got)
		}
		a.stop()
		f.loseVM("wk-3")
		f.set(func() { clear(f.before) })
		a = start(t, f, files)
		time.Sleep(15 * time.Minute)
		s := a.Status()
		if w := s.Waiting; len(w) != 1 || w[0].Reason != cluster.RunningConfigUnknown || !w[0].Overdue || w[0].Hint == "" || !strings.Contains(w[0].Message, "there is no such commit") {
			t.Errorf("%+v", w)
		}
		// Whoever applies the change by hand makes it the one that runs.
		f.set(func() {
			for name, m := range f.machines {
				m.ConfigDigest = digest(name, "two")
				f.machines[name] = m
			}
		})
		if _, got := f.runs(t, "wk-3"); got != digest("wk-3", "two") {
			t.Errorf("after the change was applied by hand: %s", got)
		}
		until(t, a, cluster.Ready)
		a.stop()
	})
}

// TestNewNodesWhileNobodyAnswers: that no node shows its config, after a power loss,
// is no proof that they have the repository's.
func TestNewNodesWhileNobodyAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		forget  bool // which revision the nodes have
		answers bool // the nodes show their configs
	}{{"recorded", false, false}, {"not recorded", true, false}, {"not recorded, and another", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, files := newFake(1, 2), journaltest.NewFiles()
				f.refuses = "unknown keys"
				set := func(text string) func(*cluster.Spec) {
					return func(s *cluster.Spec) {
						for i := range s.Nodes {
							s.Nodes[i].Patches = patched(text)
						}
					}
				}
				set("one")(&f.spec)
				a := start(t, f, files)
				until(t, a, cluster.Ready)
				first := f.machines["wk-2"].ConfigDigest
				a.stop()
				f.loseVM("wk-2")
				f.change(rev(2), rev(1), set("two"))
				if !c.answers {
					f.set(func() {
						for name := range f.machines {
							f.machines[name] = cluster.Machine{Reach: cluster.Silent}
						}
						clear(f.kubelets)
					})
				}
				if c.forget {
					j, err := journal.Open(files, "dev", f.spec.ID)
					if err != nil {
						t.Fatal(err)
					}
					err = j.Update(func(f *cluster.Facts) {
						in, _ := f.Intent(cluster.IntendConfig)
						in.Revision = ""
						f.Intend(in)
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				a = start(t, f, files)
				defer a.stop()
				if !c.forget {
					if _, got := f.runs(t, "wk-2"); got != first {
						t.Errorf("the node has %s; the others have %s", got, first)
					}
					return
				}
				time.Sleep(15 * time.Minute)
				w := a.Status().Waiting
				i := slices.IndexFunc(w, func(w cluster.WaitStatus) bool { return w.Subject == "wk-2" })
				if i < 0 || w[i].Reason != cluster.RunningConfigUnknown || !strings.Contains(w[i].Message, "which revision") {
					t.Errorf("%+v", w)
				}
				if strings.Count(fmt.Sprint(f.did()), "create wk-2") != 1 {
					t.Errorf("it was made all the same: %v", f.did())
				}
			})
		})
	}
}

// TestNewNodesOfAWorkTree: a work tree with changes has one name whatever they are, so
// that the tree of now is not what the nodes have because it is named like theirs.
func TestNewNodesOfAWorkTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 2)
		f.refuses = "unknown keys"
		f.head += "+dirty"
		set := func(text string) {
			f.spec.Nodes = slices.Clone(f.spec.Nodes)
			for i := range f.spec.Nodes {
				f.spec.Nodes[i].Patches = patched(text)
			}
		}
		set("one")
		a := start(t, f, journaltest.NewFiles())
		defer a.stop()
		until(t, a, cluster.Ready)
		first := f.machines["wk-2"].ConfigDigest
		f.set(func() { set("two") })
		if s := until(t, a, cluster.Stalled); s.Reason != cluster.ConfigRefused {
			t.Fatalf("%+v", s)
		}
		f.loseVM("wk-2")
		if _, got := f.runs(t, "wk-2"); got != first {
			t.Errorf("the node has %s; the others have %s", got, first)
		}
	})
}

// TestContractIsKept: the config contract is that of the first config on; one that only
// follows from talos_version is a warning, one that is written is refused.
func TestContractIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 1), journaltest.NewFiles()
		a := start(t, f, files)
		until(t, a, cluster.Ready)
		a.stop()
		in := intentOf(openFacts(t, f, files), cluster.IntendConfig)
		if in.Versions.Contract != "v1.13" || in.Revision != rev(1) {
			t.Fatalf("%+v", in)
		}
		snap := cluster.Snapshot{Spec: f.spec, Where: map[string]cluster.Position{"": {File: "cluster.yaml"}}}
		facts := openFacts(t, f, files)
		snap.Spec.Versions = cluster.Versions{Talos: "v1.14.1", Kubernetes: "v1.36.1", Contract: "v1.14"}
		got, other := upgrade.KeepContract(snap, facts)
		if got.Spec.Versions.Contract != "v1.13" || other != "" || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0].String(), "the cluster keeps v1.13") {
			t.Errorf("not written: %q %+v", other, got)
		}
		snap.Where["config_contract"] = cluster.Position{File: "cluster.yaml", Line: 5}
		got, other = upgrade.KeepContract(snap, facts)
		if got.Spec.Versions.Contract != "v1.13" || other != "v1.14" || len(got.Warnings) != 0 {
			t.Errorf("written: %q %+v", other, got)
		}
		f.change(rev(2), rev(1), func(*cluster.Spec) {})
		f.set(func() { f.where = snap.Where; f.spec.Versions.Contract = "v1.12" })
		a = start(t, f, files)
		defer a.stop()
		s := until(t, a, cluster.Stalled)
		if len(s.Blocked) != 1 || s.Reason != cluster.ContractChanged || s.Hint != "write `config_contract: v1.13` in cluster.yaml" {
			t.Errorf("%+v", s.Blocked)
		}
		f.loseVM("wk-1")
		if _, config := f.runs(t, "wk-1"); !strings.Contains(config, "v1.13}") {
			t.Errorf("a node is made with another contract: %s", config)
		}
	})
}

func openFacts(t *testing.T, f *fake, files *journaltest.Files) cluster.Facts {
	t.Helper()
	j, err := journal.Open(files, "dev", f.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	return j.Facts()
}

// TestConfigIsForgottenWithTheCluster: what was never founded, or was destroyed, begins
// with what the repository has.
func TestConfigIsForgottenWithTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, files := newFake(1, 0), journaltest.NewFiles()
		f.hang["bootstrap"] = true
		a := start(t, f, files)
		f.runs(t, "cp-1")
		a.stop()
		if in := intentOf(openFacts(t, f, files), cluster.IntendConfig); in.Versions.Talos != "v1.13.9" {
			t.Fatalf("%+v", in)
		}
		f.loseVM("cp-1")
		j, err := journal.Open(files, "dev", f.spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Update(func(f *cluster.Facts) { f.Drop(cluster.IntendBootstrap) }); err != nil { // it was not sent
			t.Fatal(err)
		}
		f.change(rev(2), rev(1), func(s *cluster.Spec) { s.Versions.Talos = "v1.13.8" })
		f.set(func() { f.hang["bootstrap"] = false })
		a = start(t, f, files)
		defer a.stop()
		if got, _ := f.runs(t, "cp-1"); got[0] != "v1.13.8" {
			t.Errorf("nothing ran, and it got %v", got)
		}
		until(t, a, cluster.Ready)
		if err := a.Destroy(nil, nil); err != nil {
			t.Fatal(err)
		}
		until(t, a, cluster.Suspended)
		if _, ok := openFacts(t, f, files).Intent(cluster.IntendConfig); ok {
			t.Error("a destroyed cluster still runs something")
		}
	})
}

func TestMergeSnapshots(t *testing.T) {
	node := func(name string, role cluster.Role, cores int, files ...string) cluster.Node {
		n := cluster.Node{Name: name, Role: role, Cores: cores}
		for _, f := range files {
			file, text, _ := strings.Cut(f, "=")
			n.Patches = append(n.Patches, cluster.Patch{File: file, Document: cluster.SecretString(text)})
		}
		return n
	}
	base := cluster.Snapshot{Revision: rev(1), Spec: cluster.Spec{CNI: cluster.CNIFlannel, Nodes: []cluster.Node{
		node("cp-1", cluster.ControlPlane, 2, "all=old"), node("wk-1", cluster.Worker, 2, "all=old", "wk-1=old")}}}
	base.Spec.Switches, base.Spec.MaxUnavailable = cluster.Switches{ApplyOff: true}, 2
	asked := cluster.Snapshot{Revision: rev(2), Spec: cluster.Spec{CNI: cluster.CNICilium, Addons: []cluster.Addon{{Name: "cilium"}}, Switches: cluster.Switches{ApplyApproved: true}, AllowEven: true, Nodes: []cluster.Node{
		node("cp-1", cluster.ControlPlane, 4, "all=new", "more=new"), node("wk-2", cluster.Worker, 4, "all=new", "more=new", "wk-2=own")}}}
	got := mergeSnapshots(base, asked, cluster.Versions{Talos: "v1.13.9"})
	want := cluster.Snapshot{Revision: rev(2), Spec: cluster.Spec{CNI: cluster.CNIFlannel, Versions: cluster.Versions{Talos: "v1.13.9"}, Addons: []cluster.Addon{{Name: "cilium"}}, Switches: cluster.Switches{ApplyApproved: true}, AllowEven: true, Nodes: []cluster.Node{
		node("cp-1", cluster.ControlPlane, 4, "all=old"), node("wk-2", cluster.Worker, 4, "all=old", "wk-2=own")}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// TestKeptEndpoint: what is made while the nodes run an earlier config, and the kubeconfig, have
// the endpoint of that, unless it is the address of a control plane that leaves.
func TestKeptEndpoint(t *testing.T) {
	spec := func(endpoint string, planes ...string) cluster.Spec {
		s := cluster.Spec{Network: cluster.Network{Endpoint: endpoint}}
		for _, ip := range planes {
			s.Nodes = append(s.Nodes, cluster.Node{Name: "cp-" + ip, Role: cluster.ControlPlane, IP: netip.MustParseAddr(ip)})
		}
		return s
	}
	const one, two, three, vip, name = "https://10.0.0.1:6443", "https://10.0.0.2:6443", "https://10.0.0.3:6443", "https://10.0.0.9:6443", "https://k8s.example.org:7443"
	for _, c := range []struct {
		what        string
		base, asked cluster.Spec
		want        string
	}{
		{"all stay", spec(one, "10.0.0.1", "10.0.0.2"), spec(two, "10.0.0.1", "10.0.0.2"), one},
		{"another leaves", spec(one, "10.0.0.1", "10.0.0.2"), spec(one, "10.0.0.1"), one},
		{"the first leaves", spec(one, "10.0.0.1", "10.0.0.2", "10.0.0.3"), spec(two, "10.0.0.2", "10.0.0.3"), two},
		{"the first leaves, for another endpoint of its own", spec(one, "10.0.0.1", "10.0.0.2", "10.0.0.3"), spec(three, "10.0.0.2", "10.0.0.3"), three},
		{"the first leaves, and a vip comes, which no machine has yet", spec(one, "10.0.0.1", "10.0.0.2"), spec(vip, "10.0.0.2"), two},
		{"the first leaves, and a new one is to be the endpoint", spec(one, "10.0.0.1", "10.0.0.2"), spec(three, "10.0.0.3", "10.0.0.2"), two},
		{"none stays", spec(one, "10.0.0.1"), spec(two, "10.0.0.2"), one},
		{"a name", spec(name, "10.0.0.1", "10.0.0.2"), spec(two, "10.0.0.2"), name},
		{"a vip", spec(vip, "10.0.0.1", "10.0.0.2"), spec(two, "10.0.0.2"), vip},
	} {
		if got := keepEndpoint(c.base, c.asked); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}
