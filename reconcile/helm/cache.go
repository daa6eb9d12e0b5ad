package helm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// leftover begins the name of a file that is being written.
const leftover = ".fetch-"

// The kinds of files in the cache, by the ending of their names. The rest of a
// name is the SHA-256 of what the file holds.
const (
	archiveFile  = ".tgz"
	manifestFile = ".json" // of a chart in an OCI registry
)

var hexDigest = pattern.New(`^[0-9a-f]{64}$`)

// hexOf is the hex part of a digest in either notation, "" when it is none.
func hexOf(digest string) string {
	h := strings.ToLower(strings.TrimPrefix(digest, "sha256:"))
	if !hexDigest.MatchString(h) {
		return ""
	}
	return h
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// archives keep what was fetched in files that are named by their contents. A
// file that does not match its name counts as missing, so that nothing needs to
// be written durably.
type archives struct {
	dir string

	mu    sync.Mutex
	known map[string]stamp // by file name; matches its name
}

// stamp shows whether a file changed since it was read.
type stamp struct {
	bytes    int64
	modified time.Time
}

// openArchives prepares the folder and removes what was interrupted there.
func openArchives(dir string) (*archives, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make chart cache: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list chart cache: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), leftover) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return nil, fmt.Errorf("remove what is left of a chart: %w", err)
		}
	}
	return &archives{dir: dir, known: map[string]stamp{}}, nil
}

// has reports whether a file is there. It is read only when it was not read
// before, or changed since.
func (c *archives) has(hex, kind string, most int64) bool {
	info, err := os.Lstat(filepath.Join(c.dir, hex+kind))
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	c.mu.Lock()
	known := c.known[hex+kind]
	c.mu.Unlock()
	if known == (stamp{info.Size(), info.ModTime()}) {
		return true
	}
	_, err = c.read(hex, kind, most)
	return err == nil
}

// errMissing: the cache does not hold a file, or not as it should be.
var errMissing = errors.New("it is not in the cache")

// read reads a file and checks that it matches its name.
func (c *archives) read(hex, kind string, most int64) ([]byte, error) {
	if !hexDigest.MatchString(hex) {
		return nil, errMissing
	}
	file, err := os.OpenFile(filepath.Join(c.dir, hex+kind), os.O_RDONLY|platform.NoFollow|platform.NoWait, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMissing
	}
	if err != nil {
		return nil, fmt.Errorf("open cached chart: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("open cached chart: %w", errors.Join(err, file.Close()))
	}
	b, err := io.ReadAll(io.LimitReader(file, most+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read cached chart: %w", err)
	}
	if int64(len(b)) > most || digestOf(b) != hex {
		return nil, errMissing
	}
	c.mu.Lock()
	c.known[hex+kind] = stamp{info.Size(), info.ModTime()}
	c.mu.Unlock()
	return b, nil
}

// write puts a file into the cache, named by its digest.
func (c *archives) write(b []byte, kind string) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil { // somebody deleted it meanwhile
		return newError("`systemctl restart talos-agent` makes it again where it was deleted; it must belong to the agent's user", "make chart cache: %v", err)
	}
	file, err := os.CreateTemp(c.dir, leftover+"*") // exclusive, mode 0600
	if err != nil {
		return fmt.Errorf("write to chart cache: %w", err)
	}
	_, err = file.Write(b)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(c.dir, digestOf(b)+kind))
	}
	if err != nil {
		return c.full(errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

// full gives a hint to a disk that is full.
func (c *archives) full(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return newError("make room on that disk, or set cache_dir to a directory on another one", "the disk of %s is full", c.dir)
	}
	return fmt.Errorf("write to chart cache: %w", err)
}
