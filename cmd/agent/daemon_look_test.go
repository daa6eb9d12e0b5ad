package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// background starts a command that goes on, and returns what it says and how to
// stop it as Ctrl-C does.
func (r *rig) background(stdout *os.File, args ...string) (*output, func() int) {
	r.t.Helper()
	out, p := r.begin(stdout, args...)
	return out, func() int {
		r.t.Helper()
		_ = p.cmd.Process.Signal(syscall.SIGINT) // it may have ended: its code says so
		return p.end(r.t)
	}
}

// begin starts a command that ends by itself. A signal while it ends would kill it.
func (r *rig) begin(stdout *os.File, args ...string) (*output, *daemonProcess) {
	r.t.Helper()
	out := &output{}
	cmd := exec.Command("talos-agent", append([]string{"--socket", r.socket()}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if stdout != nil {
		cmd.Stdout, cmd.Env = stdout, append(os.Environ(), "TERM=xterm")
	}
	must(cmd.Start())
	p := &daemonProcess{cmd: cmd, done: make(chan struct{})}
	go func() { defer close(p.done); p.err = cmd.Wait() }()
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.done })
	return out, p
}

// openTerminal makes a terminal of a size, and gathers what is written to it.
func openTerminal(t *testing.T, cols, rows uint16) (tty *os.File, shown *output, resize func(cols, rows uint16)) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("there are no terminals here:", err)
	}
	must(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	must(err)
	resize = func(cols, rows uint16) {
		must(unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}))
	}
	resize(cols, rows)
	shown = &output{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			_, _ = shown.Write(b[:n]) // it never fails
		}
	}()
	t.Cleanup(func() { _, _ = tty.Close(), master.Close(); <-read })
	return tty, shown, resize
}

// TestLooking looks at a daemon with everything there is to look with: while it
// works, while it is restarted, and afterwards.
func TestLooking(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	a := r.run(exitNoDaemon, do("status", "--watch"))
	if a.out != "" {
		t.Errorf("no daemon, and %v", a)
	}
	r.run(exitNoDaemon, do("events", "--follow"))
	r.run(exitNoDaemon, do("history", "dev"))

	commit := r.push(r.inventory(0))
	r.start()
	lines, stopLines := r.background(nil, "status", "--watch")
	values, stopValues := r.background(nil, "status", "dev", "--watch", "--output", "json")
	events, stopEvents := r.background(nil, "events", "dev", "--follow", "--since", "1h")
	tty, shown, resize := openTerminal(t, 60, 30)
	trouble, stopTTY := r.background(tty, "status", "--watch")
	r.untilReady(commit)
	ready := "1 node is Ready at main@sha1:" + commit[:12]
	r.until("everybody is told", func() bool {
		return lines.has("dev Ready: "+ready) && values.has(ready) && events.has("cluster condition changed: Ready: "+ready) && shown.has(ready)
	})

	r.run(exitOK, do("history"), "Ready", "a new revision: a change", "main@sha1:"+commit[:12])
	r.run(exitOK, do("history", "1"), "PLANNED", "create vm 412", "DONE", "bootstrap etcd")
	r.run(exitOK, do("history", "dev", "1", "--output", "json"), `"kind": "Run"`, `"result": "Ready"`)
	r.run(exitFailed, do("history", "dev", "7"), "dev has no run 7", "runs 1 to 1 are kept")
	r.run(exitFailed, do("history", "other"), "no such cluster")
	r.run(exitOK, do("events", "--node", "dev-cp-1"), "[dev] action started: create vm 412 (dev-cp-1)")
	r.run(exitFailed, do("status", "other", "--watch"), "no such cluster")
	r.run(exitFailed, do("events", "other", "--last", "3"), `no such cluster: "other"`, "-> this host manages dev")
	r.run(exitFailed, do("events", "other", "--follow"), `no such cluster: "other"`)
	r.run(exitFailed, do("events", "dev", "--node", "dev-wk-9"), `no node "dev-wk-9" is known, and no event is about one`, "-> nodes are dev-cp-1")
	r.run(exitFailed, do("events", "--node", "dev-wk-9"), `no node "dev-wk-9" is known, and no event is about one`, "-> nodes are dev-cp-1")

	// There is a cluster, and nobody is told for a moment that there is none.
	late, latest, _ := openTerminal(t, 60, 30)
	_, stopLate := r.background(late, "status", "--watch")
	r.until("who comes late is told", func() bool { return latest.has(ready) })
	if stopLate(); latest.has("no cluster yet") {
		t.Errorf("shown before: %q", latest)
	}

	console, stopConsole := r.background(nil, "console", "dev-cp-1")
	r.until("the console is read", func() bool {
		return console.has("the console of dev-cp-1; Ctrl-C ends it\n") && console.has("\n[talos] ")
	})
	if code := stopConsole(); code != exitOK {
		t.Errorf("console ended with code %d: %s", code, console)
	}
	r.run(exitFailed, do("console", "dev", "other"), `has no node "other"`, "its nodes are dev-cp-1")

	// A daemon that is killed and comes back is waited for, and nothing of what
	// was told is told twice.
	r.kill()
	r.until("everybody misses the daemon", func() bool {
		return lines.has("the daemon is not reachable") && events.has("the daemon is not reachable") && shown.has("the daemon is not reachable")
	})
	r.start()
	second := r.push(r.inventory(1))
	r.run(exitOK, do("reconcile", "dev"))
	r.untilReady(second)
	r.until("everybody is told of the second revision", func() bool {
		text := "2 nodes are Ready at main@sha1:" + second[:12]
		return lines.has(text) && values.has(text) && events.has(text) && shown.has(text)
	})
	if n := strings.Count(events.String(), "[dev] action started: create vm 412 (dev-cp-1)"); n != 1 {
		t.Errorf("an event was told %d times:\n%s", n, events)
	}
	r.run(exitOK, do("history"), "\n2 ", "\n1 ")
	resize(20, 5)
	r.until("the screen is drawn anew, in 20 columns", func() bool {
		return shown.has("\x1b[H"+("dev  \x1b[32mReady\x1b[0m  for ")[:24]) && shown.has("more line")
	})

	for name, stop := range map[string]func() int{"lines": stopLines, "values": stopValues, "events": stopEvents, "terminal": stopTTY} {
		if code := stop(); code != exitOK {
			t.Errorf("%s ended with code %d: %s", name, code, trouble)
		}
	}
	for line := range strings.Lines(values.String()) {
		var v struct {
			Kind string
			Data cluster.Status
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Kind != "Status" || v.Data.Cluster != "dev" {
			t.Errorf("line %q: %v", line, err)
		}
	}
	// What was written last is still on its way through the terminal.
	left := func() bool { return strings.HasSuffix(shown.String(), "\x1b[?25h\x1b[?1049l") }
	if s := shown.String(); !soon(left) || !strings.HasPrefix(s, "\x1b[?1049h\x1b[?25l") {
		t.Errorf("the terminal is not left as it was: %q ... %q", s[:min(len(s), 40)], s[max(0, len(s)-40):])
	}
	if lines.has("\x1b") {
		t.Error("colours in what is no terminal")
	}
	if bytes.Contains([]byte(shown.String()), []byte("\x1b[2J")) {
		t.Error("the terminal is wiped, which flickers")
	}
}

// TestWatchAClusterThatIsDropped: what is not looked after any more is not shown
// as if it were, and does not make the exit code.
func TestWatchAClusterThatIsDropped(t *testing.T) {
	r := newRig(t, lab.Config{})
	r.config["clusters"] = []string{"dev", "old"} // and old is nowhere
	r.write()
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	lines, stopLines := r.background(nil, "status", "--watch")
	tty, shown, _ := openTerminal(t, 60, 30)
	_, stopTTY := r.background(tty, "status", "--watch")
	r.until("both are told of", func() bool { return lines.has("dev Ready") && lines.has("old Stalled") && shown.has("old  ") })
	if a := r.run(exitStalled, do("status", "old"), "inventory/old: there is no such cluster\n", "-> the host's config lists old under `clusters`: add that folder, or change the list"); strings.Contains(a.out, "talos-agent validate") || strings.Contains(a.out, "talos-agent doctor") {
		t.Errorf("the hint leads elsewhere: %s", a.out)
	}
	r.config["clusters"] = []string{"dev"}
	r.write()
	r.until("both show the other alone", func() bool {
		text, screen := lines.String(), shown.String()
		ready := strings.LastIndex(text, "dev Ready:") > max(strings.LastIndex(text, "dev Unknown:"), strings.LastIndex(text, "dev Reconciling:"))
		screen = screen[strings.LastIndex(screen, "\x1b[H"):]
		return ready && strings.Contains(text, " old is no longer managed\n") && strings.Contains(screen, "Ready") && !strings.Contains(screen, "old  ")
	})
	r.run(exitOK, do("events", "old"), "[old] ")
	for name, stop := range map[string]func() int{"lines": stopLines, "terminal": stopTTY} {
		if code := stop(); code != exitOK {
			t.Errorf("%s ended with code %d", name, code)
		}
	}
}

// TestWaitIsForWhatWasPushed: whoever pushes and waits is not answered for the
// revision before.
func TestWaitIsForWhatWasPushed(t *testing.T) {
	r := newRig(t, lab.Config{}) // which looks at the repository once an hour
	r.push(r.inventory(0))
	r.start()
	r.run(exitOK, do("status", "--wait", "2m"), "1 node is Ready")
	second := r.push(r.inventory(1))
	r.run(exitOK, do("status", "dev", "--wait", "2m"), "2 nodes are Ready at main@sha1:"+second[:12])

	r.lab.World.Inject(world.Fault{System: "git", Kind: world.Answer, Status: 503, Text: "down"})
	r.run(exitReconciling, do("status", "--wait", "1s"), "Ready", "dev: the repository was not read within 1s", "-> wait longer")
	r.lab.World.Heal()
	r.run(exitOK, do("status", "--wait", "2m"), "2 nodes are Ready")

	// A script that deploys must not take a suspended cluster for one that has it.
	r.run(exitOK, do("suspend", "dev"))
	r.push(r.inventory(0))
	r.run(exitReconciling, do("status", "dev", "--wait", "2m"), "Suspended", "dev is suspended, and was not waited for", "-> `talos-agent resume dev`")
	r.run(exitReconciling, do("status", "dev", "--watch", "--wait", "2m"), "dev is suspended, and was not waited for")
	r.run(exitOK, do("status", "--wait", "2m"), "Suspended")
}

// TestWaitForWhatIsNotThereYet: whoever waits sees what happens meanwhile, and a
// cluster that was pushed a moment ago is no mistake.
func TestWaitForWhatIsNotThereYet(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{}) // which looks at the repository once an hour
	delete(r.config, "clusters")
	r.write()
	r.start()
	one, oneEnds := r.begin(nil, "status", "dev", "--wait", "2m")
	all, allEnds := r.begin(nil, "status", "--wait", "2m")
	watched, watchedEnds := r.begin(nil, "status", "dev", "--watch", "--wait", "2m")
	tty, shown, _ := openTerminal(t, 80, 30)
	beside, besideEnds := r.begin(tty, "status", "dev", "--watch", "--wait", "2m")
	allWatched, allWatchedEnds := r.begin(nil, "status", "--watch", "--wait", "2m")
	r.until("they wait", func() bool {
		const unknown, none = `waiting: no such cluster: "dev"`, "waiting: no cluster has been read from the repository yet"
		return one.has(unknown) && watched.has(unknown) && beside.has(unknown) && all.has(none) && allWatched.has(none)
	})
	for _, wait := range []string{"1ms", "2s"} {
		r.run(exitFailed, do("status", "dev", "--wait", wait), "no such cluster")
		r.run(exitFailed, do("status", "dev", "--watch", "--wait", wait), "no such cluster")
	}
	commit := r.push(r.inventory(0))
	r.until("it is read", func() bool { return r.try("reconcile", "dev").code == exitOK })
	r.untilReady(commit)
	ready := "\n  1 node is Ready at main@sha1:" + commit[:12] + "\n"
	r.until("each has shown the end", func() bool {
		return one.has("dev  Ready") && one.has(ready) && all.has(ready) && watched.has(ready) && allWatched.has(ready) && strings.Contains(strings.ReplaceAll(shown.String(), "\r", ""), ready)
	})
	if !one.has(" dev revision main@sha1:"+commit[:12]) || !one.has(" dev-cp-1 is ") {
		t.Errorf("nothing is shown of what happened meanwhile: %s", one)
	}
	for name, p := range map[string]*daemonProcess{"one": oneEnds, "all": allEnds, "watched": watchedEnds, "all, watched": allWatchedEnds, "terminal": besideEnds} {
		if code := p.end(t); code != exitOK {
			t.Errorf("%s ended with code %d", name, code)
		}
	}
}

// TestWaitReadsTheRepository: whoever waits for a cluster that is not known has the
// repository read, and need not wait until it is time to.
func TestWaitReadsTheRepository(t *testing.T) {
	for _, flags := range [][]string{{"--wait"}, {"--watch", "--wait"}} {
		t.Run(flags[0], func(t *testing.T) {
			r := newRig(t, lab.Config{}) // which looks at the repository once an hour
			delete(r.config, "clusters")
			r.write()
			files := map[string][]byte{}
			for name, b := range r.inventory(0) {
				files[strings.Replace(name, "/dev/", "/other/", 1)] = bytes.Replace(b, []byte("cluster_name: dev"), []byte("cluster_name: other"), 1)
			}
			r.push(files)
			r.start()
			r.until("the repository is read", func() bool { return r.statusOf("other").Cluster == "other" })
			maps.Copy(files, r.inventory(0))
			r.push(files)
			r.run(exitFailed, append(do("status", "dev"), append(flags, "1ms")...), "no such cluster")
			r.until("it is read again", func() bool { return r.statusOf("dev").Cluster == "dev" })
		})
	}
}

// TestWaitForAnyCluster: where no cluster is known, whoever waits has everything
// reconciled; a daemon that refuses it is waited for all the same.
func TestWaitForAnyCluster(t *testing.T) {
	for code, answer := range map[int]string{
		http.StatusOK:        `{"kind": "Done", "apiVersion": "v1", "data": {}}`,
		http.StatusForbidden: `{"error": {"reason": "AccessDenied", "message": "this is for root of the host", "hint": "run it with sudo"}}`,
	} {
		socket := filepath.Join(t.TempDir(), "agent.sock")
		l, err := net.Listen("unix", socket)
		must(err)
		var asked atomic.Int64 // by commands that have ended
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kind": "StatusList", "apiVersion": "v1", "data": []}`)
		})
		mux.HandleFunc("GET /v1/watch", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		mux.HandleFunc("POST /v1/reconcile", func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, answer)
		})
		srv := &http.Server{Handler: mux, ReadHeaderTimeout: daemonPatience}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		for _, args := range [][]string{do("status", "--wait", "1ms"), do("status", "--watch", "--wait", "1ms")} {
			var out bytes.Buffer
			asked.Store(0)
			ended := run(&environment{stdin: strings.NewReader(""), stdout: &out, stderr: &out}, append([]string{"--socket", socket}, args...))
			if ended != exitReconciling || asked.Load() != 1 || !strings.Contains(out.String(), "no cluster yet") {
				t.Errorf("%d: %v: exit code %d, asked %d times:\n%s", code, args, ended, asked.Load(), out.String())
			}
		}
		must(srv.Close())
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}
