package pve

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/ha"
)

// onHA runs a test against a cluster of two hosts with VMs on the first, whose token may have the manager of high availability do things.
func onHA(t *testing.T, flavour string, vms []int, test func(*testLab)) {
	t.Helper()
	inBubble(t, Config{Flavour: flavour, Hosts: []Host{{}, {}}}, func(l *testLab) {
		l.ready()
		l.token = l.pve.AgentToken(AgentScope{Pool: "talos", Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}, HA: true})
		for _, vmid := range vms {
			l.ok("POST", "/nodes/pve1/qemu", vmForm(vmid))
		}
		test(l)
	})
}

// rounds lets some rounds of the manager pass.
func (l *testLab) rounds(n int) { time.Sleep(time.Duration(n)*ha.Every + time.Second) }

// refuses calls, and fails the test unless that is refused with a status and words.
func (l *testLab) refuses(status int, words, method, path, form string) {
	l.t.Helper()
	a := l.call(method, path, form)
	if a.status != status || !strings.Contains(a.reason+fmtErrors(a), words) {
		l.t.Errorf("%s %s %s: %d %s %v", method, path, form, a.status, a.reason, a.errors)
	}
}

func fmtErrors(a answer) string {
	var b strings.Builder
	for _, k := range sortedKeys(a.errors) {
		b.WriteString(" " + k + ": " + a.errors[k].(string))
	}
	return b.String()
}

// service returns what shows of a VM: whether it runs, the state in the list, and whether it is managed.
func (l *testLab) service(vmid string) (status, state string, managed bool) {
	l.t.Helper()
	for _, r := range l.ok("GET", "/cluster/resources?type=vm", "").([]any) {
		if r := r.(map[string]any); r["id"] == "qemu/"+vmid {
			state, _ = r["hastate"].(string)
		}
	}
	for _, host := range []string{"pve1", "pve2"} {
		if a := l.call("GET", "/nodes/"+host+"/qemu/"+vmid+"/status/current", ""); a.status == 200 {
			now := a.data.(map[string]any)
			return now["status"].(string), state, now["ha"].(map[string]any)["managed"] == 1.0
		}
	}
	return "", state, false
}

func (l *testLab) wantService(when, vmid, status, state string, managed bool) {
	l.t.Helper()
	if s, h, m := l.service(vmid); s != status || h != state || m != managed {
		l.t.Errorf("%s: vm %s is %s, %q, managed %v", when, vmid, s, h, m)
	}
}

// TestResources: what is asked for is made, changed and removed, by those who may, with the texts of Proxmox VE.
func TestResources(t *testing.T) {
	onHA(t, "9.2", []int{410, 411}, func(l *testLab) {
		const all, one = "/cluster/ha/resources", "/cluster/ha/resources/vm:410"
		l.refuses(500, "no such resource 'vm:410'", "GET", one, "")
		l.refuses(500, "update resources config failed: no such resource 'vm:410'", "PUT", one, "state=ignored")
		l.refuses(500, "cannot delete service 'vm:410', not HA managed!", "DELETE", one, "")
		l.refuses(500, "resource 'vm:499' does not exist in cluster", "POST", all, "sid=vm:499")
		l.refuses(500, "unable to detect SID from VMID - VM/CT 499 does not exist", "POST", all, "sid=499")
		l.refuses(400, "does not look like a valid ha resource id", "POST", all, "sid=vm")
		l.refuses(400, "does not have a value in the enumeration", "POST", all, "sid=vm:410&state=on")
		l.refuses(500, "invalid parameter 'group': ha groups have been migrated to rules", "POST", all, "sid=vm:410&group=g1")
		l.ok("POST", all, "sid=410&comment="+url.QueryEscape("talos-agent: (x)")+"&max_restart=0")
		l.refuses(500, "create resource failed: resource ID 'vm:410' already defined", "POST", all, "sid=vm:410")
		r := l.ok("GET", one, "").(map[string]any)
		if r["sid"] != "vm:410" || r["type"] != "vm" || r["comment"] != "talos-agent: (x)" || r["max_restart"] != 0.0 || r["state"] != nil {
			t.Errorf("%v", r)
		}
		old, _ := r["digest"].(string)
		l.ok("PUT", one, "state=ignored&digest="+old)
		l.refuses(500, "update resources config failed: detected modified configuration", "PUT", one, "state=started&digest="+old)
		l.refuses(500, "no such option 'sid'", "PUT", one, "delete=sid")
		l.ok("PUT", one, "delete=comment,max_restart")
		if r := l.ok("GET", all+"?type=vm", "").([]any); len(r) != 1 || r[0].(map[string]any)["state"] != "ignored" || r[0].(map[string]any)["comment"] != nil {
			t.Errorf("%v", r)
		}
		l.refuses(500, "unable to remove VM 410 - used in HA resources and purge parameter not set.", "DELETE", "/nodes/pve1/qemu/410", "")
		l.ok("DELETE", "/nodes/pve1/qemu/410?purge=1", "")
		if r := l.ok("GET", all, "").([]any); len(r) != 0 {
			t.Errorf("purged: %v", r)
		}
		l.pve.LoseQuorum(true)
		l.refuses(500, "no quorum", "POST", all, "sid=vm:411")
		l.pve.LoseQuorum(false)
		l.token = l.pve.Token("seer@pve", "t", false)
		l.pve.Role("Seer", "Sys.Audit")
		l.pve.Grant("seer@pve", "Seer", "/")
		l.ok("GET", all, "")
		l.refuses(403, "(/, Sys.Console)", "POST", all, "sid=vm:411")
	})
}

// TestDisarm: while the manager is disarmed it does nothing about VMs. Frozen ones stay its own, so that requests for them wait until it is
// armed; what it ignores is switched off and on as if it were not its own. Those that may ask for it are those that may change what it has.
func TestDisarm(t *testing.T) {
	const status = "/cluster/ha/status/"
	onHA(t, "9.2", []int{410, 411}, func(l *testLab) {
		fencing := func() string {
			t.Helper()
			for _, r := range l.ok("GET", status+"current", "").([]any) {
				if r := r.(map[string]any); r["type"] == "fencing" {
					mode, _ := r["resource_mode"].(string)
					return r["armed-state"].(string) + " " + mode
				}
			}
			return ""
		}
		wants := func(when, want string) {
			t.Helper()
			if got := fencing(); got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		wants("without a resource", "standby ")
		l.ok("POST", "/cluster/ha/resources", "sid=vm:410&state=started")
		l.rounds(2)
		wants("with one", "armed ")
		l.wantService("armed", "410", "running", "started", true)
		l.refuses(400, "does not have a value in the enumeration", "POST", status+"disarm-ha", "resource-mode=stop")
		l.refuses(400, "resource-mode: property is missing", "POST", status+"disarm-ha", "")

		l.ok("POST", status+"disarm-ha", "resource-mode=freeze")
		wants("before the round", "armed ")
		l.rounds(1)
		wants("a round later", "disarming freeze")
		l.ok("POST", status+"disarm-ha", "resource-mode=ignore")
		l.rounds(1)
		wants("two rounds later, asked twice", "disarmed freeze")
		l.wantService("frozen", "410", "running", "freeze", true)
		l.ok("POST", "/cluster/ha/resources", "sid=vm:411&state=started")
		l.ok("POST", "/nodes/pve1/qemu/410/status/shutdown", "")
		l.rounds(2)
		l.wantService("a request while it is frozen", "410", "running", "freeze", true)
		l.wantService("given to it meanwhile", "411", "stopped", "started", true)
		l.ok("POST", status+"arm-ha", "")
		l.rounds(1)
		wants("a round after it was asked to be armed", "armed ")
		l.wantService("not known to all yet", "410", "running", "freeze", true)
		l.rounds(6)
		l.wantService("armed, and asked to stop it", "410", "stopped", "stopped", true)
		l.wantService("armed", "411", "running", "started", true)

		l.ok("POST", status+"disarm-ha", "resource-mode=ignore")
		l.rounds(2)
		wants("ignoring", "disarmed ignore")
		l.wantService("ignored", "411", "running", "started", false)
		l.exit("POST", "/nodes/pve1/qemu/411/status/stop", "")
		l.rounds(2)
		l.wantService("stopped by hand", "411", "stopped", "started", false)
		l.ok("POST", status+"arm-ha", "")
		l.rounds(3)
		l.wantService("armed again", "411", "running", "started", true)
	})
	onHA(t, "8.4", nil, func(l *testLab) {
		l.refuses(501, "not implemented", "POST", status+"disarm-ha", "resource-mode=freeze")
		if r := l.ok("GET", status+"current", "").([]any); len(r) != 1 {
			t.Errorf("%v", r)
		}
	})
}

// TestGroups: Proxmox VE 8 has groups and no rules; one of 9 that has groups left shows them, and takes no rules.
func TestGroups(t *testing.T) {
	onHA(t, "8.4", []int{410}, func(l *testLab) {
		l.ok("POST", "/cluster/ha/resources", "sid=vm:410&group=g1")
		if r := l.ok("GET", "/cluster/ha/resources", "").([]any)[0].(map[string]any); r["group"] != "g1" || r["errors"] == nil {
			t.Errorf("%v", r)
		}
		l.refuses(500, "HA group 'g1' does not exist", "PUT", "/cluster/ha/resources/vm:410", "group=g1")
		l.pve.KeepGroups("g1")
		l.ok("PUT", "/cluster/ha/resources/vm:410", "group=g1")
		l.refuses(501, "Method 'GET /cluster/ha/rules' not implemented", "GET", "/cluster/ha/rules", "")
		l.refuses(400, "purge", "DELETE", "/cluster/ha/resources/vm:410?purge=1", "")
	})
	onHA(t, "9.2", []int{410}, func(l *testLab) {
		l.pve.KeepGroups("g1")
		l.ok("POST", "/cluster/ha/resources", "sid=vm:410&group=g1")
		if r := l.ok("GET", "/cluster/ha/resources/vm:410", "").(map[string]any); r["group"] != "g1" {
			t.Errorf("%v", r)
		}
		l.refuses(500, "cannot create ha rule: ha groups have not been migrated yet", "POST", "/cluster/ha/rules", "rule=r1&type=resource-affinity&affinity=negative&resources=vm:410")
	})
}

// TestAffinityRules: rules are made and changed only as they can be followed, which before the first round of the manager none of more
// than no resource can be.
func TestAffinityRules(t *testing.T) {
	onHA(t, "9.2", []int{410, 411, 412}, func(l *testLab) {
		const all, one, kind = "/cluster/ha/rules", "/cluster/ha/rules/r1", "type=resource-affinity"
		form := "rule=r1&" + kind + "&affinity=negative&comment=c&resources="
		l.ok("POST", "/cluster/ha/resources", "sid=vm:410")
		l.refuses(500, "create ha rule failed: cannot use unmanaged resource(s) vm:411, vm:412.", "POST", all, form+"vm:411,vm:410,vm:412")
		l.ok("POST", "/cluster/ha/resources", "sid=vm:411")
		l.ok("POST", "/cluster/ha/resources", "sid=vm:412&state=ignored")
		l.refuses(500, "rule defines more resources than available nodes", "POST", all, form+"vm:410,vm:411")
		l.rounds(1)
		l.refuses(500, "create ha rule failed: 400 Rule 'r1' is invalid. resources: rule is ineffective as there are less than two resources", "POST", all, form+"vm:410")
		l.refuses(500, "rule defines more resources than available nodes", "POST", all, form+"vm:410,vm:411,vm:412")
		l.refuses(400, "affinity: property is missing and it is not optional", "POST", all, "rule=r1&"+kind+"&resources=vm:410,vm:411")
		l.refuses(400, "nodes: property is not defined in schema", "POST", all, form+"vm:410,vm:411&nodes=pve1")
		l.refuses(500, "no such ha rule 'r1'", "GET", one, "")
		l.refuses(500, "update HA rules failed: HA rule 'r1' does not exist", "PUT", one, kind+"&resources=vm:410,vm:411")
		l.ok("POST", all, form+"vm:411,vm:410")
		l.refuses(500, "create ha rule failed: HA rule 'r1' already defined", "POST", all, form+"vm:410,vm:411")
		l.refuses(500, "shares two or more resources with a negative resource affinity rule", "POST", all, "rule=r2&"+kind+"&affinity=positive&resources=vm:410,vm:411")
		r := l.ok("GET", one, "").(map[string]any)
		if r["resources"] != "vm:410,vm:411" || r["affinity"] != "negative" || r["type"] != "resource-affinity" || r["comment"] != "c" || r["errors"] != nil || r["disable"] != nil {
			t.Errorf("%v", r)
		}
		l.refuses(400, "type", "PUT", one, "resources=vm:410,vm:412")
		l.ok("PUT", one, kind+"&resources=vm:410,vm:412&digest="+r["digest"].(string))
		l.refuses(500, "update HA rules failed: detected modified configuration", "PUT", one, kind+"&resources=vm:410,vm:411&digest="+r["digest"].(string))
		l.ok("PUT", one, kind+"&disable=1")
		if r := l.ok("GET", all+"?type=resource-affinity", "").([]any); len(r) != 1 || r[0].(map[string]any)["disable"] != 1.0 {
			t.Errorf("%v", r)
		}
		if r := l.ok("GET", all+"?type=node-affinity", "").([]any); len(r) != 0 {
			t.Errorf("%v", r)
		}
		l.ok("PUT", one, kind+"&delete=disable")
		l.ok("DELETE", "/cluster/ha/resources/vm:412", "")
		if r := l.ok("GET", one, "").(map[string]any); r["resources"] != "vm:410" || !strings.Contains(r["errors"].(map[string]any)["resources"].([]any)[0].(string), "less than two") {
			t.Errorf("%v", r)
		}
		l.ok("DELETE", "/cluster/ha/resources/vm:410?purge=0", "")
		l.ok("GET", one, "")
		l.ok("POST", "/cluster/ha/resources", "sid=vm:410")
		l.ok("DELETE", "/cluster/ha/resources/vm:410", "")
		l.refuses(500, "no such ha rule 'r1'", "GET", one, "")
		l.ok("DELETE", one, "")
	})
}

// kinds are the tasks about a VM since the beginning, without those that made it.
func (l *testLab) kinds(vmid string) (out []string) {
	for _, t := range l.pve.Tasks() {
		if t.ID == vmid && t.Type != "qmcreate" {
			out = append(out, t.Type+" "+t.User)
		}
	}
	return out
}

// TestRounds: the manager starts a VM that is to be started, again whoever stops it from within, stops one that is asked for, and leaves
// one to itself that it is to ignore, after the round in which it would have started it once more.
func TestRounds(t *testing.T) {
	onHA(t, "9.2", []int{410}, func(l *testLab) {
		const one, power = "/cluster/ha/resources/vm:410", "/nodes/pve1/qemu/410/status/"
		l.wantService("at first", "410", "stopped", "", false)
		l.ok("POST", "/cluster/ha/resources", "sid=vm:410")
		l.wantService("asked for", "410", "stopped", "", true)
		l.rounds(1)
		l.wantService("a round later", "410", "stopped", "started", true)
		l.rounds(2)
		l.wantService("another one later", "410", "running", "started", true)
		if got := l.kinds("410"); !slices.Equal(got, []string{"qmstart root@pam"}) {
			t.Errorf("tasks %v", got)
		}
		g, _ := l.guests.guest(410)
		g.Off()
		l.wantService("off by itself", "410", "stopped", "started", true)
		l.rounds(2)
		l.wantService("started again", "410", "running", "started", true)

		// It is asked for, and done later.
		l.ok("POST", power+"stop", "")
		l.wantService("asked to stop", "410", "running", "started", true)
		l.rounds(4)
		l.wantService("stopped", "410", "stopped", "stopped", true)
		if r := l.ok("GET", one, "").(map[string]any); r["state"] != "stopped" {
			t.Errorf("%v", r)
		}
		l.ok("POST", power+"start", "")
		l.wantService("asked to start", "410", "stopped", "stopped", true)
		l.rounds(3)
		l.wantService("started", "410", "running", "started", true)
		if got := l.kinds("410")[2:]; !slices.Equal(got, []string{"hastop " + defaultAgent, "qmstop root@pam", "hastart " + defaultAgent, "qmstart root@pam"}) {
			t.Errorf("tasks %v", got)
		}

		l.ok("PUT", one, "state=ignored")
		l.wantService("ignored", "410", "running", "started", false)
		l.ok("POST", power+"stop", "")
		l.wantService("off before the manager knows", "410", "stopped", "started", false)
		l.rounds(2)
		l.wantService("started once more", "410", "running", "ignored", false)
		l.ok("POST", power+"stop", "")
		l.rounds(3)
		l.wantService("left to itself", "410", "stopped", "ignored", false)

		l.ok("PUT", one, "state=disabled")
		if err := l.pve.Start(410); err != nil {
			t.Fatal(err)
		}
		l.rounds(4)
		l.wantService("kept off", "410", "stopped", "stopped", true)
		l.ok("DELETE", one, "")
		l.wantService("no resource", "410", "stopped", "stopped", false)
		l.rounds(1)
		l.wantService("forgotten", "410", "stopped", "", false)
	})
}

// TestGivenUp: a VM that cannot be started is given up, and taken up again only after it was disabled.
func TestGivenUp(t *testing.T) {
	onHA(t, "9.2", []int{410}, func(l *testLab) {
		const one = "/cluster/ha/resources/vm:410"
		bridge := l.pve.VMs()[0].Config["net0"]
		if err := l.pve.Edit(410, "net0", strings.ReplaceAll(bridge, "vmbr1", "vmbr9")); err != nil {
			t.Fatal(err)
		}
		l.ok("POST", "/cluster/ha/resources", "sid=vm:410")
		l.rounds(6)
		l.wantService("given up", "410", "stopped", "error", true)
		const refusal = "service 'vm:410' in error state, must be disabled and fixed first"
		l.refuses(500, refusal, "PUT", one, "state=ignored")
		l.refuses(500, refusal, "PUT", one, "comment=x")
		if exit := l.exit("POST", "/nodes/pve1/qemu/410/status/start", ""); !strings.Contains(exit, "failed: exit code 255") {
			t.Error(exit)
		}
		if err := l.pve.Edit(410, "net0", bridge); err != nil {
			t.Fatal(err)
		}
		l.ok("PUT", one, "state=disabled")
		l.rounds(1)
		l.wantService("disabled", "410", "stopped", "stopped", true)
		l.ok("PUT", one, "state=started")
		l.rounds(3)
		l.wantService("taken up again", "410", "running", "started", true)
		l.pve.SetService("vm:410", "error")
		l.ok("DELETE", one, "")
	})
}

// TestForeignResources: an agent that has a VM managed that it did not make breaks a rule.
func TestForeignResources(t *testing.T) {
	onHA(t, "9.2", nil, func(l *testLab) {
		if err := l.pve.CreateForeign(500, Foreign{}); err != nil {
			t.Fatal(err)
		}
		l.ok("POST", "/cluster/ha/resources", "sid=vm:500")
		if v := l.world.Violations(); len(v) != 1 || !strings.Contains(v[0], "touches vm 500") {
			t.Errorf("%+v", v)
		}
	})
}
