package talos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestStaticPodImageThatIsNowhere gives a control plane images that no registry has, or that only a
// registry has that does not answer: their static pods wait, the kube-apiserver serves no more,
// and the next config repairs that.
func TestStaticPodImageThatIsNowhere(t *testing.T) {
	for _, tc := range []struct {
		patch, pod string
		serves     bool
	}{
		{"cluster: {scheduler: {image: registry.k8s.io/kube-scheduler:v1.36.1-missing}}", "kube-scheduler", true},
		{"cluster: {controllerManager: {image: dead.example/kube-controller-manager:v1.36.1}}", "kube-controller-manager", true},
		{"cluster: {apiServer: {image: registry.k8s.io/kube-apiservr:v1.36.1}}", "kube-apiserver", false},
		{"cluster: {apiServer: {image: dead.example/kube-apiserver:v1.36.1}}", "kube-apiserver", false},
	} {
		t.Run(tc.patch, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.bring("v1.13.9", cp(1))
				l.bootstrap(cp(1))
				time.Sleep(3 * time.Minute)
				phase := func() string {
					return strings.Join(specs(within(time.Hour), l, cp(1), func(r *k8s.StaticPodStatus) string {
						return fmt.Sprint(strings.TrimPrefix(r.Metadata().ID(), "kube-system/"), " ", r.TypedSpec().PodStatus["phase"])
					}), ", ")
				}
				given := func(want string) {
					t.Helper()
					l.kube.mu.Lock()
					pods := l.kube.static["cp1"]
					l.kube.mu.Unlock()
					i := slices.IndexFunc(pods, func(p world.StaticPod) bool { return p.Name == tc.pod })
					if i < 0 || !strings.Contains(pods[i].PullError, want) || (want == "") != (pods[i].PullError == "") {
						t.Errorf("Kubernetes was given %+v, want %q", pods, want)
					}
				}
				well := "kube-apiserver-cp1 Running, kube-controller-manager-cp1 Running, kube-scheduler-cp1 Running"
				if got := phase(); got != well || !l.view(cp(1)).Ready {
					t.Fatalf("before: %s, %v", got, status(t, l.admin(cp(1))))
				}
				if err := l.applyConfigured(cp(1), l.config(cp(1), "v1.13.9", tc.patch), noReboot); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				given("failed to resolve reference")
				if got, want := phase(), strings.Replace(well, tc.pod+"-cp1 Running", tc.pod+"-cp1 Pending", 1); got != want {
					t.Errorf("%s, want %s", got, want)
				}
				if s := status(t, l.admin(cp(1))); s.Status.Ready || !strings.Contains(fmt.Sprint(s.Status.UnmetConditions), "kube-system/"+tc.pod+"-cp1 pending") {
					t.Errorf("%+v", s)
				}
				if serves := len(l.kube.serving()) > 0; serves != tc.serves {
					t.Errorf("an API serves: %v", serves)
				}
				if err := l.applyConfigured(cp(1), l.config(cp(1), "v1.13.9"), noReboot); err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * time.Minute)
				given("")
				if got := phase(); got != well || !l.view(cp(1)).Ready || len(l.kube.serving()) != 1 {
					t.Errorf("after the repair: %s, %+v, %d", got, status(t, l.admin(cp(1))), len(l.kube.serving()))
				}
			})
		})
	}
}

// TestStaticPodImageOfAClosedRegistry: an image that its registry gives out again is pulled within
// the back-off of a kubelet.
func TestStaticPodImageOfAClosedRegistry(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.kube.closeRegistry("ghcr.example/")
		l.bring("v1.13.9", cp(1))
		l.bootstrap(cp(1))
		time.Sleep(3 * time.Minute)
		patch := "cluster: {scheduler: {image: ghcr.example/kube-scheduler:v1.36.1}}"
		if err := l.applyConfigured(cp(1), l.config(cp(1), "v1.13.9", patch), noReboot); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		if s := status(t, l.admin(cp(1))); s.Status.Ready {
			t.Errorf("%+v", s)
		}
		l.kube.closeRegistry("")
		time.Sleep(6 * time.Minute)
		if s := status(t, l.admin(cp(1))); !s.Status.Ready {
			t.Errorf("%+v", s)
		}
		l.kube.closeRegistry("ghcr.example/") // it has the image now
		if err := l.applyConfigured(cp(1), l.config(cp(1), "v1.13.9"), noReboot); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := l.applyConfigured(cp(1), l.config(cp(1), "v1.13.9", patch), noReboot); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		if s := status(t, l.admin(cp(1))); !s.Status.Ready {
			t.Errorf("%+v", s)
		}
	})
}
