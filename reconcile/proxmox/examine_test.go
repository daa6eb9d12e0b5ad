package proxmox

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// knock asks a host with a client of its own, whose config change may alter.
func (s *stand) knock(change func(*Config)) (Door, error) {
	s.t.Helper()
	link := world.NewLink(s.world.Net)
	defer link.Cut()
	config := Config{URL: s.host.URL(), Token: cluster.SecretString(s.token), CA: s.world.PKI.PEM, Pool: testPool, Dial: link.DialContext}
	if change != nil {
		change(&config)
	}
	c, err := New(config)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	return c.Knock(context.Background())
}

// TestKnock: the ways in which the API cannot be reached are distinguished.
func TestKnock(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		d, err := s.knock(nil)
		if err != nil || d.Version != "9.2.11" || d.NotAfter.Before(time.Now().AddDate(1, 0, 0)) || d.Date.Sub(d.Answered).Abs() > 2*time.Second {
			t.Errorf("the door: %+v, %v", d, err)
		}
		s.host.SetClock(time.Hour)
		if d, err = s.knock(nil); err != nil || d.Date.Sub(d.Answered) < 59*time.Minute {
			t.Errorf("a clock an hour ahead: %+v, %v", d, err)
		}
		s.host.SetClock(0)

		_, port, err := net.SplitHostPort(strings.TrimPrefix(s.host.URL(), "https://"))
		if err != nil {
			t.Fatal(err)
		}
		other, err := world.New(world.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		present := func(cert tls.Certificate, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			s.host.Present(cert)
		}
		is := func(what string, want Fault, change func(*Config)) []string {
			t.Helper()
			_, err := s.knock(change)
			got, names := FaultOf(err)
			if got != want || err == nil || strings.Contains(err.Error(), s.token) {
				t.Errorf("%s: %q, want %q: %v", what, got, want, err)
			}
			return names
		}
		is("nobody listens", FaultAddress, func(c *Config) { c.URL = "https://127.0.0.1:1" })
		is("an authority we do not trust", FaultAuthority, func(c *Config) { c.CA = other.PKI.PEM })
		is("another certificate than the pinned one", FaultPin, func(c *Config) { c.Fingerprint = strings.Repeat("ab", 32) })
		is("a token that was taken back", FaultToken, func(c *Config) { c.Token = cluster.SecretString("talos-agent@pve!pve1=wrong-secret") })
		present(s.world.PKI.Server("pve1.example.org", "10.77.0.2"))
		if names := is("another name", FaultName, nil); !slices.Equal(names, []string{"pve1.example.org", "10.77.0.2"}) {
			t.Errorf("names of the certificate: %v", names)
		}
		present(s.world.PKI.ServerUntil(time.Now().Add(-time.Hour), "127.0.0.1"))
		is("an expired certificate", FaultExpired, nil)

		plain, err := s.world.Net.Listen("127.0.0.1:8007")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := plain.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
				}()
				_, _ = io.Copy(io.Discard, conn) // until the client has read enough
				_ = conn.Close()
			}
		}()
		is("something that is not TLS", FaultNotTLS, func(c *Config) { c.URL = strings.Replace(c.URL, port, "8007", 1) })
		_ = plain.Close()
		<-done
		s.world.Inject(world.Fault{System: "pve", Op: "GET /version", Kind: world.Slow, Delay: time.Minute})
		present(s.world.PKI.Server("127.0.0.1"))
		is("no answer", FaultSilent, nil)
	})
}

// TestExamine: what is there, and what a token without privileges sees of it.
func TestExamine(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) { onStand(t, flavour, examined) })
	}
}

func examined(t *testing.T, s *stand) {
	c, ctx := s.client(), context.Background()
	defer c.Close()
	may, err := c.Privileges(ctx, "")
	if err != nil || !slices.Contains(may["/pool/"+testPool], "VM.Allocate") || len(may["/"]) > 0 {
		t.Errorf("privileges: %v, %v", may, err)
	}
	if at, err := c.Privileges(ctx, "/storage/elsewhere"); err != nil || len(at) > 0 {
		t.Errorf("privileges where there are none: %v, %v", at, err)
	}
	if is, err := c.PoolExists(ctx, testPool); err != nil || !is {
		t.Errorf("the pool: %v, %v", is, err)
	}
	s.host.Grant("talos-agent@pve", "TalosAgentVM", "/pool/gone")
	s.host.Grant("talos-agent@pve!pve1", "TalosAgentVM", "/pool/gone")
	if is, err := c.PoolExists(ctx, "gone"); err != nil || is {
		t.Errorf("a pool that is not there: %v, %v", is, err)
	}
	hosts, guests, err := c.Inhabitants(ctx)
	if err != nil || !slices.Equal(hosts, []string{testHost}) || len(guests) != 0 {
		t.Errorf("inhabitants: %v, %v, %v", hosts, guests, err)
	}

	s.host.ChangeStorage(testHost, "local", []string{"iso"}, true, 100<<30)
	s.host.ChangeStorage(testHost, "local-lvm", []string{"images"}, false, 0)
	stores, err := c.Storages(ctx, testHost)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := stores["local"], (StorageState{Type: "dir", Active: true, Content: []string{"iso"}, Total: 1 << 40, Free: 1<<40 - 100<<30}); !reflect.DeepEqual(got, want) {
		t.Errorf("storage: %+v, want %+v", got, want)
	}
	if stores["local-lvm"].Active {
		t.Error("a storage that is away is active")
	}

	bridges, err := c.Bridges(ctx, testHost)
	if err != nil || !reflect.DeepEqual(bridges, map[string]BridgeState{"vmbr1": {Active: true, Address: "10.78.0.1/24", Ports: "nic1"}}) {
		t.Errorf("bridges: %+v, %v", bridges, err)
	}
	s.host.ChangeBridge(testHost, "vmbr1", pve.Bridge{Down: true, VLANAware: true})
	if bridges, err = c.Bridges(ctx, testHost); err != nil || bridges["vmbr1"] != (BridgeState{VLANAware: true}) {
		t.Errorf("a bridge that is down: %+v, %v", bridges, err)
	}

	// What it takes Sys.Audit on / to see.
	forbidden := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, errForbidden) || !strings.Contains(fault.HintOf(err), "Sys.Audit on /") {
			t.Errorf("%s without Sys.Audit: %v (%s)", what, err, fault.HintOf(err))
		}
	}
	_, err = c.HighlyAvailable(ctx)
	forbidden("ha", err)
	_, err = c.BackupJobs(ctx)
	forbidden("backup", err)
	_, err = c.Quorate(ctx)
	forbidden("quorum", err)
	s.token = s.host.AgentToken(pve.AgentScope{Pool: testPool, Storages: []string{"local"}, Bridges: []string{"vmbr1"}, SeeQuorum: true})
	c.Close()
	c = s.client()
	defer c.Close()
	s.host.Manage("vm:411", "ct:200")
	if ha, err := c.HighlyAvailable(ctx); err != nil || !slices.Equal(ha, []string{"ct:200", "vm:411"}) {
		t.Errorf("ha: %v, %v", ha, err)
	}
	s.host.Backup(pve.BackupJob{"id": "nightly", "all": 1, "exclude": "100,101", "mode": "stop"}, pve.BackupJob{"id": "some", "enabled": "0", "vmid": "411,412", "node": testHost})
	jobs, err := c.BackupJobs(ctx)
	if want := []BackupJob{{ID: "nightly", Enabled: true, Mode: "stop", All: true, Exclude: []int{100, 101}}, {ID: "some", VMIDs: []int{411, 412}, Host: testHost}}; err != nil || !reflect.DeepEqual(jobs, want) {
		t.Errorf("backup jobs: %+v, %v", jobs, err)
	}
	if is, err := c.Quorate(ctx); err != nil || !is {
		t.Errorf("quorum: %v, %v", is, err)
	}
}
