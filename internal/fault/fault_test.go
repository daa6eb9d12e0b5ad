package fault

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestError(t *testing.T) {
	for _, c := range []struct {
		err        error
		text, hint string
	}{
		{&Error{Op: "read a"}, "read a", ""},
		{&Error{Op: "read a", Err: io.EOF, Hint: "write it"}, "read a: EOF", "write it"},
		{WithHint(io.EOF, "write it"), "EOF", "write it"},
		{Errorf("write it", "read %s: %w", "a", io.EOF), "read a: EOF", "write it"},
		{fmt.Errorf("load: %w", WithHint(io.EOF, "write it")), "load: EOF", "write it"},
		{WithHint(WithHint(io.EOF, "inner"), "outer"), "EOF", "outer"},
		{&Error{Op: "load", Err: WithHint(io.EOF, "inner")}, "load: EOF", "inner"},
		{errors.Join(io.EOF, WithHint(io.EOF, "second")), "EOF\nEOF", "second"},
		{io.EOF, "EOF", ""},
	} {
		if got := c.err.Error(); got != c.text {
			t.Errorf("text %q, want %q", got, c.text)
		}
		if got := HintOf(c.err); got != c.hint {
			t.Errorf("%s: hint %q, want %q", c.text, got, c.hint)
		}
		if c.text != "read a" && !errors.Is(c.err, io.EOF) {
			t.Errorf("%s: its cause is not found", c.text)
		}
	}
	if got := HintOf(nil); got != "" {
		t.Errorf("no error has the hint %q", got)
	}
}

func TestInternal(t *testing.T) {
	err := Internal("index out of range")
	if err.Error() != "internal error: index out of range" || HintOf(err) != "please report it, with the agent's log" {
		t.Errorf("%v, hint %q", err, HintOf(err))
	}
}
