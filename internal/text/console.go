package text

import "strings"

// Console cleans what comes from a serial port, piece by piece: escape sequences
// and control characters go, lines and tabs stay. The zero value is ready.
type Console struct{ state consoleState }

type consoleState int

const (
	consoleText     consoleState = iota
	consoleEscape                // after ESC
	consoleSequence              // in a CSI sequence, which ends with a letter
	consoleString                // in an OSC or the like, which ends with BEL or ESC \
	consoleCharset               // one character more
)

// Clean returns the text of a piece.
func (c *Console) Clean(piece []byte) string {
	var b strings.Builder
	for _, r := range piece {
		switch c.state {
		case consoleEscape:
			switch r {
			case '[':
				c.state = consoleSequence
			case ']', 'P', 'X', '^', '_':
				c.state = consoleString
			case '(', ')', '*', '+', '#', '%', ' ':
				c.state = consoleCharset
			default:
				c.state = consoleText
			}
			continue
		case consoleSequence:
			if r >= 0x40 && r <= 0x7e {
				c.state = consoleText
			}
			continue
		case consoleString:
			if r == 0x07 {
				c.state = consoleText
			} else if r == 0x1b {
				c.state = consoleCharset // the backslash that ends it
			}
			continue
		case consoleCharset:
			c.state = consoleText
			continue
		}
		switch {
		case r == 0x1b:
			c.state = consoleEscape
		case r == '\n' || r == '\t' || r >= 0x20 && r != 0x7f:
			b.WriteByte(r)
		}
	}
	return strings.Map(func(r rune) rune {
		if r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(b.String(), "?"))
}
