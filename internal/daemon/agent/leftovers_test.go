package agent_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// kubectl is a request that a person makes of the kube-apiserver of a control
// plane.
func (s *sim) kubectl(server netip.Addr, method, path, body string) {
	s.T.Helper()
	c, ok := s.Cluster().(interface {
		Desired() (cluster.Desired, bool)
	})
	if !ok {
		s.T.Fatal("a cluster has no credentials")
	}
	d, _ := c.Desired()
	pair, err := tls.X509KeyPair(d.Access.Kube.Cert.Reveal(), d.Access.Kube.Key.Reveal())
	must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(d.Access.Kube.CA.Reveal())
	transport := &http.Transport{DialContext: s.Lab.World.Net.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(s.T.Context(), method, "https://"+netip.AddrPortFrom(server, 6443).String()+path, strings.NewReader(body))
	must(err)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/merge-patch+json")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	must(err)
	must(resp.Body.Close())
	if resp.StatusCode >= http.StatusBadRequest {
		s.T.Fatalf("%s %s: %s", method, path, resp.Status)
	}
}

// posted is the last commit status of the cluster.
func (s *sim) posted() (last string) {
	for _, e := range s.Lab.World.Events() {
		if _, words, ok := strings.Cut(e.Text, " talos-agent/dev: "); ok && e.Subject == "forge" {
			last = words
		}
	}
	return last
}

// TestControlPlaneDestroyedByHand: what is left of a control plane whose VM and
// row were deleted keeps the cluster from being Ready, and its commit from
// success: first its Node object, then the member of etcd that nobody sees.
func TestControlPlaneDestroyedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 3, Workers: 0}, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		must(s.Lab.PVE.Remove(s.node("dev-cp-3").VMID))
		files := size{ControlPlanes: 3, Workers: 0}.Files()
		rows := strings.Split(string(files["inventory/dev/nodes.yaml"]), "\n")
		for i, row := range rows {
			if strings.Contains(row, "dev-cp-3") {
				rows[i] = ""
			}
		}
		files["inventory/dev/nodes.yaml"] = []byte(strings.Join(rows, "\n"))
		s.Push(files, "one control plane less")
		is := func(reason cluster.Reason) func(cluster.Status) bool {
			return func(st cluster.Status) bool {
				return st.Condition == cluster.Stalled && st.Revision.Commit() == s.Head() && st.Reason == reason && st.Concerns == "dev-cp-3"
			}
		}
		s.Until(10*time.Minute, "Stalled for its member and Node", func(st cluster.Status) bool {
			reasons := ""
			for _, b := range st.Blocked {
				reasons += string(b.Reason) + " of " + b.Subject + "\n"
			}
			return st.Condition == cluster.Stalled && reasons == "OrphanEtcdMember of dev-cp-3\nOrphanNodeObject of dev-cp-3\n"
		})
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodDelete, "/api/v1/nodes/dev-cp-3", "")
		s.Until(10*time.Minute, "Stalled for its member", func(st cluster.Status) bool { return is(cluster.OrphanEtcdMember)(st) && len(st.Blocked) == 1 })
		time.Sleep(20 * time.Minute)
		st := s.Status()
		if !is(cluster.OrphanEtcdMember)(st) || !strings.Contains(st.Hint, "`talosctl -n 10.10.0.1") || !strings.Contains(st.Hint, " etcd remove-member ") {
			t.Errorf("%s, because %s of %s: %s -> %s", st.Condition, st.Reason, st.Concerns, st.Message, st.Hint)
		}
		if got := s.posted(); !strings.HasPrefix(got, "failure") {
			t.Errorf("the forge was told %q", got)
		}
		s.Halt()
	})
}
