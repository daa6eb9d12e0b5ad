package probe

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

// TestRootAsksFewForTheTime: root asks time servers that a repository names where
// its nodes are, and sends nothing to others. The test runs itself in a network of
// its own, because the one who asks has many threads.
func TestRootAsksFewForTheTime(t *testing.T) {
	const inside = "TALOS_AGENT_OWN_NETWORK"
	if os.Getenv(inside) != "" {
		checkTimeServersAsked(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("it takes root to make a network")
	}
	self, err := os.Executable()
	must(err)
	cmd := exec.Command(self, "-test.run=^TestRootAsksFewForTheTime$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); errors.Is(err, unix.EPERM) {
		t.Skipf("no network namespaces here: %v", err)
	} else if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// checkTimeServersAsked has a host with the nodes' bridge, another network, and a way out.
func checkTimeServersAsked(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	must(errors.Join(err, netlink.LinkSetUp(lo)))
	for name, address := range map[string]string{"vmbr1": "10.10.0.2/24", "storage0": "10.99.0.2/24"} {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		at, err := netlink.ParseAddr(address)
		must(errors.Join(err, netlink.LinkAdd(link), netlink.AddrAdd(link, at), netlink.LinkSetUp(link)))
	}
	must(netlink.RouteAdd(&netlink.Route{Gw: []byte{10, 10, 0, 1}}))
	_, stop, err := hosttest.ServeTime("10.10.0.2:123", 0)
	must(err)
	defer stop()

	w := doctor.Wants{Bridges: []string{"vmbr1"}, Clusters: []doctor.Cluster{{Name: "dev", Nodes: []doctor.Node{{Name: "dev-cp-1", Bridge: "vmbr1"}},
		TimeServers: []string{"10.10.0.2", "10.10.0.9", "10.99.0.9", "192.0.2.7", "ntp.example.org"}}}}
	h := Inspector{Host: Host{Run: RunProgram}, Store: t.TempDir(), ConfigPath: t.TempDir() + "/config.yaml"}.Inspect(t.Context(), w)
	if f := h.TimeServers["10.10.0.2"]; !f.Known || f.Value.Abs() > 2*time.Second {
		t.Errorf("the server that answers: %+v", f)
	}
	if f, asked := h.TimeServers["10.10.0.9"]; !asked || f.Known {
		t.Errorf("the one of the bridge that does not: %v, %+v", asked, f)
	}
	if len(h.TimeServers) != 2 || h.NotAsked["10.99.0.9"] == "" || h.NotAsked["192.0.2.7"] == "" || h.NotAsked["ntp.example.org"] == "" {
		t.Errorf("asked %v, not asked %v", h.TimeServers, h.NotAsked)
	}
	// Whoever is sent something is looked for on the link first.
	all, err := netlink.NeighList(0, netlink.FAMILY_V4)
	must(err)
	looked := map[netip.Addr]bool{}
	for _, n := range all {
		if ip, ok := netip.AddrFromSlice(n.IP); ok {
			looked[ip.Unmap()] = true
		}
	}
	for text, want := range map[string]bool{"10.10.0.9": true, "10.10.0.1": false, "10.99.0.9": false} {
		if looked[netip.MustParseAddr(text)] != want {
			t.Errorf("somebody looked for %s: %v, want %v", text, !want, want)
		}
	}
}
