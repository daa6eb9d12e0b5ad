package main

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// typeTo runs a command at a terminal where somebody types.
func (r *rig) typeTo(typed string, args ...string) answer {
	r.t.Helper()
	keyboard, tty := newTerminal(r.t)
	_, err := keyboard.WriteString(typed)
	must(err)
	var out, errOut bytes.Buffer
	code := run(&environment{stdin: tty, stdout: &out, stderr: &errOut}, append([]string{"--socket", r.socket()}, args...))
	return answer{args: args, out: out.String(), errOut: errOut.String(), code: code}
}

// TestAtTheShell: Tab offers the nodes that there are, and who destroys a cluster is
// asked for its name.
func TestAtTheShell(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	delete(r.config, "clusters") // all of the repository
	r.write()
	r.start()
	files := r.inventory(1)
	commit := r.push(files)
	r.run(exitOK, do("status", "--wait", daemonPatience.String()), "2 nodes are Ready at main@sha1:"+commit[:12])
	// A shell is left without an answer that comes late: Tab is pressed again.
	offers := func(want string, args ...string) {
		t.Helper()
		r.until("the shell is offered "+strings.ReplaceAll(want, "\n", ", "), func() bool {
			return r.run(exitOK, append(do("__complete"), args...)).out == want+":4\n"
		})
	}
	const nodes = "dev-cp-1\tReady\ndev-wk-1\tReady\n"
	offers("dev\tReady\n"+nodes, "console", "")
	offers(nodes, "console", "dev", "")
	offers("", "console", "dev", "dev-cp-1", "")
	offers("", "console", "nope", "")
	offers(nodes, "events", "--node", "")
	offers(nodes, "events", "dev", "--node", "")
	offers("", "events", "nope", "--node", "")

	// Where there are several, a node's cluster is named first.
	more := maps.Clone(files)
	more["inventory/prod/cluster.yaml"] = []byte("cluster_name: prod\n") // and much is missing
	r.push(more)
	r.run(exitOK, do("reconcile", "dev"))
	r.until("there is another", func() bool { return r.statusOf("prod").Cluster == "prod" })
	offers("dev\tReady\nprod\tStalled\n", "console", "")
	offers(nodes, "console", "dev", "")
	offers("", "console", "prod", "")
	offers("", "events", "--node", "")
	offers(nodes, "events", "dev", "--node", "")

	const question = "Type the name of the cluster to destroy it: "
	before := r.vms()
	for typed, name := range map[string]string{"prod\n": "prod", "\n": "", "\x04": ""} {
		a := r.typeTo(typed, "destroy", "dev")
		if a.code != exitFailed || !a.has("delete vm 412 (dev-cp-1)") || !a.has(question) || !a.has(`"`+name+`" is not its name; nothing was changed`) {
			t.Errorf("%q typed: %v", typed, a)
		}
	}
	if s := r.status(); s.Suspended || len(r.vms()) != len(before) {
		t.Fatalf("not refused: %+v", s)
	}
	if a := r.typeTo(" dev \n", "destroy", "dev"); a.code != exitOK || !a.has(question) || !a.has("dev is destroyed, and suspended until `talos-agent resume dev`") {
		t.Errorf("%v", a)
	}
	if left := r.vms(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
