package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/reconcile/action"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
)

// steps note what the systems around the loop are asked for, in order. One of it fails.
type steps struct {
	*fake
	fails string
	why   error // of what fails; nil: any
	done  []string
	after func(what string)
	etcd  func(*cluster.Observed)
}

func (s *steps) take(what string) error {
	s.done = append(s.done, what)
	if s.after != nil {
		s.after(what)
	}
	switch {
	case what == s.fails && s.why != nil:
		return s.why
	case what == s.fails:
		return errors.New("no luck")
	}
	return nil
}

func (s *steps) CheckInstallers(context.Context, cluster.Desired, []string) error {
	return s.take("check installers")
}

func (s *steps) Installers() map[string]cluster.InstallerSeen { return nil }

func (s *steps) Register(context.Context, cluster.Schematic) error { return s.take("register") }

func (s *steps) Download(context.Context, cluster.Desired, Progress) (cluster.ImagePin, error) {
	return cluster.ImagePin{SHA256: "00"}, s.take("download")
}

func (s *steps) Upload(context.Context, string, string, cluster.Image, Progress) error {
	return s.take("upload")
}

func (s *steps) Create(context.Context, cluster.Desired, cluster.Node, string, cluster.Image, Progress) error {
	return s.take("create")
}

func (s *steps) Start(context.Context, cluster.Desired, cluster.Node, Progress) error {
	return s.take("start")
}

func (s *steps) Resume(context.Context, cluster.Desired, cluster.Node, Progress) error {
	return s.take("resume")
}

func (s *steps) Change(context.Context, cluster.Desired, cluster.Node, string, []cluster.VMField, Progress) error {
	return s.take("change vm")
}

func (s *steps) Reset(context.Context, cluster.Desired, cluster.Node, Progress) error {
	return s.take("reset")
}

func (s *steps) ShutDown(context.Context, cluster.Desired, cluster.Node, Progress) error {
	return s.take("shut down")
}

func (s *steps) SetAvailability(context.Context, cluster.Desired, cluster.VM, availability.State, Progress) error {
	return s.take("set availability")
}

func (s *steps) SetApart(context.Context, cluster.Desired, []int, Progress) error {
	return s.take("set apart")
}

func (s *steps) Delete(context.Context, cluster.Desired, cluster.VM, Progress) error {
	return s.take("delete")
}

func (s *steps) Apply(context.Context, cluster.Desired, cluster.Node, cluster.Config) error {
	return s.take("apply")
}

func (s *steps) Bootstrap(context.Context, cluster.Desired, cluster.Node) error {
	return s.take("bootstrap")
}

func (s *steps) PullImages(context.Context, cluster.Desired, cluster.Node, Progress) error {
	return s.take("pull images")
}

func (s *steps) ChangeNetwork(context.Context, cluster.Desired, cluster.Node, cluster.Config) error {
	return s.take("change network")
}

func (s *steps) DropStaged(context.Context, cluster.Desired, cluster.Node, cluster.Config) error {
	return s.take("drop staged")
}

func (s *steps) Reboot(context.Context, cluster.Desired, cluster.Node, string, Progress) error {
	return s.take("reboot")
}

func (s *steps) PullInstaller(context.Context, cluster.Desired, cluster.Node, string, Progress) error {
	return s.take("pull installer")
}

func (s *steps) InstallTalos(context.Context, cluster.Desired, cluster.Node, string, string, Progress) error {
	return s.take("install talos")
}

func (s *steps) UpgradeTalos(context.Context, cluster.Desired, cluster.Node, string, string, Progress) error {
	return s.take("upgrade talos")
}
func (s *steps) RollBackTalos(context.Context, cluster.Desired, cluster.Node, string, Progress) error {
	return s.take("roll back talos")
}

func (s *steps) Forfeit(context.Context, cluster.Desired, cluster.Node) error {
	return s.take("forfeit")
}

func (s *steps) RemoveMember(context.Context, cluster.Desired, cluster.Node, cluster.Member) error {
	return s.take("remove member")
}

func (s *steps) Drain(context.Context, cluster.Desired, cluster.Node, string, cluster.Drain, Progress) error {
	return s.take("drain")
}

func (s *steps) CheckGates(context.Context, cluster.Desired, cluster.Observed) map[string]cluster.Seen[bool] {
	return nil
}

func (s *steps) SeeJobs(context.Context, cluster.Desired, []cluster.ObjectName) (seen cluster.Seen[map[cluster.ObjectName]cluster.Job]) {
	return seen
}

func (s *steps) StartJob(context.Context, cluster.Desired, cluster.Gate, cluster.ObjectName, cluster.Revision) error {
	return s.take("start job")
}

func (s *steps) DeleteJob(context.Context, cluster.Desired, cluster.Job) error {
	return s.take("delete job")
}

func (s *steps) ListLostPods(context.Context, cluster.Desired, string) ([]string, error) {
	return nil, s.take("list lost pods")
}

func (s *steps) CheckDrained(context.Context, cluster.Desired, cluster.Node, bool) error {
	return s.take("see it drained")
}

func (s *steps) Uncordon(context.Context, cluster.Desired, cluster.Node) error {
	return s.take("uncordon")
}

func (s *steps) DeleteNode(context.Context, cluster.Desired, cluster.Node, Progress) error {
	return s.take("delete node")
}

func (s *steps) Label(context.Context, cluster.Desired, cluster.Node, []string) error {
	return s.take("label")
}

func (s *steps) FetchChart(_ context.Context, _ cluster.Addon, pin string) (string, error) {
	return "taken", s.take(strings.TrimSpace("fetch " + pin))
}

func (s *steps) Install(context.Context, cluster.Desired, cluster.Addon, string) error {
	return s.take("install")
}

func (s *steps) Mark(context.Context, cluster.Desired, cluster.Addon, bool) error {
	return s.take("mark")
}

func (s *steps) RollBack(context.Context, cluster.Desired, cluster.Addon, int, string) error {
	return s.take("roll back")
}

func (s *steps) Uninstall(context.Context, cluster.Desired, cluster.ReleaseName) error {
	return s.take("uninstall")
}

func (s *steps) Sync(context.Context, cluster.Desired, cluster.Manifests) error {
	return s.take("sync manifests")
}

func (s *steps) LabelNamespace(context.Context, cluster.Desired, string, cluster.NamespaceMeta) error {
	return s.take("label namespace")
}

// Observe implements Observer: it is asked for etcd only.
func (s *steps) Observe(_ context.Context, _ cluster.Desired, o *cluster.Observed) {
	_ = s.take("look")
	if s.etcd != nil {
		s.etcd(o)
	}
}

// Forget implements Forgetter.
func (s *steps) Forget(string) { _ = s.take("forget") }

// stepsOfMachines are the steps that are asked of machines.
type stepsOfMachines struct{ *steps }

func (s stepsOfMachines) Change(_ context.Context, _ cluster.Desired, _ cluster.Node, _ cluster.Config, stage bool) error {
	if stage {
		return s.take("stage")
	}
	return s.take("change config")
}

// newSteps is a cluster with three healthy members of etcd, and with a journal.
func newSteps(t *testing.T) (*steps, *Reconciler, *journaltest.Files, cluster.Desired) {
	t.Helper()
	f, files := newFake(3, 1), journaltest.NewFiles()
	s := &steps{fake: f, etcd: func(o *cluster.Observed) {
		o.Members, o.MembersAgree, o.MembersAsked = cluster.Saw([]cluster.Member{{Name: "cp-1"}, {Name: "cp-2"}, {Name: "cp-3"}}), cluster.Saw(true), []string{"cp-1", "cp-2", "cp-3"}
		o.Machines = map[string]cluster.Machine{}
		for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
			o.Machines[name] = cluster.Machine{Reach: cluster.Configured, Services: map[string]cluster.Service{"etcd": {Healthy: true}}}
		}
	}}
	j, err := journal.Open(files, "dev", f.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Cluster: "dev", ID: f.spec.ID, Source: f, Host: hostEyes{f}, Observers: []Observer{s}, Renderer: f,
		Images: s, VMs: s, Machines: stepsOfMachines{s}, Nodes: s, Gates: s, Releases: s, Manifests: s, Journal: j, Policy: func() cluster.Policy { return cluster.Policy{} }})
	if err != nil {
		t.Fatal(err)
	}
	return s, r, files, cluster.Desired{Snapshot: cluster.Snapshot{Revision: rev(1), Spec: f.spec}, Fingerprint: "keys"}
}

// TestStepsOfActions: what each action asks for, and that what comes before it keeps it from
// being asked for where that fails.
func TestStepsOfActions(t *testing.T) {
	f := newFake(3, 1)
	cp, wk := f.spec.Nodes[0], f.spec.Nodes[3]
	config := cluster.Config{Digest: "new"}
	chart := cluster.Addon{Name: "a", Chart: cluster.Chart{Repository: "https://charts.example.org", Name: "a", Version: "1"}}
	pinned, own := chart, chart
	pinned.Chart.Digest, own.Chart.Path = "pinned", "charts/a"
	rollBack := action.RollBackTalos{Node: cp, Image: "i", Restart: cluster.Restart{Boot: "b"}}
	ordered := func(f *cluster.Facts) {
		f.Intend(cluster.Intent{Kind: cluster.IntendRollback, Node: cp.Name, Target: "b"})
	}
	asksEtcd, asksAll := []string{"forfeit", "forget", "look"}, []string{"forfeit", "see it drained", "forget", "look"}
	for name, c := range map[string]struct {
		do    action.Action
		given func(*cluster.Facts) // what is in the journal before
		fails string               // what fails; "journal": what is written into it
		few   bool                 // members of etcd are healthy
		pair  bool                 // etcd has two members, which are healthy
		blind bool                 // no member of etcd is seen
		alarm bool                 // etcd has one
		want  []string
		ok    bool
	}{
		"register":         {do: action.RegisterSchematic{}, want: []string{"register"}, ok: true},
		"download":         {do: action.DownloadImage{}, want: []string{"download"}, ok: true},
		"a bad download":   {do: action.DownloadImage{}, fails: "download", want: []string{"download"}},
		"upload":           {do: action.UploadImage{}, want: []string{"upload"}, ok: true},
		"create":           {do: action.CreateVM{}, want: []string{"create"}, ok: true},
		"start":            {do: action.StartVM{}, want: []string{"start"}, ok: true},
		"resume":           {do: action.ResumeVM{}, want: []string{"resume"}, ok: true},
		"delete":           {do: action.DeleteVM{}, want: []string{"delete"}, ok: true},
		"drain":            {do: action.DrainNode{}, want: []string{"drain"}, ok: true},
		"uncordon":         {do: action.UncordonNode{}, want: []string{"uncordon"}, ok: true},
		"delete a node":    {do: action.DeleteNode{}, want: []string{"delete node"}, ok: true},
		"label":            {do: action.LabelNode{}, want: []string{"label"}, ok: true},
		"install":          {do: action.InstallAddon{}, want: []string{"install"}, ok: true},
		"mark":             {do: action.MarkAddon{}, want: []string{"mark"}, ok: true},
		"roll back":        {do: action.RollBackAddon{}, want: []string{"roll back"}, ok: true},
		"uninstall":        {do: action.UninstallAddon{}, want: []string{"uninstall"}, ok: true},
		"start job":        {do: action.StartJob{}, want: []string{"start job"}, ok: true},
		"delete job":       {do: action.DeleteJob{}, want: []string{"delete job"}, ok: true},
		"sync manifests":   {do: action.SyncManifests{}, want: []string{"sync manifests"}, ok: true},
		"label namespaces": {do: action.LabelNamespace{}, want: []string{"label namespace"}, ok: true},

		"apply":                      {do: action.ApplyConfig{Node: cp}, want: []string{"apply"}, ok: true},
		"apply, with keys":           {do: action.ApplyConfig{Node: cp}, given: func(f *cluster.Facts) { f.Fingerprint = "keys" }, want: []string{"apply"}, ok: true},
		"apply, with other keys":     {do: action.ApplyConfig{Node: cp}, given: func(f *cluster.Facts) { f.Fingerprint = "others" }},
		"apply, and cannot write it": {do: action.ApplyConfig{Node: cp}, fails: "journal"},
		"bootstrap":                  {do: action.Bootstrap{Node: cp}, want: []string{"bootstrap"}, ok: true},
		"bootstrap, unwritten":       {do: action.Bootstrap{Node: cp}, fails: "journal"},

		"change a vm":                     {do: action.ChangeVM{Node: cp}, want: []string{"change vm"}, ok: true},
		"change a vm's network":           {do: action.ChangeVM{Node: cp, Moves: true}, want: []string{"forget", "look", "change vm", "watch"}, ok: true},
		"a network that etcd needs":       {do: action.ChangeVM{Node: cp, Moves: true}, few: true, want: []string{"forget", "look"}},
		"a network of no vote":            {do: action.ChangeVM{Node: cp, Moves: true, Voteless: true}, few: true, want: []string{"change vm", "watch"}, ok: true},
		"a worker's network":              {do: action.ChangeVM{Node: wk, Moves: true}, few: true, want: []string{"change vm", "watch"}, ok: true},
		"a worker's network, unwritten":   {do: action.ChangeVM{Node: wk, Moves: true}, fails: "journal"},
		"a network, unwritten":            {do: action.ChangeVM{Node: cp, Moves: true}, fails: "journal", want: []string{"forget", "look"}},
		"a vm that is not changed":        {do: action.ChangeVM{Node: cp, Moves: true}, fails: "change vm", want: []string{"forget", "look", "change vm"}},
		"change a config":                 {do: action.ChangeConfig{Node: cp, Config: config}, want: []string{"forget", "look", "change config", "watch"}, ok: true},
		"a config, after its images":      {do: action.ChangeConfig{Node: cp, Config: config, Pulls: true}, want: []string{"pull images", "forget", "look", "change config", "watch"}, ok: true},
		"a config without etcd":           {do: action.ChangeConfig{Node: cp, Config: config, Pulls: true, First: true}, few: true, want: []string{"pull images", "forget", "look"}},
		"a config of no vote":             {do: action.ChangeConfig{Node: cp, Config: config, Voteless: true}, few: true, want: []string{"change config", "watch"}, ok: true},
		"a config of a pair":              {do: action.ChangeConfig{Node: cp, Config: config, OfPair: true}, pair: true, want: []string{"forget", "look", "change config", "watch"}, ok: true},
		"a config in a pair":              {do: action.ChangeConfig{Node: cp, Config: config}, pair: true, want: []string{"forget", "look"}},
		"a config of a pair that is none": {do: action.ChangeConfig{Node: cp, Config: config, OfPair: true}, few: true, want: []string{"forget", "look"}},
		"a config, unwritten":             {do: action.ChangeConfig{Node: cp, Config: config}, fails: "journal", want: []string{"forget", "look"}},
		"change a worker's config":        {do: action.ChangeConfig{Node: wk, Config: config}, want: []string{"change config"}, ok: true},
		"drop a staged config":            {do: action.DropConfig{Node: cp, Config: config}, want: []string{"drop staged"}, ok: true},
		"a config with new images":        {do: action.ChangeConfig{Node: wk, Config: config, Pulls: true}, want: []string{"pull images", "change config"}, ok: true},
		"a config without its images":     {do: action.ChangeConfig{Node: wk, Config: config, Pulls: true, First: true}, fails: "pull images", want: []string{"pull images"}},
		"reboot without its images":       {do: action.RebootNode{Node: cp, Config: config, Pulls: true}, fails: "pull images", want: []string{"pull images"}},
		"pull images":                     {do: action.PullImages{Node: wk}, want: []string{"pull images"}, ok: true},
		"a config that is not taken":      {do: action.ChangeConfig{Node: cp, Config: config}, fails: "change config", want: []string{"forget", "look", "change config"}},
		"the first config":                {do: action.ChangeConfig{Node: wk, Config: config, First: true}, want: []string{"change config"}, ok: true},
		"the first config, unwritten":     {do: action.ChangeConfig{Node: wk, Config: config, First: true}, fails: "journal"},

		"shut down":                        {do: action.ShutDownVM{Node: cp}, want: append(slices.Clone(asksAll), "shut down"), ok: true},
		"shut down a worker":               {do: action.ShutDownVM{Node: wk}, want: []string{"see it drained", "shut down"}, ok: true},
		"shut down without etcd":           {do: action.ShutDownVM{Node: cp}, few: true, want: asksAll},
		"shut down, unwritten":             {do: action.ShutDownVM{Node: cp}, fails: "journal", want: asksAll},
		"reboot one that does not work":    {do: action.RebootNode{Node: cp, Config: config, Undrained: true}, want: append([]string{"stage"}, append(slices.Clone(asksEtcd), "reboot")...), ok: true},
		"reboot":                           {do: action.RebootNode{Node: cp, Config: config, Pulls: true}, want: append([]string{"pull images", "stage"}, append(slices.Clone(asksAll), "reboot")...), ok: true},
		"reboot, and it does not stage":    {do: action.RebootNode{Node: cp, Config: config, Pulls: true}, fails: "stage", want: []string{"pull images", "stage"}},
		"reboot, and it leads etcd":        {do: action.RebootNode{Node: cp}, fails: "forfeit", want: append(slices.Clone(asksAll), "reboot"), ok: true},
		"shut down, and it is in service":  {do: action.ShutDownVM{Node: cp, Config: config, Pulls: true}, fails: "see it drained", want: []string{"pull images", "stage", "forfeit", "see it drained"}},
		"shut down what cannot be drained": {do: action.ShutDownVM{Node: wk, Undrained: true}, fails: "see it drained", want: []string{"shut down"}, ok: true},
		"reboot a worker in service":       {do: action.RebootNode{Node: wk}, fails: "see it drained", want: []string{"see it drained"}},
		"look for installers":              {do: action.CheckInstallers{Cluster: "dev", Images: []string{"i"}}, want: []string{"check installers"}, ok: true},
		"pull an installer":                {do: action.PullInstaller{Node: cp}, want: []string{"pull installer"}, ok: true},
		"install talos":                    {do: action.InstallTalos{Node: cp}, want: []string{"forget", "look", "install talos"}, ok: true},
		"install talos on a worker":        {do: action.InstallTalos{Node: wk}, few: true, want: []string{"install talos"}, ok: true},
		"install talos without etcd":       {do: action.InstallTalos{Node: cp}, few: true, want: []string{"forget", "look"}},
		"install talos, unwritten":         {do: action.InstallTalos{Node: wk}, fails: "journal"},
		"upgrade talos":                    {do: action.UpgradeTalos{Node: cp}, want: append(slices.Clone(asksAll), "upgrade talos"), ok: true},
		"upgrade talos without etcd":       {do: action.UpgradeTalos{Node: cp}, few: true, want: asksAll},
		"upgrade talos in service":         {do: action.UpgradeTalos{Node: wk}, fails: "see it drained", want: []string{"see it drained"}},
		"upgrade talos, unwritten":         {do: action.UpgradeTalos{Node: wk}, fails: "journal", want: []string{"see it drained"}},
		"install talos, and an alarm":      {do: action.InstallTalos{Node: cp}, alarm: true, want: []string{"forget", "look"}},
		"upgrade talos, and an alarm":      {do: action.UpgradeTalos{Node: cp, Version: "v1.14.1"}, alarm: true, want: asksAll},
		"reboot to it, and an alarm":       {do: action.RebootNode{Node: cp, Into: "v1.14.1"}, alarm: true, want: asksAll},
		"shut down to it, and an alarm":    {do: action.ShutDownVM{Node: cp, Into: "v1.14.1"}, alarm: true, want: asksAll},
		"an alarm of a worker's etcd":      {do: action.RebootNode{Node: wk, Into: "v1.14.1"}, alarm: true, want: []string{"see it drained", "reboot"}, ok: true},
		"reboot for else, and an alarm":    {do: action.RebootNode{Node: cp}, alarm: true, want: append(slices.Clone(asksAll), "reboot"), ok: true},
		"roll back talos, and an alarm":    {do: rollBack, given: ordered, alarm: true, want: append(slices.Clone(asksAll), "roll back talos"), ok: true},
		"a config, and an alarm":           {do: action.ChangeConfig{Node: cp, Config: config}, alarm: true, want: []string{"forget", "look", "change config", "watch"}, ok: true},
		"roll back talos":                  {do: rollBack, given: ordered, want: append(slices.Clone(asksAll), "roll back talos"), ok: true},
		"roll back talos without etcd":     {do: rollBack, given: ordered, few: true, want: asksAll},
		"roll back talos, unwritten":       {do: rollBack, given: ordered, fails: "journal", want: asksAll},
		"roll back talos, withdrawn":       {do: rollBack, want: asksAll},
		"delete what is drained":           {do: action.DeleteVM{VM: cluster.VM{Node: "wk-9"}, Drained: true}, want: []string{"see it drained", "delete"}, ok: true},
		"delete what is in service":        {do: action.DeleteVM{VM: cluster.VM{Node: "wk-9"}, Drained: true}, fails: "see it drained", want: []string{"see it drained"}},
		"remove a member":                  {do: action.RemoveMember{Node: cp, Answers: true}, want: append(slices.Clone(asksEtcd), "remove member"), ok: true},
		"remove a member, which may lead":  {do: action.RemoveMember{Node: cp, Answers: true}, fails: "forfeit", want: append(slices.Clone(asksEtcd), "remove member"), ok: true},
		"remove a dead member":             {do: action.RemoveMember{Node: cp}, want: []string{"forget", "look", "remove member"}, ok: true},
		"remove a member etcd needs":       {do: action.RemoveMember{Node: cp}, few: true, want: []string{"forget", "look"}},
		"remove a lost member, unwritten":  {do: action.RemoveMember{Node: cp}, given: func(f *cluster.Facts) { f.Forget(cluster.Forgotten{Node: "cp-1"}) }, fails: "journal", want: []string{"forget", "look"}},

		"delete a worker that leaves":   {do: action.DeleteVM{Node: wk}, want: []string{"delete"}, ok: true},
		"delete, unwritten":             {do: action.DeleteVM{Node: wk}, fails: "journal"},
		"delete with all others":        {do: action.DeleteVM{}, few: true, fails: "journal", want: []string{"delete"}, ok: true},
		"delete one that has left etcd": {do: action.DeleteVM{Node: cluster.Node{Name: "cp-9"}, Votes: true}, want: []string{"forget", "look", "delete"}, ok: true},
		"delete a member of etcd":       {do: action.DeleteVM{Node: cp, Votes: true}, want: []string{"forget", "look"}},
		"delete what may be a member":   {do: action.DeleteVM{Node: cluster.Node{Name: "cp-9"}, Votes: true}, blind: true, want: []string{"forget", "look"}},

		"fetch":                {do: action.FetchChart{Addon: chart}, want: []string{"fetch"}, ok: true},
		"fetch, unwritten":     {do: action.FetchChart{Addon: chart}, fails: "journal", want: []string{"fetch"}},
		"fetch once more":      {do: action.FetchChart{Addon: chart}, given: func(f *cluster.Facts) { f.Charts[chart.Chart.Ref()] = "first" }, fails: "journal", want: []string{"fetch first"}, ok: true},
		"fetch as pinned":      {do: action.FetchChart{Addon: pinned}, fails: "journal", want: []string{"fetch pinned"}, ok: true},
		"take one's own chart": {do: action.FetchChart{Addon: own}, fails: "journal", want: []string{"fetch"}, ok: true},
		"a bad chart":          {do: action.FetchChart{Addon: chart}, fails: "fetch", want: []string{"fetch"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r, files, d := newSteps(t)
				if c.given != nil {
					if err := r.c.Journal.Update(c.given); err != nil {
						t.Fatal(err)
					}
				}
				if s.fails = c.fails; c.fails == "journal" {
					files.DieAt = files.Steps + 1
				}
				if c.few {
					healthy := s.etcd
					s.etcd = func(o *cluster.Observed) { healthy(o); delete(o.Machines, "cp-2"); delete(o.Machines, "cp-3") }
				}
				if c.pair {
					healthy := s.etcd
					s.etcd = func(o *cluster.Observed) { healthy(o); o.Members.Value = o.Members.Value[:2] }
				}
				if c.alarm {
					healthy := s.etcd
					s.etcd = func(o *cluster.Observed) { healthy(o); o.Etcd = cluster.Saw(cluster.Etcd{Alarms: []string{"NOSPACE"}}) }
				}
				if c.blind {
					s.etcd = nil
				}
				before := r.c.Journal.Facts()
				err := r.execute(t.Context(), d, c.do, func(p cluster.Progress) { _ = s.take("watch") })
				if !slices.Equal(s.done, c.want) || (err == nil) != c.ok {
					t.Errorf("asked for %v: %v; want %v", s.done, err, c.want)
				}
				if slices.Contains(s.done, "look") && len(r.trigger) == 0 {
					t.Error("an observer showed what it knows, and no pass follows")
				}
				if after := r.c.Journal.Facts(); err != nil && (len(after.Images) > len(before.Images) || len(after.Charts) > len(before.Charts) || len(after.Restarts) > len(before.Restarts)) {
					t.Errorf("what was not done is written down: %+v", after)
				}
			})
		})
	}
}

// TestWhatActionsWriteDown: what the world cannot show is in the journal before it is needed.
func TestWhatActionsWriteDown(t *testing.T) {
	f := newFake(3, 1)
	wk := f.spec.Nodes[3]
	chart := cluster.Addon{Name: "a", Chart: cluster.Chart{Repository: "https://charts.example.org", Name: "a", Version: "1"}}
	noted := cluster.Intent{Kind: cluster.IntendConfig, Revision: rev(7)}
	for name, c := range map[string]struct {
		do    action.Action
		given func(*cluster.Facts)
		want  func(cluster.Facts) bool
		quiet bool // nothing is written
	}{
		"an image": {do: action.DownloadImage{Image: cluster.Image{Name: "talos.qcow2"}}, want: func(f cluster.Facts) bool {
			return f.Images["talos.qcow2"] == cluster.ImagePin{SHA256: "00", For: cluster.Schematic{}.Digest()}
		}},
		"a chart": {do: action.FetchChart{Addon: chart}, want: func(f cluster.Facts) bool { return f.Charts[chart.Chart.Ref()] == "taken" }},
		"keys and configs": {do: action.ApplyConfig{Node: wk}, want: func(f cluster.Facts) bool {
			return f.Fingerprint == "keys" && intentOf(f, cluster.IntendConfig).Revision == rev(1)
		}},
		"configs, of known keys": {do: action.ApplyConfig{Node: wk}, given: func(f *cluster.Facts) { f.Fingerprint = "keys" }, want: func(f cluster.Facts) bool {
			return intentOf(f, cluster.IntendConfig).Revision == rev(1)
		}},
		"keys, of known configs": {do: action.ApplyConfig{Node: wk}, given: func(f *cluster.Facts) { f.Intend(noted) }, want: func(f cluster.Facts) bool {
			return f.Fingerprint == "keys" && intentOf(f, cluster.IntendConfig).Equal(noted)
		}},
		"nothing new": {do: action.ApplyConfig{Node: wk}, given: func(f *cluster.Facts) { f.Fingerprint = "keys"; f.Intend(noted) }, quiet: true, want: func(f cluster.Facts) bool {
			return intentOf(f, cluster.IntendConfig).Equal(noted)
		}},
		"a canary": {do: action.ChangeConfig{Node: wk, First: true, Target: "t"}, want: func(f cluster.Facts) bool {
			in := intentOf(f, cluster.IntendCanary)
			return in.Node == "wk-1" && in.Target == "t"
		}},
		"no canary": {do: action.ChangeConfig{Node: wk, Target: "t"}, quiet: true, want: func(f cluster.Facts) bool {
			_, ok := f.Intent(cluster.IntendCanary)
			return !ok
		}},
		"a removal": {do: action.DeleteVM{VM: cluster.VM{VMID: 510}, Node: wk}, want: func(f cluster.Facts) bool {
			in := intentOf(f, cluster.IntendApproved)
			return slices.Equal(in.VMs, []int{510}) && !f.Approved(rev(1), cluster.Step{Action: cluster.ChangeVM, Change: "cores=4"})
		}},
		"a removal beside what was approved": {do: action.DeleteVM{VM: cluster.VM{VMID: 510}, Node: wk}, given: func(f *cluster.Facts) {
			f.Intend(cluster.Intent{Kind: cluster.IntendApproved, Revision: rev(1), VMs: []int{511}})
		}, want: func(f cluster.Facts) bool {
			in := intentOf(f, cluster.IntendApproved)
			return slices.Equal(in.VMs, []int{511, 510}) && in.Revision == rev(1)
		}},
		"an approved removal": {do: action.DeleteVM{VM: cluster.VM{VMID: 510}, Node: wk}, given: func(f *cluster.Facts) {
			f.Intend(cluster.Intent{Kind: cluster.IntendApproved, VMs: []int{510}})
		}, quiet: true, want: func(f cluster.Facts) bool { return len(intentOf(f, cluster.IntendApproved).VMs) == 1 }},
		"a destruction": {do: action.DeleteVM{VM: cluster.VM{VMID: 510}}, quiet: true, want: func(f cluster.Facts) bool {
			_, ok := f.Intent(cluster.IntendApproved)
			return !ok
		}},
		"whose config is changed":  {do: action.ChangeConfig{Node: f.spec.Nodes[0]}, want: func(f cluster.Facts) bool { return intentOf(f, cluster.IntendWatch).Node == "cp-1" }},
		"whose network is changed": {do: action.ChangeVM{Node: f.spec.Nodes[0], Moves: true, Voteless: true}, want: func(f cluster.Facts) bool { return intentOf(f, cluster.IntendWatch).Node == "cp-1" }},
		"a worker whose network is changed": {do: action.ChangeVM{Node: wk, Moves: true}, given: func(f *cluster.Facts) {
			f.Moved["wk-8"], f.Moved["wk-9"] = time.Now().Add(-action.WatchedFor), time.Now().Add(-action.WatchedFor/2)
		}, want: func(f cluster.Facts) bool {
			_, watched := f.Intent(cluster.IntendWatch)
			return !watched && slices.Equal(slices.Sorted(maps.Keys(f.Moved)), []string{"wk-1", "wk-9"}) && time.Since(f.Moved["wk-1"]) < 2*action.WatchedFor
		}},
		"a vm that stays where it is": {do: action.ChangeVM{Node: f.spec.Nodes[0]}, quiet: true, want: func(f cluster.Facts) bool {
			_, ok := f.Intent(cluster.IntendWatch)
			return !ok
		}},
		"a restart": {do: action.RebootNode{Node: wk, Restart: cluster.Restart{Target: "t"}}, want: func(f cluster.Facts) bool { return f.Restarts["wk-1"].Target == "t" }},
		"a member that is lost": {do: action.RemoveMember{Node: f.spec.Nodes[0]}, given: func(f *cluster.Facts) { f.Forget(cluster.Forgotten{Node: "cp-1", Unfenced: true}) }, want: func(f cluster.Facts) bool {
			return len(f.Forgotten) == 1 && f.Forgotten[0].Left && f.Forgotten[0].Unfenced
		}},
		"a member that is not": {do: action.RemoveMember{Node: f.spec.Nodes[0]}, given: func(f *cluster.Facts) { f.Forget(cluster.Forgotten{Node: "cp-2"}) }, quiet: true, want: func(f cluster.Facts) bool {
			return len(f.Forgotten) == 1 && !f.Forgotten[0].Left
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, r, files, d := newSteps(t)
			if c.given != nil {
				if err := r.c.Journal.Update(c.given); err != nil {
					t.Fatal(err)
				}
			}
			before := files.Steps
			if err := r.execute(t.Context(), d, c.do, func(cluster.Progress) {}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if facts := r.c.Journal.Facts(); !c.want(facts) || (files.Steps == before) != c.quiet {
				t.Errorf("%s: %+v, written: %v", name, facts, files.Steps > before)
			}
		})
	}
}

// TestRefusedRebootIsNoRestart: a node that Talos refused to reboot was not taken down, so that it
// may be for the same; one whose reboot failed otherwise may have been.
func TestRefusedRebootIsNoRestart(t *testing.T) {
	refused := fmt.Errorf("reboot wk-1: %w", cluster.ErrSequenceRefused)
	earlier, now := cluster.Restart{Target: "earlier", Boot: "a"}, cluster.Restart{Target: "now", Boot: "b"}
	for name, c := range map[string]struct {
		err  error
		had  map[string]cluster.Restart
		want string // the target that is noted
		dies bool   // the journal cannot be written
	}{
		"refused":                   {err: refused},
		"refused, after an earlier": {err: refused, had: map[string]cluster.Restart{"wk-1": earlier}, want: "earlier"},
		"refused, unwritten":        {err: refused, dies: true, want: "now"},
		"failed":                    {err: fmt.Errorf("reboot wk-1: %w", cluster.ErrSequenceFailed), want: "now"},
		"interrupted":               {err: context.Canceled, want: "now"},
	} {
		t.Run(name, func(t *testing.T) {
			s, r, files, d := newSteps(t)
			if err := r.c.Journal.Update(func(f *cluster.Facts) { f.Restarts = c.had }); err != nil {
				t.Fatal(err)
			}
			s.fails, s.why = "reboot", c.err
			s.after = func(what string) {
				if what == "reboot" && r.c.Journal.Facts().Restarts["wk-1"].Target != "now" {
					t.Error("it is not noted before")
				}
				if what == "reboot" && c.dies {
					files.DieAt = files.Steps + 1
				}
			}
			err := r.execute(t.Context(), d, action.RebootNode{Node: d.Spec.Nodes[3], Restart: now}, nil)
			if !errors.Is(err, c.err) || strings.Contains(fmt.Sprint(err), "the journal has it as done") != c.dies {
				t.Errorf("%v", err)
			}
			if got := r.c.Journal.Facts().Restarts["wk-1"].Target; got != c.want {
				t.Errorf("noted: %q, want %q", got, c.want)
			}
		})
	}
}

// TestNoMemberIsRemovedWhenTheAgentStops: what takes long before it is not followed by what
// cannot be undone.
func TestNoMemberIsRemovedWhenTheAgentStops(t *testing.T) {
	s, r, _, d := newSteps(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stops := errors.New("the agent stops")
	s.after = func(what string) {
		if what == "forfeit" {
			cancel(stops)
		}
	}
	if err := r.execute(ctx, d, action.RemoveMember{Node: d.Spec.Nodes[0], Answers: true}, nil); !errors.Is(err, stops) || !slices.Equal(s.done, []string{"forfeit"}) {
		t.Errorf("asked for %v: %v", s.done, err)
	}
}

// TestActionsBeginOnce: an action that runs does not begin once more, and none begins when the
// agent stops.
func TestActionsBeginOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r, _, d := newSteps(t)
		r.exec.run, r.exec.ctx, r.exec.cancel = t.Context(), t.Context(), func() {}
		hold := make(chan struct{})
		s.after = func(string) { <-hold }
		start := action.StartVM{Node: d.Spec.Nodes[0]}
		r.exec.start(d, start)
		r.exec.start(d, start)
		synctest.Wait()
		if running, _ := r.exec.snapshot(); len(running) != 1 {
			t.Errorf("%+v", running)
		}
		close(hold)
		synctest.Wait()
		r.exec.stop(time.Second)
		r.exec.start(d, start)
		synctest.Wait()
		if !slices.Equal(s.done, []string{"start"}) {
			t.Errorf("asked for %v", s.done)
		}
	})
}

// TestStorageIsReleasedOnce: an action that has its disks releases the storage, and the loop
// looks again for who waits there; other progress of it is no reason to.
func TestStorageIsReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r, _, d := newSteps(t)
		r.exec.run, r.exec.ctx, r.exec.cancel = t.Context(), t.Context(), func() {}
		progress := make(chan cluster.Progress)
		r.c.VMs = creating{s, progress}
		r.exec.start(d, action.CreateVM{Node: d.Spec.Nodes[0], Host: "pve1"})
		claims := func() (onStorage, all int) {
			synctest.Wait()
			running, _ := r.exec.snapshot()
			for _, c := range running[0].Claims {
				if all++; c.OfStorage() {
					onStorage++
				}
			}
			return onStorage, all
		}
		_, all := claims()
		for i, c := range []struct {
			p         cluster.Progress
			onStorage int
			wakes     bool
		}{
			{cluster.Progress{Done: 1}, 1, false},
			{cluster.Progress{Done: 2, Allocated: true}, 0, true},
			{cluster.Progress{Done: 3, Allocated: true}, 0, false},
		} {
			progress <- c.p
			on, now := claims()
			wakes := false
			select {
			case <-r.exec.wake:
				wakes = true
			default:
			}
			if on != c.onStorage || now != all-1+c.onStorage || wakes != c.wakes {
				t.Errorf("%d: %d claims of %d, %d on a storage; the loop looks again: %v", i, now, all, on, wakes)
			}
		}
		close(progress)
		synctest.Wait()
		r.exec.stop(time.Second)
	})
}

// creating are VMs whose creation reports what it is given.
type creating struct {
	*steps
	progress <-chan cluster.Progress
}

func (c creating) Create(_ context.Context, _ cluster.Desired, _ cluster.Node, _ string, _ cluster.Image, p Progress) error {
	for now := range c.progress {
		p(now)
	}
	return nil
}

// TestActionsEnd: how each attempt ended is reported, and what it leads to.
func TestActionsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		fails   string
		stopped bool
		want    cluster.Result
		backoff bool
	}{
		"done":        {want: cluster.Done},
		"failed":      {fails: "start", want: cluster.Failed, backoff: true},
		"interrupted": {fails: "start", stopped: true, want: cluster.ResultInterrupted},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, r, _, d := newSteps(t)
			run, stop := context.WithCancel(t.Context())
			r.exec.run, r.exec.ctx, r.exec.cancel = run, t.Context(), stop
			s.fails = c.fails
			s.after = func(string) {
				if c.stopped {
					stop()
				}
			}
			var got []cluster.Outcome
			r.c.OnAction = func(o cluster.Outcome) { got = append(got, o) }
			var begun []cluster.Outcome
			r.c.OnBegin = func(o cluster.Outcome) { begun = append(begun, o) }
			r.exec.start(d, action.StartVM{Node: d.Spec.Nodes[0]})
			if len(begun) != 1 || begun[0].Result != "" || begun[0].Text == "" || begun[0].Action != cluster.StartVM {
				t.Errorf("%s: begun %+v", name, begun)
			}
			synctest.Wait()
			_, backoffs := r.exec.snapshot()
			if len(got) != 1 || got[0].Result != c.want || (got[0].Error == "") != (c.fails == "") || (len(backoffs) == 1) != c.backoff || (len(r.exec.takeFailed()) == 1) != c.backoff {
				t.Errorf("%s: %+v, %+v", name, got, backoffs)
			}
			r.exec.stop(time.Second)
		})
	}
}

// TestOnlyWhatTheAgentSetsIsUndone: what is done again and again is undone by somebody else
// where the agent sets a Node object, and is ordinary elsewhere.
func TestOnlyWhatTheAgentSetsIsUndone(t *testing.T) {
	for kind, want := range map[cluster.ActionKind]int{cluster.LabelNode: 1, cluster.StartVM: 0} {
		e := newExecutor(&Reconciler{})
		now := time.Unix(1, 0)
		for range undoneOften {
			now = now.Add(time.Second)
			e.backOffUndone(cluster.ActionID{Kind: kind, Subject: "cp-1"}, now)
		}
		if len(e.backoffs) != want {
			t.Errorf("%s: %+v", kind, e.backoffs)
		}
	}
}
