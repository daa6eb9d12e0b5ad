package terminal

import (
	"bytes"
	"io"
	"unicode/utf8"
)

// Cleaner is a writer for people. Much of what is printed was written by others:
// Kubernetes, Helm, a VM's console, the author of a commit. None of it may
// command the terminal: control characters are shown as "?", and of escape
// sequences only colours pass.
type Cleaner struct{ w io.Writer }

// NewCleaner makes a writer that cleans what it writes to w.
func NewCleaner(w io.Writer) Cleaner { return Cleaner{w} }

// Write implements io.Writer. It wants whole sequences in one call.
func (c Cleaner) Write(p []byte) (int, error) {
	if _, err := c.w.Write(cleanText(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// cleanText makes a text command nothing.
func cleanText(p []byte) []byte {
	if !bytes.ContainsFunc(p, isCommand) && utf8.Valid(p) {
		return p
	}
	out := make([]byte, 0, len(p))
	for len(p) > 0 {
		if n := colourLength(p); n > 0 {
			out, p = append(out, p[:n]...), p[n:]
			continue
		}
		r, n := utf8.DecodeRune(p)
		if isCommand(r) || r == utf8.RuneError && n == 1 {
			out = append(out, '?')
		} else {
			out = append(out, p[:n]...)
		}
		p = p[n:]
	}
	return out
}

// isCommand reports whether a terminal might obey a character instead of showing
// it: controls, and those that change the direction of writing.
func isCommand(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x20, r >= 0x7f && r < 0xa0:
		return true
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c:
		return true
	}
	return false
}

// colourLength is the length of the escape sequence for a colour that p begins with,
// 0 when it begins with none.
func colourLength(p []byte) int {
	rest, ok := bytes.CutPrefix(p, []byte("\x1b["))
	if !ok {
		return 0
	}
	for i, b := range rest {
		switch {
		case b == 'm':
			return i + len("\x1b[m")
		case (b < '0' || b > '9') && b != ';' || i > 8:
			return 0
		}
	}
	return 0
}
