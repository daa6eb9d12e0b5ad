package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/packaging/deb"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// readGiven reads the files that flags name, and refuses what the agent could
// not work with. What they hold is not quoted.
func (i *initRun) readGiven() error {
	i.files = setup.Given{Config: deb.Config, Policy: deb.Policy}
	f, g := i.flags, &i.files
	var errs []error
	for _, one := range []struct {
		flag, path string
		forbidden  fs.FileMode
		to         *[]byte
		usable     func([]byte) error
	}{
		{"age-key", f.ageKeyFile, config.OthersMayNotRead, &g.AgeKey, usableAgeKey},
		{"ssh-key", f.sshKeyFile, config.OthersMayNotRead, &g.SSHKey, usableSSHKey},
		{"git-token-file", f.gitTokenFile, config.OthersMayNotRead, &g.GitToken, notBlank},
		{"forge-token-file", f.forgeTokenFile, config.OthersMayNotRead, &g.ForgeToken, notBlank},
		{"known-hosts-file", f.knownHostsFile, config.OthersMayNotWrite, &g.KnownHosts, usableKnownHosts},
		{"ca-file", f.caFile, config.OthersMayNotWrite, &g.Authorities, usableAuthorities},
	} {
		if one.path == "" || one.flag == "ca-file" && orNone(one.path) == "" {
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
	for _, line := range f.knownHosts {
		if err := usableKnownHosts([]byte(line)); err != nil {
			errs = append(errs, fault.WithHint(fmt.Errorf("--known-host: %w", err), fault.HintOf(err)))
		}
		g.KnownHosts = append(withEnd(g.KnownHosts), line+"\n"...)
	}
	return errors.Join(errs...)
}

// none takes back what may be left out, where an earlier run was told it.
const none = "none"

// orNone is what a flag says, "" where that is none.
func orNone(s string) string {
	if s == none {
		return ""
	}
	return s
}

// mapping is a flag of pairs that takes none as well.
type mapping struct {
	pflag.Value
	pairs *map[string]string
}

// Set implements pflag.Value.
func (m mapping) Set(s string) error {
	if orNone(s) == "" {
		clear(*m.pairs) // the same map: pairs that come after are laid into it
		return nil
	}
	return m.Value.Set(s)
}

// heedForge lays what the flags say of the forge over the wishes.
func (i *initRun) heedForge() error {
	f := i.flags
	more := f.forgeRepo != "" || f.forgeURL != "" || f.forgeTokenFile != ""
	switch {
	case f.forge == none && more:
		return &usageError{errors.New("init: --forge none goes with no other flag of the forge")}
	case f.forge == "" && more:
		return &usageError{errors.New("init: which kind of forge is it? say --forge github, gitlab or gitea")}
	case !i.given("forge"):
	case orNone(f.forge) == "":
		i.wishes.Forge = nil
	case f.forgeRepo == "":
		return &usageError{errors.New("init: --forge needs --forge-repository, like org/infra")}
	default:
		i.wishes.Forge = &setup.Forge{Kind: f.forge, URL: f.forgeURL, Repository: f.forgeRepo}
	}
	return nil
}

// withEnd ends the last line of a text, so that another can follow.
func withEnd(text []byte) []byte {
	if len(text) == 0 || text[len(text)-1] == '\n' {
		return text
	}
	return append(text, '\n')
}

func notBlank(data []byte) error {
	if strings.TrimSpace(string(data)) == "" {
		return errors.New("is empty")
	}
	return nil
}

func usableAgeKey(data []byte) error {
	_, err := secrets.ParseIdentities(data)
	return err
}

func usableSSHKey(data []byte) error {
	if _, err := ssh.ParsePrivateKey(data); err != nil {
		return fault.WithHint(errors.New("is not a private key without a passphrase"), "give one made with ssh-keygen -t ed25519 -N ''")
	}
	return nil
}

func usableKnownHosts(data []byte) error {
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

func usableAuthorities(data []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return errors.New("holds no certificate in PEM")
	}
	return nil
}
