package wizard

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"filippo.io/age"
	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// target is the host that is set up: what is seen of it, and its files and
// programs that change it.
type target struct{ probe.Host }

// readRecord reads what init remembers. Where there is none it was never run.
func (h target) readRecord() (setup.Record, error) {
	text, _, err := config.ReadFile(h.Path(setup.RecordFile), config.OnlyOwnerWrites)
	if errors.Is(err, fs.ErrNotExist) {
		return setup.Record{Version: 1}, nil
	}
	var r setup.Record
	if err == nil {
		err = h.checkOwner(setup.RecordFile)
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.Version != 1 {
		err = fmt.Errorf("is of version %d, which this program does not know", r.Version)
	}
	if err != nil {
		return setup.Record{}, fault.WithHint(fmt.Errorf("%s, what init remembers of its work: %w", setup.RecordFile, err),
			"move it away: init then asks before it replaces a file, and undo leaves what is not provably its own")
	}
	return r, nil
}

// writeRecord makes a record durable.
func (h target) writeRecord(r setup.Record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := h.makeDir(setup.NewFile{Path: setup.ConfigDir, Mode: 0o755}); err != nil {
		return err
	}
	return h.writeFile(setup.NewFile{Path: setup.RecordFile, Mode: 0o600}, append(text, '\n'))
}

// executeSteps does the steps of a plan in their order. What must be known if one is
// interrupted is recorded before it is begun.
func (h target) executeSteps(ctx context.Context, steps []setup.Step, r setup.Record, report func(setup.Step)) (setup.Record, error) {
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		r = r.Before(s)
		if err := h.writeRecord(r); err != nil {
			return r, fmt.Errorf("%s: %w", s.What, err)
		}
		content, err := h.executeStep(ctx, s)
		if err != nil {
			return r, fmt.Errorf("%s: %w", s.What, err)
		}
		r = r.After(s, content)
		if err := h.writeRecord(r); err != nil {
			return r, fmt.Errorf("%s: %w", s.What, err)
		}
		report(s)
	}
	return r, nil
}

// executeStep does one step. It returns what was written into a file.
func (h target) executeStep(ctx context.Context, s setup.Step) ([]byte, error) {
	switch {
	case s.Call != nil && s.Call.SecretTo != nil:
		var made struct {
			ID    cluster.TokenID `json:"full-tokenid"`
			Value string          `json:"value"`
		}
		if err := h.Pvesh(ctx, &made, s.Call.Args()...); err != nil {
			return nil, err
		}
		if made.ID == "" || made.Value == "" {
			return nil, errors.New("pvesh returned no secret of the new token")
		}
		token := cluster.Token{ID: made.ID, Secret: cluster.SecretString(made.Value)}
		content := append(token.Line().Reveal(), '\n')
		return content, h.writeFile(*s.Call.SecretTo, content)
	case s.Call != nil:
		return nil, h.Pvesh(ctx, nil, s.Call.Args()...)
	case s.Dir != nil:
		return nil, h.makeDir(*s.Dir)
	case s.File != nil:
		content, err := makeContent(*s.File)
		if err != nil {
			return nil, err
		}
		return content, h.writeFile(*s.File, content)
	case s.Remove != "":
		err := os.Remove(h.Path(s.Remove))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	_, err := h.Run(ctx, s.Run[0], s.Run[1:]...)
	return nil, err
}

// makeDir makes a directory with exactly its mode.
func (h target) makeDir(d setup.NewFile) error {
	path := h.Path(d.Path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(path, d.Mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(path, d.Mode) // the umask took some away
	}
	return err
}

// makeContent is what goes into a file; keys are made now.
func makeContent(f setup.NewFile) ([]byte, error) {
	switch f.Origin {
	case setup.FromAgeKey:
		id, err := age.GenerateX25519Identity()
		if err != nil {
			return nil, err
		}
		return fmt.Appendf(nil, "# public key: %s\n%s\n", id.Recipient(), id), nil
	case setup.FromSSHKey:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		block, err := ssh.MarshalPrivateKey(key, "talos-agent")
		if err != nil {
			return nil, err
		}
		return pem.EncodeToMemory(block), nil
	}
	return f.Content, nil
}

// writeFile writes a file whole or not at all, with its owner and mode from the
// first moment on at which it has its name.
func (h target) writeFile(f setup.NewFile, content []byte) (err error) {
	path := h.Path(f.Path)
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|platform.NoFollow, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(fresh))
		}
	}()
	_, err = out.Write(content)
	if err == nil {
		err = h.setOwner(out, f.Group)
	}
	if err == nil {
		err = out.Chmod(f.Mode)
	}
	err = errors.Join(err, out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return err
	}
	return platform.Sync(filepath.Dir(path))
}

// setOwner gives a file to root and a group.
func (h target) setOwner(f *os.File, group string) error {
	if h.Root != "" {
		return nil
	}
	gid := 0
	if group != "" {
		g, err := user.LookupGroup(group)
		if err != nil {
			return err
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return err
		}
	}
	return f.Chown(0, gid)
}
