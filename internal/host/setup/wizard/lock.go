package wizard

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// Lock keeps every other init off the host, whatever it makes there.
func Lock(h probe.Host) (unlock func(), err error) { return target{h}.lock() }

// lock makes this the one init that works on the host: two would each do what the
// other has done already, and one's record would be lost. The lock goes with the
// process, and its file with the next boot.
func (h target) lock() (unlock func(), err error) {
	path := h.Path(setup.LockFile)
	if h.Root != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("lock the host: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|platform.NoFollow|platform.NoWait, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the host: %w", err)
	}
	if err := platform.Lock(f); err != nil {
		who := readHolder(f)
		_ = f.Close()
		if errors.Is(err, platform.ErrLocked) {
			return nil, fault.WithHint(fmt.Errorf("another init%s is at work on this host", who), "wait until it ends, or stop it; then run init again")
		}
		return nil, fmt.Errorf("lock the host: %w", err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the host: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// readHolder is who wrote into a lock, for people; "" if it has none.
func readHolder(f *os.File) string {
	text, err := io.ReadAll(io.LimitReader(f, 32))
	pid := strings.TrimSpace(string(text))
	if err != nil || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return ""
	}
	return " (process " + pid + ")"
}

// checkOwner refuses a file that somebody else could have written: what init did is
// an administrator's command alone.
func (h target) checkOwner(path string) error {
	info, err := os.Lstat(h.Path(path))
	if err != nil {
		return nil // whoever reads it finds out
	}
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	if uid, _, ok := platform.Owner(info); ok && uid != os.Geteuid() {
		return fmt.Errorf("belongs to user %d", uid)
	}
	return nil
}
