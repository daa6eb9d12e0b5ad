package talos_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// specs lists what a node shows of a type, as text.
func specs[R generic.ResourceWithRD](ctx context.Context, l *lab, n node, text func(R) string) []string {
	l.t.Helper()
	list, err := safe.StateListAll[R](ctx, l.admin(n).COSI)
	if err != nil {
		l.t.Fatal(err)
	}
	all := []string{}
	for r := range list.All() {
		all = append(all, text(r))
	}
	slices.Sort(all)
	return all
}

// TestNodeSpecs: what a config wants of the Node and of the kernel is shown as soon as it is
// active, and no longer than that.
func TestNodeSpecs(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), wk(1))
		ctx := within(time.Hour)
		shown := func() string {
			return fmt.Sprint(
				specs(ctx, l, wk(1), func(r *k8s.NodeLabelSpec) string { return r.TypedSpec().Key + "=" + r.TypedSpec().Value }),
				specs(ctx, l, wk(1), func(r *k8s.NodeTaintSpec) string {
					return r.TypedSpec().Key + "=" + r.TypedSpec().Value + ":" + r.TypedSpec().Effect
				}),
				specs(ctx, l, wk(1), func(r *runtimeres.KernelParamStatus) string {
					return fmt.Sprintf("%s %q, was %q", r.Metadata().ID(), r.TypedSpec().Current, r.TypedSpec().Default)
				}))
		}
		for _, tc := range []struct{ patch, want string }{
			{"machine: {nodeLabels: {zone: a, team: blue}, nodeTaints: {dedicated: \"db:NoSchedule\"}, sysctls: {net.ipv4.ip_local_port_range: 20000 60000}}",
				`[team=blue zone=a] [dedicated=db:NoSchedule] [proc.sys.net.ipv4.ip_local_port_range "20000 60000", was "32768\t60999"]`},
			{"machine: {nodeLabels: {zone: b}}", `[zone=b] [] []`},
			{"machine: {env: {}}", `[] [] []`},
		} {
			if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.13.9", tc.patch), noReboot); err != nil {
				t.Fatal(err)
			}
			if got := shown(); got != tc.want {
				t.Errorf("with %s: %s, want %s", tc.patch, got, tc.want)
			}
		}
	})
}

// TestKubeletArguments: other arguments restart the kubelet alone, whose Node stays.
func TestKubeletArguments(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), wk(1))
		before, _ := l.kube.kubelet("w1")
		if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.13.9", "machine: {kubelet: {extraArgs: {v: \"3\"}}}"), noReboot); err != nil {
			t.Fatal(err)
		}
		if st := status(t, l.admin(wk(1))); st.Status.Ready {
			t.Error("ready although the kubelet does not run")
		}
		time.Sleep(10 * time.Second)
		after, _ := l.kube.kubelet("w1")
		if st := status(t, l.admin(wk(1))); !st.Status.Ready || fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("afterwards %+v, and Kubernetes knows %+v, which was %+v", st, after, before)
		}
	})
}

// TestFurtherAddresses are shown while the config has them.
func TestFurtherAddresses(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), wk(1))
		const second = "apiVersion: v1alpha1\nkind: LinkConfig\nname: ens18\naddresses: [{address: 10.5.0.21/24}, {address: 10.5.0.121/24}]\n"
		want := func(patches []string, id string, addresses ...string) {
			t.Helper()
			if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.13.9", patches...), noReboot); err != nil {
				t.Fatal(err)
			}
			r, err := safe.StateGetByID[*network.NodeAddress](within(time.Second), l.admin(wk(1)).COSI, id)
			if err != nil {
				t.Fatal(err)
			}
			var prefixes []netip.Prefix
			for _, a := range addresses {
				prefixes = append(prefixes, netip.MustParsePrefix(a))
			}
			if !slices.Equal(r.TypedSpec().Addresses, prefixes) {
				t.Errorf("%s: %v, want %v", id, r.TypedSpec().Addresses, prefixes)
			}
			links := specs(within(time.Second), l, wk(1), func(r *network.AddressStatus) string { return r.Metadata().ID() })
			if slices.Contains(links, "ens18/10.5.0.121/24") != (len(patches) > 0) {
				t.Errorf("addresses of links %v", links)
			}
		}
		want([]string{second}, network.NodeAddressCurrentID, "10.5.0.21/24", "10.5.0.121/24")
		want([]string{second}, network.NodeAddressDefaultID, "10.5.0.21/24")
		want(nil, network.NodeAddressCurrentID, "10.5.0.21/24")
	})
}

// TestSchedulerRestartsTheAPI: a change of the scheduler restarts the kube-apiserver of its
// node, whose pod names the configs of both, once the kubelet sees it.
func TestSchedulerRestartsTheAPI(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		started := func() int {
			l.kube.mu.Lock()
			defer l.kube.mu.Unlock()
			return len(l.kube.apis)
		}
		// versions are those of the pods that the machine has, and that its kubelet was given.
		versions := func() (out []string) {
			out = append(out, specs(within(time.Second), l, cp(1), func(r *k8s.StaticPod) string {
				return fmt.Sprint(r.Metadata().ID(), r.TypedSpec().Pod["metadata"].(map[string]any)["annotations"])
			})...)
			l.kube.mu.Lock()
			defer l.kube.mu.Unlock()
			for _, p := range l.kube.static["cp1"] {
				out = append(out, fmt.Sprint(p.Name, p.Versions))
			}
			return out
		}
		const secrets = " talos.dev/secrets-version:1]"
		same := func(api, manager, scheduler string) (out []string) {
			for range 2 {
				out = append(out, "kube-apiservermap[talos.dev/config-file-version:"+api+secrets, "kube-controller-managermap[talos.dev/config-version:"+manager+secrets, "kube-schedulermap[talos.dev/config-version:"+scheduler+secrets)
			}
			return out
		}
		for _, tc := range []struct {
			patch                   string
			starts                  int
			api, manager, scheduler string
		}{
			{"cluster: {scheduler: {image: registry.k8s.io/kube-scheduler:v1.36.0}}", 2, "1112 talos.dev/config-version:1", "1", "2"},
			{"cluster: {scheduler: {image: registry.k8s.io/kube-scheduler:v1.36.0}}\nmachine: {nodeLabels: {a: b}}", 2, "1112 talos.dev/config-version:1", "1", "2"},
			{"cluster: {scheduler: {image: registry.k8s.io/kube-scheduler:v1.36.0, extraArgs: {v: \"3\"}}}", 3, "1113 talos.dev/config-version:1", "1", "3"},
			{"cluster: {controllerManager: {extraArgs: {v: \"3\"}}, scheduler: {image: registry.k8s.io/kube-scheduler:v1.36.0, extraArgs: {v: \"3\"}}}", 3, "1113 talos.dev/config-version:1", "2", "3"},
		} {
			before := started()
			if err := l.applyConfigured(cp(1), l.config(cp(1), "v1.13.9", tc.patch), noReboot); err != nil {
				t.Fatal(err)
			}
			if got := versions(); !slices.Equal(got, same(tc.api, tc.manager, tc.scheduler)) {
				t.Errorf("with %s: %q", tc.patch, got)
			}
			if got := started(); got != before {
				t.Errorf("with %s: %d starts at once, want %d", tc.patch, got, before)
			}
			time.Sleep(l.world.Latency.Manifest + time.Second)
			if got := started(); got != tc.starts || len(l.kube.serving()) != 1 {
				t.Errorf("with %s: %d starts, want %d, and %d serve", tc.patch, got, tc.starts, len(l.kube.serving()))
			}
		}
	})
}
