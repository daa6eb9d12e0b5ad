// Package dialog asks the person at a terminal: one question a line, again until the
// answer will do.
//
// It knows none of the answers: whoever asks checks them.
package dialog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// Dialog asks the person at a terminal.
type Dialog struct {
	ctx   context.Context // ends when the person has had enough
	typed chan string     // lines; closed when there are no more
	out   io.Writer
	fd    int // the terminal's; -1: there is none
}

// Open listens to the terminal until the program ends.
func Open(ctx context.Context, in io.Reader, out io.Writer) *Dialog {
	a := &Dialog{ctx: ctx, typed: make(chan string), out: out, fd: -1}
	if f, ok := in.(interface{ Fd() uintptr }); ok && term.IsTerminal(int(f.Fd())) {
		a.fd = int(f.Fd())
	}
	go func() {
		defer close(a.typed)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			select {
			case a.typed <- lines.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return a
}

// readLine waits for a line.
func (a *Dialog) readLine() (string, error) {
	select {
	case <-a.ctx.Done():
		_, _ = fmt.Fprintln(a.out)
		return "", errors.New("stopped by a signal, and nothing was changed")
	case line, ok := <-a.typed:
		if !ok {
			_, _ = fmt.Fprintln(a.out)
			return "", errors.New("nothing more was typed, and nothing was changed")
		}
		return strings.TrimSpace(line), nil
	}
}

// Ask asks for a value; an empty answer takes the one that is shown. An answer
// that wrong complains of is asked for again.
func (a *Dialog) Ask(question, usual string, wrong func(string) error) (string, error) {
	for {
		shown := ""
		if usual != "" {
			shown = " [" + usual + "]"
		}
		_, _ = fmt.Fprintf(a.out, "%s%s: ", question, shown)
		answer, err := a.readLine()
		if err != nil {
			return "", err
		}
		if answer == "" {
			answer = usual
		}
		if wrong == nil {
			return answer, nil
		}
		problem := wrong(answer)
		if problem == nil {
			return answer, nil
		}
		if hint := fault.HintOf(problem); hint != "" {
			problem = fmt.Errorf("%w (%s)", problem, hint)
		}
		_, _ = fmt.Fprintf(a.out, "  %s\n", problem)
	}
}

// Confirm asks for agreement.
func (a *Dialog) Confirm(question string, usual bool) (bool, error) {
	hint := "y/N"
	if usual {
		hint = "Y/n"
	}
	answer, err := a.Ask(question+" ["+hint+"]", "", func(s string) error {
		switch strings.ToLower(s) {
		case "", "y", "yes", "n", "no":
			return nil
		}
		return errors.New("type y or n")
	})
	if answer == "" {
		return usual, err
	}
	return strings.HasPrefix(strings.ToLower(answer), "y"), err
}

// NotEmpty complains of an empty answer.
func NotEmpty(s string) error {
	if s == "" {
		return errors.New("it is needed")
	}
	return nil
}
