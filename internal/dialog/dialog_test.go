package dialog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// typist types an answer as soon as it is asked.
type typist struct {
	keyboard *os.File
	question string
	answer   string
	err      error
}

func (p *typist) Write(text []byte) (int, error) {
	if strings.HasPrefix(string(text), p.question) {
		_, p.err = io.WriteString(p.keyboard, p.answer)
	}
	return len(text), nil
}

// TestAskSecret: what is typed is not shown, and what comes after it is again.
func TestAskSecret(t *testing.T) {
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	defer func() { _ = keyboard.Close() }()
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	person := &typist{keyboard: keyboard, question: "Token", answer: "c4n4ry\n"}
	d := Open(t.Context(), terminal, person)
	if got, err := d.AskSecret("Token", NotEmpty); got != "c4n4ry" || err != nil || person.err != nil {
		t.Errorf("%q, %v, %v", got, err, person.err)
	}
	person.question, person.answer = "Name", "shown\n"
	if got, err := d.Ask("Name", "", NotEmpty); got != "shown" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// What is typed is shown before it can be read.
	var seen string
	for b := make([]byte, 100); !strings.Contains(seen, "shown"); {
		n, err := keyboard.Read(b)
		if seen += string(b[:n]); err != nil {
			t.Fatalf("%q, %v", seen, err)
		}
	}
	if strings.Contains(seen, "c4n4ry") {
		t.Errorf("the terminal shows %q", seen)
	}
	person.question, person.answer = "More", "\x04"
	if _, err := d.Ask("More", "", NotEmpty); err == nil {
		t.Error("the end of what is typed is an answer")
	}
	if err := terminal.Close(); err != nil {
		t.Error(err)
	}
}

// TestAskSecretElsewhere: where there is no terminal there is nothing to hide.
func TestAskSecretElsewhere(t *testing.T) {
	d := Open(t.Context(), strings.NewReader("word\n"), io.Discard)
	if got, err := d.AskSecret("Token", nil); got != "word" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
