package kube_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// endpointsOf reads Endpoints as "ready addresses | not ready ones : ports", "" when there are none.
func endpointsOf(t testing.TB, set kubernetes.Interface, name string) string {
	t.Helper()
	e, err := set.CoreV1().Endpoints("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, s := range e.Subsets {
		list := func(all []corev1.EndpointAddress) (ips []string) {
			for _, a := range all {
				ips = append(ips, a.IP)
			}
			return ips
		}
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s/%d/%s", p.Name, p.Port, p.Protocol))
		}
		text += fmt.Sprintf("%v | %v : %v", list(s.Addresses), list(s.NotReadyAddresses), ports)
	}
	return text
}

// TestEndpoints: those of a service follow its pods as its slice does, without the pods that end,
// and go with the service.
func TestEndpoints(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		_, err := set.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"tier": "front"}},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}},
		}, metav1.CreateOptions{})
		must(t, err)
		time.Sleep(time.Second)
		if got := endpointsOf(t, set, "web"); got != "" {
			t.Errorf("without pods: %s", got)
		}
		web := barePod("web-1", "web")
		web.Spec.Containers[0].Image = "registry.stubborn.test/web:1"
		l.runPods(set, web, barePod("other", "other"))
		p := getPod(t, set, "web-1")
		if got, want := endpointsOf(t, set, "web"), fmt.Sprintf("[%s] | [] : [http/8080/TCP]", p.Status.PodIP); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		e, err := set.CoreV1().Endpoints("default").Get(ctx, "web", metav1.GetOptions{})
		must(t, err)
		if a := e.Subsets[0].Addresses[0]; *a.NodeName != "wk-1" || a.TargetRef.UID != p.UID || a.TargetRef.Kind != "Pod" {
			t.Errorf("address %+v", a)
		}
		if e.Labels["tier"] != "front" || e.Labels["endpoints.kubernetes.io/managed-by"] != "endpoint-controller" || len(e.OwnerReferences) != 0 {
			t.Errorf("metadata %+v", e.ObjectMeta)
		}
		time.Sleep(time.Minute)
		if again, err := set.CoreV1().Endpoints("default").Get(ctx, "web", metav1.GetOptions{}); err != nil || again.ResourceVersion != e.ResourceVersion {
			t.Errorf("written again without a change: %v", err)
		}
		must(t, evict(set, "default", "web-1"))
		eventually(t, "no address", time.Second, func() error {
			if got := endpointsOf(t, set, "web"); got != "" {
				return fmt.Errorf("a pod that ends is still there: %s", got)
			}
			return nil
		})
		must(t, set.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}))
		time.Sleep(time.Second)
		if got := endpointsOf(t, set, "web"); got != `endpoints "web" not found` {
			t.Errorf("without its service: %s", got)
		}
	})
}

// TestEndpointsOfTheServer: the service kubernetes leads to the APIs that answer; one that
// stopped is listed for as long as its lease lasts.
func TestEndpointsOfTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		if got := endpointsOf(t, set, "kubernetes"); got != fmt.Sprintf("[%s] | [] : [https/6443/TCP]", apiAddr) {
			t.Errorf("one API: %s", got)
		}
		up := newReadiness()
		stop := l.kube.ServeAPI(l.id, "etcd-1", l.control("cp-2", "10.0.0.12"), up.call)
		<-up.ch
		both := fmt.Sprintf("[%s 10.0.0.12] | [] : [https/6443/TCP]", apiAddr)
		if got := endpointsOf(t, set, "kubernetes"); got != both {
			t.Errorf("two APIs: %s, want %s", got, both)
		}
		slice, err := set.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil || len(slice.Endpoints) != 2 || !*slice.Endpoints[0].Conditions.Ready || slice.Labels["kubernetes.io/service-name"] != "kubernetes" {
			t.Errorf("slice %+v, %v", slice, err)
		}
		stop()
		time.Sleep(10 * time.Second)
		if got := endpointsOf(t, set, "kubernetes"); got != both {
			t.Errorf("right after one stopped: %s", got)
		}
		time.Sleep(6 * time.Second)
		if got := endpointsOf(t, set, "kubernetes"); got != fmt.Sprintf("[%s] | [] : [https/6443/TCP]", apiAddr) {
			t.Errorf("after its lease: %s", got)
		}
	})
}

// warnings are those of the answers to a client.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// TestEndpointsAreDeprecated: from v1.33 on every answer about them warns.
func TestEndpointsAreDeprecated(t *testing.T) {
	for version, want := range map[string][]string{
		"v1.36.1": {"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"},
		"v1.32.9": nil,
	} {
		t.Run(version, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *lab) {
				up, cp := newReadiness(), l.control("cp-1", apiAddr)
				cp.Kubernetes = version
				l.kube.ServeAPI(l.id, "etcd-1", cp, up.call)
				<-up.ch
				got := &warnings{}
				set := l.typedWarned(apiAddr, got)
				_, err := set.CoreV1().Endpoints("").List(ctx, metav1.ListOptions{})
				must(t, err)
				_, err = set.CoreV1().Services("").List(ctx, metav1.ListOptions{})
				must(t, err)
				if !slices.Equal(got.all, want) {
					t.Errorf("warnings %q, want %q", got.all, want)
				}
			})
		})
	}
}
