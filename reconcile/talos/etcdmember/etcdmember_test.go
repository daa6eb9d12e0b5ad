package etcdmember

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestMemberAddresses: what stands in peer URLs.
func TestMemberAddresses(t *testing.T) {
	for _, tc := range []struct {
		urls []string
		want string
	}{
		{[]string{"https://10.5.0.11:2380"}, "10.5.0.11"},
		{[]string{"https://[fd00::11]:2380"}, "fd00::11"},
		{[]string{"://", "https://cp-1:2380", "https://10.5.0.12:2380"}, "10.5.0.12"},
		{[]string{"nonsense", ""}, ""},
		{nil, ""},
	} {
		if got := peerAddress(tc.urls); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.urls, got, tc.want)
		}
	}
}

// TestMembersAreFound by their names or their addresses.
func TestMembersAreFound(t *testing.T) {
	cp := func(name, ip string) cluster.Node { return cluster.Node{Name: name, IP: netip.MustParseAddr(ip)} }
	members := []cluster.Member{{Name: "other", Address: "10.5.0.11"}, {Name: "cp-2"}}
	if !Has(members, cp("cp-1", "10.5.0.11")) || !Has(members, cp("cp-2", "10.5.0.12")) || Has(members, cp("cp-3", "10.5.0.13")) || Has(nil, cp("cp-1", "10.5.0.11")) {
		t.Errorf("%+v", members)
	}
}

// TestAlarms: what etcd has as the errors of a member.
func TestAlarms(t *testing.T) {
	for _, tc := range []struct {
		errs []string
		want []string
	}{
		{nil, nil},
		{[]string{"etcdserver: no leader"}, nil},
		{[]string{"memberID:9880414841965796001 alarm:NOSPACE "}, []string{"NOSPACE"}},
		{[]string{"etcdserver: no leader", "memberID:2 alarm:NOSPACE ", "memberID:1 alarm:CORRUPT ", "memberID:3 alarm:NOSPACE "}, []string{"CORRUPT", "NOSPACE"}},
		{[]string{"memberID:2 alarm:7 "}, []string{"7"}}, // one that is not known yet
	} {
		if got := alarmsIn(tc.errs); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.errs, got, tc.want)
		}
	}
}

// TestIsOlder: what cannot be read is older than any version.
func TestIsOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"3.5.26", "3.6.4", true}, {"3.6.4", "3.5.26", false}, {"3.5.9", "3.5.26", true}, {"3.6.4", "3.6.4", false}, {"", "3.5.9", true}, {"3.5.9", "", false}, {"3.5.26-0", "3.6.4", true},
	} {
		if got := isOlder(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: %v", c.a, c.b, got)
		}
	}
}

// TestSummarize: one answer is enough but for the versions.
func TestSummarize(t *testing.T) {
	late := errors.New("no answer in time")
	one, two := Status{Leader: 1, Server: "3.5.26", Alarms: []string{"NOSPACE"}}, Status{Leader: 1, Server: "3.5.9", Alarms: []string{"NOSPACE"}}
	for name, c := range map[string]struct {
		members int
		found   []Status
		errs    []error
		want    cluster.Seen[cluster.Etcd]
	}{
		"none":         {1, nil, nil, cluster.Unseen[cluster.Etcd]("no member was asked")},
		"no answer":    {2, []Status{{}, {}}, []error{late, late}, cluster.Unseen[cluster.Etcd]("no answer in time")},
		"one of two":   {2, []Status{{}, one}, []error{late, nil}, cluster.Saw(cluster.Etcd{Leader: 1, Alarms: []string{"NOSPACE"}})},
		"the first":    {2, []Status{one, {}}, []error{nil, late}, cluster.Saw(cluster.Etcd{Leader: 1, Alarms: []string{"NOSPACE"}})},
		"both":         {2, []Status{one, two}, []error{nil, nil}, cluster.Saw(cluster.Etcd{Leader: 1, Alarms: []string{"NOSPACE"}, Server: "3.5.9"})},
		"in any order": {2, []Status{two, one}, []error{nil, nil}, cluster.Saw(cluster.Etcd{Leader: 1, Alarms: []string{"NOSPACE"}, Server: "3.5.9"})},
		"not all":      {3, []Status{one, two}, []error{nil, nil}, cluster.Saw(cluster.Etcd{Leader: 1, Alarms: []string{"NOSPACE"}})},
	} {
		if got := Summarize(c.members, c.found, c.errs); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestRankAsSender: a voter that knows no leader does not reach the others, so that it comes after a learner that does.
func TestRankAsSender(t *testing.T) {
	ranks := map[string]int{}
	for name, s := range map[string]Status{
		"follows": {ID: 1, Leader: 2}, "leads": {ID: 2, Leader: 2}, "learns": {ID: 3, Leader: 2, Learner: true}, "is alone": {ID: 4}, "learns alone": {ID: 5, Learner: true},
	} {
		ranks[name] = s.RankAsSender()
	}
	if !(ranks["follows"] < ranks["leads"] && ranks["leads"] < ranks["learns"] && ranks["learns"] < ranks["is alone"] && ranks["is alone"] == ranks["learns alone"]) {
		t.Errorf("%v", ranks)
	}
}
