package talos

import (
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// withKubelet gives the kubelet another image.
func (b *bench) withKubelet(ref string) cluster.Config {
	b.Helper()
	patch := "machine: {kubelet: {image: \"" + ref + "\"}}"
	if parseMinor(b.desired.Spec.Versions.Talos) >= 14 {
		patch = "apiVersion: v1alpha1\nkind: KubeletConfig\nimage: " + ref + "\n"
	}
	cfg := b.config(cp(1), patch)
	cfg.Summary.Images.Kubelet = ref
	b.desired.Configs["cp-1"] = cfg
	return cfg
}

// TestPullImages: a machine that lacks the images of its next config has them once they were
// pulled, an image that no registry has is named, and one that could not be pulled is no
// image that there is not.
func TestPullImages(t *testing.T) {
	for _, version := range []string{"v1.12.3", newest, "v1.14.1"} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				had := b.desired.Configs["cp-1"]
				had.Summary.Images.Kubelet = "ghcr.io/siderolabs/kubelet:v" + kubernetesFor(version)
				tag := "v" + kubernetesFor(version)
				const repository = "ghcr.io/siderolabs/kubelet:"
				lacks := func(want string) {
					t.Helper()
					b.until("it answers", func(o cluster.Observed) bool {
						c := o.Machines["cp-1"].Change
						return c != nil && c.For == b.desired.Configs["cp-1"].Digest
					})
					if c := b.see(cp(1)).Change; c == nil || c.Lacks != want || c.Refused != "" {
						t.Errorf("%+v, want that it lacks %q", c, want)
					}
				}
				var progress []string
				pull := func() error {
					return b.fleet.PullImages(within(10*time.Minute), b.desired, cp(1), func(p cluster.Progress) { progress = append(progress, p.Waits) })
				}
				b.withKubelet(repository + tag + "-nosuch")
				lacks(repository + tag + "-nosuch")
				err := pull()
				if err == nil || !strings.HasPrefix(err.Error(), "pull images on cp-1 (10.5.0.11): there is no image "+repository+tag+"-nosuch: ") || !strings.HasPrefix(fault.HintOf(err), "correct it in the patch") {
					t.Errorf("%v", err)
				}
				lacks(repository + tag + "-nosuch")

				b.withKubelet(repository + tag + "-fat")
				lacks(repository + tag + "-fat")
				b.world.Inject(world.Fault{System: "talos", Op: pullCall(version), Nth: 1, Kind: world.LoseRequest})
				if err := pull(); err == nil || !strings.Contains(err.Error(), "-fat could not be pulled: ") || !strings.Contains(fault.HintOf(err), "`talosctl -n 10.5.0.11 image pull ") {
					t.Errorf("%v, %q", err, fault.HintOf(err))
				}
				lacks(repository + tag + "-fat")
				for range 2 {
					if err := pull(); err != nil {
						b.Error(err)
					}
					lacks("")
				}
				if last := progress[len(progress)-1]; last != "pulls "+repository+tag+"-fat" {
					t.Errorf("progress %q", last)
				}
				// Talos removes what nothing uses: right before it is given the config it is asked again.
				b.world.Inject(world.Fault{System: "talos", Op: pullCall(version), Nth: 1, Kind: world.LoseRequest})
				if err := pull(); err == nil {
					t.Error("it was not asked again")
				}
				lacks(repository + tag + "-fat")
				b.calls()
				b.desired.Configs["cp-1"] = had
				if err := pull(); err != nil || b.calls()[path.Base(pullCall(version))] != 0 {
					t.Errorf("what runs is pulled: %v", err)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestPullsAhead: the images that a config has in the end are lacked until they were pulled, and again when that is long ago, also of a
// machine whose config is as it should be now. What the next config has is no such image.
func TestPullsAhead(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		const then = "ghcr.io/siderolabs/kubelet:v1.36.2"
		cfg := b.desired.Configs["cp-1"]
		cfg.Final = cfg.Summary.Images
		cfg.Final.Kubelet = then
		b.desired.Configs["cp-1"] = cfg
		lacks := func(want string) {
			t.Helper()
			if got := b.see(cp(1)).Unpulled; got != want {
				t.Errorf("it lacks %q, want %q", got, want)
			}
		}
		lacks(then)
		ahead := b.desired
		at := cfg
		at.Summary = cfg.AtEnd()
		ahead.Configs = map[string]cluster.Config{"cp-1": at}
		if err := b.fleet.PullImages(within(10*time.Minute), ahead, cp(1), nil); err != nil {
			t.Fatal(err)
		}
		lacks("")
		time.Sleep(pulledFor)
		lacks(then)
	})
}

// pullCall is the call by which a version pulls.
func pullCall(version string) string {
	if parseMinor(version) < imagesSince {
		return "machine.MachineService/ImagePull"
	}
	return "machine.ImageService/Pull"
}

// TestExplainPull: no address of a registry is repeated, which may have a signature in it.
func TestExplainPull(t *testing.T) {
	err := explainPull(image{ref: "x:1"}, cp(1), errors.New("failed to copy: httpReadSeeker: failed open: Get \"https://cdn.example.org/blob?X-Amz-Signature=abc\": EOF"))
	if got := err.Error(); strings.Contains(got, "abc") || got != `x:1 could not be pulled: failed to copy: httpReadSeeker: failed open: Get "its registry": EOF` {
		t.Error(got)
	}
}

// TestNewImages: what both configs have is there, and what comes from other registries from
// then on cannot be pulled before.
func TestNewImages(t *testing.T) {
	have := cluster.ConfigSummary{Images: cluster.Images{Kubelet: "kubelet:1", Etcd: "etcd:1", APIServer: "a:1"}}
	want := cluster.ConfigSummary{Images: cluster.Images{Kubelet: "kubelet:2", Etcd: "etcd:1", APIServer: "a:2", ControllerManager: "m:1", Scheduler: "s:1"}}
	got := newImages(have, want)
	if len(got) != 4 || got[0] != (image{"kubelet:2", common.ContainerdNamespace_NS_SYSTEM}) || got[1] != (image{"a:2", common.ContainerdNamespace_NS_CRI}) || got[2].ref != "m:1" || got[3].ref != "s:1" {
		t.Errorf("%v", got)
	}
	worker := cluster.ConfigSummary{Images: cluster.Images{Kubelet: "kubelet:2"}}
	mirrored := want
	mirrored.Registries = "mirror"
	for _, c := range [][2]cluster.ConfigSummary{{want, worker}, {{}, want}, {have, mirrored}} {
		if got := newImages(c[0], c[1]); len(got) != 0 {
			t.Errorf("%v", got)
		}
	}
}
