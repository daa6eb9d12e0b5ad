package dialog

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAsk(t *testing.T) {
	var out strings.Builder
	d := Open(t.Context(), strings.NewReader("\nwrong\n  right \n\n"), &out)
	if got, err := d.Ask("Which", "usual", nil); got != "usual" || err != nil {
		t.Errorf("an empty answer: %q, %v", got, err)
	}
	got, err := d.Ask("Which", "", func(s string) error {
		if s != "right" {
			return errors.New("type right")
		}
		return nil
	})
	if got != "right" || err != nil {
		t.Errorf("asked again: %q, %v", got, err)
	}
	if ok, err := d.Confirm("Sure?", true); !ok || err != nil {
		t.Errorf("an empty answer agrees to what is usual: %v, %v", ok, err)
	}
	if _, err := d.Ask("More", "", nil); err == nil || err.Error() != "nothing more was typed, and nothing was changed" {
		t.Errorf("at the end: %v", err)
	}
	if want := "Which [usual]: Which:   type right\nWhich: Sure? [Y/n]: More: \n"; out.String() != want {
		t.Errorf("shown %q, want %q", out.String(), want)
	}
}

// TestStopped: a signal ends a question that waits for its answer.
func TestStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	in, typed := io.Pipe()
	defer func() { _ = typed.Close() }()
	d := Open(ctx, in, io.Discard)
	stop()
	if _, err := d.Ask("Which", "", NotEmpty); err == nil || err.Error() != "stopped by a signal, and nothing was changed" {
		t.Errorf("%v", err)
	}
}
