package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// TestMayAsk: nor ask for whom they choose, on a network of the host that is not
// the nodes'.
func TestMayAsk(t *testing.T) {
	for _, tc := range []struct {
		at, link string
		bridges  []string
		want     bool
	}{
		{"10.10.0.21", "vmbr1", nil, true},
		{"10.10.0.21", "vmbr1.20", []string{"vmbr1"}, true},
		{"10.10.0.5", "vmbr1", nil, true}, // the VIP
		{"10.10.0.1", "vmbr1", nil, true}, // the gateway
		{"10.10.0.21", "vmbr1", []string{"vmbr0"}, false},
		{"10.10.0.21", "storage0", nil, false},
		{"10.10.0.99", "vmbr1", nil, false}, // nobody's
	} {
		w := well().Wants
		w.Bridges = tc.bridges
		if got := w.MayAsk(ip(tc.at), Way{Link: tc.link}); got != tc.want {
			t.Errorf("%s on %s, with bridges %v: %v", tc.at, tc.link, tc.bridges, got)
		}
	}
}

// TestExpects: whose MAC may be at an address.
func TestExpects(t *testing.T) {
	const plane, worker = "BC:24:11:00:00:11", "BC:24:11:00:00:21"
	for _, tc := range []struct {
		at, mac string
		want    bool
	}{
		{"10.10.0.11", plane, true}, {"10.10.0.21", worker, true}, {"10.10.0.11", worker, false},
		{"10.10.0.5", plane, true}, {"10.10.0.5", worker, false},
		{"10.10.0.1", "AA:AA:AA:AA:AA:AA", true}, {"10.10.0.21", "AA:AA:AA:AA:AA:AA", false},
	} {
		if got := well().Wants.Expects(ip(tc.at), tc.mac); got != tc.want {
			t.Errorf("%s at %s: %v", tc.mac, tc.at, got)
		}
	}
}

// TestNotAsked: who may push cannot have root send anything to whom they choose.
func TestNotAsked(t *testing.T) {
	ways := map[netip.Addr]Way{
		ip("10.10.0.1"): {Link: "vmbr1"}, ip("10.10.0.2"): {Link: "lo", Loopback: true}, ip("10.20.0.1"): {Link: "vmbr1.20"},
		ip("192.168.1.9"): {Link: "vmbr0"}, ip("10.99.0.9"): {Link: "storage0"}, ip("192.0.2.7"): {Link: "vmbr1", Via: ip("10.10.0.1")},
	}
	way := func(a netip.Addr) (Way, error) {
		if w, ok := ways[a]; ok {
			return w, nil
		}
		return Way{}, errors.New("there is no route")
	}
	for _, tc := range []struct {
		server, words string // words of the reason; "": it is asked
		bridges       []string
	}{
		{"10.10.0.1", "", nil},
		{"10.10.0.1", "", []string{"vmbr0", "vmbr1"}},
		{"10.10.0.1", "not on a bridge that the nodes are on and the policy allows", []string{"vmbr2"}},
		{"10.20.0.1", "", []string{"vmbr1"}},
		{"10.10.0.2", "", []string{"vmbr2"}}, // this host
		{TalosTimeServer, "", []string{"vmbr2"}},
		{"192.168.1.9", "it is on vmbr0", []string{"vmbr0", "vmbr1"}},
		{"10.99.0.9", "it is on storage0", nil},
		{"192.0.2.7", "no network of this host", nil},
		{"0:0:0:0:0:ffff:c000:207", "no network of this host", nil}, // 192.0.2.7
		{"198.51.100.1", "there is no route", nil},
		{"ntp.example.org", "a name, which may lead anywhere", nil},
		{"10.10.0.1:25", "a name", nil},
	} {
		w := well().Wants
		w.Bridges, w.Clusters[0].TimeServers = tc.bridges, []string{tc.server}
		why, told := w.NotAsked(way)[tc.server]
		if !told || (why == "") != (tc.words == "") || !strings.Contains(why, tc.words) {
			t.Errorf("%s, with bridges %v: %q, want %q", tc.server, tc.bridges, why, tc.words)
		}
	}

	// What one cluster may have asked is asked, in whatever order; and Talos' own is
	// asked for those that name none.
	w := well().Wants
	other := w.Clusters[0]
	other.Nodes = []Node{{Bridge: "vmbr0"}}
	silent := w.Clusters[0]
	silent.TimeServers = nil
	for _, all := range [][]Cluster{{w.Clusters[0], other, silent}, {silent, other, w.Clusters[0]}} {
		w.Clusters = all
		if got := w.NotAsked(way); len(got) != 2 || got["10.10.0.1"] != "" || got[TalosTimeServer] != "" {
			t.Errorf("%v", got)
		}
	}
}
