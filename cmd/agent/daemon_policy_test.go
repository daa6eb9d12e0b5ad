package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// The policies of these tests: what the rig's clusters need, and less.
const (
	widePolicy  = "pool: talos\nvmids: [400-599]\nbridges: [vmbr1]\n"
	tightPolicy = "pool: talos\nvmids: [500-599]\nbridges: [vmbr1]\n"
)

// undecided is said wherever it is not known what the host allows.
const undecided = "nothing is changed while it is not known what the host allows: "

// looked waits until the agent has looked at everything as it is now: a look that
// began before does not count.
func (r *rig) looked() {
	r.t.Helper()
	now := time.Now()
	r.run(exitOK, do("reconcile"))
	r.until("it has looked again", func() bool { return r.status().Fetched.After(now) })
}

// TestPolicyHoldsBesideAWrongConfig: the policy of the host is in force as it lies
// there, tightened or loosened, whatever is wrong with the files beside it.
func TestPolicyHoldsBesideAWrongConfig(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	made := r.changes()
	policy := filepath.Join(r.dir, "policy.yaml")

	for _, spoil := range []struct{ file, text, told string }{
		{"proxmox.token", "", "proxmox.token is empty"},
		{"config.yaml", "colour: blue\n", `unknown key "colour"`},
		{"config.yaml", "{", "not valid YAML"},
		{"config.yaml", "", "config.yaml: the file is empty"},
	} {
		whole, err := os.ReadFile(filepath.Join(r.dir, spoil.file))
		must(err)
		r.file(spoil.file, spoil.text)
		r.until(spoil.told, func() bool { return r.try("status").has(spoil.told) })

		r.file("policy.yaml", tightPolicy)
		r.untilStalled(policy + ":2: vmids")
		r.run(exitStalled, do("status"), "problem", spoil.told, "what was loaded before stays in force")
		pushed := r.push(r.inventory(1))
		r.looked()
		r.run(exitFailed, do("plan"), "its vmid 412 lies outside 500-599")
		if now := r.changes(); !maps.Equal(now, made) {
			t.Fatalf("%s, and the policy was overstepped: %v", spoil.told, now)
		}

		r.push(r.inventory(0))
		r.looked()
		r.file("policy.yaml", widePolicy)
		r.until("the wider policy is in force beside "+spoil.told, func() bool {
			s := r.status()
			return s.Condition == cluster.Ready && s.Revision.Commit() != pushed
		})
		r.file(spoil.file, string(whole))
		r.until("the trouble is over", func() bool { return !r.try("status").has("problem") })
	}

	// A wrong config that names another policy does not bring the wider one back.
	r.file("other.yaml", tightPolicy)
	r.config["policy_file"] = "other.yaml"
	r.config["colour"] = "blue"
	r.write()
	r.untilStalled(undecided + filepath.Join(r.dir, "config.yaml") + ": policy_file: names another policy")
	r.run(exitStalled, do("status"), "nothing is changed until it is fixed")
	delete(r.config, "colour")
	r.write()
	r.untilStalled(filepath.Join(r.dir, "other.yaml") + ":2: vmids")
	r.file("other.yaml", widePolicy)
	r.untilReady("")
}

// TestPolicyThatIsNotKnown: while the policy cannot be read, is wrong or gone,
// nothing is changed. What is seen and what would be done is told all the same.
func TestPolicyThatIsNotKnown(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	r.push(r.inventory(0))
	r.start()
	r.untilReady("")
	made := r.changes()
	policy := filepath.Join(r.dir, "policy.yaml")

	for _, c := range []struct {
		told  string
		spoil func()
	}{
		{policy + `:3:1: unknown key "bridge"`, func() { r.file("policy.yaml", "pool: talos\nvmids: [500-599]\nbridge: vmbr1\n") }},
		{policy + ": the file is empty", func() { r.file("policy.yaml", "") }},
		{policy + ": there is no policy", func() { must(os.Remove(policy)) }},
		{policy + ": can be changed by others", func() { must(os.Chmod(policy, 0o666)) }},
	} {
		c.spoil()
		r.untilStalled(undecided + c.told)
		r.run(exitStalled, do("status"), "problem", c.told, "nothing is changed until it is fixed", "dev-cp-1")
		pushed := r.push(r.inventory(1))
		r.looked()
		if s := r.status(); s.Revision.Commit() != pushed || len(s.Nodes) != 2 || s.Nodes[0].Phase != cluster.PhaseReady || s.Hint == "" {
			t.Errorf("%s: it does not look, or does not say what to do: %+v", c.told, s)
		}
		r.run(exitChanges, do("plan"), "create vm 522 (dev-wk-1)", undecided)
		r.signal(syscall.SIGHUP)
		r.looked()
		r.run(exitFailed, do("doctor", "--config", filepath.Join(r.dir, "config.yaml")), c.told, undecided)
		if now := r.changes(); !maps.Equal(now, made) {
			t.Fatalf("%s: changed %v", c.told, now)
		}
		r.told(pushed, "failure")

		r.push(r.inventory(0))
		r.looked()
		r.file("policy.yaml", widePolicy)
		r.until("the policy is in force", func() bool { return r.status().Condition == cluster.Ready && !r.try("status").has("problem") })
	}
	if n := strings.Count(r.log.String(), "it is not known what the host allows; nothing is changed until it is"); n < 4 {
		t.Errorf("the journal has it %d times", n)
	}
	// The cluster is destroyed only under a policy, too.
	must(os.Remove(policy))
	r.untilStalled(undecided)
	r.run(exitFailed, do("destroy", "dev", "--confirm", "dev"), "destroy dev: being destroyed: dev: "+undecided)
	r.untilStalled("being destroyed: dev: " + undecided)
	if now := r.changes(); !maps.Equal(now, made) {
		t.Errorf("destroyed under no policy: %v", now)
	}
	r.file("policy.yaml", widePolicy)
	r.until("it is gone", func() bool { return r.status().Condition == cluster.Suspended && len(r.vms()) == 0 })
}

// TestPolicyLostInARollout: what is under way when the policy gets lost comes to
// its end, and nothing new begins until the policy is there again.
func TestPolicyLostInARollout(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	const creation = "POST /nodes/{node}/qemu"
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.lab.World.OnCall(func(c world.CallRecord) {
		if c.System == "pve" && c.Op == creation {
			once.Do(func() { close(begun) })
			<-release
		}
	})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	commit := r.push(r.inventory(2)) // of three VMs two are made at once
	r.start()
	<-begun
	r.file("policy.yaml", "pool: talos\nvmids: [400-599\n")
	r.untilStalled(undecided)
	if s := r.status(); len(s.Running) != 2 || s.Running[0].Action != "create vm" || s.Running[1].Action != "create vm" {
		t.Errorf("under way: %+v", s.Running)
	}
	free()
	r.until("what was under way is done", func() bool {
		return r.log.has("action done: create vm 412 (dev-cp-1)") && r.log.has("action done: create vm 522 (dev-wk-1)") && len(r.status().Running) == 0
	})
	made := r.changes()
	r.looked()
	if s, now := r.status(), r.changes(); s.Condition != cluster.Stalled || len(s.Running) != 0 || !maps.Equal(now, made) {
		t.Errorf("something began: %v, %+v", now, s)
	}
	if n := r.lab.World.CountCalls(func(c world.CallRecord) bool {
		return c.Op == creation || strings.HasSuffix(c.Op, "/status/start")
	}); n != 2 {
		t.Errorf("%d creations and starts", n)
	}
	r.file("policy.yaml", widePolicy)
	r.untilReady(commit)
}
