package validation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Checkout is a repository in a directory, with what a Config names.
type Checkout struct {
	Repository *sources.Repository
	Tree       sources.Tree
	Policy     *cluster.Policy // nil: none
	// Decrypt opens the secrets; nil: there is no key.
	Decrypt func(ctx context.Context, name string, file []byte) ([]byte, error)

	cluster string // the only one; "": all
}

// Open reads what the config names, and looks at the directory.
func Open(ctx context.Context, dir string, c Config) (*Checkout, error) {
	out := &Checkout{cluster: c.Cluster}
	options := inventory.Options{Owner: c.Owner}
	if !inventory.Format("label").Pattern.MatchString(c.Owner) {
		return nil, &fault.Usage{Err: fmt.Errorf("--owner %q: is not a DNS label", c.Owner)}
	}
	if c.Policy != "" {
		data, _, err := config.ReadFile(c.Policy, 0)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", c.Policy, err)
		}
		policy, problems := config.ParsePolicy(c.Policy, data)
		if err := problems.Err(); err != nil {
			return nil, err
		}
		out.Policy, options.Pool = &policy, policy.Pool
	}
	var err error
	if out.Decrypt, err = readKeys(c.AgeKeys); err != nil {
		return nil, err
	}
	if out.Repository, err = sources.New(sources.Config{Path: c.Folder, Inventory: options, Decrypt: out.Decrypt}); err != nil {
		return nil, &fault.Usage{Err: fmt.Errorf("--path: %w", err)}
	}
	// First, because to read a directory that is no repository may take minutes.
	missing := fault.WithHint(fmt.Errorf("there is no folder %s in %s", c.Folder, dir), sources.HintTop+"; if the clusters lie elsewhere in it, name that folder with --path")
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(c.Folder))); errors.Is(err, fs.ErrNotExist) {
			return nil, missing
		}
	}
	if out.Tree, err = sources.ReadDirectory(ctx, dir); err != nil {
		return nil, err
	}
	if _, err := fs.Stat(out.Tree.FS, path.Clean(c.Folder)); errors.Is(err, fs.ErrNotExist) {
		return nil, missing // there is one, and Git ignores it
	}
	return out, nil
}

// ListClusters names the clusters to look at, and what is wrong with the folders
// of others.
func (c *Checkout) ListClusters(ctx context.Context) ([]string, cluster.Problems, error) {
	if c.cluster != "" {
		return []string{c.cluster}, nil, nil
	}
	return c.Repository.Clusters(ctx, c.Tree)
}

// readKeys reads age keys; without any there is nothing to decrypt with.
func readKeys(files []string) (func(ctx context.Context, name string, file []byte) ([]byte, error), error) {
	ids, err := config.ReadAgeKeys(files)
	if err != nil || ids == nil {
		return nil, err
	}
	return func(ctx context.Context, name string, file []byte) ([]byte, error) {
		return secrets.Decrypt(ctx, name, file, ids)
	}, nil
}
