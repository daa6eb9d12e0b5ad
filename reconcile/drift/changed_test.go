package drift

import (
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// at1031 is a time of a change.
var at1031 = time.Date(2026, 11, 22, 11, 31, 5, 0, time.FixedZone("CET", 3600))

// task is one of somebody's at a time after that.
func task(kind, user string, after time.Duration) cluster.Task {
	return cluster.Task{UPID: "UPID:x:", Type: kind, User: user, Started: at1031.Add(after)}
}

// sent is a request of somebody's.
func sent(method, call, user string, after time.Duration) cluster.Request {
	return cluster.Request{Method: method, Call: call, User: user, At: at1031.Add(after)}
}

// TestChanged: who changed a VM is shown with where that is known from, and never made up.
func TestChanged(t *testing.T) {
	for want, vm := range map[string]cluster.VM{
		"": {},
		" (qmrestore by root@pam at 2026-11-22 10:31 UTC, UPID:x:)":                        {ChangedBy: []cluster.Task{task("qmrestore", "root@pam", 0)}, ChangedAfter: at1031},
		" (PUT config by ci@pve!deploy at 2026-11-22 10:31 UTC, in the host's access log)": {ChangedWith: []cluster.Request{sent("PUT", "config", "ci@pve!deploy", 0)}, ChangedAfter: at1031, Presence: cluster.Present},
		" (DELETE by root@pam at 2026-11-22 10:31 UTC, in the host's access log)":          {ChangedWith: []cluster.Request{sent("DELETE", "", "root@pam", 0)}, ChangedAfter: at1031, Presence: cluster.Absent},
		" (changed after 2026-11-22 10:31 UTC; no task shows who it was)":                  {ChangedAfter: at1031},
	} {
		o := cluster.Observed{VMs: map[string]cluster.VM{"wk-1": vm}}
		if got := ChangedOf(o, "wk-1", FieldVM).String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestWhoChangedAField: of several that changed a VM the last is named whose task or request may
// have changed the field, and no name where that was the agent.
func TestWhoChangedAField(t *testing.T) {
	own := func(t cluster.Task) cluster.Task { t.Ours = true; return t }
	ownRequest := func(r cluster.Request) cluster.Request { r.Ours = true; return r }
	tasks, requests := func(t ...cluster.Task) []cluster.Task { return t }, func(r ...cluster.Request) []cluster.Request { return r }
	for what, c := range map[string]struct {
		field string
		by    []cluster.Task
		with  []cluster.Request
		want  string
	}{
		"cores, and a start after it":        {"cores", tasks(task("qmstart", "b@pam", time.Hour), task("qmconfig", "a@pam", 0)), nil, "a@pam"},
		"cores, and only a start":            {"cores", tasks(task("qmstart", "b@pam", 0)), nil, ""},
		"cores, and only a resize":           {"cores", tasks(task("resize", "b@pam", 0)), requests(sent("PUT", "resize", "b@pam", 0)), ""},
		"a disk that was enlarged":           {"system disk size", tasks(task("qmstop", "b@pam", time.Hour), task("resize", "a@pam", 0)), nil, "a@pam"},
		"a disk that was moved":              {"system disk datastore", nil, requests(sent("POST", "move_disk", "a@pam", 0)), "a@pam"},
		"power, and an edit after it":        {FieldPower, tasks(task("qmconfig", "b@pam", time.Hour), task("qmshutdown", "a@pam", 0)), nil, "a@pam"},
		"power, a guest that shut down":      {FieldPower, tasks(task("qmstart", "b@pam", 0)), requests(sent("POST", "status/start", "b@pam", 0)), ""},
		"power, by a request":                {FieldPower, nil, requests(sent("POST", "status/stop", "a@pam", 0)), "a@pam"},
		"anything, by a rollback":            {FieldPower, nil, requests(sent("POST", "snapshot/one/rollback", "a@pam", 0)), "a@pam"},
		"the pool, by no task of a vm":       {FieldPool, tasks(task("qmconfig", "b@pam", 0)), nil, ""},
		"a task and its own request":         {"cores", tasks(task("qmconfig", "a@pam", 0)), requests(sent("POST", "config", "a@pam", time.Second)), "a@pam"},
		"a resize and its own request":       {"system disk size", tasks(task("resize", "a@pam", 0)), requests(sent("PUT", "resize", "a@pam", time.Second)), "a@pam"},
		"a task, and a request after it":     {"cores", tasks(task("qmconfig", "b@pam", 0)), requests(sent("PUT", "config", "a@pam", time.Minute)), "a@pam"},
		"a request, and a task after it":     {"cores", tasks(task("qmconfig", "a@pam", time.Minute)), requests(sent("PUT", "config", "b@pam", 0)), "a@pam"},
		"the agent last, by a task":          {"system disk size", tasks(own(task("resize", "agent", time.Hour)), task("resize", "b@pam", 0)), nil, ""},
		"the agent last, by a request":       {"cores", tasks(task("qmconfig", "b@pam", 0)), requests(ownRequest(sent("PUT", "config", "agent", time.Hour))), ""},
		"the agent before":                   {"cores", tasks(own(task("qmconfig", "agent", 0))), requests(sent("PUT", "config", "a@pam", time.Hour)), "a@pam"},
		"the agent, who started it only":     {"cores", tasks(own(task("qmstart", "agent", time.Hour)), task("qmconfig", "a@pam", 0)), nil, "a@pam"},
		"a request for something else of it": {"cores", nil, requests(sent("POST", "template", "b@pam", 0), sent("POST", "migrate", "b@pam", 0)), ""},
	} {
		vm := cluster.VM{Presence: cluster.Present, ChangedBy: c.by, ChangedWith: c.with, ChangedAfter: at1031.Add(-time.Minute)}
		got := ChangedOf(cluster.Observed{VMs: map[string]cluster.VM{"wk-1": vm}}, "wk-1", c.field)
		name := ""
		switch {
		case got.By != nil && got.With != nil:
			t.Errorf("%s: both a task and a request", what)
		case got.By != nil:
			name = got.By.User
		case got.With != nil:
			name = got.With.User
		}
		if name != c.want {
			t.Errorf("%s: %q, want %q", what, name, c.want)
		}
	}
}

// TestWhoIsNoted: who made something what it is stays noted while it is that, whoever changes the VM later.
func TestWhoIsNoted(t *testing.T) {
	n := cluster.Node{Name: "wk-1", Cores: 4}
	d := cluster.Desired{Snapshot: cluster.Snapshot{Spec: cluster.Spec{Nodes: []cluster.Node{n}}}, Configs: map[string]cluster.Config{"wk-1": {Digest: "new"}}}
	key := cluster.DriftKey{Subject: "wk-1", Part: cluster.PartVM, Field: "cores"}
	noted := cluster.DriftNote{Since: at1031, By: "by a@pam", Has: hashHas("8")}
	unnamed := cluster.DriftNote{Since: at1031, Has: hashHas("8")}
	later := []cluster.Task{task("qmconfig", "b@pam", time.Hour)}
	for what, c := range map[string]struct {
		note         cluster.DriftNote
		cores        int
		pending      bool
		by           []cluster.Task
		after        time.Duration
		want, origin string
		since        time.Duration
	}{
		"nothing since":                          {noted, 8, false, nil, 0, "by a@pam", "by a@pam", 0},
		"another field was changed later":        {noted, 8, false, later, time.Minute, "by a@pam", "by a@pam", 0},
		"it waits for the next start":            {noted, 8, true, later, time.Minute, "by a@pam", "by a@pam", 0},
		"it was changed once more":               {noted, 16, false, later, time.Minute, "qmconfig by b@pam at 2026-11-22 11:31 UTC, UPID:x:", "", time.Hour},
		"it was changed, and no task shows it":   {noted, 16, false, nil, time.Minute, "changed after 2026-11-22 10:32 UTC; no task shows who it was", "", 0},
		"no name was seen, and a change later":   {unnamed, 8, false, later, time.Minute, "", "", 0},
		"no name was seen, and one since before": {unnamed, 8, false, later, -time.Minute, "", "", 0},
	} {
		hw := WantHardware(d.Spec, n)
		hw.Cores = c.cores
		vm := cluster.VM{Presence: cluster.Present, Owner: cluster.Ours, Power: cluster.PowerRunning, Hardware: cluster.Saw(hw), ChangedBy: c.by, ChangedAfter: at1031.Add(c.after)}
		if c.pending {
			active := WantHardware(d.Spec, n)
			vm.Active = &active
		}
		o := cluster.Observed{Now: at1031.Add(2 * time.Hour), VMs: map[string]cluster.VM{"wk-1": vm}, DriftNotes: map[cluster.DriftKey]cluster.DriftNote{key: c.note}}
		o.Facts.Settled = map[string]string{"wk-1": WantDigest(d, n)}
		got := Notes(d, o)[key]
		if got.By != c.want || !got.Since.Equal(at1031.Add(c.since)) || got.Has != hashHas(map[int]string{8: "8", 16: "16"}[c.cores]) {
			t.Errorf("%s: %+v, want %q since %v", what, got, c.want, at1031.Add(c.since))
		}
		o.DriftNotes = map[cluster.DriftKey]cluster.DriftNote{key: got}
		if again := Notes(d, o)[key]; again != got {
			t.Errorf("%s: noted once more: %+v, and %+v before", what, again, got)
		}
		if c.origin != "" {
			if got := ChangedOf(o, "wk-1", "cores").String(); got != " ("+c.origin+")" {
				t.Errorf("%s: for a plan: %q", what, got)
			}
		}
	}
}
