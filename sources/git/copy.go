package git

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/osfs"
	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/talos-agent/talos-agent/internal/logging"
)

// Names of directories in Config.Dir.
const (
	storeDir = "store"
	freshDir = "fresh" // becomes the store when it is whole
)

// openStore opens the store in Dir. One that cannot be opened is removed: it
// is only a copy of what the server has.
func (s *Store) openStore() error {
	b, err := s.openBare(storeDir)
	if errors.Is(onDisk(s.cfg.Dir, err), ErrDisk) {
		return err
	}
	if err != nil {
		s.log.Info("the copy of the repository in the cache is re-created", logging.Err, err)
		if err := os.RemoveAll(filepath.Join(s.cfg.Dir, storeDir)); err != nil {
			return err
		}
		if b, err = s.openBare(storeDir); err != nil {
			return err
		}
	}
	s.store = b
	s.use(&b.objects)
	return nil
}

func (s *Store) openBare(name string) (*bare, error) {
	if s.cfg.Dir == "" {
		return newBare(memfs.New(), s.cfg.Branch)
	}
	dir := filepath.Join(s.cfg.Dir, name)
	if err := os.MkdirAll(dir, 0o700); errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil, newError(ErrDisk, "make room on the file system of "+s.cfg.Dir+" and let the agent's user write to it; where it was deleted, `systemctl restart talos-agent` makes it again", err,
			"the copy of the repository cannot be written")
	} else if err != nil {
		return nil, err
	}
	return newBare(privateFS{osfs.New(dir, osfs.WithBoundOS())}, s.cfg.Branch)
}

// renew fetches the whole history into a fresh store and puts it in the place
// of the old one, which is kept as it is if that fails.
func (s *Store) renew(ctx context.Context, a answer, reason string) (err error) {
	defer func() { err = onDisk(s.cfg.Dir, err) }()
	fresh := filepath.Join(s.cfg.Dir, freshDir)
	if s.cfg.Dir != "" {
		if err := os.RemoveAll(fresh); err != nil {
			return err
		}
	}
	b, err := s.openBare(freshDir)
	if err != nil {
		return err
	}
	if err := s.fetch(ctx, a, plumbing.ZeroHash, b); err != nil {
		return err
	}
	if s.cfg.Dir != "" {
		// A crash in between leaves no store, which the next start makes.
		if err := os.RemoveAll(filepath.Join(s.cfg.Dir, storeDir)); err != nil {
			return err
		}
		if err := os.Rename(fresh, filepath.Join(s.cfg.Dir, storeDir)); err != nil {
			return err
		}
		if b, err = s.openBare(storeDir); err != nil {
			return err
		}
	}
	s.store = b
	s.renewed = renewal{a.tip, time.Now(), reason}
	s.use(&b.objects)
	return nil
}

// initStorage makes an empty storage a bare repository that git itself can
// read too, and leaves any other as it is.
func initStorage(sto *filesystem.Storage, branch string) error {
	_, err := gogit.InitWithOptions(sto, nil, gogit.InitOptions{DefaultBranch: plumbing.NewBranchReferenceName(branch)})
	if errors.Is(err, gogit.ErrRepositoryAlreadyExists) {
		return nil
	}
	return err
}
