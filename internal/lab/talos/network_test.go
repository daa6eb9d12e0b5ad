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
