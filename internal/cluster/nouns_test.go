package cluster

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFixedDifferences: what can never change is compared part by part, and not with what
// is unknown.
func TestFixedDifferences(t *testing.T) {
	have := ConfigSummary{Cluster: "dev", DNSDomain: "cluster.local", Pods: "10.244.0.0/16", Services: "10.96.0.0/12"}
	for what, change := range map[string]func(*ConfigSummary){
		"":                func(*ConfigSummary) {},
		"cluster name":    func(f *ConfigSummary) { f.Cluster = "x" },
		"DNS domain":      func(f *ConfigSummary) { f.DNSDomain = "x" },
		"pod network":     func(f *ConfigSummary) { f.Pods = "x" },
		"service network": func(f *ConfigSummary) { f.Services = "x" },
	} {
		want := have
		change(&want)
		got := have.Differences(want)
		if what == "" && len(got) != 0 || what != "" && (len(got) != 1 || !strings.HasPrefix(got[0], what+" ")) {
			t.Errorf("another %s: %q", what, got)
		}
	}
	for _, c := range []struct {
		have, want ConfigSummary
		why        string
	}{
		{ConfigSummary{Flannel: "yes"}, ConfigSummary{Flannel: "no"}, "Flannel, which Talos brings (the inventory has none)"},
		{ConfigSummary{Flannel: "no"}, ConfigSummary{Flannel: "yes"}, "no Flannel (the inventory has it)"},
		{ConfigSummary{Flannel: "yes"}, ConfigSummary{Flannel: "yes"}, ""},
		{ConfigSummary{Role: Worker}, ConfigSummary{Role: Worker, Flannel: "yes"}, ""},
		{ConfigSummary{Role: Worker}, ConfigSummary{Role: ControlPlane}, "role worker (the inventory has controlplane)"},
		{ConfigSummary{Role: Worker}, ConfigSummary{Flannel: "no"}, ""},
		{ConfigSummary{Flannel: "no"}, ConfigSummary{Role: Worker}, ""},
	} {
		if got := strings.Join(c.have.Differences(c.want), "; "); got != c.why {
			t.Errorf("%+v, %+v: %s", c.have, c.want, got)
		}
	}
	if a, b := (ConfigSummary{}).Differences(have), have.Differences(ConfigSummary{}); len(a)+len(b) != 0 {
		t.Errorf("the unknown differs: %q, %q", a, b)
	}
}

// TestOtherAuthorities: an authority is another one where neither accepts what the other one
// issues, and none where one is unknown.
func TestOtherAuthorities(t *testing.T) {
	for _, c := range []struct {
		have, want Authorities
		other      string
	}{
		{Authorities{}, Authorities{Talos: "a", Kubernetes: "b", Etcd: "c"}, ""},
		{Authorities{Talos: "a", Kubernetes: "b"}, Authorities{Talos: "a", Kubernetes: "b", Etcd: "c"}, ""},
		{Authorities{Talos: "x"}, Authorities{Talos: "a"}, "Talos"},
		{Authorities{Talos: "a", Kubernetes: "x"}, Authorities{Talos: "a", Kubernetes: "b"}, "Kubernetes"},
		{Authorities{Etcd: "x"}, Authorities{Etcd: "c"}, "etcd"},
		{Authorities{Talos: "a,x"}, Authorities{Talos: "a"}, ""},
		{Authorities{Talos: "x,a"}, Authorities{Talos: "a"}, "Talos"},
		{Authorities{Talos: "x,a"}, Authorities{Talos: "a,x"}, ""},
		{Authorities{Talos: "a"}, Authorities{Talos: "x,a"}, "Talos"},
	} {
		if got := c.have.Other(c.want); got != c.other {
			t.Errorf("%+v and %+v: %q, want %q", c.have, c.want, got, c.other)
		}
	}
	if got := (ConfigSummary{Cluster: "dev", Authorities: Authorities{Talos: "a"}}).Differences(ConfigSummary{Cluster: "dev", Authorities: Authorities{Talos: "b"}}); len(got) != 0 {
		t.Errorf("authorities are no part of what can never change: %q", got)
	}
	if got := (ConfigSummary{Authorities: Authorities{Talos: "a"}}).Differences(ConfigSummary{Cluster: "dev"}); len(got) != 0 {
		t.Errorf("the unknown differs: %q", got)
	}
}

// TestEventQuery: an event is one of those asked for by every part of the question, and the
// daemon's own are part of every cluster's story.
func TestEventQuery(t *testing.T) {
	at := time.Unix(100, 0)
	e := Event{Seq: 7, At: at, Cluster: "dev", Node: "cp-1"}
	for _, c := range []struct {
		what  string
		query EventQuery
		event Event
		picks bool
	}{
		{"all", EventQuery{}, e, true},
		{"after the one before", EventQuery{After: 6}, e, true},
		{"after itself", EventQuery{After: 7}, e, false},
		{"since its time", EventQuery{Since: at}, e, true},
		{"since later", EventQuery{Since: at.Add(1)}, e, false},
		{"of its cluster", EventQuery{Cluster: "dev"}, e, true},
		{"of another cluster", EventQuery{Cluster: "prod"}, e, false},
		{"of a cluster, and the daemon's own", EventQuery{Cluster: "prod"}, Event{Seq: 1}, true},
		{"of its node", EventQuery{Node: "cp-1"}, e, true},
		{"of another node", EventQuery{Node: "cp-2"}, e, false},
		{"of a node, and of none", EventQuery{Node: "cp-2"}, Event{Seq: 1}, false},
		{"of its node in another cluster", EventQuery{Cluster: "prod", Node: "cp-1"}, e, false},
	} {
		if got := c.query.Picks(c.event); got != c.picks {
			t.Errorf("%s: picked is %v", c.what, got)
		}
	}
}

// TestIntents: there is at most one of a kind, and an approval is for one revision.
func TestIntents(t *testing.T) {
	var f Facts
	if _, ok := f.Intent(IntendSuspend); ok || f.Suspended() || f.Approved("", Step{}) || len(f.LeftOver()) != 0 {
		t.Error("nothing was intended")
	}
	f.Intend(Intent{Kind: IntendApproved, Revision: "main@sha1:1"})
	f.Intend(Intent{Kind: IntendApproved, Revision: "main@sha1:2"})
	if f.Approved("main@sha1:1", Step{}) || !f.Approved("main@sha1:2", Step{}) || f.Suspended() || len(f.Intents) != 1 {
		t.Errorf("approved: %+v", f.Intents)
	}
	f.Drop(IntendApproved)
	if f.Approved("main@sha1:2", Step{}) || f.Approved("", Step{}) {
		t.Error("a dropped approval holds")
	}
}

// TestIdentities: identities are derived from that of a cluster and of nothing else, and a
// mark is one of a version that is known, on the first line.
func TestIdentities(t *testing.T) {
	for _, id := range []string{"", "dev", "5b0e1f6a-7c1d-4b3e-9a53-54414c4f53", "5b0e1f6a-7c1d-4b3e-9a53-54414c4f530100", "zb0e1f6a-7c1d-4b3e-9a53-54414c4f5301", "5b0e1f6a-7c1d-4b3e-9a53-54414c4f53010"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is the identity of a cluster", id)
				}
			}()
			NodeUUID(id, "cp-1")
		}()
	}
	mark := Mark{Version: 1, Cluster: ClusterID("o", "dev"), Node: "cp-1", Deleting: true, Replace: "2"}
	for text, want := range map[string]Mark{
		mark.String(): mark,
		"  " + mark.String() + "  \nwords of people": mark,
		"words of people\n" + mark.String():          {},
		"":                                           {},
		"talos-agent: {":                             {},
		"talos-agent:":                               {},
		`{"v":1,"node":"cp-1"}`:                      {},
		`talos-agent: {"v":2,"node":"cp-1"}`:         {},
		`talos-agent: {"v":1,"node":7}`:              {},
		`talos-agent: {"node":"cp-1"}`:               {},
	} {
		if got, ok := ParseMark(text); got != want || ok != (want != Mark{}) {
			t.Errorf("%q is %+v, %v", text, got, ok)
		}
	}
}

// TestMemberIsOf: a member is a node's by its name or by its address.
func TestMemberIsOf(t *testing.T) {
	n := Node{Name: "cp-1", IP: netip.MustParseAddr("10.0.0.1")}
	for m, want := range map[Member]bool{{Name: "cp-1"}: true, {Address: "10.0.0.1"}: true, {Name: "cp-2", Address: "10.0.0.2"}: false, {}: false} {
		if m.IsOf(n) != want {
			t.Errorf("%+v", m)
		}
	}
}

func TestToPutBack(t *testing.T) {
	for r, want := range map[[2]string]string{{"", ""}: "", {"deployment a", ""}: "deployment a is missing", {"", "x: 1 -> 2"}: "x: 1 -> 2", {"deployment a", "x: 1 -> 2"}: "deployment a is missing; x: 1 -> 2"} {
		if got := (Release{Missing: r[0], Altered: r[1]}).ToPutBack(); got != want {
			t.Errorf("%q: %q", r, got)
		}
	}
}

// TestPolicyNouns: a range has both its ends, and a rule has its line where it has one.
func TestPolicyNouns(t *testing.T) {
	r := Range{400, 402}
	for id, want := range map[int]bool{399: false, 400: true, 401: true, 402: true, 403: false} {
		if r.Contains(id) != want {
			t.Errorf("%d in %s is %v", id, r, !want)
		}
	}
	if r.String() != "400-402" || (Range{7, 7}).String() != "7" {
		t.Errorf("%s, %s", r, Range{7, 7})
	}
	p := Policy{File: "/etc/policy.yaml", Lines: map[string]int{"pool": 3}}
	for field, want := range map[string]string{"pool": "/etc/policy.yaml:3", "vmids": "/etc/policy.yaml"} {
		if got := p.Line(field); got != want {
			t.Errorf("%s: %s", field, got)
		}
	}
}

// TestProblems: only errors make an inventory invalid, what has no severity is one, and the
// first of them is what is shown where there is one line.
func TestProblems(t *testing.T) {
	note, warning := Problem{Severity: Note, File: "a", Message: "n"}, Problem{Severity: Warning, File: "b", Message: "w"}
	for _, c := range []struct {
		ps          Problems
		first, text string
	}{
		{nil, "", ""},
		{Problems{{Severity: Error, Message: "y"}}, "y", "y"},
		{Problems{{Message: "x"}}, "x", "x"},
		{Problems{note, warning}, "", "a: note: n\nb: warning: w"},
		{Problems{note, {Severity: Error, File: "c", Line: 2, Column: 3, Field: "f", Message: "e", Hint: "h"}, {Message: "x"}}, "c:2:3: f: e (h)", "a: note: n\nc:2:3: f: e (h)\nx"},
		{Problems{warning, {Message: "x"}, {Severity: Error, Message: "y"}}, "x", "b: warning: w\nx\ny"},
	} {
		_, ok := c.ps.FirstError()
		if c.ps.First() != c.first || ok != (c.first != "") || c.ps.HasErrors() != ok || (c.ps.Err() != nil) != ok || c.ps.Error() != c.text || (c.ps.Place() != "") != ok {
			t.Errorf("%v: first %q, at %q, %v", c.ps, c.ps.First(), c.ps.Place(), c.ps.Err())
		}
	}
	var err error = Problems{{Message: "x"}}
	if ps := (Problems{}); !errors.As(err, &ps) {
		t.Error("problems are no error")
	}
	if got := (Problems{{File: "a", Line: 1, Column: 2, Field: "f"}}).Place(); got != "a:1:2 f" {
		t.Errorf("place %q", got)
	}
}

func TestFindReason(t *testing.T) {
	for _, want := range Reasons() {
		if got, ok := want.Reason.Find(); !ok || got != want {
			t.Errorf("%s is found as %+v, %v", want.Reason, got, ok)
		}
	}
}

// TestDependencies: an addon waits for those that it names and for the container network,
// unless that waits for it.
func TestDependencies(t *testing.T) {
	addon := func(name string, needs ...string) Addon { return Addon{Name: name, DependsOn: needs} }
	for _, c := range []struct {
		what   string
		cni    CNI
		addons []Addon // the first is asked for
		want   []string
	}{
		{"nothing but the network", CNICilium, []Addon{addon("a"), addon("cilium")}, []string{"cilium"}},
		{"no Cilium in the inventory", CNICilium, []Addon{addon("a"), addon("b")}, nil},
		{"another network", CNIFlannel, []Addon{addon("a"), addon("cilium")}, nil},
		{"named already", CNICilium, []Addon{addon("a", "cilium"), addon("cilium")}, []string{"cilium"}},
		{"named with others", CNICilium, []Addon{addon("a", "z", "b"), addon("b"), addon("cilium"), addon("z")}, []string{"b", "cilium", "z"}},
		{"the network itself", CNICilium, []Addon{addon("cilium")}, nil},
		{"what the network needs", CNICilium, []Addon{addon("a"), addon("cilium", "a")}, nil},
		{"what the network needs through another", CNICilium, []Addon{addon("a"), addon("b", "a"), addon("cilium", "b")}, nil},
		{"beside what the network needs", CNICilium, []Addon{addon("a"), addon("b"), addon("cilium", "b")}, []string{"cilium"}},
		{"a circle elsewhere", CNICilium, []Addon{addon("a"), addon("b", "c"), addon("c", "b"), addon("cilium", "b")}, []string{"cilium"}},
		{"the network needs what is not there", CNICilium, []Addon{addon("a"), addon("cilium", "x")}, []string{"cilium"}},
	} {
		if got := (Spec{CNI: c.cni, Addons: c.addons}).Dependencies(c.addons[0]); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// TestRevisions: a forge knows a commit, and nothing of what was changed since.
func TestRevisions(t *testing.T) {
	const hash = "1111111111111111111111111111111111111111"
	for r, want := range map[Revision][2]string{
		"main@sha1:" + hash:            {hash, "main@sha1:111111111111"},
		"main@sha1:" + hash + "+dirty": {"", "main@sha1:111111111111+dirty"},
		"dir@sha256:" + hash:           {"", "dir@sha256:111111111111"},
		"main":                         {"", "main"},
		"a-branch-with-a-long-name":    {"", "a-branch-with-a-long-name"},
		"":                             {"", ""},
		"main@sha1:1":                  {"1", "main@sha1:1"},
	} {
		if r.Commit() != want[0] || r.Short() != want[1] {
			t.Errorf("%s: commit %q, short %q", r, r.Commit(), r.Short())
		}
	}
}

// TestSpecNouns: what is asked of a spec and its parts.
func TestSpecNouns(t *testing.T) {
	if r := (ReplaceDead{ControlPlane: 1, Worker: 2}); r.Of(ControlPlane) != 1 || r.Of(Worker) != 2 {
		t.Error("the times of the roles are mixed up")
	}
	if !(Schematic{Extensions: []string{"siderolabs/x", "siderolabs/qemu-guest-agent"}}).GuestAgent() || (Schematic{Extensions: []string{"siderolabs/x"}}).GuestAgent() {
		t.Error("the guest agent is in an image without it, or the other way round")
	}
	s := Spec{Nodes: []Node{{Name: "cp-1", VMID: 1}, {Name: "cp-2", VMID: 2}}}
	if n, ok := s.Node("cp-2"); !ok || n.VMID != 2 {
		t.Errorf("%+v", n)
	}
	if n, ok := s.Node("cp-3"); ok {
		t.Errorf("%+v", n)
	}
	for c, want := range map[[2]string]string{{"https://c.example.org", ""}: "https://c.example.org/x-1", {"", "oci://c.example.org/x"}: "oci://c.example.org/x:1", {"", ""}: "charts/x"} {
		if got := (Chart{Repository: c[0], OCI: c[1], Path: "charts/x", Name: "x", Version: "1"}).Ref(); got != want {
			t.Errorf("%v: %s", c, got)
		}
	}
	m := NamespaceMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}
	if !m.Equal(NamespaceMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}) || m.Equal(NamespaceMeta{Labels: m.Labels}) || m.Equal(NamespaceMeta{Annotations: m.Annotations}) {
		t.Error("what is not the same is equal, or the other way round")
	}
	d := Desired{Fingerprint: "runs", Asked: &Desired{Fingerprint: "asked"}}
	if d.Repository().Fingerprint != "asked" || d.Asked.Repository().Fingerprint != "asked" {
		t.Error("what the repository has is not what it has")
	}
}

// TestPlaceOf: something stands at the nearest place that is known before it.
func TestPlaceOf(t *testing.T) {
	at := func(line int) Position { return Position{File: "f", Line: line} }
	p := Patch{Places: []PatchPlace{{1, 1, at(11)}, {3, 5, at(13)}, {3, 9, at(14)}, {7, 1, at(17)}}}
	for c, want := range map[[2]int]Position{{0, 9}: {}, {1, 1}: at(11), {2, 9}: at(11), {3, 4}: at(11), {3, 5}: at(13), {3, 8}: at(13), {3, 9}: at(14), {4, 1}: at(14), {7, 1}: at(17), {9, 1}: at(17)} {
		if got := p.PlaceOf(c[0], c[1]); got != want {
			t.Errorf("%v is at %v, want %v", c, got, want)
		}
	}
}

// TestStatusWaits: a status is about waiting where nothing runs, and nothing was begun.
func TestStatusWaits(t *testing.T) {
	waits := Status{Condition: Reconciling}
	for what, c := range map[string]struct {
		change func(*Status)
		want   bool
	}{
		"nothing else":                       {func(*Status) {}, true},
		"its last pass began nothing":        {func(s *Status) { s.Passes = []PassStatus{{}, {Started: []string{"x"}}} }, true},
		"its last pass began something":      {func(s *Status) { s.Passes = []PassStatus{{Started: []string{"x"}}} }, false},
		"something runs":                     {func(s *Status) { s.Running = []RunningStatus{{}} }, false},
		"it is suspended":                    {func(s *Status) { s.Suspended = true }, false},
		"it is Ready":                        {func(s *Status) { s.Condition = Ready }, false},
		"it is Ready, and nothing was begun": {func(s *Status) { s.Condition, s.Passes = Ready, []PassStatus{{}} }, false},
	} {
		s := waits
		c.change(&s)
		if s.Waits() != c.want {
			t.Errorf("%s: waits is %v", what, !c.want)
		}
	}
}

func TestDestructiveForecast(t *testing.T) {
	if (Forecast{Steps: []Step{{}}}).Destructive() || !(Forecast{Steps: []Step{{}, {Destructive: true}}}).Destructive() {
		t.Error("a forecast is destructive by one step that is")
	}
}

// TestGrowth: what of disks is to become larger or to be added, on the storage where it is;
// nothing of a VM that is not seen.
func TestGrowth(t *testing.T) {
	n := Node{Datastore: "fast", DiskBytes: 50, Disks: []Disk{{Serial: "talos-a", Datastore: "fast", Bytes: 20}, {Serial: "talos-b", Bytes: 10}}}
	has := Hardware{System: DiskSeen{Datastore: "slow", Bytes: 40}, Data: map[string]DiskSeen{"talos-a": {Datastore: "slow", Bytes: 5}}}
	want := []Growth{{FieldSystemSize, "slow", 10}, {FieldDiskSize("talos-a"), "slow", 15}, {FieldDisk("talos-b"), "fast", 10}}
	if got := n.Growth(has); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	has = Hardware{System: DiskSeen{Datastore: "fast", Bytes: 60}, Data: map[string]DiskSeen{"talos-a": {Bytes: 20}, "talos-b": {Bytes: 11}}}
	if got := append(n.Growth(has), n.Growth(Hardware{})...); len(got) > 0 {
		t.Errorf("nothing is to become larger: %+v", got)
	}
	if got := n.DiskUse(); got["fast"] != 80 || len(got) != 1 {
		t.Errorf("its disks take %v", got)
	}
	if got := has.DiskUse(); got["fast"] != 60 || got[""] != 31 {
		t.Errorf("the disks of the vm take %v", got)
	}
}

// TestImagesAreNoDifference: they, and where they are from, change on a cluster that lives.
func TestImagesAreNoDifference(t *testing.T) {
	have := ConfigSummary{Cluster: "dev", Images: Images{Kubelet: "a"}, Registries: "a", Discovery: true}
	want := ConfigSummary{Cluster: "dev", Images: Images{Kubelet: "b"}, Registries: "b"}
	if got := have.Differences(want); len(got) != 0 {
		t.Errorf("%v", got)
	}
	// Nor are they all that is known of a config.
	for _, only := range []ConfigSummary{{Images: Images{Kubelet: "a"}}, {Registries: "a"}, {Discovery: true}} {
		if a, b := only.Differences(have), have.Differences(only); len(a)+len(b) != 0 {
			t.Errorf("%v, %v", a, b)
		}
	}
}

// TestOtherPaths: what differs of values is named by its paths.
func TestOtherPaths(t *testing.T) {
	if got := (Installed{Values: SecretString(`{"a":1}`)}).OtherPaths(SecretString(`{"b":2}`)); got != "a, b" {
		t.Errorf("%q", got)
	}
}

// TestApprovedSteps: an approval is for the steps that were shown, however far they have come.
func TestApprovedSteps(t *testing.T) {
	cores := Step{Action: ChangeVM, Subject: "wk-1", Change: "cores=8"}
	upgrade := Step{Action: InstallAddon, Subject: "web", Change: "chart=web-1.1.0 from=deployed"}
	labels := Step{Action: LabelNode, Subject: "wk-1", Change: "labels=map[a:1 b:2]"}
	f := Facts{}
	f.Intend(Intent{Kind: IntendApproved, Revision: "r", Changes: []string{cores.Approvable(), upgrade.Approvable(), labels.Approvable()}})
	for _, c := range []struct {
		step Step
		want bool
	}{
		{cores, true}, {upgrade, true}, {labels, true},
		{Step{Action: InstallAddon, Subject: "web", Change: "chart=web-1.1.0 from=failed"}, true},
		{Step{Action: LabelNode, Subject: "wk-1", Change: "labels=map[a:1]"}, true},
		{Step{Action: PullImages, Subject: "wk-1", Change: "images=x"}, true},
		{Step{Action: ChangeVM, Subject: "wk-1", Change: "cores=8 memory=4096"}, false},
		{Step{Action: ChangeVM, Subject: "wk-2", Change: "cores=8"}, false},
		{Step{Action: LabelNode, Subject: "wk-2", Change: "labels=map[a:1]"}, false},
		{Step{Action: InstallAddon, Subject: "web", Change: "chart=web-1.2.0 from=deployed"}, false},
		{Step{Action: DrainNode, Subject: "wk-1", Change: "for=cores"}, false},
		{Step{Action: RemoveMember, Subject: "cp-3", Change: "member=3"}, false},
	} {
		if got := f.Approved("r", c.step); got != c.want {
			t.Errorf("%+v: %v, want %v", c.step, got, c.want)
		}
		if f.Approved("another", c.step) {
			t.Errorf("%+v: approved at another revision", c.step)
		}
	}
	f.Intend(Intent{Kind: IntendApproved, Revision: "r"}) // of an older agent
	if !f.Approved("r", cores) {
		t.Error("what an older agent has written is for all of the revision")
	}
}

// TestReleaseIsOurs: which releases are the cluster's to keep as the inventory has them.
func TestReleaseIsOurs(t *testing.T) {
	managed, first := Addon{Name: "web", Namespace: "apps", Ownership: Managed}, Addon{Name: "web", Namespace: "apps"}
	ours := Release{Namespace: "apps", Status: "deployed", Digest: "made"}
	failed, elsewhere, theirs := ours, ours, ours
	failed.Status, elsewhere.Namespace, theirs.Digest = "failed", "default", ""
	seen := func(r Release) Seen[map[string]Release] { return Saw(map[string]Release{"web": r}) }
	before := seen(ours)
	before.Known = false
	for what, c := range map[string]struct {
		releases Seen[map[string]Release]
		addon    Addon
		want     bool
	}{
		"managed":                    {seen(ours), managed, true},
		"managed, and failed":        {seen(failed), managed, true},
		"bootstrap-only, and failed": {seen(failed), first, true},
		"bootstrap-only":             {seen(ours), first, false},
		"in another namespace":       {seen(elsewhere), managed, false},
		"made by somebody else":      {seen(theirs), managed, false},
		"not there":                  {Saw(map[string]Release{}), managed, false},
		"not there, of no namespace": {Saw(map[string]Release{}), Addon{Name: "web", Ownership: Managed}, false},
		"not seen now":               {before, managed, false},
	} {
		if got := (Observed{Releases: c.releases}).IsOurs(c.addon); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// TestStaticPodIsSame: versions count, and of an image its name and tag: where it comes from, and
// its digest, may have been rewritten.
func TestStaticPodIsSame(t *testing.T) {
	pod := StaticPod{Image: "registry.k8s.io/kube-scheduler:v1.36.3", Versions: "/1/1"}
	for other, want := range map[StaticPod]bool{
		pod: true,
		{Image: "mirror.example.org:5000/k8s/kube-scheduler:v1.36.3@sha256:0123", Versions: "/1/1"}: true,
		{Image: "registry.k8s.io/kube-scheduler:v1.36.2", Versions: "/1/1"}:                         false,
		{Image: "registry.k8s.io/kube-scheduler:v1.36.3", Versions: "/2/1"}:                         false,
		{}: false,
	} {
		if pod.IsSame(other) != want || other.IsSame(pod) != want {
			t.Errorf("%+v: %v, want %v", other, !want, want)
		}
	}
}

func TestDrainPatience(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{0: 5 * time.Minute, time.Second: time.Second} {
		if got := (Drain{Timeout: timeout}).Patience(); got != want {
			t.Errorf("%s: %s, want %s", timeout, got, want)
		}
	}
}
