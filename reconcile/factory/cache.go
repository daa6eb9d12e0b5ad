package factory

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// leftover begins the name of a file that is being written.
const leftover = ".download-"

// note is what is remembered beside an image, in a file of its own.
type note struct {
	Schematic  string    `json:"schematic"`
	SHA256     string    `json:"sha256"`
	Bytes      int64     `json:"bytes"`
	Modified   time.Time `json:"modified"` // of the image, when it was hashed
	Downloaded bool      `json:"downloaded"`
	// Changed: what lay there when it was hashed again was not what we had
	// downloaded.
	Changed bool `json:"changed,omitempty"`
}

// of reports whether the note is about the file as it is now.
func (n note) of(info fs.FileInfo) bool {
	return n.SHA256 != "" && n.Bytes == info.Size() && n.Modified.Equal(info.ModTime())
}

func (n note) pin() cluster.ImagePin {
	return cluster.ImagePin{Schematic: n.Schematic, SHA256: n.SHA256, Bytes: n.Bytes}
}

var (
	imageName = pattern.New(`^talos-v[0-9A-Za-z.+-]+-nocloud-amd64(-secureboot)?\.(qcow2|iso)$`)
	version   = pattern.New(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
)

// checkName refuses an image whose fields do not belong together. Names become
// paths and parts of URLs.
func checkName(img cluster.Image) error {
	if !version.MatchString(img.Version) || !schematicID.MatchString(img.Schematic) || img.Name != img.FileName() {
		return fmt.Errorf("image %q is not the one of Talos %q with schematic %q", img.Name, img.Version, img.Schematic)
	}
	return nil
}

// Cached reports whether the cache holds an image that was verified and, if the
// pin has a hash, is the very one the pin was taken of. It costs a look at the
// file; the file is read only when its note is missing or out of date and the
// pin has a hash to hold it against, and then only once. An image somebody put
// there is not verified until Download took it in.
func (f *Factory) Cached(img cluster.Image, pin cluster.ImagePin) bool {
	if checkName(img) != nil {
		return false
	}
	info, err := os.Lstat(f.path(img.Name))
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	n := f.note(img.Name)
	if !n.of(info) {
		if pin.SHA256 == "" || info.Size() != pin.Bytes {
			return false
		}
		now, err := f.inspect(img)
		if err == nil {
			now.Downloaded = n.Downloaded
			now.Changed = n.Downloaded && now.SHA256 != pin.SHA256
			n, err = now, f.remember(img.Name, now)
		}
		if err != nil {
			f.log.Warn("cannot use an image of the cache", logging.Detail, img.Name, logging.Image, img.Name, logging.Err, err)
			return false
		}
	}
	if n.Schematic != img.Schematic || n.Changed {
		return false
	}
	return pin.SHA256 == "" || n.SHA256 == pin.SHA256 && n.Bytes == pin.Bytes
}

// Open opens a verified image to be read, and returns its size.
func (f *Factory) Open(img cluster.Image) (io.ReadSeekCloser, int64, error) {
	if err := checkName(img); err != nil {
		return nil, 0, err
	}
	file, info, err := f.open(img.Name)
	if err != nil {
		return nil, 0, err
	}
	if n := f.note(img.Name); !n.of(info) || n.Schematic != img.Schematic || n.Changed {
		_ = file.Close()
		return nil, 0, newTransient(nil, "", "image %s changed since it was verified", img.Name)
	}
	return file, info.Size(), nil
}

// Prune removes the images that were downloaded and are not among the names to
// keep, and returns the names of those removed. What somebody put into the
// cache by hand stays: it may be meant for later and could not be downloaded
// again.
func (f *Factory) Prune(keep []string) (removed []string, err error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("list image cache: %w", err)
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if !imageName.MatchString(name) || slices.Contains(keep, name) || !f.note(name).Downloaded {
			continue
		}
		if err := os.Remove(f.path(name)); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
		f.mu.Lock()
		delete(f.seen, name)
		f.mu.Unlock()
		if err := os.Remove(f.notePath(name)); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("prune image cache: %w", err)
	}
	return removed, nil
}

// inspect looks at an image that lies in the cache: is it one, and whole, and
// what is its hash?
func (f *Factory) inspect(img cluster.Image) (note, error) {
	file, info, err := f.open(img.Name)
	if err != nil {
		return note{}, err
	}
	defer func() { _ = file.Close() }()
	if err := checkWhole(img, file, info.Size()); err != nil {
		return note{}, newError("remove the file, or put a whole image in its place", "image %s in the cache: %v", img.Name, err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return note{}, fmt.Errorf("hash image %s: %w", img.Name, err)
	}
	return note{Schematic: img.Schematic, SHA256: hex.EncodeToString(h.Sum(nil)), Bytes: info.Size(), Modified: info.ModTime()}, nil
}

// remember writes a note beside its image.
func (f *Factory) remember(name string, n note) error {
	f.mu.Lock()
	f.seen[name] = n
	f.mu.Unlock()
	text, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("note what image %s is: %w", name, err)
	}
	tmp, err := f.create(name)
	if err != nil {
		return err
	}
	if _, err := tmp.Write(text); err != nil {
		return fmt.Errorf("note what image %s is: %w", name, discardFile(tmp, err))
	}
	if err := f.keep(tmp, f.notePath(name)); err != nil {
		return fmt.Errorf("note what image %s is: %w", name, err)
	}
	return nil
}

// note returns what is known of an image; nothing when there is no note, or
// none that can be read: then the image is verified again.
func (f *Factory) note(name string) note {
	f.mu.Lock()
	n, ok := f.seen[name]
	f.mu.Unlock()
	if ok {
		return n
	}
	text, err := os.ReadFile(f.notePath(name))
	if err != nil || json.Unmarshal(text, &n) != nil {
		return note{}
	}
	f.mu.Lock()
	f.seen[name] = n
	f.mu.Unlock()
	return n
}

func (f *Factory) path(name string) string     { return filepath.Join(f.dir, name) }
func (f *Factory) notePath(name string) string { return filepath.Join(f.dir, name+".json") }

// open opens a file of the cache that is a regular one and no link.
func (f *Factory) open(name string) (*os.File, fs.FileInfo, error) {
	file, err := os.OpenFile(f.path(name), os.O_RDONLY|platform.NoFollow|platform.NoWait, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil, newError("give it to the user talos-agent runs as", "image %s in the cache cannot be read", name)
	}
	if platform.IsLink(err) {
		return nil, nil, f.odd(name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open image: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = f.odd(name)
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

func (f *Factory) odd(name string) *Error {
	return newError("put the image itself there, not a link to it", "image %s in the cache is not a regular file", name)
}

// create makes a file to be written, which no other user can read.
func (f *Factory) create(name string) (*os.File, error) {
	if err := f.makeDir(); err != nil {
		return nil, err
	}
	tmp, err := os.CreateTemp(f.dir, leftover+name+"-*") // exclusive, mode 0600
	if err != nil {
		return nil, fmt.Errorf("write to image cache: %w", err)
	}
	return tmp, nil
}

// makeDir makes the directory again where it was deleted meanwhile: what is in it can
// be fetched again.
func (f *Factory) makeDir() error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return newError("`systemctl restart talos-agent` makes it again where it was deleted; it must belong to the agent's user", "make image cache: %v", err)
	}
	return nil
}

// keep gives a written file its name, durably.
func (f *Factory) keep(tmp *os.File, path string) error {
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return platform.Sync(f.dir)
}

// discardFile removes a file that was not written to its end, because of err.
func discardFile(tmp *os.File, err error) error {
	return errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
}

// removeLeftovers removes what downloads left that were interrupted with their
// process.
func (f *Factory) removeLeftovers() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("list image cache: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), leftover) {
			continue
		}
		if err := os.Remove(f.path(e.Name())); err != nil {
			return fmt.Errorf("remove what is left of a download: %w", err)
		}
		f.log.Debug("removed what was left of a download", logging.File, e.Name())
	}
	return nil
}
