package proxmox

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
)

// TestActionsAskAgain: what an action rests on is asked when it is done, also right after a look that has asked the same; and the look
// that follows it shows what it did.
func TestActionsAskAgain(t *testing.T) {
	d := desired(2) // of which the second is not there yet
	n, ctx := d.Spec.Nodes[0], context.Background()
	other := strings.Replace(imageName, "v1.13.9", "v1.13.8", 1)
	for name, c := range map[string]struct {
		do    func(*stand, *Client) error
		shows func(cluster.Observed) bool
	}{
		"an upload": {
			func(s *stand, c *Client) error {
				b := append(s.imageBytes(), 0)
				return c.Upload(ctx, testHost, "local", other, int64(len(b)), bytes.NewReader(b), nil)
			},
			func(o cluster.Observed) bool { return o.Hosts[testHost].Images.Value[other] > 0 },
		},
		"a start": {
			func(s *stand, c *Client) error { s.must(s.host.Stop(n.VMID)); return c.Start(ctx, d, n, nil) },
			func(o cluster.Observed) bool { return o.VMs[n.Name].Power == cluster.PowerRunning },
		},
		"a deletion": {
			func(s *stand, c *Client) error { return c.Delete(ctx, d, vmOf(d), nil) },
			func(o cluster.Observed) bool { return o.VMs[n.Name].Presence == cluster.Absent },
		},
	} {
		var asked []string
		for _, looks := range []bool{false, true} {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				client := s.made(d)
				defer client.Close()
				var o cluster.Observed
				if looks {
					client.Observe(ctx, d, &o)
				}
				s.world.ForgetCalls()
				s.must(c.do(s, client))
				made := []string{}
				for _, call := range s.world.Calls() {
					made = append(made, call.Op)
				}
				asked = append(asked, fmt.Sprint(made))
				if client.Observe(ctx, d, &o); looks && !c.shows(o) {
					t.Errorf("%s: the look after it shows %+v, %+v", name, o.VMs[n.Name], o.Hosts[testHost].Images)
				}
			})
		}
		if asked[0] != asked[1] || len(asked[0]) < 10 {
			t.Errorf("%s: after a look it asks\n%s, and without one\n%s", name, asked[1], asked[0])
		}
	}
}

// TestFreeIsNotForgotten: that a VMID was free a moment ago is no reason to take a VM for absent that was there since.
func TestFreeIsNotForgotten(t *testing.T) {
	d := desired(1)
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		client := s.client()
		defer client.Close()
		presence := func() cluster.Presence {
			var o cluster.Observed
			client.Observe(t.Context(), d, &o)
			return o.VMs["dev-cp-1"].Presence
		}
		if got := presence(); got != cluster.Absent {
			t.Fatalf("at first: %v", got)
		}
		s.must(s.host.CreateForeign(411, pve.Foreign{Pool: testPool}))
		time.Sleep(4 * time.Second)
		if got := presence(); got != cluster.Present {
			t.Fatalf("somebody has made it: %v", got)
		}
		s.must(s.host.Remove(411))
		s.must(s.host.CreateForeign(411, pve.Foreign{}))
		time.Sleep(4 * time.Second)
		if got := presence(); got == cluster.Absent {
			t.Error("one that cannot be seen is absent")
		}
	})
}
