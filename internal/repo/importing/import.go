package importing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
	"github.com/talos-agent/talos-agent/internal/repo/importing/formats"
	"github.com/talos-agent/talos-agent/internal/repo/validation"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// maxFiles is how many files one cluster is described by.
const maxFiles = 64

// Config describes what is read, and where the result goes.
type Config struct {
	Files   []string          // to read
	Dir     string            // the repository
	Folder  string            // of the repository, that holds the clusters' folders
	Cluster string            // the name of the cluster; "": that in the files
	Set     map[string]string // values of cluster.yaml by their paths, which win over the files'
}

// Imported is what became of the files.
type Imported struct {
	Cluster string   // its name
	Written []string // the new files
	// Left is what was not taken over, at its place in the files that were read, with what to
	// do about it.
	Left cluster.Problems
	// Problems are those of the new inventory, with paths in the repository. With an error
	// among them it is not valid yet.
	Problems cluster.Problems
}

// Import reads the files and writes an inventory. With an error nothing was written.
func Import(ctx context.Context, c Config, now time.Time) (Imported, error) {
	if _, err := sources.New(sources.Config{Path: c.Folder}); err != nil {
		return Imported{}, &fault.Usage{Err: fmt.Errorf("--path: %w", err)}
	}
	files, err := readFiles(c)
	if err != nil {
		return Imported{}, err
	}
	set := maps.Clone(c.Set)
	if c.Cluster != "" {
		if set == nil {
			set = map[string]string{}
		}
		set["cluster_name"] = c.Cluster
	}
	d, err := formats.Read(files, formats.Options{Set: set})
	if err != nil {
		return Imported{}, err
	}
	out := Imported{Cluster: d.Name(), Left: d.Left()}
	switch label := inventory.Format("label"); {
	case out.Cluster == "":
		return Imported{}, &fault.Usage{Err: errors.New("the files do not name the cluster: write --cluster NAME")}
	case !label.Pattern.MatchString(out.Cluster) || len(out.Cluster) > label.Max:
		return Imported{}, &fault.Usage{Err: fmt.Errorf("%q is no name of a cluster: write --cluster and %s", out.Cluster, label.What)}
	}
	out.Problems, out.Written, err = write(ctx, c, d, now)
	if err != nil {
		return Imported{}, err
	}
	return out, nil
}

// readFiles reads the files, within bounds.
func readFiles(c Config) ([]formats.File, error) {
	if len(c.Files) > maxFiles {
		return nil, &fault.Usage{Err: fmt.Errorf("%d files are more than describe one cluster: name at most %d", len(c.Files), maxFiles)}
	}
	var out []formats.File
	var errs []error
	for i, name := range c.Files {
		if slices.Contains(c.Files[:i], name) {
			errs = append(errs, &fault.Usage{Err: fmt.Errorf("%s is named twice", name)})
			continue
		}
		if formats.IsSecret(name) {
			errs = append(errs, fault.WithHint(fmt.Errorf("%s holds secrets by its name, and import reads none", name),
				"leave it out: `talos-agent secrets new` takes those of a cluster that exists with --from (docs/how-to/existing-secrets.md), and the agent has credentials of its own"))
			continue
		}
		data, _, err := config.ReadFile(name, 0)
		if err != nil {
			errs = append(errs, fault.WithHint(fmt.Errorf("read %s: %w", name, err), fault.HintOf(err)))
			continue
		}
		out = append(out, formats.File{Name: filepath.ToSlash(name), Data: data})
	}
	if len(errs) == 1 {
		return nil, errs[0] // with its hint
	}
	return out, errors.Join(errs...)
}

// write checks the files beside the place they are for, and then moves them there at once.
func write(ctx context.Context, c Config, d *draft.Draft, now time.Time) (problems cluster.Problems, written []string, err error) {
	folder := filepath.Join(c.Dir, filepath.FromSlash(c.Folder))
	home := filepath.Join(folder, d.Name())
	if _, err := os.Lstat(home); err == nil {
		return nil, nil, fault.WithHint(fmt.Errorf("%s exists, and nothing that is there is overwritten", home), "choose another name with --cluster, or another folder with --to or --path")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	made, err := makeFolders(folder)
	defer func() {
		for _, dir := range made {
			if err != nil {
				err = errors.Join(err, os.Remove(dir)) // it was made here, and is empty
			}
		}
	}()
	if err != nil {
		return nil, nil, err
	}
	stage, err := os.MkdirTemp(folder, ".talos-agent-import-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	files := d.Files()
	staged := filepath.Join(stage, filepath.FromSlash(c.Folder), d.Name())
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at := filepath.Join(staged, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(files[name]), 0o644)); err != nil {
			return nil, nil, err
		}
		written = append(written, filepath.Join(home, filepath.FromSlash(name)))
	}
	found, err := validation.Validate(ctx, stage, validation.Config{Cluster: d.Name(), Folder: path.Clean(c.Folder), Owner: inventory.DefaultOwner}, now)
	if err != nil {
		return nil, nil, err
	}
	if err := os.Rename(staged, home); err != nil {
		return nil, nil, err
	}
	return found.Problems, written, nil
}

// makeFolders makes a folder with those it lies in, and returns the new ones, the innermost
// first.
func makeFolders(dir string) (made []string, err error) {
	var missing []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); err == nil || filepath.Dir(at) == at {
			break
		}
		missing = append(missing, at)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := os.Mkdir(missing[i], 0o755); err != nil {
			return made, err
		}
		made = append([]string{missing[i]}, made...)
	}
	if len(missing) == 0 {
		return nil, os.MkdirAll(dir, 0o755) // which fails where a file is in the way
	}
	return made, nil
}
