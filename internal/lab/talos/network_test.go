package talos_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestMaintenanceCertificate(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(cp(1).guest("v1.13.9"))
		time.Sleep(time.Minute)
		raw, err := l.world.Net.DialContext(within(time.Second), "tcp", "10.5.0.11:50000")
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		asked := false
		c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &tls.Certificate{}, nil
		}})
		if err := c.HandshakeContext(within(time.Second)); err != nil {
			t.Fatal(err)
		}
		st := c.ConnectionState()
		leaf := st.PeerCertificates[0]
		var ips []string
		for _, ip := range leaf.IPAddresses {
			ips = append(ips, ip.String())
		}
		if asked || st.Version != tls.VersionTLS13 || leaf.Subject.CommonName != "maintenance-service.talos.dev" || leaf.Issuer.String() != "" ||
			leaf.PublicKeyAlgorithm.String() != "Ed25519" || !slices.Equal(leaf.DNSNames, []string{"cp1"}) ||
			!slices.Equal(ips, []string{"10.5.0.11", "127.0.0.1", "::1"}) {
			t.Errorf("certificate asked %v, version %x, %+v", asked, st.Version, leaf)
		}
		if life := time.Until(leaf.NotAfter); life < 23*time.Hour || life > 24*time.Hour {
			t.Errorf("certificate lives %v, want a day", life)
		}
	})
}

// TestCertificatesAreRenewed lets more time pass than a certificate lives.
func TestCertificatesAreRenewed(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		for range 10 {
			if _, err := l.admin(cp(1)).Version(within(time.Second)); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Hour)
		}
	})
}

func TestAddresses(t *testing.T) {
	static := netip.MustParsePrefix("10.5.0.11/24")
	lease := netip.MustParsePrefix("10.5.0.77/24")
	for _, tc := range []struct {
		name     string
		platform string
		address  netip.Prefix
		lease    netip.Prefix
		want     string
	}{
		{"cloud-init drive", "nocloud", static, netip.Prefix{}, "10.5.0.11"},
		{"cloud-init drive before lease", "nocloud", static, lease, "10.5.0.11"},
		{"lease", "nocloud", netip.Prefix{}, lease, "10.5.0.77"},
		{"metal reads no cloud-init drive", "metal", static, lease, "10.5.0.77"},
		{"none", "nocloud", netip.Prefix{}, netip.Prefix{}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			change := func(c *talos.Config) { c.Reservations = map[string]netip.Prefix{"bc:24:11:00:01:91": tc.lease} }
			inBubbleWith(t, world.Config{}, change, func(l *lab) {
				g := cp(1).guest("v1.13.9")
				g.Address, g.Boot.Image.Platform = tc.address, tc.platform
				l.fleet.PowerOn(g)
				time.Sleep(time.Minute)
				l.wantStage(cp(1), maintenance)
				if tc.want == "" {
					if v := l.view(cp(1)); v.Address.IsValid() {
						t.Errorf("has address %v, want none", v.Address)
					}
					return
				}
				at := node{"cp1", 401, 0, tc.want}
				r, err := safe.StateGetByID[*network.LinkStatus](within(time.Second), l.insecure(at).COSI, "ens18")
				if err != nil {
					t.Fatal(err)
				}
				if mac := r.TypedSpec().PermanentAddr.String(); mac != "bc:24:11:00:01:91" {
					t.Errorf("hardware address %s", mac)
				}
				if !r.TypedSpec().Physical() {
					t.Error("the network card is not a physical link")
				}
			})
		})
	}
}

// TestConfigMovesTheMachine: the address in the config wins over the
// platform's, in every way of writing it.
func TestConfigMovesTheMachine(t *testing.T) {
	for _, tc := range []struct{ name, version, patch string }{
		{"alias and link", "v1.13.9", "apiVersion: v1alpha1\nkind: LinkAliasConfig\nname: lan0\nselector:\n  match: mac(link.permanent_addr) == \"bc:24:11:00:01:91\"\n" +
			"---\napiVersion: v1alpha1\nkind: LinkConfig\nname: lan0\naddresses: [{address: 10.5.0.99/24}]\n" +
			"---\napiVersion: v1alpha1\nkind: Layer2VIPConfig\nname: 10.5.0.5\nlink: lan0\n"},
		{"device selector", "v1.11.6", `machine: {network: {interfaces: [{deviceSelector: {hardwareAddr: "BC:24:11:00:01:91"}, addresses: [10.5.0.99/24], vip: {ip: 10.5.0.5}}]}}`},
		{"interface name", "v1.11.6", `machine: {network: {interfaces: [{interface: ens18, addresses: [10.5.0.99/24], vip: {ip: 10.5.0.5}}]}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.fleet.PowerOn(cp(1).guest(tc.version))
				time.Sleep(time.Minute)
				l.apply(cp(1), l.config(cp(1), tc.version, tc.patch))
				time.Sleep(5 * time.Second)
				moved := node{"cp1", 401, 0, "10.5.0.99"}
				l.bootstrap(moved)
				time.Sleep(time.Minute)
				if _, err := l.admin(cp(1)).Version(within(time.Second)); client.StatusCode(err) != codes.Unavailable {
					t.Errorf("the old address answers %v", err)
				}
				apis := l.kube.serving()
				if len(apis) != 1 || apis[0].VIP.String() != "10.5.0.5" || apis[0].Address.String() != "10.5.0.99" {
					t.Errorf("API was told %+v", apis)
				}
			})
		})
	}
}

// TestOtherLinksAreNotOurs: what a config sets for another card moves nothing.
func TestOtherLinksAreNotOurs(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(cp(1).guest("v1.13.9"))
		time.Sleep(time.Minute)
		l.apply(cp(1), l.config(cp(1), "v1.13.9", "apiVersion: v1alpha1\nkind: LinkConfig\nname: ens19\naddresses: [{address: 10.5.0.99/24}]\n"))
		time.Sleep(5 * time.Second)
		if _, err := l.admin(cp(1)).Version(within(time.Second)); err != nil {
			t.Error(err)
		}
	})
}

// TestNodeNetworkInsideServiceNetwork: such a node never finds its address.
func TestNodeNetworkInsideServiceNetwork(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		n := node{"cp1", 401, cp(1).kind, "10.99.0.11"}
		l.fleet.PowerOn(n.guest("v1.13.9"))
		time.Sleep(time.Minute)
		l.apply(n, l.config(n, "v1.13.9"))
		time.Sleep(time.Minute)
		_, err := l.admin(n).Version(within(time.Second))
		if err == nil || !strings.Contains(err.Error(), "valid for 127.0.0.1, ::1, not 10.99.0.11") {
			t.Errorf("mTLS at the node's address: %v", err)
		}
		if v := l.view(n); v.Stage != booting || v.Ready {
			t.Errorf("%+v", v)
		}
		if _, ok := l.kube.kubelet("cp1"); ok {
			t.Error("a kubelet runs without a node address")
		}
	})
}

// TestWorkerWaitsForAnAuthority: workers have no key of the machine CA, so
// that their API stays closed until the lab has seen a control plane's config.
func TestWorkerWaitsForAnAuthority(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(wk(1).guest("v1.13.9"))
		time.Sleep(time.Minute)
		l.apply(wk(1), l.config(wk(1), "v1.13.9"))
		time.Sleep(time.Minute)
		if _, err := l.admin(wk(1)).Version(within(time.Second)); client.StatusCode(err) != codes.Unavailable {
			t.Errorf("a worker without a certificate answers %v", err)
		}
		l.bring("v1.13.9", cp(1))
		if _, err := l.admin(wk(1)).Version(within(time.Second)); err != nil {
			t.Error(err)
		}
	})
}

func TestTwoMachinesWithOneAddress(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		twin := cp(2).guest("v1.13.9")
		twin.Address = netip.MustParsePrefix("10.5.0.11/24")
		l.fleet.PowerOn(twin)
		time.Sleep(time.Minute)
		if _, err := l.admin(cp(1)).Version(within(time.Second)); err != nil {
			t.Errorf("the first one: %v", err)
		}
	})
}

// TestLoopback runs a cluster over the real network in real time, once.
func TestLoopback(t *testing.T) {
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Skip(err)
	}
	defer release()
	bundle, err := secrets.NewBundle(secrets.NewClock(), config.TalosVersionCurrent, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, world.Config{Speed: 200, Network: world.Loopback{}}, bundle, nil)
	defer l.world.Close()
	defer l.fleet.Close()
	at := func(n node, host byte) node {
		a := prefix.Addr().As4()
		a[3] = host
		n.ip = netip.AddrFrom4(a).String()
		return n
	}
	first, worker := at(cp(1), 11), at(wk(1), 21)
	for _, n := range []node{first, worker} {
		l.fleet.PowerOn(n.guest("v1.13.9"))
	}
	for _, n := range []node{first, worker} {
		l.eventually(func() error {
			_, err := l.insecure(n).ApplyConfiguration(within(time.Second), &machineapi.ApplyConfigurationRequest{
				Data: l.config(n, "v1.13.9", endpointAt(first.ip)), Mode: machineapi.ApplyConfigurationRequest_AUTO,
			})
			if l.view(n).Configured {
				return nil // the answer may be lost on a busy machine
			}
			return err
		})
	}
	l.eventually(func() error {
		err := l.admin(first).Bootstrap(within(time.Second), &machineapi.BootstrapRequest{})
		if client.StatusCode(err) == codes.AlreadyExists {
			return nil
		}
		return err
	})
	for _, n := range []node{first, worker} {
		l.eventually(func() error {
			if v := l.view(n); v.Stage != running || !v.Ready {
				return fmt.Errorf("%+v", v)
			}
			return nil
		})
		if st := status(t, l.admin(n)); st.Stage != runtimeres.MachineStageRunning {
			t.Errorf("%s says of itself: %+v", n.name, st)
		}
	}
	c, err := net.Dial("tcp", net.JoinHostPort(first.ip, "50000"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l.fleet.PowerOff(401)
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection to a machine that was switched off: %v", err)
	}
}

// TestBothFamilies: a machine has the IPv6 address of its cloud-init drive, which only a nocloud image reads, before its config
// and with it, and that of its config; and of them its kubelet registers with the one that the config says is the node's.
func TestBothFamilies(t *testing.T) {
	const link = "---\napiVersion: v1alpha1\nkind: LinkConfig\nname: ens18\naddresses: [{address: 10.5.0.11/24}, {address: \"fd00:5::11/64\"}]\n"
	const dual = "cluster: {network: {podSubnets: [10.244.0.0/16, \"fd00:244::/56\"], serviceSubnets: [10.96.0.0/12, \"fd00:96::/112\"]}}\n"
	for name, tc := range map[string]struct {
		drive, platform, patch string
		before, after          string // of the link, but for link-local
		want                   string // of the node
	}{
		"the drive's, in a dual-stack cluster":  {drive: "fd00:5::22/64", platform: "nocloud", patch: dual, before: "[10.5.0.11/24 fd00:5::22/64]", after: "[10.5.0.11/24 fd00:5::22/64]", want: "fd00:5::22"},
		"the drive's, in one of IPv4":           {drive: "fd00:5::22/64", platform: "nocloud", before: "[10.5.0.11/24 fd00:5::22/64]", after: "[10.5.0.11/24 fd00:5::22/64]"},
		"the drive's, which is not read":        {drive: "fd00:5::22/64", platform: "metal", patch: dual, before: "[10.5.0.11/24]", after: "[10.5.0.11/24]"},
		"the config's":                          {platform: "nocloud", patch: dual + link, before: "[10.5.0.11/24]", after: "[10.5.0.11/24 fd00:5::11/64]", want: "fd00:5::11"},
		"both, and the config chooses":          {drive: "fd00:5::22/64", platform: "nocloud", patch: "machine: {kubelet: {nodeIP: {validSubnets: [10.5.0.11/32, \"fd00:5::11/128\"]}}}\n" + dual + link, before: "[10.5.0.11/24 fd00:5::22/64]", after: "[10.5.0.11/24 fd00:5::11/64 fd00:5::22/64]", want: "fd00:5::11"},
		"both, and the config wants IPv4 alone": {drive: "fd00:5::22/64", platform: "nocloud", patch: "machine: {kubelet: {nodeIP: {validSubnets: [10.5.0.11/32]}}}\n" + dual + link, before: "[10.5.0.11/24 fd00:5::22/64]", after: "[10.5.0.11/24 fd00:5::11/64 fd00:5::22/64]"},
		"one of the pods' is no node's":         {drive: "fd00:244::22/64", platform: "nocloud", patch: dual, before: "[10.5.0.11/24 fd00:244::22/64]", after: "[10.5.0.11/24 fd00:244::22/64]"},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(c *talos.Config) {
				c.Reservations = map[string]netip.Prefix{"bc:24:11:00:01:91": netip.MustParsePrefix("10.5.0.11/24")}
			}
			inBubbleWith(t, world.Config{}, change, func(l *lab) {
				g := cp(1).guest("v1.13.9")
				g.Boot.Image.Platform = tc.platform
				if tc.drive != "" {
					g.Address6 = netip.MustParsePrefix(tc.drive)
				}
				l.fleet.PowerOn(g)
				time.Sleep(time.Minute)
				l.wantStage(cp(1), maintenance)
				if got := l.addresses(l.insecure(cp(1))); got != tc.before {
					t.Errorf("before its config: %s, want %s", got, tc.before)
				}
				var patches []string
				if tc.patch != "" {
					patches = append(patches, tc.patch)
				}
				l.apply(cp(1), l.config(cp(1), "v1.13.9", patches...))
				time.Sleep(5 * time.Second)
				l.bootstrap(cp(1))
				time.Sleep(2 * time.Minute)
				if got := l.addresses(l.admin(cp(1))); got != tc.after {
					t.Errorf("with its config: %s, want %s", got, tc.after)
				}
				want, _ := netip.ParseAddr(tc.want)
				if got, _ := l.kube.kubelet("cp1"); got.Address.String() != "10.5.0.11" || got.Address6 != want {
					t.Errorf("it registers with %s and %s, want %s", got.Address, got.Address6, want)
				}
			})
		})
	}
}

// addresses are those of a machine's link that are not link-local.
func (l *lab) addresses(c *client.Client) string {
	l.t.Helper()
	all, err := safe.StateListAll[*network.AddressStatus](within(time.Second), c.COSI)
	if err != nil {
		l.t.Fatal(err)
	}
	var out []string
	for a := range all.All() {
		if s := a.TypedSpec(); s.LinkName == "ens18" && !s.Address.Addr().IsLinkLocalUnicast() {
			out = append(out, s.Address.String())
		}
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}
