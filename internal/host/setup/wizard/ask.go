package wizard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/dialog"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/sources/git"
)

// decideWishes finds out what is wanted: what was wanted last, or what fits the
// host, then the flags, then what the person at the terminal answers.
func (i *session) decideWishes(ctx context.Context) error {
	if i.record.Wishes.Pool != "" {
		i.wishes = i.record.Wishes
	} else {
		i.wishes = setup.Defaults(i.facts)
	}
	i.wishes.Root = i.Host.Root
	if err := i.readGiven(); err != nil {
		return err
	}
	if err := i.applyFlags(); err != nil {
		return err
	}
	if i.dialog != nil && !i.Flags.Undo {
		if err := i.ask(ctx); err != nil {
			return err
		}
	}
	if i.wishes.Fingerprint == "" && !i.wishes.SystemTrust {
		ca, err := os.ReadFile(i.Host.Path("/etc/pve/pve-root-ca.pem"))
		if err != nil {
			return fault.WithHint(fmt.Errorf("read the authority of Proxmox VE: %w", err), "is pve-cluster running? systemctl status pve-cluster")
		}
		i.files.RootCA = ca
	}
	return nil
}

// applyFlags lays the flags over the wishes.
func (i *session) applyFlags() error {
	f, w := i.Flags, &i.wishes
	for name, set := range map[string]func(){
		"pool":            func() { w.Pool = f.Pool },
		"bridge":          func() { w.Bridges = f.Bridges },
		"datastore":       func() { w.Datastores = f.Datastores },
		"image-datastore": func() { w.Images = f.Images },
		"limit-nodes":     func() { w.Limits.Nodes = f.Nodes },
		"limit-cores":     func() { w.Limits.Cores = f.Cores },
		"limit-ram":       func() { w.Limits.RAM = emptyIfNone(f.RAM) },
		"limit-disk":      func() { w.Limits.Disk = emptyIfNone(f.Disk) },
		"repository":      func() { w.Repository.URL, w.Repository.Directory = f.Repository, "" },
		"directory":       func() { w.Repository.URL, w.Repository.Directory = "", f.Directory },
		"branch":          func() { w.Repository.Branch = f.Branch },
		"path":            func() { w.Repository.Path = f.Folder },
		"proxmox-url":     func() { w.ProxmoxURL, w.URLGiven = emptyIfNone(f.ProxmoxURL), emptyIfNone(f.ProxmoxURL) != "" },
		"fingerprint": func() {
			w.Fingerprint, w.SystemTrust, w.PinGiven = emptyIfNone(f.Fingerprint), false, emptyIfNone(f.Fingerprint) != ""
		},
		"ca-file":        func() { w.Authorities = i.files.Authorities != nil },
		"mirror-factory": func() { w.Mirrors.Factory = emptyIfNone(f.MirrorFactory) },
		"mirror-charts":  func() { w.Mirrors.Charts = maps.Clone(f.MirrorCharts) },
	} {
		if i.Given(name) {
			set()
		}
	}
	if f.Repository != "" && f.Directory != "" {
		return &fault.Usage{Err: fault.WithHint(errors.New("init: --repository and --directory exclude each other"), "follow a Git repository, or a directory of this host")}
	}
	if err := i.applyForgeFlags(); err != nil {
		return err
	}
	if i.Given("vmids") {
		ranges, ok := setup.ParseRanges(f.VMIDs)
		if !ok {
			return &fault.Usage{Err: fmt.Errorf("init: --vmids %q: write ranges of VMIDs from 100 on, like 400-599", f.VMIDs)}
		}
		w.VMIDs = ranges
	}
	if w.Repository.URL != "" {
		if err := checkRepository(w.Repository.URL); err != nil {
			return &fault.Usage{Err: fault.WithHint(fmt.Errorf("init: --repository: %w", err), fault.HintOf(err))}
		}
	}
	if w.Repository.Directory != "" {
		if err := i.findDirectory(&w.Repository.Directory); err != nil {
			return err
		}
	}
	*w = w.WithCertificate(i.facts)
	w.Import = !f.NoImport
	return nil
}

// findDirectory looks for the directory to follow. One that is not there yet is made,
// where it belongs to the host.
func (i *session) findDirectory(dir *string) (err error) {
	if *dir, err = filepath.Abs(*dir); err != nil {
		return err
	}
	below, ours := strings.CutPrefix(*dir, i.Host.Root+"/")
	switch info, err := os.Stat(*dir); {
	case errors.Is(err, fs.ErrNotExist) && ours:
		i.newDirectory = "/" + below
	case err != nil:
		return &fault.Usage{Err: fault.WithHint(fmt.Errorf("init: --directory: %w", err), "name another")}
	case !info.IsDir():
		return &fault.Usage{Err: fault.WithHint(fmt.Errorf("init: --directory: %s is no directory", *dir), "name another")}
	}
	return nil
}

// ask asks for what no flag sets.
func (i *session) ask(ctx context.Context) error {
	w := &i.wishes
	_, _ = fmt.Fprintf(i.Out, "Enter takes what is in brackets.\n\n")
	var storages, bridges []string
	for _, s := range i.facts.DiskStorages() {
		storages = append(storages, s.Name)
	}
	for _, b := range i.facts.Bridges {
		bridges = append(bridges, strings.TrimSpace(b.Name+" "+b.Address))
	}
	for _, question := range []func() error{
		func() error { return i.askRepository(ctx) },
		func() error {
			return i.askText("branch", "Branch", &w.Repository.Branch, config.CheckText("branch", "main"))
		},
		func() error { return i.askText("pool", "Pool for the agent's VMs", &w.Pool, dialog.NotEmpty) },
		i.askVMIDs,
		func() error { return i.askList("bridge", "Bridges for nodes", &w.Bridges, bridges) },
		func() error { return i.askList("datastore", "Storages for disks", &w.Datastores, storages) },
		func() error {
			return i.askText("image-datastore", "Storage for Talos images", &w.Images, dialog.NotEmpty)
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

// askText asks for one text, unless its flag sets it.
func (i *session) askText(flag, question string, to *string, wrong func(string) error) error {
	if i.Given(flag) {
		return nil
	}
	_, err := i.dialog.Ask(question, *to, func(s string) error {
		if err := wrong(s); err != nil {
			return err
		}
		*to = s
		return i.checkWish(flag)
	})
	return err
}

// askList asks for some of what the host has, unless a flag sets it.
func (i *session) askList(flag, question string, to *[]string, there []string) error {
	if i.Given(flag) {
		return nil
	}
	_, err := i.dialog.Ask(fmt.Sprintf("%s (there is %s)", question, strings.Join(there, ", ")), strings.Join(*to, ","), func(s string) error {
		*to = splitList(s)
		return i.checkWish(flag)
	})
	return err
}

// askRepository asks for the repository to follow, and its ssh server for its
// host keys.
func (i *session) askRepository(ctx context.Context) error {
	if i.Given("repository") || i.Given("directory") || i.wishes.Repository.Directory != "" {
		return nil
	}
	return i.askText("repository", "Git repository to follow, like ssh://git@git.example.org/infra.git", &i.wishes.Repository.URL, func(s string) error {
		if err := checkRepository(s); err != nil {
			return err
		}
		return i.scanServer(ctx, s)
	})
}

// askVMIDs asks for the VMIDs of the nodes.
func (i *session) askVMIDs() error {
	vmids := strings.Trim(fmt.Sprint(i.wishes.VMIDs), "[]")
	return i.askText("vmids", "VMIDs that nodes may have", &vmids, func(s string) error {
		ranges, ok := setup.ParseRanges(strings.Join(splitList(s), ","))
		if !ok {
			return errors.New("write ranges of VMIDs from 100 on, like 400-599")
		}
		i.wishes.VMIDs = ranges
		return nil
	})
}

// splitList is what a person lists, with commas, spaces or both between.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// checkWish complains of what was wished where a flag would set it otherwise, so
// that it is asked for again at once and not refused after the last question.
func (i *session) checkWish(flag string) error {
	for _, p := range setup.Check(i.facts, i.wishes, i.record, i.files, i.setupOptions()) {
		if p.Field == "--"+flag && p.Severity == cluster.Error {
			return fmt.Errorf("%s (%s)", p.Message, p.Hint)
		}
	}
	return nil
}

// checkRepository complains of what is no address of a repository.
func checkRepository(s string) error {
	_, err := git.SSHServer(s)
	return err
}

// askImport asks before the storage for images is changed.
func (i *session) askImport() (err error) {
	for _, s := range i.facts.Storages {
		if s.Name == i.wishes.Images && !s.Holds("import") && !i.Given("no-import") {
			i.wishes.Import, err = i.dialog.Confirm(fmt.Sprintf("Storage %s takes %s, and no images to import; init adds them. Proceed?", s.Name, strings.Join(s.Content, ", ")), true)
		}
	}
	return err
}

// askLimits asks what all nodes together may take of the host.
func (i *session) askLimits() error {
	for _, name := range []string{"limit-nodes", "limit-cores", "limit-ram", "limit-disk"} {
		if i.Given(name) {
			return nil
		}
	}
	_, err := i.dialog.Ask("Limits for all nodes together, like nodes=10,cores=32,ram=64GiB,disk=1TiB", i.wishes.Limits.String(), func(s string) error {
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
func (i *session) askGitToken() (err error) {
	_, stored := i.facts.Files[setup.Credential(setup.GitToken)]
	if !strings.HasPrefix(i.wishes.Repository.URL, "https://") || i.Given("git-token-file") || stored {
		return nil
	}
	i.files.GitToken, err = i.askToken("Token that reads the repository")
	return err
}

// askToken asks for a token, which is not shown while it is typed, or the path of a
// file that holds it, which no token begins like. nil: there is none.
func (i *session) askToken(question string) (token []byte, err error) {
	_, err = i.dialog.AskSecret(question+", or /path/of/a/file that holds it (hidden; Enter for none)", func(s string) (err error) {
		switch {
		case s == "" || s == None:
			token = nil
		case strings.HasPrefix(s, "/"):
			token, err = readToken(s)
		case strings.ContainsAny(s, " \t"):
			err = errors.New("a token has no spaces")
		default:
			token = []byte(s + "\n")
		}
		return err
	})
	return token, err
}

// readToken reads a file that holds a token.
func readToken(path string) ([]byte, error) {
	data, _, err := config.ReadFile(path, config.OthersMayNotRead)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("there is no such file")
	case err != nil:
		return nil, err
	}
	return data, checkNotBlank(data)
}

// askForge asks where commit statuses go.
func (i *session) askForge() error {
	if i.Given("forge") || i.wishes.Forge != nil || i.wishes.Repository.Directory != "" {
		return nil
	}
	kind, err := i.dialog.Ask("Forge to send commit statuses to (github, gitlab, gitea or none)", "none", func(s string) error {
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
	if forge.Repository, err = i.dialog.Ask("Repository there, like org/infra", i.wishes.Repository.Project(), config.CheckText("project", "org/infra")); err != nil {
		return err
	}
	if kind == "gitea" {
		if forge.URL, err = i.dialog.Ask("Its address, like https://git.example.org", "", config.CheckText("weburl", "https://git.example.org")); err != nil {
			return err
		}
	}
	// Without a token nothing can be sent.
	i.files.ForgeToken, err = i.askToken("Token that may set commit statuses")
	switch {
	case err != nil:
		return err
	case i.files.ForgeToken == nil:
		_, _ = fmt.Fprintf(i.Out, "  without a token no commit statuses are sent\n")
	default:
		i.wishes.Forge = forge
	}
	return nil
}

// scanServer asks an ssh server that is not known yet for its host keys, so that an
// address at which there is none is asked for again at once.
func (i *session) scanServer(ctx context.Context, url string) error {
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
func (i *session) askHostKeys(ctx context.Context) error {
	if i.scanned == nil { // the address was not asked for, but given
		if err := i.scanServer(ctx, i.wishes.Repository.URL); err != nil {
			return err
		}
	}
	if i.scanned == nil {
		return nil
	}
	addr, keys := i.scanned.addr, i.scanned.keys
	_, _ = fmt.Fprintf(i.Out, "\n%s shows these host keys. Compare them with what its owner publishes:\n", addr)
	for _, k := range keys {
		_, _ = fmt.Fprintf(i.Out, "  %-20s %s\n", k.Type(), ssh.FingerprintSHA256(k))
	}
	ok, err := i.dialog.Confirm("Are they the server's?", false)
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("the ssh server is not trusted, and nothing was changed")
	}
	i.files.KnownHosts = formatKnownHosts(addr, keys)
	return nil
}

// askStart asks whether to start the agent.
func (i *session) askStart() (err error) {
	if !i.Given("start") && i.facts.Unit.Installed && !i.facts.Unit.Active {
		i.Flags.Start, err = i.dialog.Confirm("Start the agent when all is done?", true)
	}
	return err
}

// formatKnownHosts are the lines that trust keys of a server.
func formatKnownHosts(addr string, keys []ssh.PublicKey) []byte {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(xknownhosts.Line([]string{addr}, k) + "\n")
	}
	return []byte(b.String())
}
