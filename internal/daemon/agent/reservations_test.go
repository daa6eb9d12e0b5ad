package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/reservations"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// reservedFiles are the files of a cluster whose nodes get their addresses by DHCP.
func reservedFiles(t *testing.T, sz size) map[string][]byte {
	t.Helper()
	files := sz.Files()
	changed(t, files, "inventory/dev/cluster.yaml", "network:\n", "network:\n  address_mode: dhcp-reservation\n")
	return files
}

// reservation is the line of a node's reservation.
func reservation(node, ip string) string {
	return strings.ToLower(cluster.NodeMAC("BC:24:11", cluster.ClusterID("sim", "dev"), node, 0)) + "," + ip + "," + node
}

// listReservations returns the lines that a DHCP server finds, comments left out.
func listReservations(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, "#") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}

// reservingLab is a lab whose DHCP server knows some nodes.
func reservingLab(nodes map[string]string) lab.Config {
	c := lab.Config{Reservations: map[string]netip.Prefix{}}
	for node, ip := range nodes {
		mac, _, _ := strings.Cut(reservation(node, ip), ",")
		c.Reservations[mac] = netip.PrefixFrom(netip.MustParseAddr(ip), 20)
	}
	return c
}

// TestReservations: what a DHCP server must know is written before a VM is started that asks for it,
// is left alone after that, is what the inventory has, and is removed with a node and with the
// cluster.
func TestReservations(t *testing.T) {
	t.Parallel()
	nodes := map[string]string{"dev-cp-1": "10.10.0.11", "dev-wk-1": "10.10.0.41", "dev-wk-2": "10.10.0.42"}
	line := func(node string) string { return reservation(node, nodes[node]) }
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sim.old.x"), []byte("of another cluster\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const other = "of another cluster"
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		files := reservedFiles(t, sz)
		s := newSim(t, sz, reservingLab(nodes))
		defer s.Close()
		s.Push(files, "the cluster")
		writes := func(c *agent.Config) {
			c.Reservations, c.Clusters = reservations.New(dir, "sim"), nil
			c.OnReserved = func(name string, err error) {
				if err != nil {
					t.Errorf("reservations of %s: %v", name, err)
				}
			}
		}
		started := 0
		s.Lab.World.OnCall(func(c world.CallRecord) { // a machine that is started asks for its address
			s.Witness(c)
			if !c.Mutating || !strings.HasSuffix(c.Op, "/status/start") {
				return
			}
			if started++; started <= 3 && len(listReservations(t, dir)) < 4 || started > 3 && !slices.Contains(listReservations(t, dir), reservation("dev-wk-1", "10.10.0.49")) {
				t.Errorf("%v, and there are %q", c, listReservations(t, dir))
			}
		})
		s.Boot(writes)
		s.UntilReady(30 * time.Minute)
		if started != 3 {
			t.Errorf("%d machines were started", started)
		}
		all := []string{line("dev-cp-1"), line("dev-wk-1"), line("dev-wk-2"), other}
		if got := listReservations(t, dir); !slices.Equal(got, all) {
			t.Errorf("got  %q\nwant %q", got, all)
		}

		// What somebody removes comes back, and another life of the agent writes nothing.
		file := filepath.Join(dir, "sim.dev.dev-wk-1")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Minute)
		before, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		s.Halt()
		s.Boot(writes)
		time.Sleep(15 * time.Minute)
		if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
			t.Errorf("it was written again: %v", err)
		}

		// One that runs keeps its address whatever its ip becomes, until it gets a new machine.
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.41", "vmid: 541, ip: 10.10.0.49")
		s.Push(files, "another address")
		time.Sleep(30 * time.Minute)
		if got := listReservations(t, dir); !slices.Equal(got, all) {
			t.Errorf("with another ip: %q", got)
		}
		changed(t, files, "inventory/dev/nodes.yaml", "vmid: 541, ip: 10.10.0.49", "vmid: 541, ip: 10.10.0.41")
		s.Push(files, "the address of before")
		s.UntilReady(30 * time.Minute)

		// One that leaves keeps its address until its VM is deleted.
		withoutNode(t, files, "dev-wk-2")
		s.Push(files, "one less")
		s.Until(30*time.Minute, "dev-wk-2 is leaving", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Nodes, func(n cluster.NodeStatus) bool { return n.Name == "dev-wk-2" && len(n.Running) > 0 })
		})
		if got := listReservations(t, dir); !slices.Equal(got, all) {
			t.Errorf("while it leaves: %q", got)
		}
		s.UntilReady(time.Hour)
		all = []string{line("dev-cp-1"), line("dev-wk-1"), other}
		if got := listReservations(t, dir); !slices.Equal(got, all) {
			t.Errorf("got  %q\nwant %q", got, all)
		}

		// One that gets a new machine gets the address that the inventory has.
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.41", "replace: again, ip: 10.10.0.49")
		s.Push(files, "another machine at another address")
		all = []string{line("dev-cp-1"), reservation("dev-wk-1", "10.10.0.49"), other}
		s.Until(time.Hour, "reserved", func(cluster.Status) bool { return slices.Equal(listReservations(t, dir), all) })
		s.Halt()
	})
}

// TestReservationsCannotBeWritten: it is reported with the path, the cluster comes up all the same
// where the server knows its nodes, and what is there is right as soon as it can be written.
func TestReservationsCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1}
		s := newSim(t, sz, reservingLab(map[string]string{"dev-cp-1": "10.10.0.11"}))
		defer s.Close()
		s.Push(reservedFiles(t, sz), "the cluster")
		var mu sync.Mutex
		var last error
		failed := func() error {
			mu.Lock()
			defer mu.Unlock()
			return last
		}
		s.Boot(func(c *agent.Config) {
			c.Reservations = reservations.New(dir, "sim")
			c.OnReserved = func(name string, err error) {
				mu.Lock()
				defer mu.Unlock()
				if last = err; err != nil {
					last = fmt.Errorf("%s: %w", name, err)
				}
			}
		})
		s.UntilReady(30 * time.Minute)
		if err := failed(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "dev: ") || !strings.Contains(err.Error(), dir) {
			t.Errorf("it is reported as %v", err)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Minute)
		if got := listReservations(t, dir); failed() != nil || !slices.Equal(got, []string{reservation("dev-cp-1", "10.10.0.11")}) {
			t.Errorf("there are %q, %v", got, failed())
		}
		s.Halt()
	})
}

// TestReservationsOfARemovedCluster: they stay while anything is left of the cluster, and none are
// written of one whose nodes have static addresses.
func TestReservationsOfARemovedCluster(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"reserved", "static"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "sim.dev.dev-cp-9"), []byte("of a node of before\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				sz := size{ControlPlanes: 1}
				files, want := sz.Files(), []string(nil)
				if mode == "reserved" {
					files, want = reservedFiles(t, sz), []string{reservation("dev-cp-1", "10.10.0.11")}
				}
				s := newSim(t, sz, reservingLab(map[string]string{"dev-cp-1": "10.10.0.11"}))
				defer s.Close()
				s.Push(files, "the cluster")
				s.Boot(func(c *agent.Config) { c.Reservations, c.Clusters = reservations.New(dir, "sim"), nil })
				s.UntilReady(30 * time.Minute)
				if got := listReservations(t, dir); !slices.Equal(got, want) {
					t.Errorf("got  %q\nwant %q", got, want)
				}
				removed := map[string][]byte{"inventory/README.md": []byte("the folder of clusters stays\n")}
				for name := range files {
					removed[name] = nil
				}
				s.Push(removed, "remove dev")
				time.Sleep(time.Hour)
				if got := listReservations(t, dir); !slices.Equal(got, want) {
					t.Errorf("while machines are left: %q", got)
				}
				must(s.Cluster().Destroy(nil, nil))
				time.Sleep(time.Hour)
				if got := listReservations(t, dir); len(got) > 0 || len(s.Agent.Clusters()) > 0 {
					t.Errorf("there are %q, of %v", got, s.Agent.Clusters())
				}
				s.Halt()
			})
		})
	}
}

// TestReservationsOfOtherMachines: a repository that names the MAC of another machine has no address written for
// that, unless the host's policy allows it; the other nodes have theirs, and it is reported.
func TestReservationsOfOtherMachines(t *testing.T) {
	t.Parallel()
	const printer = "00:80:77:00:00:01"
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 2}
		files := reservedFiles(t, sz)
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.41", "mac: \""+printer+"\", ip: 10.10.0.41")
		changed(t, files, "inventory/dev/nodes.yaml", "ip: 10.10.0.42", "mac: \"00:80:77:00:00:02\", ip: 10.10.0.42")
		s := newSim(t, sz, reservingLab(map[string]string{"dev-cp-1": "10.10.0.11"}))
		defer s.Close()
		s.Push(files, "the cluster")
		var mu sync.Mutex
		var last error
		failed := func() error {
			mu.Lock()
			defer mu.Unlock()
			return last
		}
		allowed := func(c *agent.Config) {
			c.Reservations = reservations.New(dir, "sim")
			c.OnReserved = func(_ string, err error) {
				mu.Lock()
				defer mu.Unlock()
				last = err
			}
		}
		s.Boot(allowed)
		time.Sleep(15 * time.Minute)
		plane := reservation("dev-cp-1", "10.10.0.11")
		if got := listReservations(t, dir); !slices.Equal(got, []string{plane}) {
			t.Errorf("there are %q", got)
		}
		if err := failed(); err == nil || !strings.Contains(err.Error(), printer+" may be another machine's") || !strings.Contains(err.Error(), "nor are 1 more") || !strings.Contains(fault.HintOf(err), "macs:") {
			t.Errorf("it is reported as %v (%s)", err, fault.HintOf(err))
		}
		s.Halt()
		s.Boot(func(c *agent.Config) {
			allowed(c)
			policy := c.Policy()
			policy.MACs = []string{"BC:24:11", "00:80:77"}
			c.Policy = func() cluster.Policy { return policy }
		})
		time.Sleep(15 * time.Minute)
		if got := listReservations(t, dir); failed() != nil || !slices.Equal(got, []string{plane, printer + ",10.10.0.41,dev-wk-1", "00:80:77:00:00:02,10.10.0.42,dev-wk-2"}) {
			t.Errorf("there are %q, %v", got, failed())
		}
		s.Halt()
	})
}

// TestReservationsThatCannotBeRemoved: those of a cluster that is not managed any more are reported until they are
// removed, also when nothing else is reported of it.
func TestReservationsThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1}
		files := reservedFiles(t, sz)
		s := newSim(t, sz, reservingLab(map[string]string{"dev-cp-1": "10.10.0.11"}))
		defer s.Close()
		s.Push(files, "the cluster")
		var mu sync.Mutex
		failures, last := 0, error(nil)
		s.Boot(func(c *agent.Config) {
			c.Reservations, c.Clusters = reservations.New(dir, "sim"), nil
			c.OnReserved = func(_ string, err error) {
				mu.Lock()
				defer mu.Unlock()
				if last = err; err != nil {
					failures++
				}
			}
		})
		s.UntilReady(30 * time.Minute)
		must(os.Remove(filepath.Join(dir, "sim.dev.dev-cp-1")))
		must(os.MkdirAll(filepath.Join(dir, "sim.dev.dev-cp-1", "x"), 0o755)) // which no remove takes
		removed := map[string][]byte{"inventory/README.md": []byte("the folder of clusters stays\n")}
		for name := range files {
			removed[name] = nil
		}
		s.Push(removed, "remove dev")
		time.Sleep(time.Hour)
		must(s.Cluster().Destroy(nil, nil))
		time.Sleep(time.Hour)
		mu.Lock()
		if len(s.Agent.Clusters()) > 0 || failures < 2 || last == nil || !strings.Contains(last.Error(), "remove sim.dev.dev-cp-1 in "+dir) {
			t.Errorf("%v: %d failures, the last is %v", s.Agent.Clusters(), failures, last)
		}
		mu.Unlock()
		must(os.Remove(filepath.Join(dir, "sim.dev.dev-cp-1", "x")))
		time.Sleep(15 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if _, err := os.Stat(filepath.Join(dir, "sim.dev.dev-cp-1")); !errors.Is(err, os.ErrNotExist) || last != nil {
			t.Errorf("it is left: %v, %v", err, last)
		}
		s.Halt()
	})
}
