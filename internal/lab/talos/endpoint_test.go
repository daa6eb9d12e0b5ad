package talos_test

import (
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// endpointAt is a patch that turns discovery off and sets the endpoint.
func endpointAt(host string) string {
	return "cluster: {discovery: {enabled: false}, controlPlane: {endpoint: \"https://" + host + ":6443\"}}"
}

// serviceState is the state of a service of a node.
func (l *lab) serviceState(n node, id string) string {
	l.t.Helper()
	resp, err := l.admin(n).ServiceInfo(within(time.Second), id)
	if err != nil || len(resp) != 1 {
		l.t.Fatalf("service %s of %s: %v, %v", id, n.name, resp, err)
	}
	return resp[0].Service.GetState()
}

// TestJoinFollowsTheEndpoint: a control plane finds the etcd of the others through the endpoint
// in its config, unless discovery is on.
func TestJoinFollowsTheEndpoint(t *testing.T) {
	const vip = "---\napiVersion: v1alpha1\nkind: Layer2VIPConfig\nname: 10.5.0.5\nlink: ens18\n"
	for _, tc := range []struct {
		name, patch string
		joins       bool
	}{
		{"that of a member", endpointAt("10.5.0.11"), true},
		{"a virtual address that a member has", endpointAt("10.5.0.5") + "\n" + vip, true},
		{"a virtual address that no member has", endpointAt("10.5.0.5"), false},
		{"its own", endpointAt("10.5.0.12"), false},
		{"an address of no machine", endpointAt("10.5.0.99"), false},
		{"a name, which is resolved somewhere else", endpointAt("kube.example.org"), true},
		{"its own, and discovery", `cluster: {controlPlane: {endpoint: "https://10.5.0.12:6443"}}`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				for _, n := range []node{cp(1), cp(2)} {
					l.fleet.PowerOn(n.guest("v1.13.9"))
				}
				time.Sleep(time.Minute)
				for _, n := range []node{cp(1), cp(2)} {
					l.apply(n, l.config(n, "v1.13.9", tc.patch))
				}
				time.Sleep(5 * time.Second)
				l.bootstrap(cp(1))
				// No API is up so soon, and none is waited for.
				time.Sleep(l.world.Latency.Etcd + l.world.Latency.Learn + 2*time.Second)
				if apis := l.kube.serving(); tc.joins && (len(apis) == 0 || apis[0].up) {
					t.Fatalf("%+v, want an API that starts", apis)
				}
				if joined := l.view(cp(2)).Etcd != ""; joined != tc.joins {
					t.Errorf("it joined: %v, want %v", joined, tc.joins)
				}
				time.Sleep(5 * time.Minute)
				if joined := l.view(cp(2)).Etcd != ""; joined != tc.joins {
					t.Errorf("later it joined: %v, want %v", joined, tc.joins)
				}
				if tc.joins {
					return
				}
				if state := l.serviceState(cp(2), "etcd"); state != "Preparing" {
					t.Errorf("its etcd is %s, want one that waits", state)
				}
				l.wantStage(cp(2), booting)
				_, list := l.members(cp(2), false)
				if client.StatusCode(list) != codes.DeadlineExceeded {
					t.Errorf("asked for members: %v, want no answer", list)
				}
				// It follows the endpoint of another config, too.
				if err := l.applyConfigured(cp(2), l.config(cp(2), "v1.13.9", endpointAt("10.5.0.11")), machineapi.ApplyConfigurationRequest_NO_REBOOT); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				l.wantMembers(cp(2), "cp1", "cp2")
			})
		})
	}
}

// TestReplacedEndpoint: a control plane whose address is the endpoint looks for etcd at itself
// when its disk is a fresh one, and its old member stays listed. The others know each other
// from before.
func TestReplacedEndpoint(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		nodes := []node{cp(1), cp(2), cp(3)}
		configure := func(n node) {
			l.fleet.PowerOn(n.guest("v1.13.9"))
			time.Sleep(time.Minute)
			l.apply(n, l.config(n, "v1.13.9", endpointAt("10.5.0.11")))
			time.Sleep(5 * time.Second)
		}
		for _, n := range nodes {
			configure(n)
		}
		l.bootstrap(cp(1))
		time.Sleep(3 * time.Minute)
		l.wantMembers(cp(2), "cp1", "cp2", "cp3")
		l.fleet.PowerOff(401)
		l.wantMembers(cp(2), "cp1", "cp2", "cp3")
		configure(cp(1))
		time.Sleep(10 * time.Minute)
		if v := l.view(cp(1)); v.Etcd != "" || v.Stage != booting {
			t.Errorf("the new machine: %+v, want one that looks for etcd", v)
		}
		l.wantMembers(cp(2), "cp1", "cp2", "cp3")
	})
}

// TestDataNeedsNoEndpoint: a control plane that has data of etcd starts it, and ends its boot,
// without anybody at its endpoint.
func TestDataNeedsNoEndpoint(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		nodes := []node{cp(1), cp(2), cp(3)}
		l.cluster(nodes...)
		for _, n := range nodes {
			if err := l.applyConfigured(n, l.config(n, "v1.13.9", endpointAt("10.5.0.99")), machineapi.ApplyConfigurationRequest_NO_REBOOT); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range nodes {
			if err := l.fleet.Reboot(n.vmid); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute)
		for _, n := range nodes {
			if v := l.view(n); !v.Healthy || v.Stage != running {
				t.Errorf("without an endpoint: %+v", v)
			}
		}
	})
}
