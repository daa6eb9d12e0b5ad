package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

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
