package talos

import (
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"

	"github.com/talos-agent/talos-agent/internal/cluster"
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

// TestImagesArePulledAhead: a machine has the images of a config before that is known to be
// one that it can be given, and a config with an image that no registry has is refused.
func TestImagesArePulledAhead(t *testing.T) {
	for _, version := range []string{"v1.12.3", newest, "v1.14.1"} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				tag := "v" + kubernetesFor(version)
				const repository = "ghcr.io/siderolabs/kubelet:"
				wrong := b.withKubelet(repository + tag + "-nosuch")
				b.calls()
				b.until("it is refused", func(o cluster.Observed) bool {
					c := o.Machines["cp-1"].Change
					return c != nil && c.For == wrong.Digest && strings.HasPrefix(c.Refused, "there is no image "+repository+tag+"-nosuch: ")
				})
				// It may be published meanwhile.
				for range 11 {
					time.Sleep(time.Minute)
					if c := b.see(cp(1)).Change; c == nil || c.Refused == "" {
						t.Errorf("%+v", c)
					}
				}
				time.Sleep(time.Minute)
				if calls := b.calls(); calls["ImagePull"]+calls["Pull"] < 2 || calls["ImagePull"]+calls["Pull"] > 3 {
					t.Errorf("calls %v", calls)
				}

				right := b.withKubelet(repository + tag + "-fat")
				if c := b.see(cp(1)).Change; c == nil || *c != (cluster.Change{For: right.Digest, Pulls: "it pulls " + repository + tag + "-fat first"}) {
					t.Errorf("%+v", c)
				}
				b.until("it has it", func(o cluster.Observed) bool {
					c := o.Machines["cp-1"].Change
					return c != nil && *c == cluster.Change{For: right.Digest}
				})
				if calls := b.calls(); calls["ImagePull"]+calls["Pull"] != 1 {
					t.Errorf("calls %v", calls)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestPullThatFails: a registry that does not answer is no word on an image.
func TestPullThatFails(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		b.world.Inject(world.Fault{System: "talos", Op: "machine.ImageService/Pull", Kind: world.LoseRequest, Times: 2})
		const ref = "ghcr.io/siderolabs/kubelet:v1.36.1-slim"
		cfg := b.withKubelet(ref)
		b.until("it could not be pulled", func(o cluster.Observed) bool {
			c := o.Machines["cp-1"].Change
			return c != nil && c.Refused == "" && strings.HasPrefix(c.Pulls, ref+" cannot be pulled (") && strings.HasSuffix(c.Pulls, "), and is tried again")
		})
		b.until("it was pulled", func(o cluster.Observed) bool {
			c := o.Machines["cp-1"].Change
			return c != nil && *c == cluster.Change{For: cfg.Digest}
		})
		if log := b.log.String(); !strings.Contains(log, `level=WARN msg="cannot pull an image ahead of a config" node=cp-1 detail=`+ref) {
			t.Errorf("log:\n%s", log)
		}
	})
}

// TestNewImages: what both configs have is there.
func TestNewImages(t *testing.T) {
	have := cluster.Images{Kubelet: "kubelet:1", Etcd: "etcd:1", APIServer: "a:1"}
	want := cluster.Images{Kubelet: "kubelet:2", Etcd: "etcd:1", APIServer: "a:2", ControllerManager: "m:1", Scheduler: "s:1"}
	got := newImages(have, want)
	if len(got) != 4 || got[0] != (image{"kubelet:2", common.ContainerdNamespace_NS_SYSTEM}) || got[1] != (image{"a:2", common.ContainerdNamespace_NS_CRI}) || got[2].ref != "m:1" || got[3].ref != "s:1" {
		t.Errorf("%v", got)
	}
	if got := newImages(want, cluster.Images{Kubelet: "kubelet:2"}); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
