package wizard

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/packaging/deb"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// readGiven reads the files that flags name, and refuses what the agent could
// not work with. What they hold is not quoted.
func (i *session) readGiven() error {
	i.files = setup.Given{Config: deb.Config, Policy: deb.Policy}
	f, g := i.Flags, &i.files
	var errs []error
	for _, one := range []struct {
		flag, path string
		forbidden  fs.FileMode
		to         *[]byte
		usable     func([]byte) error
	}{
		{"age-key", f.AgeKeyFile, config.OthersMayNotRead, &g.AgeKey, checkAgeKey},
		{"ssh-key", f.SSHKeyFile, config.OthersMayNotRead, &g.SSHKey, checkSSHKey},
		{"git-token-file", f.GitTokenFile, config.OthersMayNotRead, &g.GitToken, checkNotBlank},
		{"forge-token-file", f.ForgeTokenFile, config.OthersMayNotRead, &g.ForgeToken, checkNotBlank},
		{"known-hosts-file", f.KnownHostsFile, config.OthersMayNotWrite, &g.KnownHosts, checkKnownHosts},
		{"ca-file", f.CAFile, config.OthersMayNotWrite, &g.Authorities, checkAuthorities},
	} {
		if one.path == "" || one.flag == "ca-file" && emptyIfNone(one.path) == "" {
			continue
		}
		data, _, err := config.ReadFile(one.path, one.forbidden)
		if err == nil {
			err = one.usable(data)
		}
		if err != nil {
			errs = append(errs, fault.WithHint(fmt.Errorf("--%s: %s: %w", one.flag, one.path, err), fault.HintOf(err)))
		}
		*one.to = data
	}
	for _, line := range f.KnownHosts {
		if err := checkKnownHosts([]byte(line)); err != nil {
			errs = append(errs, fault.WithHint(fmt.Errorf("--known-host: %w", err), fault.HintOf(err)))
		}
		g.KnownHosts = append(endLine(g.KnownHosts), line+"\n"...)
	}
	return errors.Join(errs...)
}

// None takes back what may be left out, where an earlier run set it.
const None = "none"

// emptyIfNone is the value of a flag, "" where that is None.
func emptyIfNone(s string) string {
	if s == None {
		return ""
	}
	return s
}

// applyForgeFlags lays the flags of the forge over the wishes.
func (i *session) applyForgeFlags() error {
	f := i.Flags
	more := f.ForgeRepo != "" || f.ForgeURL != "" || f.ForgeTokenFile != ""
	switch {
	case f.Forge == None && more:
		return &fault.Usage{Err: errors.New("init: --forge none goes with no other flag of the forge")}
	case f.Forge == "" && more:
		return &fault.Usage{Err: errors.New("init: which kind of forge is it? use --forge github, gitlab or gitea")}
	case !i.Given("forge"):
	case emptyIfNone(f.Forge) == "":
		i.wishes.Forge = nil
	case f.ForgeRepo == "":
		return &fault.Usage{Err: errors.New("init: --forge needs --forge-repository, like org/infra")}
	default:
		i.wishes.Forge = &setup.Forge{Kind: f.Forge, URL: f.ForgeURL, Repository: f.ForgeRepo}
	}
	return nil
}

// endLine ends the last line of a text, so that another can follow.
func endLine(text []byte) []byte {
	if len(text) == 0 || text[len(text)-1] == '\n' {
		return text
	}
	return append(text, '\n')
}

func checkNotBlank(data []byte) error {
	if strings.TrimSpace(string(data)) == "" {
		return errors.New("is empty")
	}
	return nil
}

func checkAgeKey(data []byte) error {
	_, err := secrets.ParseIdentities(data)
	return err
}

func checkSSHKey(data []byte) error {
	if _, err := ssh.ParsePrivateKey(data); err != nil {
		return fault.WithHint(errors.New("is not a private key without a passphrase"), "give one made with ssh-keygen -t ed25519 -N ''")
	}
	return nil
}

func checkKnownHosts(data []byte) error {
	for lines := 0; ; lines++ {
		_, _, _, _, rest, err := ssh.ParseKnownHosts(data)
		switch {
		case errors.Is(err, io.EOF) && lines > 0:
			return nil
		case err != nil:
			return fault.WithHint(errors.New("is not what known_hosts has"), "give lines as ssh-keyscan prints them: host, kind of key, key")
		}
		data = rest
	}
}

func checkAuthorities(data []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return errors.New("holds no certificate in PEM")
	}
	return nil
}
