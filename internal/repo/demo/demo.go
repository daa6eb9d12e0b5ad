package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// Config describes what is shown, and where.
type Config struct {
	Repository fs.FS          // the example repository
	Host       pvehost.Config // the simulated host; Dir and Prefix are chosen
	DayTwo     bool           // show what becomes of a cluster that runs
	Upgrade    bool           // show a cluster that gets other versions
	Keep       bool           // keep the host's files
	Program    string         // talos-agent, which is run as the daemon
	Out        io.Writer
	// Destroy waits for the end of a cluster and prints it.
	Destroy func(ctx context.Context, c *api.Client, p terminal.Printer, name string) error
}

// demo is one Run.
type demo struct {
	c      Config
	line   *terminal.LiveLine
	host   *pvehost.Host
	work   string // the clone somebody works in
	client *api.Client
	began  time.Time
}

// Cluster is the cluster of the example repository that is shown.
const Cluster = "lab"

// errStopped means that the demo was stopped before its end.
var errStopped = errors.New("stopped by a signal")

// Run shows the main job.
func Run(ctx context.Context, c Config) error {
	d := &demo{c: c, line: terminal.NewLiveLine(c.Out)}
	return d.run(ctx)
}

func (d *demo) run(ctx context.Context) (err error) {
	if _, err := exec.LookPath("git"); err != nil {
		return fault.WithHint(errors.New("there is no git"), "install git")
	}
	key, err := fs.ReadFile(d.c.Repository, "lab-age-key.txt")
	if err != nil {
		return fault.WithHint(fmt.Errorf("read the example repository: %w", err), "without --repo the one is shown that is part of the program")
	}
	dir, err := os.MkdirTemp("", "talos-agent-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if d.c.Keep {
			d.print("the files are in %s", dir)
		} else if rmErr := os.RemoveAll(dir); rmErr != nil {
			err = errors.Join(err, rmErr)
		}
	}()
	d.began = time.Now()

	d.title("A simulated Proxmox VE %s host", d.c.Host.Flavour)
	prefix, release, err := world.FreePrefix()
	if err != nil {
		return err
	}
	defer release()
	c := d.c.Host
	c.Dir, c.Prefix = filepath.Join(dir, "host"), prefix
	if d.host, err = pvehost.Start(c, key, []string{Cluster}); err != nil {
		return err
	}
	defer d.host.Close()
	d.host.World.OnEvent(func(e world.Event) { d.print("%s: %s", e.Subject, e.Text) })
	d.work = filepath.Join(dir, "work")
	if err := d.checkout(); err != nil {
		return err
	}
	if err := d.git(ctx, "init", "--quiet", "--initial-branch=main", "."); err != nil {
		return err
	}

	d.title("The agent, unmodified, as its daemon")
	stop, err := d.startAgent(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	d.client = api.NewClient(d.host.Socket())

	switch {
	case d.c.DayTwo:
		return d.dayTwo(ctx)
	case d.c.Upgrade:
		return d.upgrade(ctx)
	}
	return d.story(ctx)
}

// story is the demo itself.
func (d *demo) story(ctx context.Context) error {
	d.title("git push: an inventory of one control plane and two workers")
	if err := d.commitAndPush(ctx, "bring up the lab cluster"); err != nil {
		return err
	}
	if err := d.untilReady(ctx); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}

	d.title("git push: one worker more")
	if err := d.edit("nodes.yaml", "role: worker, count: 2", "role: worker, count: 3"); err != nil {
		return err
	}
	if err := d.planned(ctx); err != nil {
		return err
	}
	before := d.vms()
	if err := d.commitAndPush(ctx, "add a worker"); err != nil {
		return err
	}
	if err := d.untilReady(ctx); err != nil {
		return err
	}
	if got := d.vms(); got != before+1 {
		return fmt.Errorf("the push that adds one worker made %d VMs", got-before)
	}
	if err := d.show(ctx); err != nil {
		return err
	}

	d.title("talos-agent destroy %s", Cluster)
	if err := d.client.Destroy(ctx, Cluster, nil); err != nil {
		return err
	}
	p := terminal.NewPlain(d.c.Out)
	if err := d.c.Destroy(ctx, d.client, p, Cluster); err != nil {
		return err
	}
	d.line.Clear()
	if n := d.vms(); n != 0 {
		return fmt.Errorf("%d VMs are left after destroy", n)
	}

	d.title("What the forge received")
	if err := d.statuses(); err != nil {
		return err
	}
	if err := d.host.Broken(); err != nil {
		return fmt.Errorf("the agent broke a rule: %w", err)
	}
	d.print("done in %s", time.Since(d.began).Round(100*time.Millisecond))
	return nil
}

// checkout copies the example repository and moves the lab's cluster to the
// addresses of this demo's lab.
func (d *demo) checkout() error {
	files, err := d.readRepo()
	if err != nil {
		return err
	}
	own := []byte(d.network())
	for name, data := range files {
		path := filepath.Join(d.work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if strings.HasPrefix(name, filepath.Join("inventory", Cluster)+"/") && !strings.HasSuffix(name, ".sops.yaml") {
			data = bytes.ReplaceAll(data, []byte("127.84.7."), own)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) readRepo() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(d.c.Repository, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files[path], err = fs.ReadFile(d.c.Repository, path)
		return err
	})
	return files, err
}

// planned shows what the agent would do with the directory before it is pushed.
func (d *demo) planned(ctx context.Context) error {
	f, err := d.client.ForecastDir(ctx, Cluster, os.DirFS(d.work))
	if err != nil {
		return err
	}
	d.line.Clear()
	p := terminal.NewPlain(d.c.Out)
	p.Printf("\n$ talos-agent plan --dir . %s\n", Cluster)
	p.PrintForecast(f)
	if f.Destructive() || len(f.Blocked) > 0 {
		return errors.New("adding a worker is planned as something else")
	}
	return nil
}

func (d *demo) commitAndPush(ctx context.Context, message string) error {
	for _, args := range [][]string{
		{"add", "--all"},
		{"commit", "--quiet", "--message", message},
		{"push", "--quiet", d.host.Remote(), "HEAD:main"},
	} {
		if err := d.git(ctx, args...); err != nil {
			return err
		}
	}
	// The daemon looks every ten seconds; a demo need not wait for it.
	if err := waitUntil(ctx, 100*time.Millisecond, func() (bool, error) {
		err := d.client.Reconcile(ctx, Cluster)
		var e *api.Error
		if errors.As(err, &e) || errors.Is(err, api.ErrNoDaemon) {
			return false, nil // it has not read the repository yet
		}
		return err == nil, err
	}); err != nil {
		return fmt.Errorf("have the daemon look: %w", err)
	}
	return nil
}

// git runs real git in the working clone, with nothing of the user's own
// configuration.
func (d *demo) git(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = d.work
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=demo", "GIT_AUTHOR_EMAIL=demo@example.org", "GIT_COMMITTER_NAME=demo", "GIT_COMMITTER_EMAIL=demo@example.org",
		"GIT_SSL_CAINFO="+filepath.Join(d.host.Dir, "ca.pem"), "GIT_ASKPASS=/bin/echo",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=credential.helper", "GIT_CONFIG_VALUE_0=!printf 'password="+lab.GitToken+"\n'; true")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// startAgent runs this program as the daemon, in a process of its own.
func (d *demo) startAgent(ctx context.Context) (stop func() error, err error) {
	cmd := exec.Command(d.c.Program, "run", "--config", d.host.Config)
	r, w := io.Pipe()
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		d.relay(r)
	}()
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		_ = w.Close()
		ended <- err
	}()
	// Reach the daemon, or learn that it ended.
	c := api.NewClient(d.host.Socket())
	err = waitUntil(ctx, 50*time.Millisecond, func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("the agent ended: %w", err)
		default:
		}
		_, err := c.About(ctx)
		return err == nil, nil
	})
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, err
	}
	return func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case err := <-ended:
			<-read
			d.line.Clear()
			return err
		case <-time.After(15 * time.Second):
			_ = cmd.Process.Kill()
			return errors.New("the agent did not stop within 15 s")
		}
	}, nil
}

// relay shows the agent's own log.
func (d *demo) relay(r io.Reader) {
	buf := make([]byte, 0, 4096)
	chunk := make([]byte, 4096)
	for {
		n, err := r.Read(chunk)
		buf = append(buf, chunk[:n]...)
		for {
			i := bytes.IndexByte(buf, '\n')
			if i < 0 {
				break
			}
			d.print("agent  %s", string(buf[:i]))
			buf = buf[i+1:]
		}
		if err != nil {
			return
		}
	}
}

// waitUntil waits until ready reports so, or ctx ends.
func waitUntil(ctx context.Context, every time.Duration, ready func() (bool, error)) error {
	for {
		ok, err := ready()
		if err != nil || ok {
			return err
		}
		if err := retry.Sleep(ctx, every); err != nil {
			return errStopped
		}
	}
}
