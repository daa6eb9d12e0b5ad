package sealed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/platform"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Config names which cluster's secrets are made, and from what.
type Config struct {
	Cluster string   // by the name of its folder
	Folder  string   // of the repository, that holds the clusters' folders
	From    string   // file with the secrets of a cluster that exists; "": new ones
	Values  []string // NAME=FILE for patches and addons; a FILE of - is Stdin
	AgeKeys []string // files with keys that must be able to open the result
	Stdin   io.Reader
}

// Secrets is what was written: the file, the same in the repository with
// slashes, and who can read it.
type Secrets struct {
	File, Name string
	Recipients []string
}

// Make makes the secrets file of a cluster. One that is there is never replaced.
func Make(ctx context.Context, dir string, c Config, now time.Time) (Secrets, error) {
	name, file := c.Locate(dir)
	if _, err := os.Lstat(file); err == nil {
		return Secrets{}, fault.WithHint(fmt.Errorf("%s exists: other secrets would be another cluster", file),
			fmt.Sprintf("add values with `sops %s`; for a new cluster in its place, destroy the old one and remove the file first", file))
	}
	encrypted, recipients, err := Seal(ctx, dir, c, now)
	if err != nil {
		return Secrets{}, err
	}
	return Secrets{File: file, Name: name, Recipients: recipients}, WriteNew(file, encrypted)
}

// Locate names the secrets file, in the repository, with slashes, and on disk.
func (c Config) Locate(dir string) (name, file string) {
	name = path.Join(c.Folder, c.Cluster, inventory.SecretsFile)
	return name, filepath.Join(dir, filepath.FromSlash(name))
}

// Seal makes the secrets of a cluster and encrypts them to those who can
// read them.
func Seal(ctx context.Context, dir string, c Config, now time.Time) (encrypted []byte, recipients []string, err error) {
	name, _ := c.Locate(dir)
	contract, err := readContract(ctx, dir, c)
	if err != nil {
		return nil, nil, err
	}
	if recipients, err = readRecipients(dir, name); err != nil {
		return nil, nil, err
	}
	plain, err := composeSecrets(c, contract, now)
	if err != nil {
		return nil, nil, err
	}
	defer clear(plain)
	if err := checkSecrets(name, plain, contract); err != nil {
		return nil, nil, err
	}
	if encrypted, err = secrets.Encrypt(plain, recipients); err != nil {
		return nil, nil, fmt.Errorf("encrypt %s: %w", name, err)
	}
	return encrypted, recipients, checkKeys(ctx, name, encrypted, c.AgeKeys)
}

// ExampleRecipient is the public half of examples/repo/lab-age-key.txt, whose
// private half is public too.
const ExampleRecipient = "age1zsdrmjdnrm3zwakr5npmjkwh8vtpmqc3998w0lz4ya69sdlep3zserjxed"

// readContract reads the cluster, which must be valid, for the shape of its
// secrets.
func readContract(ctx context.Context, dir string, c Config) (string, error) {
	repo, err := sources.New(sources.Config{Path: c.Folder})
	if err != nil {
		return "", &fault.Usage{Err: fmt.Errorf("--path: %w", err)}
	}
	tree, err := sources.ReadDirectory(ctx, dir)
	if err != nil {
		return "", err
	}
	snap, problems, err := repo.Snapshot(ctx, tree, c.Cluster)
	if err != nil {
		return "", err
	}
	if !problems.HasErrors() {
		problems = append(problems, machineconfig.Check(snap)...)
	}
	if problems.HasErrors() {
		problems = slices.DeleteFunc(problems, func(p cluster.Problem) bool { return p.Severity != cluster.Error })
		return "", fault.WithHint(fmt.Errorf("the cluster %s is not valid:\n%w", c.Cluster, problems), "correct it first; `talos-agent validate` shows more")
	}
	return snap.Spec.Versions.Contract, nil
}

const sopsExample = `write it first, with the public half of your age key (age-keygen -o age.key makes one, and prints it):
creation_rules:
  - path_regex: secrets\.sops\.yaml$
    age: age1...`

// RulesFile is the file that names who can read the secrets.
const RulesFile = ".sops.yaml"

// ReadRules reads the .sops.yaml that names who can read a file of the repository:
// the nearest above it. (sops itself begins in the folder that it is called in, or
// takes the value of --config.) Where there is none, the error is fs.ErrNotExist.
// folder is where it lies, from dir on.
func ReadRules(dir, name string) (folder string, data []byte, err error) {
	for folder = path.Dir(name); ; folder = path.Dir(folder) {
		rules := filepath.Join(dir, filepath.FromSlash(folder), RulesFile)
		data, _, err = config.ReadFile(rules, 0)
		switch {
		case err == nil:
			return folder, data, nil
		case !errors.Is(err, fs.ErrNotExist):
			return folder, nil, fmt.Errorf("%s %w", rules, err)
		case folder == ".":
			return folder, nil, err
		}
	}
}

// readRecipients reads who can read a file of the repository.
func readRecipients(dir, name string) ([]string, error) {
	folder, data, err := ReadRules(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("there is no .sops.yaml in %s, which names who can read the secrets", dir), sopsExample)
	}
	if err != nil {
		return nil, err
	}
	below, err := filepath.Rel(filepath.FromSlash(folder), filepath.FromSlash(name))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, filepath.FromSlash(folder), RulesFile), err)
	}
	return secrets.Recipients(path.Join(folder, RulesFile), data, filepath.ToSlash(below))
}

// composeSecrets makes the document in clear: the bundle, new or brought along, and
// the values.
func composeSecrets(c Config, contract string, now time.Time) ([]byte, error) {
	values, err := readValues(c)
	if err != nil {
		return nil, err
	}
	var plain []byte
	if c.From != "" {
		if plain, _, err = config.ReadFile(c.From, 0); err != nil {
			return nil, fmt.Errorf("secrets to bring along: %s: %w", c.From, err)
		}
	} else if plain, err = machineconfig.NewBundle(contract, now); err != nil {
		return nil, err
	}
	if len(values) == 0 {
		return plain, nil
	}
	// JSON is YAML, and its quoted texts can hold anything.
	b, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("write values: %w", err)
	}
	return slices.Concat(bytes.TrimRight(plain, "\n"), []byte("\nvalues: "), b, []byte("\n")), nil
}

// readValues reads what --value-file names.
func readValues(c Config) (map[string]string, error) {
	values := map[string]string{}
	for _, flag := range c.Values {
		name, from, ok := strings.Cut(flag, "=")
		if !ok || name == "" || from == "" {
			return nil, &fault.Usage{Err: errors.New("--value-file: write NAME=FILE, or NAME=- for standard input")}
		}
		if _, twice := values[name]; twice {
			return nil, &fault.Usage{Err: fmt.Errorf("--value-file: %s is given twice", name)}
		}
		text, err := readValue(c.Stdin, name, from)
		if err != nil {
			return nil, err
		}
		values[name] = text
	}
	return values, nil
}

// readValue reads a value. The line break that editors put at the end of a file
// is not part of it.
func readValue(stdin io.Reader, name, from string) (string, error) {
	var data []byte
	var err error
	if from == "-" {
		data, err = io.ReadAll(io.LimitReader(stdin, config.MaxFile+1))
		if err == nil && len(data) > config.MaxFile {
			err = fmt.Errorf("is larger than %d KiB", config.MaxFile>>10)
		}
	} else {
		data, _, err = config.ReadFile(from, 0)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case err != nil:
		return "", fmt.Errorf("value %s: %s: %w", name, from, err)
	case text == "":
		return "", fmt.Errorf("value %s: %s is empty", name, from)
	case !utf8.ValidString(text):
		return "", fmt.Errorf("value %s: %s is not UTF-8", name, from)
	}
	return text, nil
}

// checkSecrets makes sure that the agent will be able to use the secrets.
func checkSecrets(name string, plain []byte, contract string) error {
	parsed, problems := inventory.ParseSecrets(name, plain)
	if err := problems.Err(); err != nil {
		return err
	}
	if parsed.Bundle.IsZero() {
		return fault.WithHint(errors.New("there are no Talos secrets in the file to bring along"), "give the file that `talosctl gen secrets` wrote")
	}
	if _, err := machineconfig.OpenBundle(parsed.Bundle, contract); err != nil {
		return fmt.Errorf("secrets to bring along: %w", err)
	}
	return nil
}

// checkKeys makes sure that the given keys open the document.
func checkKeys(ctx context.Context, name string, encrypted []byte, keys []string) error {
	for _, key := range keys {
		data, _, err := config.ReadFile(key, 0)
		if err != nil {
			return fmt.Errorf("age key %s: %w", key, err)
		}
		ids, err := secrets.ParseIdentities(data)
		if err != nil {
			return fmt.Errorf("age key %s: %w", key, err)
		}
		plain, err := secrets.Decrypt(ctx, name, encrypted, ids)
		clear(plain)
		switch {
		case errors.Is(err, secrets.ErrNoKey):
			return fault.WithHint(fmt.Errorf("the age key %s could not open the secrets; nothing was written", key),
				"add its public half to .sops.yaml: "+strings.Join(ids.Recipients(), ", "))
		case err != nil:
			return err
		}
	}
	return nil
}

// WriteNew writes a file that everybody may read and that is not there yet,
// wholly or not at all.
func WriteNew(file string, data []byte) (err error) {
	dir := filepath.Dir(file)
	tmp, err := os.CreateTemp(dir, ".secrets-*.new")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, os.Remove(tmp.Name())) }()
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Link(tmp.Name(), file) // unlike a rename it replaces nothing
	}
	if err == nil {
		err = platform.Sync(dir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
