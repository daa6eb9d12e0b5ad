package proxmox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// chatty are guests that print.
type chatty struct{}

func (chatty) PowerOn(world.Guest)       {}
func (chatty) PowerOff(int)              {}
func (chatty) Shutdown(int, func()) bool { return false }
func (chatty) Console(vmid int) world.Printed {
	if vmid != 411 {
		return world.Printed{}
	}
	return world.Printed{Again: []string{"[talos] one", "[talos] two"}}
}

// guest makes a VM in the agent's pool that runs.
func (s *stand) guest(vmid int, config map[string]string) {
	s.t.Helper()
	if err := s.host.CreateForeign(vmid, pve.Foreign{Pool: testPool, Config: config, Running: true}); err != nil {
		s.t.Fatal(err)
	}
}

var serial = map[string]string{"serial0": "socket"}

// listen reads a console until it holds a text.
func listen(ctx context.Context, c *Client, vmid int, until string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	var printed strings.Builder
	err := c.Console(ctx, testHost, vmid, func(b []byte) error {
		printed.Write(b)
		if strings.Contains(printed.String(), until) {
			cancel()
		}
		return nil
	})
	return printed.String(), err
}

func TestConsole(t *testing.T) {
	inBubble(t, pve.Config{Guests: chatty{}}, func(t *testing.T, s *stand) {
		s.guest(411, serial)
		s.guest(412, serial)
		s.guest(413, nil)
		c := s.client()
		defer c.Close()
		printed, err := listen(t.Context(), c, 411, "two\r\n")
		if err != nil || !strings.HasSuffix(printed, "[talos] one\r\n[talos] two\r\n") || strings.Contains(printed, "OK") {
			t.Errorf("printed %q, %v", printed, err)
		}
		// Half an hour of silence is longer than termproxy bears without a ping.
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		if err := c.Console(ctx, testHost, 412, func([]byte) error { return nil }); err != nil || time.Since(began) < 30*time.Minute {
			t.Errorf("a silent console ended after %v: %v", time.Since(began), err)
		}
		broken := errors.New("nobody listens")
		if err := c.Console(t.Context(), testHost, 411, func([]byte) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("a reader that fails: %v", err)
		}
		if err := c.Console(t.Context(), testHost, 413, nil); !errors.Is(err, ErrNoConsole) || !strings.Contains(err.Error(), "unable to find a serial interface") {
			t.Errorf("without a serial port: %v", err)
		}
		if err := c.Console(t.Context(), testHost, 499, nil); !errors.Is(err, ErrNoConsole) {
			t.Errorf("a vm that is not there: %v", err)
		}
		// The host that goes away ends it.
		ended := make(chan error, 1)
		go func() { ended <- c.Console(t.Context(), testHost, 412, func([]byte) error { return nil }) }()
		time.Sleep(time.Second)
		s.link.Cut()
		if err := <-ended; !errors.Is(err, ErrNoConsole) {
			t.Errorf("a link that is cut: %v", err)
		}
	})
}

// TestConsoleOfAHurriedHost: a host that is simulated in less time has as much
// patience with its client, which lives in the time of the test.
func TestConsoleOfAHurriedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStandAt(t, 200, pve.Config{Guests: chatty{}})
		defer s.close()
		s.guest(412, serial)
		c := s.client()
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		if err := c.Console(ctx, testHost, 412, func([]byte) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// TestConsoleOf84: 8.4.21 lets a token at a terminal; before, none is, and the agent
// reports that.
func TestConsoleOf84(t *testing.T) {
	inBubble(t, pve.Config{Flavour: "8.4", Guests: chatty{}}, func(t *testing.T, s *stand) {
		s.guest(411, serial)
		c := s.client()
		defer c.Close()
		if got, err := listen(t.Context(), c, 411, "two"); err != nil {
			t.Errorf("8.4.21: %q, %v", got, err)
		}
		s.host.SetVersion("8.4.1")
		_, err := listen(t.Context(), c, 411, "two")
		if !errors.Is(err, ErrNoConsole) || !strings.Contains(fault.HintOf(err), "qm terminal 411") || strings.Contains(err.Error(), "PVEVNC") {
			t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
	})
}

func TestConsoleWithoutPrivilege(t *testing.T) {
	inBubble(t, pve.Config{Guests: chatty{}}, func(t *testing.T, s *stand) {
		s.guest(411, serial)
		s.host.Role("TalosAgentVM", "VM.Audit", "VM.Allocate")
		c := s.client()
		defer c.Close()
		err := c.Console(t.Context(), testHost, 411, nil)
		if !errors.Is(err, ErrNoConsole) || !strings.Contains(fault.HintOf(err), "give VM.Console on /pool/"+testPool) {
			t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
	})
}

// TestConsoleIsNoTask: a VM whose console somebody looks at is one that nothing runs on, and
// that settles, whoever that is.
func TestConsoleIsNoTask(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d := desired(20) // so many that not all are audited in each pass
		c := s.settled(d)
		defer c.Close()
		n := d.Spec.Nodes[1]
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Console(ctx, testHost, n.VMID, func([]byte) error { return nil }) }()
		time.Sleep(2 * time.Second)
		s.world.ForgetCalls()
		o := observe(c, d)
		if !slices.ContainsFunc(o.Hosts[testHost].Tasks.Value, func(t cluster.Task) bool { return t.VMID == n.VMID && isConsole(t) }) {
			t.Errorf("no console is open: %+v", o.Hosts[testHost].Tasks)
		}
		if vm := o.VMs[n.Name]; vm.Task != nil || vm.Owner != cluster.Ours {
			t.Errorf("%+v", vm)
		}
		if looks := s.count("GET /nodes/{node}/qemu/{vmid}/status/current"); looks != 0 {
			t.Errorf("%d vms were looked at", looks)
		}
		stop()
		s.must(<-ended)
	})
}

// TestConsoleTasks are those with which people look at a machine.
func TestConsoleTasks(t *testing.T) {
	for kind, want := range map[string]bool{"vncproxy": true, "spiceproxy": true, "qmstart": false, "": false} {
		if got := isConsole(cluster.Task{Type: kind}); got != want {
			t.Errorf("%q: %v", kind, got)
		}
	}
}
