//go:build linux

package tokens

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/examples"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// Made is what became of the repository.
type Made struct {
	Written []string // files, new or changed
	// Lines are what cluster.yaml lacks, to be written there by a person: no program
	// changes that file, which has comments and an order of its owner.
	Lines []string
}

// Apply carries a plan out and writes the files. report gets each step that is done.
// With an error, Made has the files that were written before.
func (a *Account) Apply(ctx context.Context, report func(setup.Step)) (Made, error) {
	if err := ExecuteSteps(ctx, a.c.Host, a.Steps, report); err != nil {
		return Made{}, err
	}
	var made Made
	if a.Token != nil {
		if err := a.makeToken(ctx); err != nil {
			return made, err
		}
		report(*a.Token)
		made.Written = append(made.Written, a.file)
	}
	return a.writeFiles(made)
}

// ExecuteSteps carries steps out, in their order.
func ExecuteSteps(ctx context.Context, h probe.Host, steps []setup.Step, report func(setup.Step)) error {
	for _, s := range steps {
		if err := h.Pvesh(ctx, nil, s.Call.Args()...); err != nil {
			return fault.WithHint(fmt.Errorf("%s: %w", s.What, err), "run it again when it is fixed: it goes on where it stopped")
		}
		report(s)
	}
	return nil
}

// makeToken makes the token and stores its secret. One whose secret cannot be stored is
// deleted again: it would be known to nobody.
func (a *Account) makeToken(ctx context.Context) error {
	var answer struct {
		ID    cluster.TokenID `json:"full-tokenid"`
		Value string          `json:"value"`
	}
	if err := a.c.Host.Pvesh(ctx, &answer, a.Token.Call.Args()...); err != nil {
		return fmt.Errorf("%s: %w", a.Token.What, err)
	}
	err := errors.New("pvesh returned no secret of the new token")
	if answer.ID != "" && answer.Value != "" {
		var data []byte
		if data, err = a.newSecrets(a.values(cluster.Token{ID: answer.ID, Secret: cluster.SecretString(answer.Value)})); err == nil {
			err = replaceFile(a.file, a.encrypted, data)
		}
	}
	if err != nil {
		undo := setup.Call{Verb: "delete", Path: a.Token.Call.Path}
		return errors.Join(fmt.Errorf("%s: %w", a.Token.What, err), a.c.Host.Pvesh(context.WithoutCancel(ctx), nil, undo.Args()...))
	}
	return nil
}

// replaceFile replaces a file whole or not at all, unless it was changed since it was
// read. It keeps its owner and its mode.
func replaceFile(file string, was, data []byte) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(file)
	if err == nil && !bytes.Equal(now, was) {
		err = fmt.Errorf("%s was changed by somebody else meanwhile", file)
	}
	if err != nil {
		return err
	}
	return putFile(file, data, info, os.Rename)
}

// putFile writes a file beside its place, with an owner and a mode, and has put bring it
// there. Root works in a directory of a person's, who may change it meanwhile: the owner
// is that of what was written, and of nothing that a name leads to.
func putFile(file string, data []byte, like fs.FileInfo, put func(from, to string) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".tokens-*.new")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	_, err = tmp.Write(data)
	if uid, gid, ok := platform.Owner(like); ok && err == nil {
		err = tmp.Chown(uid, gid)
	}
	err = errors.Join(err, tmp.Chmod(like.Mode().Perm()&^0o111), tmp.Sync(), tmp.Close())
	if err == nil {
		err = put(tmp.Name(), file)
	}
	if removed := os.Remove(tmp.Name()); removed != nil && !errors.Is(removed, fs.ErrNotExist) { // a rename leaves none
		err = errors.Join(err, removed)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return platform.Sync(filepath.Dir(file))
}

// writeFiles writes the addon and the patch where the inventory has none. What is there
// stays as it is.
func (a *Account) writeFiles(made Made) (Made, error) {
	if !a.hasAddon {
		text, err := a.addonText()
		if err == nil {
			err = a.writeNew(&made, a.addonFile(), text)
		}
		if err != nil {
			return made, err
		}
		made.Lines = append(made.Lines, "addons: ["+a.addonFile()+"]")
	}
	if !a.patched {
		text, err := examples.Addon("patches/" + a.c.Kind.Patch + ".yaml")
		if err == nil {
			err = a.writeNew(&made, a.patchFile(), text)
		}
		if err != nil {
			return made, err
		}
		made.Lines = append(made.Lines, "patches: {all: ["+a.patchFile()+"]}")
	}
	return made, nil
}

// writeNew writes a file of the cluster's folder that is not there yet, for the owner of
// that folder and with its mode.
func (a *Account) writeNew(made *Made, name, text string) error {
	file := filepath.Join(a.home, filepath.FromSlash(name))
	home, err := os.Stat(a.home)
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	uid, gid, owned := platform.Owner(home)
	switch err := os.Mkdir(dir, home.Mode().Perm()); {
	case err == nil && owned:
		if err := os.Lchown(dir, uid, gid); err != nil {
			return err
		}
	case err != nil && !errors.Is(err, fs.ErrExist):
		return err
	}
	switch err := putFile(file, []byte(text), home, os.Link); { // unlike a rename it replaces nothing
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	made.Written = append(made.Written, file)
	return nil
}

// addonText is the addon file of the examples, with what is this cluster's own.
func (a *Account) addonText() (string, error) {
	text, err := examples.Addon(a.c.Kind.Addon + ".yaml")
	if err != nil {
		return "", err
	}
	own := [][2]string{{"url: https://pve1.example.org:8006/api2/json", "url: " + a.url}, {"region: home", "region: " + a.region}}
	if a.c.Kind.Storage {
		own = append(own, [2]string{"- name: proxmox-lvm\n      storage: local-lvm", "- name: proxmox-" + a.c.Datastores[0] + "\n      storage: " + a.c.Datastores[0]})
	}
	for _, o := range own {
		if strings.Count(text, o[0]) != 1 {
			return "", fmt.Errorf("the example of %s has no %q", a.c.Kind.Addon, o[0])
		}
		text = strings.Replace(text, o[0], o[1], 1)
	}
	return text, nil
}
