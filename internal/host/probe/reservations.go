//go:build linux

package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// findReservations finds whether everybody can read where reservations for a DHCP server are
// written.
func findReservations(s config.Settings) (doctor.Reservations, error) {
	out := doctor.Reservations{Directory: s.Reservations}
	if out.Directory == "" {
		return out, nil
	}
	need := fs.FileMode(0o005) // to list it; to come through one above it is enough to enter
	for dir := out.Directory; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			out.Missing = true
			return out, nil
		case err != nil:
			return out, err
		case !info.IsDir():
			return out, fmt.Errorf("%s is no directory", dir)
		case info.Mode().Perm()&need != need:
			out.Closed = dir
			return out, nil
		case dir == filepath.Dir(dir):
			return out, nil
		}
		need = 0o001
	}
}
