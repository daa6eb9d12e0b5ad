package agent_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
	if err := s.tryKubectl(server, method, path, body); err != nil {
		s.T.Fatal(err)
	}
}

// desired is what the agent makes of the repository, with its credentials.
func (s *sim) desired() (cluster.Desired, error) {
	c, ok := s.Cluster().(interface {
		Desired() (cluster.Desired, bool)
	})
	if !ok {
		return cluster.Desired{}, errors.New("a cluster has no credentials")
	}
	d, ok := c.Desired()
	if !ok {
		return cluster.Desired{}, errors.New("there are no credentials yet")
	}
	return d, nil
}

// tryKubectl is kubectl of a cluster that may not answer.
func (s *sim) tryKubectl(server netip.Addr, method, path, body string) error {
	s.T.Helper()
	d, err := s.desired()
	if err != nil {
		return err
	}
	return s.askKube(d, server, method, path, body)
}

// askKube is kubectl with credentials that an agent, which may have ended since, gave out.
func (s *sim) askKube(d cluster.Desired, server netip.Addr, method, path, body string) error {
	s.T.Helper()
	pair, err := tls.X509KeyPair(d.Access.Kube.Cert.Reveal(), d.Access.Kube.Key.Reveal())
	must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(d.Access.Kube.CA.Reveal())
	transport := &http.Transport{DialContext: s.Lab.World.Net.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(s.T.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+netip.AddrPortFrom(server, 6443).String()+path, strings.NewReader(body))
	must(err)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/merge-patch+json")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	must(resp.Body.Close())
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return nil
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

// destroyed is a cluster that is Ready, of which somebody destroys a control plane, whose
// row is deleted as well.
func destroyed(t *testing.T) *sim {
	s := newSim(t, size{ControlPlanes: 3, Workers: 0}, lab.Config{})
	s.Boot()
	s.UntilReady(20 * time.Minute)
	must(s.Lab.PVE.Remove(s.node("dev-cp-3").VMID))
	files := size{ControlPlanes: 3, Workers: 0}.Files()
	changed(t, files, "inventory/dev/nodes.yaml", "  - {name: dev-cp-3, ip: 10.10.0.13, cpu: 4, ram: 8192, disk: 40G}\n", "")
	s.Push(files, "one control plane less")
	return s
}

// TestControlPlaneDestroyedByHand: what is left of a control plane whose VM and row were
// deleted is removed: its member of etcd, and its Node object.
func TestControlPlaneDestroyedByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := destroyed(t)
		defer s.Close()
		s.UntilReady(20 * time.Minute)
		if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-1 dev-cp-2] [dev-cp-1 dev-cp-2]" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Quiet(10 * time.Minute)
		s.Halt()
	})
}

// TestMemberOfANodeWithoutAnObject: the member of etcd of a control plane whose VM, Node object and row
// people have deleted is removed as well: the agent knows that it was one of its own.
func TestMemberOfANodeWithoutAnObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := destroyed(t)
		defer s.Close()
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodDelete, "/api/v1/nodes/dev-cp-3", "")
		s.untilApplied("removed")
		if got := fmt.Sprint(s.nodeObjects(), s.members()); got != "[dev-cp-1 dev-cp-2] [dev-cp-1 dev-cp-2]" {
			t.Errorf("nodes in Kubernetes, members of etcd: %s", got)
		}
		s.Quiet(10 * time.Minute)
		s.Halt()
	})
}

// TestMemberWithoutANode: a member of etcd of which nothing shows any longer that it was a
// machine of ours, the agent's own record included, keeps the cluster from being Ready, and its
// commit from success.
func TestMemberWithoutANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := destroyed(t)
		defer s.Close()
		s.kubectl(netip.MustParseAddr("10.10.0.11"), http.MethodDelete, "/api/v1/nodes/dev-cp-3", "")
		s.Halt()
		s.Disk.Lose("dev.json")
		s.Boot()
		is := func(st cluster.Status) bool {
			return st.Condition == cluster.Stalled && st.Revision.Commit() == s.Head() && st.Reason == cluster.OrphanEtcdMember && st.Concerns == "dev-cp-3"
		}
		s.Until(10*time.Minute, "Stalled for its member", func(st cluster.Status) bool { return is(st) && len(st.Blocked) == 1 })
		time.Sleep(20 * time.Minute)
		st := s.Status()
		if !is(st) || !strings.Contains(st.Hint, "`talosctl -n 10.10.0.1") || !strings.Contains(st.Hint, " etcd remove-member ") {
			t.Errorf("%s, because %s of %s: %s -> %s", st.Condition, st.Reason, st.Concerns, st.Message, st.Hint)
		}
		if got := s.posted(); !strings.HasPrefix(got, "failure") {
			t.Errorf("the forge was told %q", got)
		}
		s.Halt()
	})
}
