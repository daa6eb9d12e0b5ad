package dialog

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// AskSecret asks for what must not be shown while it is typed.
func (a *Dialog) AskSecret(question string, wrong func(string) error) (answer string, err error) {
	if a.fd < 0 {
		return a.Ask(question, "", wrong)
	}
	shown, err := unix.IoctlGetTermios(a.fd, unix.TCGETS)
	if err != nil {
		return "", fmt.Errorf("hide what is typed: %w", err)
	}
	hidden := *shown
	hidden.Lflag = hidden.Lflag&^unix.ECHO | unix.ECHONL // but the end of the line
	if err := unix.IoctlSetTermios(a.fd, unix.TCSETS, &hidden); err != nil {
		return "", fmt.Errorf("hide what is typed: %w", err)
	}
	defer func() {
		if back := unix.IoctlSetTermios(a.fd, unix.TCSETS, shown); back != nil {
			err = errors.Join(err, fault.WithHint(fmt.Errorf("show what is typed again: %w", back), "stty echo"))
		}
	}()
	return a.Ask(question, "", wrong)
}
