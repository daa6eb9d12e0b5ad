package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/platform"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// What nobody but its owner, its group and root may do with a file.
const (
	OthersMayNotRead  fs.FileMode = 0o007
	OnlyOwnerReads    fs.FileMode = 0o077
	OthersMayNotWrite fs.FileMode = 0o002
	OnlyOwnerWrites   fs.FileMode = 0o022
)

// MaxFile bounds the files a config names: keys, tokens and authorities.
const MaxFile = 1 << 20

// ReadFile reads a regular file that has none of the forbidden permissions.
// Links are followed; a pipe or a device is refused without waiting for it.
// Errors do not name the file, may carry a Hint, and are fs.ErrNotExist when
// there is none.
func ReadFile(path string, forbidden fs.FileMode) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|platform.NoWait, 0)
	if err != nil {
		return nil, nil, explainUnreadable(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, explainUnreadable(err)
	}
	switch mode := info.Mode().Perm(); {
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("is not a regular file")
	case mode&forbidden&0o005 != 0:
		return nil, nil, fault.WithHint(fmt.Errorf("can be read by everybody (mode %04o)", mode), fmt.Sprintf("chmod %04o %s", mode&^forbidden, path))
	case mode&forbidden&0o050 != 0:
		return nil, nil, fault.WithHint(fmt.Errorf("can be read by its group (mode %04o)", mode), fmt.Sprintf("chmod %04o %s", mode&^forbidden, path))
	case mode&forbidden != 0:
		return nil, nil, fault.WithHint(fmt.Errorf("can be changed by others than its owner (mode %04o)", mode), fmt.Sprintf("chmod %04o %s", mode&^forbidden, path))
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	switch {
	case err != nil:
		return nil, nil, explainUnreadable(err)
	case len(data) > MaxFile:
		return nil, nil, fmt.Errorf("is larger than %d KiB", MaxFile>>10)
	}
	return data, info, nil
}

// errUnread marks a file that is there, for others than this user.
var errUnread = errors.New("cannot be read by this user")

// explainUnreadable returns why a file cannot be read.
func explainUnreadable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fs.ErrNotExist
	case errors.Is(err, fs.ErrPermission):
		return fault.WithHint(errUnread, "run this as root; if it is the agent's own user, let it read the file: chown root:talos-agent, chmod 0640")
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("cannot be read: %w", err)
}

// credentialPrefix marks a value that names a credential of systemd instead of
// a path.
const credentialPrefix = "credential:"

// CredentialStore is where systemd looks for what the unit loads, and
// CredentialMark what the names of the agent's credentials begin with there:
// the unit has LoadCredential=age.key:talos-agent.age.key.
const (
	CredentialStore = "/etc/credstore"
	CredentialMark  = "talos-agent."
	// EncryptedSuffix ends the name of the store beside it, for credentials that
	// systemd-creds has encrypted.
	EncryptedSuffix = ".encrypted"
)

// Credentials is where credentials lie: files of a directory, each named
// after its credential behind a mark. The zero value has none.
type Credentials struct {
	dir, mark string
	// guarded files come from systemd, which sees to their permissions.
	guarded bool
}

// FromSystemd are the credentials that systemd has put into a directory.
func FromSystemd(dir string) Credentials { return Credentials{dir: dir, guarded: true} }

// FromStore are the credentials that lie in a store of the host.
func FromStore(dir string) Credentials { return Credentials{dir: dir, mark: CredentialMark} }

// path is where a credential lies, if there is one.
func (c Credentials) path(name string) string { return filepath.Join(c.dir, c.mark+name) }

// file is a credential, whether it is there or not.
func (c Credentials) file(name string) file {
	return file{path: c.path(name), guarded: c.guarded, stored: !c.guarded && c.mark != ""}
}

// has reports whether there is a credential of that name. A store that this
// user may not look into has none.
func (c Credentials) has(name string) bool {
	if c.dir == "" {
		return false
	}
	info, err := os.Stat(c.path(name))
	return err == nil && !(c.guarded && IsDefault(info))
}

// mayHave reports whether a credential of that name is there, or cannot be looked at.
func (c Credentials) mayHave(name string) bool {
	_, err := os.Stat(c.path(name))
	return c.has(name) || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// IsDefault reports whether a credential that systemd hands over is the empty line
// that the unit sets for one that is missing.
func IsDefault(info fs.FileInfo) bool { return info.Size() <= int64(len("\n")) }

// explainHidden returns why a credential that is not seen may be there all the same, nil
// when it is not.
func (c Credentials) explainHidden(name string) error {
	if c.dir == "" || c.guarded {
		return nil
	}
	if _, err := os.Stat(c.path(name)); errors.Is(err, fs.ErrPermission) {
		return fault.WithHint(fmt.Errorf("cannot be looked for: this user may not look into %s", c.dir), "run it with sudo")
	}
	if _, err := os.Stat(filepath.Join(c.dir+EncryptedSuffix, c.mark+name)); err == nil {
		return fault.WithHint(errors.New("is encrypted: only the daemon gets it opened, by systemd"), "look at `talos-agent status`, which the daemon answers")
	}
	return nil
}

// file is a file that a config names.
type file struct {
	path string
	// guarded files are systemd's credentials.
	guarded bool
	// stored files are credentials in the store, which root hands to systemd: no
	// group needs them.
	stored bool
}

// locateFile finds the file of a key: what is written there, else the credential of
// that name, if there is one. ok is false when there is none, or when it is
// wrong, which is reported.
func (l *loader) locateFile(field, written, credential string) (file, bool) {
	name, named := strings.CutPrefix(written, credentialPrefix)
	switch {
	case named && !l.credentials.guarded && !l.credentials.has(name):
		l.Wrong(field, "start the agent by systemd with LoadCredential="+name+":/path/of/the/file, or write the path here", "there are no credentials: systemd has given the program none")
		return file{}, false
	case named && l.credentials.guarded && !l.credentials.mayHave(name):
		l.recordUse(l.credentials.path(name), doctor.KeyFile) // it may come
		l.absent[field] = name
		l.Wrong(field, "give the unit LoadCredential="+name+":/path/of/the/file, or write the path here", "systemd has handed over no credential %s", name)
		return file{}, false
	case named:
		return l.credentials.file(name), true
	case written == "" && credential == "":
		return file{}, false
	case written == "" && !l.credentials.has(credential):
		if l.credentials.dir != "" {
			l.recordUse(l.credentials.path(credential), doctor.KeyFile) // it may come
		}
		l.absent[field] = credential
		if err := l.credentials.explainHidden(credential); err != nil {
			l.Wrong(field, fault.HintOf(err), "the credential %s %s", credential, err)
			l.out.Hidden = append(l.out.Hidden, field)
		}
		return file{}, false
	case written == "":
		return l.credentials.file(credential), true
	case filepath.IsAbs(written):
		return file{path: written}, true
	}
	return file{path: filepath.Join(l.dir, written)}, true
}

// readFile reads a file that a key names. ok is false when there is none, or when it
// cannot be read, which is recorded.
func (l *loader) readFile(field, written, credential string, forbidden fs.FileMode) ([]byte, bool) {
	f, ok := l.locateFile(field, written, credential)
	if !ok {
		return nil, false
	}
	kind := doctor.PublicFile
	if forbidden == OthersMayNotRead {
		kind = doctor.KeyFile
	}
	l.recordUse(f.path, kind)
	l.out.CredentialsGiven = l.out.CredentialsGiven || f.guarded
	switch {
	case f.guarded:
		forbidden = 0
	case f.stored && forbidden == OthersMayNotRead:
		forbidden = OnlyOwnerReads
	}
	data, _, err := ReadFile(f.path, forbidden)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.Wrong(field, "a path that does not begin with / is looked for in "+l.dir, "there is no such file")
	case err != nil:
		l.Wrong(field, fault.HintOf(err), "the file %s", err)
		if errors.Is(err, errUnread) {
			l.out.Hidden = append(l.out.Hidden, field)
		}
	case len(bytes.TrimSpace(data)) == 0:
		l.Wrong(field, "write it again", "the file %s is empty", f.path)
	default:
		l.paths[field] = f.path
		return data, true
	}
	return nil, false
}

// hintRestart adds to the hint about what is missing that systemd hands over what
// was put into the store since it started the agent only when it does so again.
func (l *loader) hintRestart() {
	for i, p := range l.Problems {
		if name, ok := l.absent[p.Field]; ok && l.credentials.guarded && p.Severity == cluster.Error {
			again := "if " + FromStore(CredentialStore).path(name) + " is there, `systemctl restart talos-agent` hands it over"
			l.Problems[i].Hint = strings.TrimPrefix(p.Hint+"; "+again, "; ")
		}
	}
}

// nameFile names the file that was read for a field.
func (l *loader) nameFile(field string) string { return "the file " + l.paths[field] }

// readSecret reads a file that nobody else may read; what it holds is one line.
func (l *loader) readSecret(field, written, credential string) (cluster.Secret, bool) {
	data, ok := l.readFile(field, written, credential, OthersMayNotRead)
	return cluster.SecretString(strings.TrimSpace(string(data))), ok
}

// ReadAgeKeys reads files of age keys that a command line names; nil without any.
func ReadAgeKeys(files []string) (*secrets.Identities, error) {
	var keys []byte
	for _, name := range files {
		data, _, err := ReadFile(name, 0)
		if err != nil {
			return nil, fmt.Errorf("age key %s: %w", name, err)
		}
		keys = append(append(keys, data...), '\n')
	}
	if len(files) == 0 {
		return nil, nil
	}
	ids, err := secrets.ParseIdentities(keys)
	if err != nil {
		return nil, fmt.Errorf("age key %s: %w", strings.Join(files, ", "), err)
	}
	return ids, nil
}
