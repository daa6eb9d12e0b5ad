//go:build linux

package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// UnitCredentials is where systemd lays the credentials of the agent's unit when it
// starts it (systemd.exec(5), $CREDENTIALS_DIRECTORY), and takes them away when
// it stops it. Root can read them there.
const UnitCredentials = "/run/credentials/talos-agent.service"

// compareCredentials compares what lies in the store with what the running agent was
// handed when it started. Nothing is known where systemd has handed over
// nothing: the agent does not run, or not by systemd.
func (v Inspector) compareCredentials() doctor.Fact[[]doctor.Credential] {
	given, err := os.ReadDir(v.Given)
	if errors.Is(err, fs.ErrNotExist) {
		return doctor.Fact[[]doctor.Credential]{}
	}
	var stored []fs.DirEntry
	if err == nil {
		stored, err = os.ReadDir(v.Store)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return doctor.Unseen[[]doctor.Credential](errors.New(reasonOf(err)))
	}
	has := map[string]bool{}
	for _, e := range given {
		info, err := e.Info()
		has[e.Name()] = err == nil && !config.IsDefault(info)
	}
	var out []doctor.Credential
	for _, e := range stored {
		name, ours := strings.CutPrefix(e.Name(), config.CredentialMark)
		// Of one that is there encrypted, too, only the unit knows which counts.
		if _, err := os.Stat(filepath.Join(v.Store+config.EncryptedSuffix, e.Name())); !ours || isPublic(name) || err == nil {
			continue
		}
		c := doctor.Credential{Path: filepath.Join(v.Store, e.Name()), Given: has[name]}
		if c.Given {
			now, _, err := config.ReadFile(c.Path, 0)
			then, _, err2 := config.ReadFile(filepath.Join(v.Given, name), 0)
			if err = errors.Join(err, err2); err != nil {
				return doctor.Unseen[[]doctor.Credential](fmt.Errorf("%s %w", c.Path, err))
			}
			c.Same = bytes.Equal(now, then)
		}
		out = append(out, c)
	}
	return doctor.Saw(out)
}
