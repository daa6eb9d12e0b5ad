package main

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestDaemonsDay is a day of a daemon as its people see it: a cluster comes up,
// is looked at, held, grown, torn down, built again, and its branch rewritten.
func TestDaemonsDay(t *testing.T) {
	r := newRig(t, lab.Config{Speed: 100})
	first := r.push(r.inventory(1))
	// The image comes when everything has been seen that goes before it.
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	r.lab.World.OnCall(func(c world.CallRecord) {
		if c.System == "factory" && strings.HasPrefix(c.Op, "GET /image/") {
			<-gate
		}
	})
	r.start()

	// While it comes up.
	var code int
	r.until("the nodes are shown", func() bool {
		a := r.try("status")
		code = a.code
		return a.has("dev-wk-1")
	})
	if code != exitReconciling {
		t.Errorf("status while it comes up: exit code %d, want %d", code, exitReconciling)
	}
	if s := r.status(); s.Revision.Commit() != first || len(s.Nodes) != 2 || s.Nodes[0].VMID != 412 || s.Nodes[0].Address != r.base+"11" {
		t.Errorf("status: %+v", s)
	}
	// The rest of the plan hangs on the name of the image.
	r.until("the whole plan is shown", func() bool { return r.try("plan").has("bootstrap etcd on dev-cp-1") })
	r.run(exitChanges, do("plan"), "bootstrap etcd on dev-cp-1", "0 destructive")
	r.run(exitChanges, do("plan", "dev", "-o", "json"), `"kind": "Forecast"`, `"steps"`)
	r.run(exitFailed, do("plan", "nope"), `no such cluster: "nope"`)
	r.run(exitFailed, do("status", "nope"), `no such cluster: "nope"`, "-> this host manages dev")

	open()

	// When it is Ready.
	r.run(exitOK, do("status", "--wait", daemonPatience.String()), "Ready")
	r.untilReady(first)
	r.run(exitOK, do("status"), "dev  Ready", "2 nodes are Ready", "v1.13.9", "v1.36.1")
	r.run(exitOK, do("plan"), "nothing to do")
	r.run(exitOK, do("reconcile"), "dev: looking now")
	r.told(first, "success")
	// A shell is left without an answer that comes late.
	r.until("the shell is offered the cluster", func() bool {
		return strings.HasPrefix(r.run(exitOK, do("__complete", "status", "")).out, "dev\tReady\n")
	})

	t.Run("credentials", func(t *testing.T) { credentials(t, r) })
	t.Run("peers", func(t *testing.T) { peers(t, r) })

	// Held: a push changes nothing until resume.
	r.run(exitOK, do("suspend"), "dev: suspended")
	grown := r.push(r.inventory(2))
	r.run(exitOK, do("reconcile", "dev"))
	r.until("the new revision is seen", func() bool { return r.status().Revision.Commit() == grown })
	r.run(exitOK, do("status"), "dev  Suspended")
	r.run(exitChanges, do("plan"), "create vm 523 (dev-wk-2)")
	if n := len(r.vms()); n != 2 {
		t.Fatalf("%d VMs while suspended", n)
	}
	r.run(exitOK, do("resume"), "dev: resumed")
	r.untilReady(grown)
	before := r.vms()
	if len(before) != 3 {
		t.Fatalf("VMs after growing: %v", before)
	}

	t.Run("tear-down", func(t *testing.T) { tearDown(t, r, before) })
	t.Run("rewritten branch", func(t *testing.T) { rewritten(t, r) })

	if code := r.stop(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if _, err := os.Lstat(r.socket()); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	r.run(exitNoDaemon, do("status"), "there is no socket")
}

// credentials for people open the cluster, and only their owner can read them.
func credentials(t *testing.T, r *rig) {
	path := filepath.Join(r.work, "kubeconfig")
	must(os.WriteFile(path, []byte("contexts: []\n# old\n"), 0o644)) // which somebody could read
	// Where the name is no whole path, the working directory is a program's own.
	if a := r.as(nil, "kubeconfig", "--file", "kubeconfig"); a.code != exitOK || a.out+a.errOut != "" {
		t.Errorf("%v", a)
	}
	r.run(exitOK, do("talosconfig", "dev", "-f", filepath.Join(r.work, "talosconfig")))
	for _, name := range []string{"kubeconfig", "talosconfig"} {
		info, err := os.Stat(filepath.Join(r.work, name))
		must(err)
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	entries, err := os.ReadDir(r.work)
	must(err)
	if len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
	b, err := os.ReadFile(path)
	must(err)
	if a := r.run(exitOK, do("kubeconfig")); !strings.Contains(a.out, "current-context") || strings.Contains(string(b), "old") {
		t.Errorf("the kubeconfig on standard output: %v", a.code)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(b)
	must(err)
	client, err := kubernetes.NewForConfig(config)
	must(err)
	nodes, err := client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 2 {
		t.Errorf("nodes seen with the kubeconfig: %v, %v", len(nodes.Items), err)
	}
	// What is not the cluster's own is not lost unasked.
	const mine = "contexts: [{name: mine}]\n"
	must(os.WriteFile(path, []byte(mine), 0o600))
	if a := r.as(nil, "kubeconfig", "--file", "kubeconfig"); a.code != exitUsage || !a.has("write kubeconfig: it holds mine, which would be lost\n  -> keep it with `--merge`") {
		t.Errorf("%v", a)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != mine {
		t.Errorf("%s %v", b, err)
	}
	r.run(exitOK, do("kubeconfig", "--merge", "--file", path))
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "name: mine") || !strings.Contains(string(b), "current-context") {
		t.Errorf("%s %v", b, err)
	}
	r.run(exitUsage, do("kubeconfig", "--merge"), "--merge needs --file")
	if a := r.as(nil, "kubeconfig", "--file", "nowhere/kubeconfig"); a.code != exitFailed || !a.has("write nowhere/kubeconfig: there is no directory nowhere\n") {
		t.Errorf("%v", a)
	}
}

// enterable lets everybody into the folders of the rig, and at the program, and
// reports whether we can be somebody else who gets there.
func (r *rig) enterable() bool {
	letIn(r.dir)
	must(os.Chmod(r.work, 0o777))
	return reachable(r.t) && asNobody(r.t, r.dir, func() {})
}

// peers may read when they can open the socket; changes and secrets are root's,
// whatever the socket's mode.
func peers(t *testing.T, r *rig) {
	info, err := os.Stat(r.socket())
	must(err)
	if mode := info.Mode().Perm(); mode != 0o660 {
		t.Errorf("the socket has mode %04o", mode)
	}
	if !r.enterable() {
		t.Skip("needs root, to run commands as somebody else, and a folder for temporary files that is open to them")
	}
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	must(os.Mkdir(filepath.Join(r.work, "empty"), 0o755))
	if a := r.as(nobody, "status"); a.code != exitNoDaemon || !a.has("permission denied") || !a.has("member of group talos-agent") {
		t.Errorf("closed socket: %v", a)
	}
	must(os.Chmod(r.socket(), 0o666)) // as if they were in its group
	defer func() { must(os.Chmod(r.socket(), 0o660)) }()
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"plan", "dev"}, {"render", "dev"}, {"diff", "dev"}} {
		if a := r.as(nobody, args...); a.code != exitOK {
			t.Errorf("reading: %v", a)
		}
	}
	for _, args := range [][]string{{"reconcile", "dev"}, {"suspend"}, {"resume"}, {"accept", "--bootstrap"}, {"approve", "dev", "0123456789ab"}, {"kubeconfig"}, {"talosconfig", "-f", "t"}, {"render", "dev", "--show-secrets"},
		{"destroy", "dev", "--confirm", "dev"}, {"plan", "dev", "--dir", "empty"}} {
		a := r.as(nobody, args...)
		if a.code != exitFailed || !a.has("this is for root of the host") || !a.has("-> run it with sudo") {
			t.Errorf("not refused: %v", a)
		}
		if a.has("KEY-----") || a.has("key-data") {
			t.Errorf("a secret for nobody: %v", args)
		}
	}
	if s := r.status(); s.Suspended || len(r.vms()) != 2 {
		t.Errorf("nobody changed something: %+v", s)
	}
}

// reachable lets everybody run the program of the tests, and reports whether we can
// be somebody else who gets there.
func reachable(t testing.TB) bool {
	program, err := exec.LookPath("talos-agent")
	if err != nil {
		t.Fatal(err)
	}
	letIn(filepath.Dir(program)) // testscript's, and as deep
	return asNobody(t, program, func() {})
}

// tearDown wants the name, takes away what is ours and nothing else, and the
// same cluster comes back.
func tearDown(t *testing.T, r *rig, before map[string]string) {
	r.run(exitUsage, do("destroy", "dev"), "use `--confirm dev` where nobody can type it")
	r.run(exitFailed, do("destroy", "dev", "--confirm", "prod"), `"prod" is not its name; nothing was changed`)
	r.run(exitFailed, do("destroy", "nope", "--confirm", "nope"), "no such cluster")
	if s := r.status(); s.Suspended || len(r.vms()) != 3 {
		t.Fatalf("not refused: %+v", s)
	}
	a := r.run(exitOK, do("destroy", "dev", "--confirm", "dev"), "delete vm 412 (dev-cp-1)", "dev is destroyed, and suspended until `talos-agent resume dev`")
	if n := strings.Count(a.out, "delete vm "); n != 3 {
		t.Errorf("it tells %d deletions: %v", n, a)
	}
	if left := r.vms(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	r.run(exitOK, do("status"), "Suspended")
	r.run(exitOK, do("reconcile"))
	r.run(exitOK, do("resume"))
	r.untilReady("")
	if again := r.vms(); !maps.Equal(again, before) {
		t.Errorf("built again\n%v\nand was\n%v", again, before)
	}
	if n := r.calls(func(c world.CallRecord) bool { return c.System == "factory" && strings.Contains(c.Op, "/image/") }); len(n) == 0 {
		t.Error("no image was fetched at all")
	} else {
		for call, times := range n {
			if strings.HasPrefix(call, "factory GET") && times > 1 {
				t.Errorf("the image was not kept: %s, %d times", call, times)
			}
		}
	}
}

// rewritten history is refused until root accepts the very commit.
func rewritten(t *testing.T, r *rig) {
	applied := r.status().Applied
	r.run(exitFailed, do("accept"), "there is nothing to accept")
	r.run(exitFailed, do("approve", "0123456789ab"), "there is nothing to approve")
	files := r.inventory(2)
	forced, err := r.lab.Repo.Rewrite("main", files, "history is what I say")
	must(err)
	r.run(exitOK, do("reconcile"))
	s := r.untilStalled("does not descend from")
	if s.Revision.Commit() != forced || s.Applied != applied {
		t.Errorf("revision %s, applied %s", s.Revision, s.Applied)
	}
	r.run(exitStalled, do("status"), "force-pushed or rolled back", "talos-agent accept dev")
	r.run(exitFailed, do("plan"))
	r.told(forced, "failure")
	r.run(exitOK, do("accept", "dev"), "accepted "+cluster.Revision("main@sha1:"+forced).Short())
	r.untilReady(forced)
	r.told(forced, "success")
}
