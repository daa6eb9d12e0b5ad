package main

import (
	"archive/tar"
	"bytes"
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

	"github.com/spf13/cobra"
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
	// askWithin bounds one question of a bundle.
	askWithin = time.Minute
	// listedFiles is how many files of a folder are listed.
	listedFiles = 2000
)

func newSupportBundle(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write a file with everything a maintainer needs, and no secret (root)",
		Long: `Write a file (tar, gzip) with everything that somebody needs who helps: versions,
status, plan, events and history of every cluster, what doctor finds, metrics,
the state of the unit and the end of its journal, what the daemon's goroutines
do, config and policy, and which files there are with which modes.

It holds no secret: of the config only values are shown that are known to be
none. It holds names, addresses and the messages of commits: look at it before
you send it. What could not be had, because the daemon is down or this user may
not, is listed in its README.txt.`,
		Args: cobra.NoArgs,
	}
	file := cmd.Flags().StringP("file", "f", "", "where to write it (default talos-agent-support-TIME.tar.gz)")
	config := cmd.Flags().String("config", defaultConfig, "the host's config file")
	complete(cmd, "file", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	complete(cmd, "config", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		name := *file
		if name == "" {
			name = "talos-agent-support-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
		b := &bundle{env: env, ctx: cmd.Context(), config: *config}
		if cmd.Flags().Changed("socket") {
			b.socket, err = cmd.Flags().GetString("socket")
		}
		if err == nil {
			err = b.gather()
		}
		if err == nil {
			err = b.write(f)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return errors.Join(err, os.Remove(name))
		}
		_, _ = fmt.Fprintf(env.stdout, "%s: %s; look at it before you send it\n", name, text.Count(len(b.parts), "file"))
		for _, m := range b.missing {
			_, _ = fmt.Fprintf(env.stdout, "  without %s\n", m)
		}
		return nil
	}
	return cmd
}

// bundle is what goes into the file.
type bundle struct {
	env    *environment
	ctx    context.Context
	config string
	socket string // "": the config's

	parts   []part
	missing []string // what there is not, and why
}

type part struct {
	name string
	data []byte
}

func (b *bundle) add(name string, data []byte) { b.parts = append(b.parts, part{name, data}) }

// lack notes what there is not.
func (b *bundle) lack(name string, err error) {
	b.missing = append(b.missing, name+": "+text.OneLine(err.Error()))
}

// json adds an answer in the envelope of the program's JSON.
func (b *bundle) json(name, kind string, v any, err error) {
	if err != nil {
		b.lack(name, err)
		return
	}
	text, err := json.MarshalIndent(terminal.NewEnvelope(kind, v), "", "  ")
	if err != nil {
		b.lack(name, err)
		return
	}
	b.add(name, append(text, '\n'))
}

// gather asks everybody. Only the end of the command is an error: what cannot be
// had is left out, and said.
func (b *bundle) gather() error {
	settings, problems := config.Load(b.config)
	if b.socket == "" {
		b.socket = config.DefaultSocket
		if settings.Socket != "" {
			b.socket = settings.Socket
		}
	}
	c := api.NewClient(b.socket)
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"versions", func() { b.versions(c) }},
		{"the clusters", func() { b.clusters(c) }},
		{"the daemon", func() { b.inside(c) }},
		{"config and policy", func() { b.files(settings, problems) }},
		{"systemd", b.systemd},
		{"doctor", b.doctor},
	} {
		_, _ = fmt.Fprintf(b.env.stderr, "looking at %s\n", step.what)
		step.do()
		if b.ctx.Err() != nil {
			return errStopped
		}
	}
	return nil
}

func (b *bundle) versions(c *api.Client) {
	about, err := c.About(b.ctx)
	if err != nil {
		b.lack("daemon", err)
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
	}{Client: version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Kernel: kernel, At: time.Now().UTC()}
	if err == nil {
		v.Daemon = &about
	}
	b.json("versions.json", "Versions", v, nil)
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		b.add("os-release.txt", text)
	}
}

func (b *bundle) clusters(c *api.Client) {
	all, err := c.StatusAll(b.ctx)
	b.json("status.json", "StatusList", all, err)
	if err == nil {
		var text bytes.Buffer
		terminal.NewPlain(&text).PrintStatuses(all)
		b.add("status.txt", text.Bytes())
	}
	events, err := c.Events(b.ctx, cluster.EventQuery{})
	b.json("events.json", "EventList", events, err)
	for _, s := range all {
		f, err := c.Forecast(b.ctx, s.Cluster)
		b.json("clusters/"+s.Cluster+"/plan.json", "Forecast", f, err)
		runs, err := c.History(b.ctx, s.Cluster)
		b.json("clusters/"+s.Cluster+"/history.json", "RunList", runs, err)
	}
}

func (b *bundle) inside(c *api.Client) {
	in, err := c.Inside(b.ctx)
	if err != nil {
		b.lack("daemon/", err)
		return
	}
	b.add("daemon/goroutines.txt", []byte(in.Goroutines))
	b.add("daemon/metrics.txt", []byte(in.Metrics))
	b.json("daemon/memory.json", "Memory", in.Memory, nil)
}

// files adds config and policy as far as they are no secret, what is wrong with
// them, and a list of what the agent has on this host.
func (b *bundle) files(s config.Settings, problems cluster.Problems) {
	policy := s.PolicyPath
	if policy == "" {
		policy = filepath.Join(filepath.Dir(b.config), "policy.yaml")
	}
	for _, f := range []struct {
		name, path string
		redact     func(path string) ([]byte, error)
	}{{"config.yaml", b.config, config.RedactConfig}, {"policy.yaml", policy, config.RedactPolicy}} {
		text, err := f.redact(f.path)
		if err != nil {
			b.lack(f.name, err)
			continue
		}
		b.add(f.name, text)
	}
	b.json("config-problems.json", "Problems", append(cluster.Problems{}, problems...), nil)

	var list bytes.Buffer
	dirs := []string{filepath.Dir(b.config), config.CredentialStore, config.CredentialStore + ".encrypted", filepath.Dir(b.socket)}
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
			return nil // it is gone again
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

// systemd asks for the unit and its journal, where there is a systemd.
func (b *bundle) systemd() {
	for _, ask := range [][]string{
		{"unit.txt", "systemctl", "show", "--no-pager", "--property=" + strings.Join(unitProperties, ","), unit},
		{"journal.txt", "journalctl", "--no-pager", "--quiet", "--output=short-iso", "--lines=" + journalTail, "--unit=" + unit},
	} {
		name, args := ask[0], ask[1:]
		ctx, cancel := context.WithTimeout(b.ctx, askWithin)
		text, err := probe.RunProgram(ctx, args[0], args[1:]...)
		cancel()
		if err != nil {
			b.lack(name, fmt.Errorf("%s: %w", args[0], err))
			continue
		}
		b.add(name, text)
	}
}

// unitProperties are what is asked of the unit: none of them holds a credential
// or an environment.
var unitProperties = []string{"Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "FragmentPath", "DropInPaths", "Type", "User", "Group",
	"MainPID", "NRestarts", "ExecMainStartTimestamp", "ExecMainExitTimestamp", "ExecMainCode", "ExecMainStatus", "StatusText", "MemoryCurrent", "MemoryPeak",
	"CPUUsageNSec", "TasksCurrent", "WatchdogUSec", "NeedDaemonReload"}

func (b *bundle) doctor() {
	ctx, cancel := context.WithTimeout(b.ctx, 2*askWithin)
	defer cancel()
	report, err := visit(ctx, b.config, b.socket)
	b.json("doctor.json", "Doctor", report, err)
}

// write writes the archive, the list of what is missing first.
func (b *bundle) write(w io.Writer) error {
	var readme strings.Builder
	fmt.Fprintf(&readme, "Made by talos-agent %s on %s. It holds no secret; it holds names and addresses.\n", version, time.Now().UTC().Format(time.RFC3339))
	if len(b.missing) > 0 {
		readme.WriteString("\nMissing:\n")
		for _, m := range b.missing {
			readme.WriteString("  " + m + "\n")
		}
	}
	b.parts = append([]part{{"README.txt", []byte(readme.String())}}, b.parts...)
	zip := gzip.NewWriter(w)
	tw := tar.NewWriter(zip)
	for _, p := range b.parts {
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
