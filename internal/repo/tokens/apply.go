//go:build linux

package tokens

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
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
func (a *Account) Apply(ctx context.Context, report func(setup.Step)) (_ Made, err error) {
	var made Made
	root, err := os.OpenRoot(a.c.Dir)
	if err != nil {
		return made, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	a.root = root
	if err := a.makeAccount(ctx, &made, report); err != nil {
		return made, err
	}
	return a.writeFiles(made)
}

// makeAccount carries the plan out in Proxmox VE, and stores the secret of a new token.
func (a *Account) makeAccount(ctx context.Context, made *Made, report func(setup.Step)) error {
	first, last := a.Steps, []setup.Step(nil)
	if a.Token == nil {
		return ExecuteSteps(ctx, a.c.Host, first, report)
	}
	if i := slices.IndexFunc(first, func(s setup.Step) bool { return s.Call.Path == a.Token.Call.Path }); i >= 0 {
		first, last = first[:i], first[i:] // which begin with the end of the old token
	}
	if err := ExecuteSteps(ctx, a.c.Host, first, report); err != nil {
		return err
	}
	if a.stored != "" {
		if err := a.forgetSecret(); err != nil {
			return err
		}
		made.Written = append(made.Written, a.file)
	}
	if err := ExecuteSteps(ctx, a.c.Host, last, report); err != nil {
		return err
	}
	if err := a.makeToken(ctx); err != nil {
		return err
	}
	report(*a.Token)
	if !slices.Contains(made.Written, a.file) {
		made.Written = append(made.Written, a.file)
	}
	return nil
}

// forgetSecret empties the secret of the token that another takes the place of, before that one is deleted. Whatever ends the run
// then, the next one does not take a dead secret for that of the token in Proxmox VE. The file in git still has it.
func (a *Account) forgetSecret() error {
	data, err := a.newSecrets(a.values(cluster.Token{ID: a.stored}))
	if err == nil {
		err = a.replaceSecrets(data)
	}
	if err != nil {
		return fmt.Errorf("remove the secret of the token %s: %w", a.stored, err)
	}
	return nil
}

// replaceSecrets replaces the secrets file with one that was made of it.
func (a *Account) replaceSecrets(data []byte) error {
	if err := a.replaceFile(a.Name, a.encrypted, data); err != nil {
		return err
	}
	a.encrypted = data
	return nil
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
// deleted again: its secret would be lost.
func (a *Account) makeToken(ctx context.Context) error {
	var answer struct {
		ID    cluster.TokenID `json:"full-tokenid"`
		Value string          `json:"value"`
	}
	err := a.c.Host.Pvesh(ctx, &answer, a.Token.Call.Args()...) // after an error there may be one, too
	if err == nil && (answer.ID == "" || answer.Value == "") {
		err = errors.New("pvesh returned no secret of the new token")
	}
	if err == nil {
		var data []byte
		if data, err = a.newSecrets(a.values(cluster.Token{ID: answer.ID, Secret: cluster.SecretString(answer.Value)})); err == nil {
			err = a.replaceSecrets(data)
		}
	}
	if err != nil {
		undo := setup.Call{Verb: "delete", Path: a.Token.Call.Path}
		return errors.Join(fmt.Errorf("%s: %w", a.Token.What, err), a.c.Host.Pvesh(context.WithoutCancel(ctx), nil, undo.Args()...))
	}
	return nil
}

// replaceFile replaces a file of the repository whole or not at all, unless it was changed since it was
// read. It keeps its owner and its mode.
func (a *Account) replaceFile(name string, was, data []byte) error {
	info, err := a.root.Stat(name)
	if err != nil {
		return err
	}
	now, err := a.root.ReadFile(name)
	if err == nil && !bytes.Equal(now, was) {
		err = fault.Errorf("run it again: it reads the file as it is now", "%s was changed by somebody else meanwhile", a.file)
	}
	if err != nil {
		return err
	}
	return a.putFile(name, data, info, a.root.Rename)
}

// putFile writes a file beside its place, with an owner and a mode, and has put bring it
// there. Root works in a directory of a person's, who may change it meanwhile: the owner
// is that of what was written, and of nothing that a name leads to, and no symbolic link
// leads out of the repository.
func (a *Account) putFile(name string, data []byte, like fs.FileInfo, put func(from, to string) error) error {
	beside := path.Join(path.Dir(name), ".tokens-"+rand.Text()+".new")
	tmp, err := a.root.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = tmp.Write(data)
	if uid, gid, ok := platform.Owner(like); ok && err == nil {
		err = tmp.Chown(uid, gid)
	}
	err = errors.Join(err, tmp.Chmod(like.Mode().Perm()&^0o111), tmp.Sync(), tmp.Close())
	if err == nil {
		err = put(beside, name)
	}
	if removed := a.root.Remove(beside); removed != nil && !errors.Is(removed, fs.ErrNotExist) { // a rename leaves none
		err = errors.Join(err, removed)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return a.syncDirectory(path.Dir(name))
}

// syncDirectory makes the names in a directory of the repository durable.
func (a *Account) syncDirectory(name string) error {
	dir, err := a.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
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
	name = path.Join(a.home, name)
	home, err := a.root.Stat(a.home)
	if err != nil {
		return err
	}
	if err := a.makeDirectory(path.Dir(name), home); err != nil {
		return err
	}
	switch err := a.putFile(name, []byte(text), home, a.root.Link); { // unlike a rename it replaces nothing
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	made.Written = append(made.Written, filepath.Join(a.c.Dir, filepath.FromSlash(name)))
	return nil
}

// makeDirectory makes a directory of the repository, unless it is there, with the owner and the mode of another one. A symbolic link
// in its place is refused: who may push could have root write where it leads.
func (a *Account) makeDirectory(name string, like fs.FileInfo) error {
	err := a.root.Mkdir(name, like.Mode().Perm())
	if err == nil {
		if uid, gid, owned := platform.Owner(like); owned {
			err = a.root.Lchown(name, uid, gid)
		}
		return err
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := a.root.Lstat(name)
	if err == nil && !info.IsDir() {
		err = fault.WithHint(fmt.Errorf("%s of the repository is no directory", name), "remove it, so that a directory is made in its place")
	}
	return err
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
