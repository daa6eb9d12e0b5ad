package api

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/httpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stub is a daemon and its agent with one cluster that remembers what was asked.
type stub struct {
	did []string

	mu      sync.Mutex
	state   cluster.Status // of dev, when it has a condition
	events  []cluster.Event
	trouble []string
	more    []string      // clusters besides dev
	changed chan struct{} // closed by the next change
}

// change changes what the stub says, and tells so.
func (s *stub) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *stub) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *stub) EventsChanged() <-chan struct{} { return s.Changed() }

func (s *stub) Events(q cluster.EventQuery) []cluster.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []cluster.Event{}
	for _, e := range s.events {
		if q.Picks(e) {
			out = append(out, e)
		}
	}
	return out
}

func (s *stub) note(what, name string) error {
	if name != "dev" {
		return ErrUnknownCluster
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, what)
	return nil
}

func (s *stub) About() About {
	s.mu.Lock()
	defer s.mu.Unlock()
	return About{Version: "v0", Config: "/etc/talos-agent/config.yaml", Problems: s.trouble, Clusters: append([]string{"dev"}, s.more...)}
}
func (s *stub) Examine(context.Context, bool) (doctor.Examination, error) {
	return doctor.Examination{Wants: doctor.Wants{Pool: "talos"}, Checks: []doctor.Check{{Name: "api", Level: doctor.Pass, Message: "answers"}}}, nil
}
func (s *stub) Clusters() []string { return []string{"dev"} }
func (s *stub) Status(name string) (cluster.Status, error) {
	s.mu.Lock()
	st, more := s.state, slices.Contains(s.more, name)
	s.mu.Unlock()
	if st.Condition != "" && name == "dev" {
		return st, nil
	}
	if more {
		return cluster.Status{Cluster: name, Condition: cluster.Ready}, nil
	}
	return cluster.Status{Cluster: name, Condition: cluster.Ready}, s.note("status", name)
}
func (s *stub) History(name string) ([]cluster.Run, error) {
	return []cluster.Run{{Number: 8}, {Number: 7}}, s.note("history", name)
}
func (s *stub) Inside() Inside              { s.did = append(s.did, "inside"); return Inside{} }
func (s *stub) Reconcile(name string) error { return s.note("reconcile", name) }
func (s *stub) ReconcileAll()               { _ = s.note("all", "dev") }
func (s *stub) Agent() (Agent, error)       { return s, nil }

// Cluster knows every name; what is asked of another than dev fails.
func (s *stub) Cluster(name string) (Cluster, error) { return stubCluster{s, name}, nil }

// stubCluster is a cluster of the stub.
type stubCluster struct {
	*stub
	name string
}

func (c stubCluster) Forecast(context.Context) (cluster.Forecast, error) {
	return cluster.Forecast{Cluster: c.name}, c.note("plan", c.name)
}
func (c stubCluster) Render(node string, showSecrets bool) (cluster.Rendering, error) {
	what := "render"
	if showSecrets {
		what = "render secrets"
	}
	return cluster.Rendering{Cluster: c.name, Nodes: []cluster.RenderedNode{{Node: node}}}, c.note(what, c.name)
}
func (c stubCluster) Diff(_ context.Context, node string, fresh bool) (cluster.Difference, error) {
	return cluster.Difference{Cluster: c.name, Differs: fresh}, c.note("diff "+node, c.name)
}
func (c stubCluster) Usage(context.Context) (usage.Report, error) {
	return usage.Report{Cluster: c.name}, c.note("usage", c.name)
}
func (c stubCluster) ForecastDir(_ context.Context, files fs.FS) (cluster.Forecast, error) {
	b, err := fs.ReadFile(files, "inventory/dev/cluster.yaml")
	if err != nil {
		return cluster.Forecast{}, err
	}
	return cluster.Forecast{Cluster: string(b)}, c.note("plan dir", c.name)
}
func (c stubCluster) ForecastDestroy(context.Context, []int) (cluster.Forecast, error) {
	return cluster.Forecast{Steps: []cluster.Step{{Text: "delete", Destructive: true}}}, c.note("preview", c.name)
}
func (c stubCluster) Console(_ context.Context, node string, each func(string) error) error {
	if err := c.note("console "+node, c.name); err != nil {
		return err
	}
	return each("hello")
}
func (c stubCluster) Suspend() error { return c.note("suspend", c.name) }
func (c stubCluster) Resume() error  { return c.note("resume", c.name) }
func (c stubCluster) Accept(r cluster.Revision) error {
	return c.note("accept "+string(r), c.name)
}
func (c stubCluster) Upgrade(o cluster.UpgradeOrder) error {
	return c.note(fmt.Sprintf("upgrade %v %v by %s", o.Now, o.Despite, o.By), c.name)
}
func (c stubCluster) CancelUpgrade(by string) error {
	return c.note("withdraw by "+by, c.name)
}
func (c stubCluster) CancelRollback(node, by string) error {
	return c.note(fmt.Sprintf("withdraw %s by %s", node, by), c.name)
}
func (c stubCluster) RequestSnapshot() error { return c.note("snapshot", c.name) }
func (c stubCluster) ForecastForget(node string) (cluster.Forecast, error) {
	return cluster.Forecast{Cluster: c.name, Notes: []string{node}}, nil
}
func (c stubCluster) RollBack(node, by string) error {
	return c.note(fmt.Sprintf("roll back %s by %s", node, by), c.name)
}

func (c stubCluster) Forget(node string, unfenced bool) error {
	return c.note(fmt.Sprint("forget ", node, " ", unfenced), c.name)
}
func (c stubCluster) Approve(digest string) error { return c.note("approve "+digest, c.name) }
func (c stubCluster) AcceptBootstrap() error      { return c.note("accept bootstrap", c.name) }
func (c stubCluster) Destroy(shown, despite []int) error {
	return c.note(fmt.Sprintf("destroy %v despite %v", shown, despite), c.name)
}
func (c stubCluster) Kubeconfig() ([]byte, error) {
	return []byte("kube"), c.note("kubeconfig", c.name)
}
func (c stubCluster) Talosconfig() ([]byte, error) {
	return []byte("talos"), c.note("talosconfig", c.name)
}

func serve(t *testing.T) (*stub, *Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "agent.sock")
	a := &stub{}
	srv, err := Listen(path, a, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return a, NewClient(path), path
}

func TestEveryRouteOverTheSocket(t *testing.T) {
	a, c, path := serve(t)
	ctx := t.Context()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket %v %v", info, err)
	}
	if about, err := c.About(ctx); err != nil || about.Version != "v0" {
		t.Errorf("about %+v %v", about, err)
	}
	if exam, err := c.Examine(ctx); err != nil || exam.Wants.Pool != "talos" || len(exam.Checks) != 1 || exam.Checks[0].Level != doctor.Pass {
		t.Errorf("examination %+v %v", exam, err)
	}
	if all, err := c.StatusAll(ctx); err != nil || len(all) != 1 || all[0].Condition != cluster.Ready {
		t.Errorf("status %+v %v", all, err)
	}
	for name, call := range map[string]func() error{
		"status": func() error { _, err := c.Status(ctx, "dev"); return err },
		"history": func() error {
			runs, err := c.History(ctx, "dev")
			if len(runs) != 2 {
				t.Errorf("runs %+v", runs)
			}
			return err
		},
		"inside": func() error { _, err := c.Inside(ctx); return err },
		"usage": func() error {
			r, err := c.Usage(ctx, "dev")
			if r.Cluster != "dev" {
				t.Errorf("usage %+v", r)
			}
			return err
		},
		"console cp-1": func() error {
			err := c.Console(ctx, "dev", "cp-1", func() {}, func(text string) error {
				if text != "hello" {
					t.Errorf("console %q", text)
				}
				return nil
			})
			if !errors.Is(err, ErrEnded) {
				return fmt.Errorf("the end of a console: %w", err)
			}
			return nil
		},
		"plan": func() error { _, err := c.Forecast(ctx, "dev"); return err },
		"render": func() error {
			r, err := c.Render(ctx, "dev", "cp-1", false)
			if len(r.Nodes) != 1 || r.Nodes[0].Node != "cp-1" {
				t.Errorf("rendered %+v", r)
			}
			return err
		},
		"diff cp-1": func() error {
			d, err := c.Diff(ctx, "dev", "cp-1")
			if !d.Differs {
				t.Error("root is not shown what is looked at now")
			}
			return err
		},
		"render secrets": func() error { _, err := c.Render(ctx, "dev", "", true); return err },
		"preview":        func() error { _, err := c.ForecastDestroy(ctx, "dev"); return err },
		"reconcile":      func() error { return c.Reconcile(ctx, "dev") },
		"all":            func() error { return c.ReconcileAll(ctx) },
		"suspend":        func() error { return c.Suspend(ctx, "dev") },
		"upgrade true [wk-1] by ann": func() error {
			return c.Upgrade(ctx, "dev", UpgradeRequest{UpgradeOrder: cluster.UpgradeOrder{Now: true, Despite: []string{"wk-1"}, By: "ann"}})
		},
		"withdraw by ann": func() error {
			return c.Upgrade(ctx, "dev", UpgradeRequest{UpgradeOrder: cluster.UpgradeOrder{By: "ann"}, Cancel: true})
		},
		"withdraw wk-1 by ann":  func() error { return c.RollBack(ctx, "dev", "wk-1", RollbackRequest{By: "ann", Cancel: true}) },
		"roll back wk-1 by ann": func() error { return c.RollBack(ctx, "dev", "wk-1", RollbackRequest{By: "ann"}) },
		"snapshot":              func() error { return c.RequestSnapshot(ctx, "dev") },
		"resume":                func() error { return c.Resume(ctx, "dev") },
		"accept main":           func() error { return c.Accept(ctx, "dev", AcceptRequest{Revision: "main"}) },
		"forget wk-1 true":      func() error { return c.Forget(ctx, "dev", "wk-1", true) },
		"approve 3fa9":          func() error { return c.Approve(ctx, "dev", "3fa9") },
		"accept bootstrap": func() error {
			return c.Accept(ctx, "dev", AcceptRequest{Bootstrap: true})
		},
		"destroy [] despite []":           func() error { return c.Destroy(ctx, "dev", nil) },
		"destroy [411 521] despite [411]": func() error { return c.Destroy(ctx, "dev", []int{411, 521}, 411) },
		"kubeconfig": func() error {
			b, err := c.Kubeconfig(ctx, "dev")
			if string(b) != "kube" {
				t.Errorf("kubeconfig %q", b)
			}
			return err
		},
		"talosconfig": func() error { _, err := c.Talosconfig(ctx, "dev"); return err },
		"plan dir": func() error {
			f, err := c.ForecastDir(ctx, "dev", fstest.MapFS{"inventory/dev/cluster.yaml": {Data: []byte("x")}, ".git/config": {Data: []byte("y")}})
			if f.Cluster != "x" {
				t.Errorf("the directory did not arrive: %+v", f)
			}
			return err
		},
	} {
		a.did = nil
		if err := call(); err != nil || len(a.did) != 1 || a.did[0] != name {
			t.Errorf("%s: did %v, %v", name, a.did, err)
		}
	}
	var e *Error
	if _, err := c.Status(ctx, "other"); !errors.As(err, &e) || e.Status != http.StatusNotFound {
		t.Errorf("unknown cluster: %v", err)
	}
}

// TestChangesAreForRoot: without a connection that proves root, every route
// that is not for readers is refused, and nothing is asked of the agent.
func TestChangesAreForRoot(t *testing.T) {
	// A stream ends with the first line for whoever has left.
	over, leave := context.WithCancel(t.Context())
	leave()
	for _, rt := range routes {
		a := &stub{}
		method, path, _ := strings.Cut(rt.pattern, " ")
		for _, p := range []any{nil, peer{}, peer{known: true, uid: 65534}} {
			r := httptest.NewRequest(method, strings.NewReplacer("{name}", "dev", "{number}", "7", "{node}", "cp-1").Replace(path), strings.NewReader(`{"confirm":"dev"}`))
			r = r.WithContext(context.WithValue(over, peerKey{}, p))
			w := httptest.NewRecorder()
			newHandler(a, newStreams(t.Context())).ServeHTTP(w, r)
			if rt.access == forRoot && (w.Code != http.StatusForbidden || len(a.did) > 0) {
				t.Errorf("%s as %+v: %d, did %v", rt.pattern, p, w.Code, a.did)
			}
			if rt.access == forReaders && w.Code != http.StatusOK {
				t.Errorf("%s as %+v: %d", rt.pattern, p, w.Code)
			}
		}
		if rt.access == forReaders && method != "GET" {
			t.Errorf("%s changes something and is open to readers", rt.pattern)
		}
	}
}

// TestPreviewIsForRoot: what destroy would delete is looked up on the host at once,
// while the cluster waits; nobody who may only read has it done.
func TestPreviewIsForRoot(t *testing.T) {
	for p, want := range map[peer]int{{}: http.StatusForbidden, {known: true, uid: 65534}: http.StatusForbidden, {known: true}: http.StatusOK} {
		a := &stub{}
		r := httptest.NewRequest("GET", "/v1/clusters/dev/destroy", nil)
		w := httptest.NewRecorder()
		newHandler(a, newStreams(t.Context())).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, p)))
		if w.Code != want || (want == http.StatusOK) != (len(a.did) == 1) {
			t.Errorf("as %+v: %d, did %v", p, w.Code, a.did)
		}
		if want == http.StatusForbidden && !strings.Contains(w.Body.String(), "run it with sudo") {
			t.Errorf("as %+v: %s", p, w.Body)
		}
	}
}

func TestDestroyWantsTheNameTwice(t *testing.T) {
	a := &stub{}
	for _, body := range []string{"", "{}", `{"confirm":"prod"}`, `{"confirm":"dev","force":true}`} {
		r := httptest.NewRequest("POST", "/v1/clusters/dev/destroy", strings.NewReader(body))
		r = r.WithContext(context.WithValue(r.Context(), peerKey{}, peer{known: true}))
		w := httptest.NewRecorder()
		newHandler(a, newStreams(t.Context())).ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || len(a.did) > 0 {
			t.Errorf("body %q: %d, did %v", body, w.Code, a.did)
		}
	}
}

func TestNoDaemonSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	missing := NewClient(filepath.Join(dir, "none.sock"))
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for c, want := range map[*Client]string{missing: "systemctl restart", NewClient(dead): "is not running"} {
		_, err := c.StatusAll(t.Context())
		if !errors.Is(err, ErrNoDaemon) || !errors.Is(err, ErrDown) || !strings.Contains(fault.HintOf(err), want) {
			t.Errorf("%v, want a hint with %q", err, want)
		}
	}
	// One whose socket is closed to this user may well run.
	if err := missing.explain(syscall.EACCES); !errors.Is(err, ErrNoDaemon) || errors.Is(err, ErrDown) {
		t.Errorf("a socket that is closed: %v", err)
	}
	// A stale socket is replaced, a live one and anything else are not.
	srv, err := Listen(dead, &stub{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(dead, &stub{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("second daemon: %v", err)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file, &stub{}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a regular file was replaced by a socket")
	}
}

func TestACrowdDoesNotEatTheDaemon(t *testing.T) {
	_, c, path := serve(t)
	var idle []net.Conn
	for range httpserver.MaxConns {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The slow ones lose their slots to the header timeout; the client is served then.
	if _, err := c.StatusAll(ctx); err != nil {
		t.Errorf("status behind %d idle connections: %v", httpserver.MaxConns, err)
	}
	for _, conn := range idle {
		_ = conn.Close()
	}
}

func FuzzReadTar(f *testing.F) {
	var b bytes.Buffer
	if err := WriteTar(&b, fstest.MapFS{"a/b": {Data: []byte("x")}}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	var evil bytes.Buffer
	tw := tar.NewWriter(&evil)
	_ = tw.WriteHeader(&tar.Header{Name: "../../etc/passwd", Size: 1, Typeflag: tar.TypeReg})
	_, _ = io.WriteString(tw, "x")
	_ = tw.Close()
	f.Add(evil.Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		files, err := readTar(bytes.NewReader(raw))
		if err != nil {
			return
		}
		err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && !fs.ValidPath(name) {
				t.Errorf("path %q", name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add("POST", "/v1/clusters/dev/accept", `{"revision":"x"}`)
	f.Add("GET", "/v1/clusters/%2e%2e/status", "")
	f.Add("GET", "/v1/events?after=x&since=y&last=-1", "")
	f.Add("GET", "/v1/watch?cluster=other", "")
	f.Add("GET", "/v1/clusters/dev/runs/07", "")
	f.Fuzz(func(t *testing.T, method, path, body string) {
		r, err := http.NewRequest(method, "http://x"+path, strings.NewReader(body))
		if err != nil {
			return
		}
		over, leave := context.WithCancel(t.Context())
		leave()
		r = r.WithContext(over)
		a := &stub{}
		w := httptest.NewRecorder()
		newHandler(a, newStreams(t.Context())).ServeHTTP(w, r)
		if w.Header().Get("Content-Type") == "application/jsonl" {
			for line := range bytes.Lines(w.Body.Bytes()) {
				if !json.Valid(line) {
					t.Errorf("%s %q: line %q", method, path, line)
				}
			}
			return
		}
		for _, d := range a.did {
			if d != "status" && d != "plan" && d != "preview" && d != "history" {
				t.Errorf("%s %q without credentials did %q", method, path, d)
			}
		}
		if !json.Valid(w.Body.Bytes()) && w.Code != http.StatusMovedPermanently && w.Code != http.StatusTemporaryRedirect && w.Code != http.StatusPermanentRedirect && w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s %q: %d %q", method, path, w.Code, w.Body)
		}
	})
}

// TestTheUmaskStaysAsItIs: it is the whole process's, and others make files while
// a socket is opened.
func TestTheUmaskStaysAsItIs(t *testing.T) {
	old := unix.Umask(0o022)
	defer unix.Umask(old)
	var wg sync.WaitGroup
	for range 8 {
		dir := t.TempDir()
		wg.Go(func() {
			for i := range 50 {
				srv, err := Listen(filepath.Join(dir, "agent.sock"), &stub{}, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Error(err)
					return
				}
				name := filepath.Join(dir, fmt.Sprint(i))
				if err := errors.Join(srv.Close(), os.Mkdir(name, 0o755)); err != nil {
					t.Error(err)
				}
				if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o755 {
					t.Errorf("a folder made meanwhile: %v, %v", info, err)
				}
			}
		})
	}
	wg.Wait()
	if now := unix.Umask(0o022); now != 0o022 {
		t.Errorf("the umask is left as %04o", now)
	}
}

func TestTheSocketIsMadeClosed(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := listenClosed(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestGroupReachesTheSocketWhateverTheUmask(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	_, _, path := serve(t)
	for name, want := range map[string]fs.FileMode{filepath.Dir(path): 0o755, path: 0o660} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %04o, want %04o", name, got, want)
		}
	}
}

// TestStatusesOfErrors: what is no failure of the daemon is no 500.
func TestStatusesOfErrors(t *testing.T) {
	h := newHandler(&stub{}, newStreams(t.Context()))
	ask := func(method, path string) *http.Response {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w.Result()
	}
	if r := ask("GET", "/v1/nowhere"); r.StatusCode != http.StatusNotFound {
		t.Error(r.Status)
	}
	for path, allow := range map[string]string{"/v1/status": "GET", "/v1/clusters/dev/plan": "GET, POST", "/v1/clusters/dev/suspend": "POST"} {
		if r := ask("DELETE", path); r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") != allow {
			t.Errorf("%s: %s, allowed %q", path, r.Status, r.Header.Get("Allow"))
		}
	}
	for want, err := range map[int]error{
		http.StatusNotFound:            fmt.Errorf("%w: x", ErrUnknownNode),
		http.StatusConflict:            cluster.WithReason(cluster.InventoryUnread, errors.New("x")),
		http.StatusServiceUnavailable:  ErrStarting,
		http.StatusInternalServerError: errors.New("x"),
	} {
		w := httptest.NewRecorder()
		if writeError(w, err); w.Code != want {
			t.Errorf("%v: %d, want %d", err, w.Code, want)
		}
	}
	w := httptest.NewRecorder()
	if writeError(w, cluster.WithReason(cluster.ClusterUnmanaged, ErrUnmanaged)); w.Code != http.StatusConflict {
		t.Error(w.Code)
	}
	w = httptest.NewRecorder()
	if writeError(w, fmt.Errorf("dev-cp-1 %w", ErrNoVM)); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), string(cluster.RequestInvalid)) {
		t.Error(w.Code, w.Body)
	}
}
