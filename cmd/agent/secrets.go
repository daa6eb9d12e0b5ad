package main

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

	"github.com/spf13/cobra"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/sources"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

func newSecrets(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Make the secrets of a cluster",
		Args:  knownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSecretsNew(env))
	return cmd
}

// secretsFlags are what secrets new is told.
type secretsFlags struct {
	cluster, folder, from string
	values, ageKeys       []string
}

func newSecretsNew(env *environment) *cobra.Command {
	var f secretsFlags
	cmd := &cobra.Command{
		Use:   "new --cluster NAME DIR",
		Short: "Make the secrets of a new cluster, encrypted to the recipients in .sops.yaml",
		Long: `Make the secrets that a cluster begins with: its authorities, keys and tokens, in
the shape of talosctl gen secrets, encrypted with SOPS to the age recipients that
.sops.yaml has for the file. They are the cluster's for life, so that a file that
is there already is never replaced. Nothing is written in clear.

Values for patches and addons (${values.NAME}) can be added right away from
files, or from standard input as NAME=-, and later with sops.`,
		Example: `  talos-agent secrets new --cluster dev .
  talos-agent secrets new --cluster dev --value-file tailscale_authkey=- . < authkey
  talos-agent secrets new --cluster old --from secrets.yaml .`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: directories,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.cluster, "cluster", "", "the cluster, by the name of its folder (required)")
	flags.StringVar(&f.folder, "path", "inventory", "the folder of the repository that holds the clusters' folders")
	flags.StringVar(&f.from, "from", "", "file with the secrets of a cluster that exists, as talosctl gen secrets wrote them")
	flags.StringArrayVar(&f.values, "value-file", nil, "NAME=FILE: a value for patches and addons; may be given several times")
	flags.StringArrayVar(&f.ageKeys, "age-key", nil, "file with an age key that must be able to open the result")
	complete(cmd, "cluster", folderNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.cluster == "" {
			return &usageError{errors.New("secrets new: which cluster? say --cluster NAME")}
		}
		return makeSecrets(cmd.Context(), env, args[0], f, time.Now())
	}
	return cmd
}

// makeSecrets makes the secrets file of a cluster and tells what to do next.
func makeSecrets(ctx context.Context, env *environment, dir string, f secretsFlags, now time.Time) error {
	name, file := f.files(dir)
	if _, err := os.Lstat(file); err == nil {
		return fault.WithHint(fmt.Errorf("%s exists: other secrets would be another cluster", file),
			fmt.Sprintf("add values with `sops %s`; for a new cluster in its place, destroy the old one and remove the file first", file))
	}
	encrypted, recipients, err := sealSecrets(ctx, env, dir, f, now)
	if err != nil {
		return err
	}
	if err := writeNew(file, encrypted); err != nil {
		return err
	}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(env.stdout, format+"\n", args...) }
	say("wrote %s, encrypted to", file)
	for _, r := range recipients {
		say("  %s", r)
	}
	if slices.Contains(recipients, exampleRecipient) {
		say("warning: %s is the public example key of talos-agent: everybody can read this file", exampleRecipient)
	}
	say("Next:")
	say("  talos-agent validate %s --cluster %s --age-key FILE", dir, f.cluster)
	say("  sops %s   # to add values for patches and addons under values:", file)
	say("  then commit %s and push", name)
	return nil
}

// files names the secrets file, in the repository, with slashes, and on disk.
func (f secretsFlags) files(dir string) (name, file string) {
	name = path.Join(f.folder, f.cluster, inventory.SecretsFile)
	return name, filepath.Join(dir, filepath.FromSlash(name))
}

// sealSecrets makes the secrets of a cluster and encrypts them to those who can
// read them.
func sealSecrets(ctx context.Context, env *environment, dir string, f secretsFlags, now time.Time) (encrypted []byte, recipients []string, err error) {
	name, _ := f.files(dir)
	contract, err := contractOf(ctx, dir, f)
	if err != nil {
		return nil, nil, err
	}
	if recipients, err = recipientsFor(dir, name); err != nil {
		return nil, nil, err
	}
	plain, err := plainSecrets(env, f, contract, now)
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
	return encrypted, recipients, opens(ctx, name, encrypted, f.ageKeys)
}

// exampleRecipient is the public half of examples/repo/lab-age-key.txt, whose
// private half is public too.
const exampleRecipient = "age1zsdrmjdnrm3zwakr5npmjkwh8vtpmqc3998w0lz4ya69sdlep3zserjxed"

// contractOf reads the cluster, which must be valid, for the shape of its
// secrets.
func contractOf(ctx context.Context, dir string, f secretsFlags) (string, error) {
	repo, err := sources.New(sources.Config{Path: f.folder})
	if err != nil {
		return "", &usageError{fmt.Errorf("--path: %w", err)}
	}
	tree, err := localTree(ctx, dir)
	if err != nil {
		return "", err
	}
	snap, problems, err := repo.Snapshot(ctx, tree, f.cluster)
	if err != nil {
		return "", err
	}
	if !problems.HasErrors() {
		problems = append(problems, machineconfig.Check(snap)...)
	}
	if problems.HasErrors() {
		problems = slices.DeleteFunc(problems, func(p cluster.Problem) bool { return p.Severity != cluster.Error })
		return "", fault.WithHint(fmt.Errorf("the cluster %s is not valid:\n%w", f.cluster, problems), "correct it first; `talos-agent validate` tells more")
	}
	return snap.Spec.Versions.Contract, nil
}

const sopsExample = `write it first, with the public half of your age key (age-keygen -o age.key makes one, and prints it):
creation_rules:
  - path_regex: secrets\.sops\.yaml$
    age: age1...`

// sopsRules is what a .sops.yaml is called.
const sopsRules = ".sops.yaml"

// rulesFor reads the .sops.yaml that says who can read a file of the repository:
// the nearest above it. (sops itself begins in the folder that it is called in, or
// takes what --config says.) Where there is none, the error is fs.ErrNotExist.
// folder is where it lies, from dir on.
func rulesFor(dir, name string) (folder string, data []byte, err error) {
	for folder = path.Dir(name); ; folder = path.Dir(folder) {
		rules := filepath.Join(dir, filepath.FromSlash(folder), sopsRules)
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

// recipientsFor reads who can read a file of the repository.
func recipientsFor(dir, name string) ([]string, error) {
	folder, data, err := rulesFor(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("there is no .sops.yaml in %s, which says who can read the secrets", dir), sopsExample)
	}
	if err != nil {
		return nil, err
	}
	below, err := filepath.Rel(filepath.FromSlash(folder), filepath.FromSlash(name))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, filepath.FromSlash(folder), sopsRules), err)
	}
	return secrets.Recipients(path.Join(folder, sopsRules), data, filepath.ToSlash(below))
}

// plainSecrets makes the document in clear: the bundle, new or brought along, and
// the values.
func plainSecrets(env *environment, f secretsFlags, contract string, now time.Time) ([]byte, error) {
	values, err := readValues(env, f.values)
	if err != nil {
		return nil, err
	}
	var plain []byte
	if f.from != "" {
		if plain, _, err = config.ReadFile(f.from, 0); err != nil {
			return nil, fmt.Errorf("secrets to bring along: %s: %w", f.from, err)
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
func readValues(env *environment, flags []string) (map[string]string, error) {
	values := map[string]string{}
	for _, flag := range flags {
		name, from, ok := strings.Cut(flag, "=")
		if !ok || name == "" || from == "" {
			return nil, &usageError{errors.New("--value-file: write NAME=FILE, or NAME=- for standard input")}
		}
		if _, twice := values[name]; twice {
			return nil, &usageError{fmt.Errorf("--value-file: %s is given twice", name)}
		}
		text, err := readValue(env, name, from)
		if err != nil {
			return nil, err
		}
		values[name] = text
	}
	return values, nil
}

// readValue reads a value. The line break that editors put at the end of a file
// is not part of it.
func readValue(env *environment, name, from string) (string, error) {
	var data []byte
	var err error
	if from == "-" {
		data, err = io.ReadAll(io.LimitReader(env.stdin, config.MaxFile+1))
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
	if err := machineconfig.CheckBundle(parsed.Bundle, contract); err != nil {
		return fmt.Errorf("secrets to bring along: %w", err)
	}
	return nil
}

// opens makes sure that the given keys open the document.
func opens(ctx context.Context, name string, encrypted []byte, keys []string) error {
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

// writeNew writes a file that everybody may read and that is not there yet,
// wholly or not at all.
func writeNew(file string, data []byte) (err error) {
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
		err = state.SyncPath(dir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
