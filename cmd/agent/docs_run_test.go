package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/repo/rehearsal"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/reconcile/factory"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// TestDocsRun runs the blocks of every page that say they can be run, in their
// order, as somebody would who reads the page from top to bottom.
func TestDocsRun(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	for _, p := range readPages(t) {
		if !strings.Contains(p.text, "<!-- checked: run") {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(p.name), ".md"), func(t *testing.T) {
			t.Parallel() // a reader mostly waits
			s := newSession(t, p)
			defer s.close()
			for _, b := range p.blocks {
				s.play(b)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// session is one reader of one page.
type session struct {
	t      *testing.T
	page   page
	dir    string // holds everything of the session
	cwd    string // file with the folder the reader is in
	bin    string // programs that stand in front of the real ones
	daemon *docsDaemon
}

func newSession(t *testing.T, p page) *session {
	t.Helper()
	s := &session{t: t, page: p, dir: t.TempDir()}
	s.cwd, s.bin = filepath.Join(s.dir, "cwd"), filepath.Join(s.dir, "bin")
	program, err := exec.LookPath("talos-agent")
	if err != nil {
		t.Fatal(err)
	}
	must(os.Mkdir(s.bin, 0o755))
	for name, script := range map[string]string{
		"talos-agent": fmt.Sprintf("#!/bin/sh\nexec %q --socket %q \"$@\"\n", program, s.socket()),
		"sudo":        "#!/bin/sh\nexec \"$@\"\n",
	} {
		must(writeProgram(filepath.Join(s.bin, name), script))
	}
	// What somebody has who cloned this project, and a repository to push to.
	s.copy("../../examples", "talos-agent/examples")
	s.write("cwd", s.dir)
	s.sh("git init -q --bare --initial-branch=main infra.git")
	value, hasValue := strings.CutPrefix(p.begins, "values ")
	switch {
	case p.begins == "empty":
	case p.begins == "snapshot":
		snapshot, err := writeSnapshot(t.TempDir())
		must(err)
		s.write("db.snapshot", string(snapshot))
		s.write("age.key", s.read("talos-agent/examples/repo/lab-age-key.txt"))
	case p.begins == "", hasValue:
		s.copy("../../examples/repo", "infra")
		s.copy("../../reconcile/machineconfig/testdata/secrets.yaml", "secrets.yaml")
		s.write("age.key", s.read("infra/lab-age-key.txt"))
		if hasValue {
			s.write("value", "s3cret\n")
			s.sh("rm infra/inventory/dev/secrets.sops.yaml && talos-agent secrets new --cluster dev " +
				"--value-file tailscale_authkey=value --value-file " + value + "=value infra")
		}
		s.sh("cd infra && git init -q --initial-branch=main && git remote add origin " + pageRemote + " && " +
			"rm -r inventory/lab inventory/prod && git add --all && git commit -q -m begin && git push -q -u origin main")
	default:
		t.Fatalf("%s: a session cannot begin with %q", p.name, p.begins)
	}
	return s
}

// pageRemote is where the pages push to.
const pageRemote = "ssh://git@git.example.org/infra.git"

// socket is short, because the path of a socket may not be long.
func (s *session) socket() string { return filepath.Join(s.dir, "s") }

func (s *session) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

func (s *session) copy(from, to string) {
	s.t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		s.t.Fatal(err)
	}
	if !info.IsDir() {
		b, err := os.ReadFile(from)
		if err != nil {
			s.t.Fatal(err)
		}
		s.write(to, string(b))
		return
	}
	if err := os.CopyFS(filepath.Join(s.dir, to), os.DirFS(from)); err != nil {
		s.t.Fatal(err)
	}
}

// sh runs a script where the reader is, and remembers where that leads.
func (s *session) sh(script string) (out string, code int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "sh", "-c", fmt.Sprintf("cd \"$(cat %s)\"\nset -eu\n%s\npwd > %s\n", s.cwd, script, s.cwd))
	cmd.Env = append(os.Environ(), "PATH="+s.bin+string(filepath.ListSeparator)+os.Getenv("PATH"), "HOME="+s.dir, "EDITOR=true",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+filepath.Join(s.dir, "infra.git")+".insteadOf", "GIT_CONFIG_VALUE_0="+pageRemote,
		"GIT_AUTHOR_NAME=reader", "GIT_AUTHOR_EMAIL=reader@example.org", "GIT_COMMITTER_NAME=reader", "GIT_COMMITTER_EMAIL=reader@example.org")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
		s.t.Logf("%s\n%s%s", strings.TrimSpace(script), stdout.String(), stderr.String())
	case err != nil:
		s.t.Fatal(err)
	}
	return stdout.String() + stderr.String(), code
}

// play carries out one block.
func (s *session) play(b block) {
	s.t.Helper()
	if b.file != "" {
		where := strings.TrimSpace(s.read("cwd"))
		rel, err := filepath.Rel(s.dir, filepath.Join(where, b.file))
		if err != nil {
			s.t.Fatal(err)
		}
		text := b.text
		if b.append {
			text = s.read(rel) + text
		}
		s.write(rel, text)
		return
	}
	if !b.isCommands() || !exitWanted.MatchString(b.checked) {
		return
	}
	if strings.HasPrefix(b.checked, "run with a daemon") && s.daemon == nil {
		s.daemon = newDocsDaemon(s)
	}
	all := b.exchanges()
	for i, x := range all {
		want := 0
		if i == len(all)-1 {
			want = b.exitOf()
		}
		out, code := s.sh(x.command)
		if code != want {
			s.t.Errorf("%s: exit code %d, want %d:\n%s\n%s", b.at(), code, want, x.command, out)
			return
		}
		if x.prints != nil {
			if missing := printed(out, x.prints); missing != "" {
				s.t.Errorf("%s: %s\nthe page shows a line that is not printed: %s\nprinted:\n%s", b.at(), x.command, missing, out)
			}
		}
		if s.daemon != nil && strings.Contains(x.command, "git push") {
			s.daemon.sees(s)
		}
	}
}

func (s *session) close() {
	if s.daemon != nil {
		s.daemon.close(s)
	}
}

var (
	ages   = regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?s\b`)
	hashes = regexp.MustCompile(`\b[0-9a-f]{12,64}\b`)
)

// words makes lines comparable.
func words(line string) string {
	line = hashes.ReplaceAllString(ages.ReplaceAllString(line, "AGE"), "HASH")
	return strings.Join(strings.Fields(line), " ")
}

// printed returns the first of the wanted lines that is not there, "" when all
// are, in their order.
func printed(out string, want []string) string {
	var got []string
	for line := range strings.Lines(out) {
		if w := words(line); w != "" {
			got = append(got, w)
		}
	}
	skip := false
	for _, line := range want {
		w := words(line)
		switch {
		case w == "":
		case w == "...":
			skip = true
		default:
			for skip && len(got) > 0 && got[0] != w {
				got = got[1:]
			}
			if len(got) == 0 || got[0] != w {
				return line
			}
			got, skip = got[1:], false
		}
	}
	if len(got) > 0 && !skip {
		return "(nothing more, or a line \"...\")"
	}
	return ""
}

// docsDaemon is the agent on a make-believe host that has what the reader's
// cluster asks for. Its network is in memory, so that the addresses are those
// of the page; everything else is as on a host.
type docsDaemon struct {
	lab    *lab.Lab
	agent  *agent.Agent
	server *api.Server
	client *api.Client
	unlock func()
}

func newDocsDaemon(s *session) *docsDaemon {
	t := s.t
	t.Helper()
	ctx := t.Context()
	ids, err := secrets.ParseIdentities([]byte(s.read("age.key")))
	if err != nil {
		t.Fatal(err)
	}
	policy := cluster.Policy{File: "/etc/talos-agent/policy.yaml", Pool: "talos", VMIDs: []cluster.Range{{First: 400, Last: 599}}}
	decrypt := func(ctx context.Context, name string, file []byte) ([]byte, error) {
		return secrets.Decrypt(ctx, name, file, ids)
	}
	store, err := git.Open(git.Config{URL: filepath.Join(s.dir, "infra.git"), Branch: "main"})
	if err != nil {
		t.Fatal(err)
	}
	source := sources.Config{Store: store, Decrypt: decrypt, Inventory: inventory.Options{Pool: policy.Pool}}

	d := &docsDaemon{client: api.NewClient(s.socket())}
	c := rehearsal.LabFor(specsOf(t, source))
	c.Speed = 100
	if d.lab, err = lab.Start(c); err != nil {
		t.Fatal(err)
	}
	files, unlock, err := state.Open(filepath.Join(s.dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	d.unlock = unlock
	log := logging.New(logging.Config{Output: terminal.NewCleaner(testWriter{t})})
	charts := map[string]string{}
	for _, from := range []string{"https://helm.cilium.io", "https://stefanprodan.github.io/podinfo"} {
		charts[from] = d.lab.Charts.URL()
	}
	charts["oci://ghcr.io"] = strings.Replace(d.lab.Registry.URL(), "https://", "oci://", 1)
	pulse := &history.Pulse{}
	d.agent, err = agent.New(agent.Config{
		Pulse: pulse,
		Owner: inventory.DefaultOwner, Interval: time.Second, Policy: func() cluster.Policy { return policy },
		Files: files, CacheDir: filepath.Join(s.dir, "cache"), Dial: d.lab.DialContext, Log: log, Store: store, Sources: source,
		Proxmox: proxmox.Config{URL: d.lab.PVE.URL(), Token: cluster.SecretString(d.lab.Token), CA: d.lab.CA(), Pool: policy.Pool, Dial: d.lab.DialContext, Log: log},
		Factory: factory.Config{URL: d.lab.Factory.URL(), CacheDir: filepath.Join(s.dir, "cache", "images"), CA: d.lab.CA(), Dial: d.lab.DialContext, Log: log},
		Charts:  helm.Config{CA: d.lab.CA(), Mirrors: charts},
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.server, err = api.Listen(s.socket(), agentAlone{agent: d.agent, pulse: pulse}, log); err != nil {
		t.Fatal(err)
	}
	d.agent.Start(context.WithoutCancel(ctx))
	d.sees(s)
	return d
}

// agentAlone is an agent at a socket, without a daemon around it.
type agentAlone struct {
	agent *agent.Agent
	pulse *history.Pulse
}

func (a agentAlone) About() api.About {
	return api.About{Version: version, Started: a.agent.Started(), Problems: a.agent.Trouble(), Clusters: a.agent.Clusters()}
}
func (a agentAlone) Agent() (api.Agent, error)               { return a.agent, nil }
func (a agentAlone) Changed() <-chan struct{}                { return a.pulse.Next() }
func (agentAlone) Events(cluster.EventQuery) []cluster.Event { return []cluster.Event{} }
func (agentAlone) EventsChanged() <-chan struct{}            { return nil }
func (agentAlone) Inside() api.Inside                        { return api.Inside{} }

// specsOf reads what the reader's clusters ask of a host.
func specsOf(t *testing.T, c sources.Config) []cluster.Spec {
	t.Helper()
	repo, err := sources.New(c)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := repo.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names, problems, err := repo.Clusters(t.Context(), tree)
	if err := errors.Join(err, problems.Err()); err != nil {
		t.Fatal(err)
	}
	var specs []cluster.Spec
	for _, name := range names {
		snap, problems, err := repo.Snapshot(t.Context(), tree, name)
		if err := errors.Join(err, problems.Err()); err != nil {
			t.Fatal(err)
		}
		specs = append(specs, snap.Spec)
	}
	return specs
}

// sees waits until the agent has seen what was pushed: readers are slower than
// it is.
func (d *docsDaemon) sees(s *session) {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "git", "--git-dir", filepath.Join(s.dir, "infra.git"), "rev-parse", "main").Output()
	if err != nil {
		s.t.Fatal(err)
	}
	head := strings.TrimSpace(string(out))
	ctx, cancel := context.WithTimeout(s.t.Context(), daemonPatience)
	defer cancel()
	err = waitUntil(ctx, 20*time.Millisecond, func() (bool, error) {
		all, err := d.client.StatusAll(ctx)
		if err != nil || len(all) == 0 {
			return false, err
		}
		for _, st := range all {
			if st.Revision.Commit() != head {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		s.t.Fatalf("the daemon does not see %s: %v", head, err)
	}
}

func (d *docsDaemon) close(s *session) {
	d.agent.Stop()
	if err := d.server.Close(); err != nil {
		s.t.Error(err)
	}
	d.unlock()
	d.lab.Close()
	if err := d.lab.Broken(); err != nil {
		s.t.Errorf("the agent broke a law: %v", err)
	}
}

// testWriter shows the agent's log in the test's.
type testWriter struct{ t *testing.T }

var _ io.Writer = testWriter{}

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

// ageKeygen is as much of age-keygen as the pages use: -o FILE makes a key, -y
// FILE prints its public half.
func ageKeygen() {
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "-o":
		id, err := age.GenerateX25519Identity()
		must(err)
		must(os.WriteFile(args[1], fmt.Appendf(nil, "# public key: %s\n%s\n", id.Recipient(), id), 0o600))
	case len(args) == 2 && args[0] == "-y":
		key, err := os.ReadFile(args[1])
		must(err)
		ids, err := secrets.ParseIdentities(key)
		must(err)
		fmt.Println(strings.Join(ids.Recipients(), "\n"))
	default:
		fmt.Fprintln(os.Stderr, "usage: age-keygen -o FILE, or age-keygen -y FILE")
		os.Exit(2)
	}
}

// writeProgram writes a script that is to be run. A process that is started in
// the same moment would hold it open for writing until its own program runs, and
// so long the kernel runs no such file.
func writeProgram(path, script string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(script), 0o755)
}
