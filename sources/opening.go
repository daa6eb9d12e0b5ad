package sources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// secrets reads and decrypts the secrets of a cluster; nil when there are none
// to be had.
func (r *Repository) secrets(ctx context.Context, files *watched, dir, name string, budget *inventory.Budget) (*inventory.Secrets, cluster.Problems, error) {
	file := path.Join(dir, inventory.SecretsFile)
	problem := func(sev cluster.Severity, message, hint string) cluster.Problems {
		return cluster.Problems{{Severity: sev, File: file, Message: message, Hint: hint}}
	}
	data, err := inventory.ReadFile(files, file)
	overBudget, hint := budget.TakeYAML(len(data))
	switch {
	case files.failed != nil:
		return nil, nil, fmt.Errorf("read %s: %w", file, files.failed)
	case errors.Is(err, fs.ErrNotExist):
		return nil, problem(cluster.Warning, "the file is missing: no cluster can be made without its secrets",
			fmt.Sprintf("make it with: talos-agent secrets new --cluster %s DIR", name)), nil
	case err != nil:
		return nil, problem(cluster.Error, "cannot be read: "+err.Error(), fault.HintOf(err)), nil
	case overBudget != "":
		return nil, problem(cluster.Error, overBudget, hint), nil
	case r.c.Decrypt == nil:
		return nil, problem(cluster.Warning, "not decrypted, because there is no age key: what the secrets hold was not checked",
			"give the age key whose public half stands in .sops.yaml"), nil
	}
	text, err := r.c.Decrypt(ctx, file, data)
	if ctx.Err() != nil {
		budget.TakeYAML(-len(data)) // it will be read again
		return nil, nil, ctx.Err()
	}
	if errors.Is(err, secrets.ErrUnavailable) {
		return nil, nil, fmt.Errorf("open the secrets of %s: %w", name, err)
	}
	if err != nil {
		message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "decrypt "), file+": ") // the problem names the file
		return nil, problem(cluster.Error, message, fault.HintOf(err)), nil
	}
	s, problems := inventory.ParseSecrets(file, text)
	clear(text)
	if problems.HasErrors() {
		return nil, problems, nil
	}
	if s.Bundle.IsZero() {
		problems = append(problems, problem(cluster.Warning, "holds no Talos secrets: no cluster can be made without them",
			fmt.Sprintf("make them with: talos-agent secrets new --cluster %s DIR", name))...)
	}
	return &s, problems, nil
}

// reopen reports whether secrets that could not be opened can be opened now.
func (r *Repository) reopen(ctx context.Context, t Tree, s *state) bool {
	began := time.Now()
	if began.Before(s.reopens) {
		return false
	}
	defer s.leave(began)
	for _, name := range s.folders {
		if s.loaded[name].unopened == nil {
			continue
		}
		if _, _, err := r.secrets(ctx, &watched{FS: t.FS}, r.Folder(name), name, inventory.NewBudget()); err == nil {
			return true
		}
	}
	return false
}

// leave has secrets that could not be opened left alone for a while, when that was tried since
// a time: a server that does not answer keeps everybody waiting, and not most of the time.
func (s *state) leave(began time.Time) {
	s.reopens = time.Now().Add(max(reopenAfter, 5*time.Since(began)))
}

// reopenAfter is how long a server that could not open secrets is left alone at least: every
// pass of every cluster would ask it.
const reopenAfter = 10 * time.Second
