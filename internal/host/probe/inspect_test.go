package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
)

// TestInspectEnds: however many programs it takes, a busy host is not waited for
// longer than for one, and what was not seen says so.
func TestInspectEnds(t *testing.T) {
	root := t.TempDir()
	must(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	must(os.WriteFile(filepath.Join(root, "usr/bin/pvesh"), nil, 0o755))
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
			select {
			case <-time.After(runTimeout - time.Second):
				return []byte("{}"), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		began := time.Now()
		h := Inspector{ConfigPath: filepath.Join(root, "config.yaml"), Store: filepath.Join(root, "store"), Host: Host{Root: root, Run: slow}}.Inspect(t.Context(), doctor.Wants{Token: "talos-agent@pve!pve1"})
		if took := time.Since(began); took > runTimeout {
			t.Errorf("it took %v", took)
		}
		for what, f := range map[string]doctor.Fact[bool]{"separation": {Why: h.Separation.Why, Hint: h.Separation.Hint}, "others": {Why: h.Others.Why, Hint: h.Others.Hint}} {
			if !strings.Contains(f.Why, "not done within 2m0s") || !strings.Contains(f.Hint, "run it again") {
				t.Errorf("%s: %+v", what, f)
			}
		}
	})
}

// TestListenersIn reads what the kernel of a Proxmox VE host with dnsmasq on a
// bridge showed.
func TestListenersIn(t *testing.T) {
	const table = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 1203: 010A0A0A:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000   106        0 19346 2 0000000000000000 0
 1217: 00000000:0043 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 19341 2 0000000000000000 0
 1217: 0200A8C0:0043 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 19342 2 0000000000000000 0
 1473: 00000000:0143 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 22001 2 0000000000000000 0
`
	got, err := parseListeners(table, dhcpPort)
	if want := []netip.Addr{netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("192.168.0.2")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := parseListeners(table[:strings.Index(table, "\n")+1], dhcpPort); err != nil || len(got) > 0 {
		t.Errorf("no socket: %v, %v", got, err)
	}
	if _, err := parseListeners("head\n x y\n", dhcpPort); err == nil {
		t.Error("what is no table is read as one")
	}
	if f := findDHCPListeners(filepath.Join(t.TempDir(), "none")); f.Known || f.Why == "" {
		t.Errorf("a table that is not there: %+v", f)
	}
}

// TestFilesOfHost: modes and owners are read as they are.
func TestFilesOfHost(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		hosttest.Write(t, path, "x", mode)
		return path
	}
	store := filepath.Join(dir, "credstore")
	must(os.Mkdir(store, 0o755))
	hosttest.Write(t, filepath.Join(store, "talos-agent.age.key"), "x", 0o640)
	hosttest.Write(t, filepath.Join(store, "another.secret"), "x", 0o644)
	hosttest.Write(t, filepath.Join(store, "talos-agent.ssh.key.pub"), "everybody may read it", 0o644)
	v := Inspector{ConfigPath: file("config.yaml", 0o640), Store: store, Used: []config.UsedFile{
		{Path: filepath.Join(dir, "config.yaml"), Kind: doctor.ConfigFile}, {Path: file("policy.yaml", 0o666), Kind: doctor.PolicyFile},
		{Path: file("age.key", 0o644), Kind: doctor.KeyFile}, {Path: file("ca.pem", 0o644), Kind: doctor.PublicFile}, {Path: dir},
		{Path: filepath.Join(dir, "none.token"), Kind: doctor.KeyFile}, {Path: filepath.Join(store, "talos-agent.age.key"), Kind: doctor.KeyFile}}}
	got := map[string]doctor.File{}
	for _, f := range v.listFiles() {
		got[filepath.Base(f.Path)] = f
	}
	for name, want := range map[string]doctor.File{
		"config.yaml": {Is: doctor.ConfigFile, Mode: 0o640}, "policy.yaml": {Is: doctor.PolicyFile, Mode: 0o666}, "age.key": {Is: doctor.KeyFile, Mode: 0o644},
		"ca.pem": {Is: doctor.PublicFile, Mode: 0o644}, "credstore": {Is: doctor.StoreFile, Mode: 0o755, Dir: true}, "talos-agent.age.key": {Is: doctor.StoreFile, Mode: 0o640},
	} {
		if f := got[name]; f.Is != want.Is || f.Mode != want.Mode || f.Dir != want.Dir || f.Owner == "" || f.Group == "" {
			t.Errorf("%s: %+v, want %+v", name, f, want)
		}
	}
	if len(got) != 7 { // and the folder of the config
		t.Errorf("%d files: %v", len(got), got)
	}
	failed := 0
	for _, c := range (doctor.Host{Files: v.listFiles()}).Judge() {
		if c.Name == "files" && c.Level == doctor.Fail {
			failed++
		}
	}
	if failed < 4 { // policy, key, store, credential
		t.Errorf("%d of the wrong modes are found", failed)
	}
	if f := statFile(filepath.Join(dir, "none"), doctor.KeyFile); f.Err == "" || strings.Contains(f.Err, dir) {
		t.Errorf("a file that is not there: %+v", f)
	}
}

// TestClockOfHost: the kernel has an answer, whatever it is here.
func TestClockOfHost(t *testing.T) {
	if f := readClock(); !f.Known && f.Why == "" {
		t.Errorf("%+v", f)
	}
}

// TestAskTime speaks to a time server of its own.
func TestAskTime(t *testing.T) {
	const ahead = time.Minute
	at, stop, err := hosttest.ServeTime("127.0.0.1:0", ahead)
	must(err)
	defer stop()
	off, err := queryTime(t.Context(), at)
	if err != nil || (off-ahead).Abs() > 2*time.Second {
		t.Errorf("ahead by %v, %v", off, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := queryTime(ctx, "127.0.0.1:1"); err == nil {
		t.Error("nobody answers, and that is no error")
	}
}

// TestNeighbours looks for neighbours in a network of its own: a bridge with an
// address, and behind it another machine.
func TestNeighbours(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to make a network")
	}
	done := make(chan error)
	go func() {
		// The thread is in another network from now on, and ends with this
		// goroutine.
		runtime.LockOSThread()
		done <- checkNetwork(t)
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		t.Skipf("no network namespaces here: %v", err)
	} else if err != nil {
		t.Error(err)
	}
}

func checkNetwork(t *testing.T) error {
	other, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { _ = other.Close() }()
	host, err := netns.New() // and stay there
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	there, err := netlink.NewHandleAt(other)
	if err != nil {
		return err
	}
	defer there.Close()
	const mac = "bc:24:11:00:00:21"
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "vmbr1"}}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tap521i0"}, PeerName: "eth0"}
	address := func(text string) *netlink.Addr { a, err := netlink.ParseAddr(text); must(err); return a }
	lo, err := netlink.LinkByName("lo")
	if err := errors.Join(err, netlink.LinkSetUp(lo), netlink.LinkAdd(bridge), netlink.AddrAdd(bridge, address("10.10.0.2/24")), netlink.LinkAdd(pair)); err != nil {
		return err
	}
	peer, err := netlink.LinkByName("eth0")
	if err := errors.Join(err, netlink.LinkSetNsFd(peer, int(other)), netlink.LinkSetMaster(pair, bridge), netlink.LinkSetUp(pair), netlink.LinkSetUp(bridge)); err != nil {
		return err
	}
	if peer, err = there.LinkByName("eth0"); err != nil {
		return err
	}
	hw, err := net.ParseMAC(mac)
	if err := errors.Join(err, there.LinkSetHardwareAddr(peer, hw), there.AddrAdd(peer, address("10.10.0.21/24")), there.LinkSetUp(peer)); err != nil {
		return err
	}
	far := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 20, 0, 0), Mask: net.CIDRMask(16, 32)}, Gw: net.IPv4(10, 10, 0, 21)}
	if err := netlink.RouteAdd(far); err != nil {
		return err
	}
	ctx := t.Context()
	const was = "bc:24:11:00:00:99"
	gone, err := net.ParseMAC(was)
	if err := errors.Join(err, netlink.NeighSet(&netlink.Neigh{LinkIndex: bridge.Index, IP: net.IPv4(10, 10, 0, 23), HardwareAddr: gone, State: netlink.NUD_STALE})); err != nil {
		return err
	}
	node := func(text, mac string) doctor.Node {
		return doctor.Node{Name: text, IP: netip.MustParseAddr(text), MAC: strings.ToUpper(mac), Bridge: "vmbr1"}
	}
	wants := doctor.Wants{Clusters: []doctor.Cluster{{Nodes: []doctor.Node{
		node("10.10.0.21", ""), node("10.10.0.22", ""), node("10.10.0.2", ""), node("10.20.0.1", ""), node("10.10.0.23", "")}}}}
	for text, want := range map[string]doctor.Way{
		"10.10.0.23": {Link: "vmbr1"},                // somebody's who answered earlier, and has left
		"10.10.0.9":  {Link: "vmbr1", Unasked: true}, // nobody's
		"10.10.0.21": {Link: "vmbr1", MAC: strings.ToUpper(mac)},
		"10.10.0.22": {Link: "vmbr1"},
		"10.10.0.2":  {Link: "lo", Loopback: true},
		"10.20.0.1":  {Link: "vmbr1", Via: netip.MustParseAddr("10.10.0.21")},
	} {
		if got, err := findWay(ctx, wants, netip.MustParseAddr(text)); err != nil || got != want {
			t.Errorf("the way to %s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	if w, err := findWay(ctx, wants, netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Errorf("a way to nowhere: %+v", w)
	}
	all, err := listNeighbours()
	if want := (doctor.Neighbour{Link: "vmbr1", IP: netip.MustParseAddr("10.10.0.21"), MAC: strings.ToUpper(mac)}); err != nil || !slices.Contains(all, want) || len(all) != 1 {
		t.Errorf("neighbours: %+v, %v", all, err)
	}
	// The tables that need no socket are those of the same network.
	if got, want := FindTaken(), []netip.Addr{netip.MustParseAddr("10.10.0.2"), netip.MustParseAddr("10.10.0.21")}; !slices.Equal(got, want) {
		t.Errorf("addresses of this host and its router: %v, want %v", got, want)
	}
	if got := FindMAC(netip.MustParseAddr("10.10.0.21")); got != strings.ToUpper(mac) {
		t.Errorf("the MAC of the machine on the bridge: %q", got)
	}
	if err := checkEarlierAnswers(ctx, t, bridge.Index, gone); err != nil {
		return err
	}

	const table = "/proc/thread-self/net/udp"
	if f := findDHCPListeners(table); !f.Known || len(f.Value) > 0 {
		t.Errorf("DHCP servers before there is one: %+v", f)
	}
	server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 10, 0, 2), Port: dhcpPort})
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	if f := findDHCPListeners(table); !f.Known || !slices.Equal(f.Value, []netip.Addr{netip.MustParseAddr("10.10.0.2")}) {
		t.Errorf("DHCP servers: %+v", f)
	}
	if f := listAddresses(); !f.Known || !slices.Contains(f.Value["vmbr1"], netip.MustParsePrefix("10.10.0.2/24")) {
		t.Errorf("addresses: %+v", f)
	}
	return nil
}

// checkEarlierAnswers looks for one whom the kernel knows from earlier: nothing is waited
// for where it is the one that should be there, and it is no answer where it is not.
func checkEarlierAnswers(ctx context.Context, t *testing.T, link int, mac net.HardwareAddr) error {
	at := netip.MustParseAddr("10.10.0.24")
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link, IP: at.AsSlice(), HardwareAddr: mac, State: netlink.NUD_STALE}); err != nil {
		return err
	}
	want := strings.ToUpper(mac.String())
	if got, earlier, err := resolveNeighbour(ctx, link, at, func(mac string) bool { return mac == want }); err != nil || got != want || earlier {
		t.Errorf("the one that should be there: %q, %v, %v", got, earlier, err)
	}
	short, cancel := context.WithTimeout(ctx, 2*time.Second) // the kernel asks after five
	defer cancel()
	if got, earlier, err := resolveNeighbour(short, link, at, func(string) bool { return false }); err != nil || got != want || !earlier {
		t.Errorf("another: %q, %v, %v", got, earlier, err)
	}
	return nil
}
