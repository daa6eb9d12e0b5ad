package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/sources/git"
)

// asker asks the person at a terminal.
type asker struct {
	ctx   context.Context // ends when the person has had enough
	typed chan string     // lines; closed when there are no more
	out   io.Writer
}

// newAsker listens to the terminal until the program ends.
func newAsker(ctx context.Context, env *environment) *asker {
	a := &asker{ctx: ctx, typed: make(chan string), out: env.stdout}
	go func() {
		defer close(a.typed)
		for in := bufio.NewScanner(env.stdin); in.Scan(); {
			select {
			case a.typed <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return a
}

// line waits for a line.
func (a *asker) line() (string, error) {
	select {
	case <-a.ctx.Done():
		_, _ = fmt.Fprintln(a.out)
		return "", fmt.Errorf("%w, and nothing was changed", errStopped)
	case line, ok := <-a.typed:
		if !ok {
			_, _ = fmt.Fprintln(a.out)
			return "", errors.New("nothing more was typed, and nothing was changed")
		}
		return strings.TrimSpace(line), nil
	}
}

// word asks for a value; an empty answer takes the one that is shown. An answer
// that wrong complains of is asked for again.
func (a *asker) word(question, usual string, wrong func(string) error) (string, error) {
	for {
		shown := ""
		if usual != "" {
			shown = " [" + usual + "]"
		}
		_, _ = fmt.Fprintf(a.out, "%s%s: ", question, shown)
		answer, err := a.line()
		if err != nil {
			return "", err
		}
		if answer == "" {
			answer = usual
		}
		if wrong == nil {
			return answer, nil
		}
		problem := wrong(answer)
		if problem == nil {
			return answer, nil
		}
		if hint := fault.HintOf(problem); hint != "" {
			problem = fmt.Errorf("%w (%s)", problem, hint)
		}
		_, _ = fmt.Fprintf(a.out, "  %s\n", problem)
	}
}

// yes asks for agreement.
func (a *asker) yes(question string, usual bool) (bool, error) {
	hint := "y/N"
	if usual {
		hint = "Y/n"
	}
	answer, err := a.word(question+" ["+hint+"]", "", func(s string) error {
		switch strings.ToLower(s) {
		case "", "y", "yes", "n", "no":
			return nil
		}
		return errors.New("type y or n")
	})
	if answer == "" {
		return usual, err
	}
	return strings.HasPrefix(strings.ToLower(answer), "y"), err
}

// decideWishes finds out what is wanted: what was wanted last, or what fits the
// host, then what flags say, then what the person at the terminal says.
func (i *initRun) decideWishes(ctx context.Context) error {
	if i.record.Wishes.Pool != "" {
		i.wishes = i.record.Wishes
	} else {
		i.wishes = setup.Defaults(i.facts)
	}
	i.wishes.Root = i.flags.root
	if err := i.readGiven(); err != nil {
		return err
	}
	if err := i.heedFlags(); err != nil {
		return err
	}
	if i.asks != nil && !i.flags.undo {
		if err := i.ask(ctx); err != nil {
			return err
		}
	}
	if i.wishes.Fingerprint == "" && !i.wishes.SystemTrust {
		ca, err := os.ReadFile(i.host.Path("/etc/pve/pve-root-ca.pem"))
		if err != nil {
			return fault.WithHint(fmt.Errorf("read the authority of Proxmox VE: %w", err), "is pve-cluster running? systemctl status pve-cluster")
		}
		i.files.RootCA = ca
	}
	return nil
}

// heedFlags lays what the flags say over the wishes.
func (i *initRun) heedFlags() error {
	f, w := i.flags, &i.wishes
	for name, set := range map[string]func(){
		"pool":            func() { w.Pool = f.pool },
		"bridge":          func() { w.Bridges = f.bridges },
		"datastore":       func() { w.Datastores = f.datastores },
		"image-datastore": func() { w.Images = f.images },
		"limit-nodes":     func() { w.Limits.Nodes = f.nodes },
		"limit-cores":     func() { w.Limits.Cores = f.cores },
		"limit-ram":       func() { w.Limits.RAM = orNone(f.ram) },
		"limit-disk":      func() { w.Limits.Disk = orNone(f.disk) },
		"repository":      func() { w.Repository.URL, w.Repository.Directory = f.repository, "" },
		"directory":       func() { w.Repository.URL, w.Repository.Directory = "", f.directory },
		"branch":          func() { w.Repository.Branch = f.branch },
		"path":            func() { w.Repository.Path = f.folder },
		"proxmox-url":     func() { w.ProxmoxURL, w.URLSaid = orNone(f.proxmoxURL), orNone(f.proxmoxURL) != "" },
		"fingerprint": func() {
			w.Fingerprint, w.SystemTrust, w.PinSaid = orNone(f.fingerprint), false, orNone(f.fingerprint) != ""
		},
		"ca-file":        func() { w.Authorities = i.files.Authorities != nil },
		"mirror-factory": func() { w.Mirrors.Factory = orNone(f.mirrorFactory) },
		"mirror-charts":  func() { w.Mirrors.Charts = maps.Clone(f.mirrorCharts) },
	} {
		if i.given(name) {
			set()
		}
	}
	if f.repository != "" && f.directory != "" {
		return &usageError{fault.WithHint(errors.New("init: --repository and --directory exclude each other"), "follow a Git repository, or a directory of this host")}
	}
	if err := i.heedForge(); err != nil {
		return err
	}
	if i.given("vmids") {
		ranges, ok := setup.ParseRanges(f.vmids)
		if !ok {
			return &usageError{fmt.Errorf("init: --vmids %q: write ranges of VMIDs from 100 on, like 400-599", f.vmids)}
		}
		w.VMIDs = ranges
	}
	if w.Repository.URL != "" {
		if err := aRepository(w.Repository.URL); err != nil {
			return &usageError{fault.WithHint(fmt.Errorf("init: --repository: %w", err), fault.HintOf(err))}
		}
	}
	if dir := w.Repository.Directory; dir != "" {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return &usageError{fault.WithHint(fmt.Errorf("init: --directory: there is no directory %s", dir), "make it first, or say another")}
		}
	}
	*w = w.WithCertificate(i.facts)
	w.Import = !f.noImport
	return nil
}

// ask asks for what no flag says.
func (i *initRun) ask(ctx context.Context) error {
	w := &i.wishes
	_, _ = fmt.Fprintf(i.env.stdout, "Enter takes what is in brackets.\n\n")
	list := func(flag, question string, to *[]string, there []string) error {
		if i.given(flag) {
			return nil
		}
		_, err := i.asks.word(fmt.Sprintf("%s (there is %s)", question, strings.Join(there, ", ")), strings.Join(*to, ","), func(s string) error {
			*to = wordsOf(s)
			return i.wrongWith(flag)
		})
		return err
	}
	word := func(flag, question string, to *string, wrong func(string) error) error {
		if i.given(flag) {
			return nil
		}
		_, err := i.asks.word(question, *to, func(s string) error {
			if err := wrong(s); err != nil {
				return err
			}
			*to = s
			return i.wrongWith(flag)
		})
		return err
	}
	var storages, bridges []string
	for _, s := range i.facts.Storages {
		storages = append(storages, s.Name)
	}
	for _, b := range i.facts.Bridges {
		bridges = append(bridges, strings.TrimSpace(b.Name+" "+b.Address))
	}
	vmids := strings.Trim(fmt.Sprint(w.VMIDs), "[]")
	for _, question := range []func() error{
		func() error {
			if i.given("repository") || i.given("directory") || w.Repository.Directory != "" {
				return nil
			}
			return word("repository", "Git repository to follow, like ssh://git@git.example.org/infra.git", &w.Repository.URL, func(s string) error {
				if err := aRepository(s); err != nil {
					return err
				}
				return i.scan(ctx, s)
			})
		},
		func() error { return word("branch", "Branch", &w.Repository.Branch, writtenAs("branch", "main")) },
		func() error { return word("pool", "Pool for the agent's VMs", &w.Pool, notEmpty) },
		func() error {
			return word("vmids", "VMIDs that nodes may have", &vmids, func(s string) error {
				ranges, ok := setup.ParseRanges(strings.Join(wordsOf(s), ","))
				if !ok {
					return errors.New("write ranges of VMIDs from 100 on, like 400-599")
				}
				w.VMIDs = ranges
				return nil
			})
		},
		func() error { return list("bridge", "Bridges for nodes", &w.Bridges, bridges) },
		func() error { return list("datastore", "Storages for disks", &w.Datastores, storages) },
		func() error {
			return word("image-datastore", "Storage for Talos images", &w.Images, notEmpty)
		},
		i.askImport,
		i.askLimits,
		i.askGitToken,
		i.askForge,
		func() error { return i.askHostKeys(ctx) },
		i.askStart,
	} {
		if err := question(); err != nil {
			return err
		}
	}
	return nil
}

// wordsOf is what a person lists, with commas, spaces or both between.
func wordsOf(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// wrongWith complains of what was wished where a flag would say it otherwise, so
// that it is asked for again at once and not refused after the last question.
func (i *initRun) wrongWith(flag string) error {
	for _, p := range setup.Check(i.facts, i.wishes, i.record, i.files, i.options()) {
		if p.Field == "--"+flag && p.Severity == cluster.Error {
			return fmt.Errorf("%s (%s)", p.Message, p.Hint)
		}
	}
	return nil
}

// aRepository complains of what is no address of a repository.
func aRepository(s string) error {
	_, err := git.SSHServer(s)
	return err
}

// writtenAs complains of what the config could not hold, with an example of what
// it could.
func writtenAs(format, like string) func(string) error {
	f := config.Format(format)
	return func(s string) error {
		if err := notEmpty(s); err != nil {
			return err
		}
		if len(s) > f.Max || !f.Pattern.MatchString(s) {
			return fmt.Errorf("%q is not %s (write one like %s)", s, f.What, like)
		}
		return nil
	}
}

func notEmpty(s string) error {
	if s == "" {
		return errors.New("it is needed")
	}
	return nil
}

// askImport asks before the storage for images is changed.
func (i *initRun) askImport() (err error) {
	for _, s := range i.facts.Storages {
		if s.Name == i.wishes.Images && !s.Holds("import") && !i.given("no-import") {
			i.wishes.Import, err = i.asks.yes(fmt.Sprintf("Storage %s takes %s, and no images to import. Let it?", s.Name, strings.Join(s.Content, ", ")), true)
		}
	}
	return err
}

// askLimits asks what all nodes together may take of the host.
func (i *initRun) askLimits() error {
	for _, name := range []string{"limit-nodes", "limit-cores", "limit-ram", "limit-disk"} {
		if i.given(name) {
			return nil
		}
	}
	_, err := i.asks.word("Limits for all nodes together, like nodes=10,cores=32,ram=64GiB,disk=1TiB", i.wishes.Limits.String(), func(s string) error {
		limits, err := setup.ParseLimits(s)
		if err != nil {
			return err
		}
		i.wishes.Limits = limits
		return nil
	})
	return err
}

// askGitToken asks for what reads a repository behind https, which may be
// nothing.
func (i *initRun) askGitToken() (err error) {
	_, stored := i.facts.Files[setup.Credential(setup.GitToken)]
	if !strings.HasPrefix(i.wishes.Repository.URL, "https://") || i.given("git-token-file") || stored {
		return nil
	}
	_, err = i.asks.word("File with a token that reads the repository", "none", func(path string) error {
		if path == "none" {
			return nil
		}
		i.files.GitToken, err = readToken(path)
		return err
	})
	return err
}

// readToken reads the file that a person names at the terminal, where no token
// should ever be typed.
func readToken(path string) ([]byte, error) {
	if err := notEmpty(path); err != nil {
		return nil, err
	}
	data, _, err := config.ReadFile(path, config.OthersMayNotRead)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("there is no such file (write the token into one in another terminal: umask 077; cat > /root/token)")
	case err != nil:
		return nil, err
	}
	return data, notBlank(data)
}

// askForge asks where commit statuses go.
func (i *initRun) askForge() error {
	if i.given("forge") || i.wishes.Forge != nil || i.wishes.Repository.Directory != "" {
		return nil
	}
	kind, err := i.asks.word("Forge to send commit statuses to (github, gitlab, gitea or none)", "none", func(s string) error {
		switch s {
		case "github", "gitlab", "gitea", "none":
			return nil
		}
		return errors.New("type github, gitlab, gitea or none")
	})
	if err != nil || kind == "none" {
		return err
	}
	forge := &setup.Forge{Kind: kind}
	if forge.Repository, err = i.asks.word("Repository there, like org/infra", i.wishes.Repository.Project(), writtenAs("project", "org/infra")); err != nil {
		return err
	}
	if kind == "gitea" {
		if forge.URL, err = i.asks.word("Its address, like https://git.example.org", "", writtenAs("weburl", "https://git.example.org")); err != nil {
			return err
		}
	}
	path, err := i.asks.word("File with a token that may set commit statuses, or none to do without", "", func(path string) (err error) {
		if path == "none" {
			return nil
		}
		i.files.ForgeToken, err = readToken(path)
		return err
	})
	if err != nil || path == "none" {
		return err
	}
	i.flags.forgeTokenFile, i.wishes.Forge = path, forge
	return nil
}

// scan asks an ssh server that is not known yet for its host keys, so that an
// address at which there is none is asked for again at once.
func (i *initRun) scan(ctx context.Context, url string) error {
	r := setup.Repository{URL: url}
	if !r.SSH() || i.files.KnownHosts != nil || git.CheckKnownHosts(url, i.facts.Files[setup.KnownHostsFile].Data) == nil {
		return nil
	}
	addr, err := git.SSHServer(url)
	if err != nil {
		return err
	}
	keys, err := probe.ScanHostKeys(ctx, addr)
	if err != nil {
		return fault.WithHint(err, "if it cannot be reached now, give its host keys with --known-hosts-file")
	}
	i.scanned = &hostKeys{addr, keys}
	return nil
}

// hostKeys are what an ssh server shows, and nothing proves.
type hostKeys struct {
	addr string
	keys []ssh.PublicKey
}

// askHostKeys shows the host keys of the ssh server, which nothing proves but
// the person who compares them.
func (i *initRun) askHostKeys(ctx context.Context) error {
	if i.scanned == nil { // the address was not asked for, but given
		if err := i.scan(ctx, i.wishes.Repository.URL); err != nil {
			return err
		}
	}
	if i.scanned == nil {
		return nil
	}
	addr, keys := i.scanned.addr, i.scanned.keys
	_, _ = fmt.Fprintf(i.env.stdout, "\n%s shows these host keys. Compare them with what its owner publishes:\n", addr)
	for _, k := range keys {
		_, _ = fmt.Fprintf(i.env.stdout, "  %-20s %s\n", k.Type(), ssh.FingerprintSHA256(k))
	}
	ok, err := i.asks.yes("Are they the server's?", false)
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("the ssh server is not trusted, and nothing was changed")
	}
	i.files.KnownHosts = knownHostsLines(addr, keys)
	return nil
}

// askStart asks whether to start the agent.
func (i *initRun) askStart() (err error) {
	if !i.given("start") && i.facts.Unit.Installed && !i.facts.Unit.Active {
		i.flags.start, err = i.asks.yes("Start the agent when all is done?", true)
	}
	return err
}

// knownHostsLines are the lines that trust keys of a server.
func knownHostsLines(addr string, keys []ssh.PublicKey) []byte {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(xknownhosts.Line([]string{addr}, k) + "\n")
	}
	return []byte(b.String())
}
