//go:build linux

package support

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
)

const (
	unit = "talos-agent"
	// journalTail is how many lines of the unit's journal a bundle has.
	journalTail = "5000"
	// askTimeout bounds one question of a bundle.
	askTimeout = time.Minute
	// listedFiles is how many files of a folder are listed.
	listedFiles = 2000
)

// Config describes what a bundle is made of.
type Config struct {
	Version string // of this program
	Path    string // of config.yaml
	Socket  string // of the daemon; "": the config's
	// OnStep is called with what is looked at next.
	OnStep func(what string)
}

// Bundle is what goes into the file.
type Bundle struct {
	c       Config
	parts   []part
	missing []string // what there is not, and why
}

type part struct {
	name string
	data []byte
}

func (b *Bundle) add(name string, data []byte) { b.parts = append(b.parts, part{name, data}) }

// omit notes what there is not.
func (b *Bundle) omit(name string, err error) {
	b.missing = append(b.missing, name+": "+text.OneLine(err.Error()))
}

// addJSON adds an answer in the envelope of the program's JSON.
func (b *Bundle) addJSON(name, kind string, v any, err error) {
	if err != nil {
		b.omit(name, err)
		return
	}
	text, err := json.MarshalIndent(terminal.NewEnvelope(kind, v), "", "  ")
	if err != nil {
		b.omit(name, err)
		return
	}
	b.add(name, append(text, '\n'))
}

// Files is how many files a bundle has.
func (b *Bundle) Files() int { return len(b.parts) + 1 } // and README.txt

// Missing is what there is not, and why.
func (b *Bundle) Missing() []string { return b.missing }

// Gather asks everybody. Only the end of ctx is an error: what cannot be had is
// left out, and listed.
func Gather(ctx context.Context, c Config) (*Bundle, error) {
	settings, problems := config.Load(c.Path)
	if c.Socket == "" {
		c.Socket = cmp.Or(settings.Socket, config.DefaultSocket)
	}
	b, client := &Bundle{c: c}, api.NewClient(c.Socket)
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"versions", func() { b.addVersions(ctx, client) }},
		{"the clusters", func() { b.addClusters(ctx, client) }},
		{"the daemon", func() { b.addInside(ctx, client) }},
		{"config and policy", func() { b.addFiles(settings, problems) }},
		{"systemd", func() { b.addSystemd(ctx) }},
		{"doctor", func() { b.addDoctor(ctx) }},
	} {
		c.OnStep(step.what)
		step.do()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *Bundle) addVersions(ctx context.Context, c *api.Client) {
	about, err := c.About(ctx)
	if err != nil {
		b.omit("daemon", err)
	}
	var uts unix.Utsname
	kernel := ""
	if err := unix.Uname(&uts); err == nil {
		kernel = unix.ByteSliceToString(uts.Release[:])
	}
	v := struct {
		Client string     `json:"client"`
		Daemon *api.About `json:"daemon,omitempty"`
		Go     string     `json:"go"`
		System string     `json:"system"`
		Kernel string     `json:"kernel"`
		At     time.Time  `json:"at"`
	}{Client: b.c.Version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Kernel: kernel, At: time.Now().UTC()}
	if err == nil {
		v.Daemon = &about
	}
	b.addJSON("versions.json", "Versions", v, nil)
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		b.add("os-release.txt", text)
	}
}

func (b *Bundle) addClusters(ctx context.Context, c *api.Client) {
	all, err := c.StatusAll(ctx)
	b.addJSON("status.json", "StatusList", all, err)
	if err == nil {
		var text bytes.Buffer
		terminal.NewPlain(&text).PrintStatuses(all)
		b.add("status.txt", text.Bytes())
	}
	events, err := c.Events(ctx, cluster.EventQuery{})
	b.addJSON("events.json", "EventList", events, err)
	for _, s := range all {
		f, err := c.Forecast(ctx, s.Cluster)
		b.addJSON("clusters/"+s.Cluster+"/plan.json", "Forecast", f, err)
		runs, err := c.History(ctx, s.Cluster)
		b.addJSON("clusters/"+s.Cluster+"/history.json", "RunList", runs, err)
	}
}

func (b *Bundle) addInside(ctx context.Context, c *api.Client) {
	in, err := c.Inside(ctx)
	if err != nil {
		b.omit("daemon/", err)
		return
	}
	b.add("daemon/goroutines.txt", []byte(in.Goroutines))
	b.add("daemon/metrics.txt", []byte(in.Metrics))
	b.addJSON("daemon/memory.json", "Memory", in.Memory, nil)
}

// addFiles adds config and policy as far as they are no secret, what is wrong with
// them, and a list of what the agent has on this host.
func (b *Bundle) addFiles(s config.Settings, problems cluster.Problems) {
	policy := s.PolicyPath
	if policy == "" {
		policy = filepath.Join(filepath.Dir(b.c.Path), "policy.yaml")
	}
	for _, f := range []struct {
		name, path string
		redact     func(path string) ([]byte, error)
	}{{"config.yaml", b.c.Path, config.RedactConfig}, {"policy.yaml", policy, config.RedactPolicy}} {
		text, err := f.redact(f.path)
		if err != nil {
			b.omit(f.name, err)
			continue
		}
		b.add(f.name, text)
	}
	b.addJSON("config-problems.json", "Problems", append(cluster.Problems{}, problems...), nil)

	var list bytes.Buffer
	dirs := []string{filepath.Dir(b.c.Path), config.CredentialStore, config.CredentialStore + ".encrypted", filepath.Dir(b.c.Socket)}
	for _, dir := range []string{s.StateDir, s.CacheDir} {
		if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range dirs {
		listFiles(&list, dir)
	}
	b.add("files.txt", list.Bytes())
}

// listFiles lists a folder with what is below it: modes, owners, sizes, no
// contents.
func listFiles(w io.Writer, dir string) {
	left := listedFiles
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			_, _ = fmt.Fprintf(w, "%s: %v\n", path, err)
			return nil
		}
		if left--; left < 0 {
			_, _ = fmt.Fprintf(w, "%s: and more\n", dir)
			return fs.SkipAll
		}
		info, err := d.Info()
		if err != nil {
			return nil // it is deleted again
		}
		owner := ""
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			owner = fmt.Sprintf("%d:%d", st.Uid, st.Gid)
		}
		_, _ = fmt.Fprintf(w, "%s %-11s %10d %s %s\n", info.Mode(), owner, info.Size(), info.ModTime().UTC().Format(time.RFC3339), path)
		return nil
	})
	if err != nil {
		_, _ = fmt.Fprintf(w, "%s: %v\n", dir, err)
	}
}

// addSystemd asks for the unit and its journal, where there is a systemd.
func (b *Bundle) addSystemd(ctx context.Context) {
	for _, ask := range [][]string{
		{"unit.txt", "systemctl", "show", "--no-pager", "--property=" + strings.Join(unitProperties, ","), unit},
		{"journal.txt", "journalctl", "--no-pager", "--quiet", "--output=short-iso", "--lines=" + journalTail, "--unit=" + unit},
	} {
		name, args := ask[0], ask[1:]
		within, cancel := context.WithTimeout(ctx, askTimeout)
		text, err := probe.RunProgram(within, args[0], args[1:]...)
		cancel()
		switch {
		case err != nil:
			b.omit(name, fmt.Errorf("%s: %w", args[0], err))
		case len(bytes.TrimSpace(text)) == 0:
			b.omit(name, fmt.Errorf("%s knows nothing of %s", args[0], unit))
		default:
			b.add(name, text)
		}
	}
}

// unitProperties are what is asked of the unit: none of them holds a credential
// or an environment.
var unitProperties = []string{"Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "FragmentPath", "DropInPaths", "Type", "User", "Group",
	"MainPID", "NRestarts", "ExecMainStartTimestamp", "ExecMainExitTimestamp", "ExecMainCode", "ExecMainStatus", "StatusText", "MemoryCurrent", "MemoryPeak",
	"CPUUsageNSec", "TasksCurrent", "WatchdogUSec", "NeedDaemonReload"}

func (b *Bundle) addDoctor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	report, err := Inspect(ctx, b.c.Path, b.c.Socket, probe.Host{Run: probe.RunProgram})
	b.addJSON("doctor.json", "Doctor", report, err)
}

// Write writes the archive, the list of what is missing first.
func (b *Bundle) Write(w io.Writer) error {
	var readme strings.Builder
	fmt.Fprintf(&readme, "Made by talos-agent %s on %s. It holds no secret; it holds names and addresses.\n", b.c.Version, time.Now().UTC().Format(time.RFC3339))
	if len(b.missing) > 0 {
		readme.WriteString("\nMissing:\n")
		for _, m := range b.missing {
			readme.WriteString("  " + m + "\n")
		}
	}
	zip := gzip.NewWriter(w)
	tw := tar.NewWriter(zip)
	for _, p := range append([]part{{"README.txt", []byte(readme.String())}}, b.parts...) {
		h := &tar.Header{Name: "talos-agent-support/" + p.name, Mode: 0o600, Size: int64(len(p.data)), Typeflag: tar.TypeReg, ModTime: time.Now()}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("write %s into the bundle: %w", p.name, err)
		}
		if _, err := tw.Write(p.data); err != nil {
			return fmt.Errorf("write %s into the bundle: %w", p.name, err)
		}
	}
	if err := errors.Join(tw.Close(), zip.Close()); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}
