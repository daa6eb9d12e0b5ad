package terminal

import (
	"io"
	"sync"
)

// LiveLine is a line that changes in place below what is printed, where somebody
// sees it: on a terminal.
type LiveLine struct {
	w     io.Writer
	shown bool // on a terminal

	mu   sync.Mutex
	line string // as it is shown; "": none
}

// NewLiveLine makes the line below what is printed to w.
func NewLiveLine(w io.Writer) *LiveLine { return &LiveLine{w: w, shown: IsTerminal(w) && !IsDumb()} }

// Print prints a text above the line.
func (l *LiveLine) Print(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.line
	l.erase()
	_, _ = io.WriteString(l.w, text)
	if l.line = line; line != "" {
		_, _ = io.WriteString(l.w, line)
	}
}

// Set shows what format makes for so many columns.
func (l *LiveLine) Set(format func(columns int) string) {
	if !l.shown {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	line := format(l.columns())
	if line == l.line {
		return
	}
	l.line = line
	_, _ = io.WriteString(l.w, "\r\x1b[K"+line)
}

// Clear removes the line.
func (l *LiveLine) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erase()
}

func (l *LiveLine) erase() {
	if l.line != "" {
		_, _ = io.WriteString(l.w, "\r\x1b[K")
		l.line = ""
	}
}

// columns is how wide the terminal is now: people change it while they watch.
func (l *LiveLine) columns() int {
	if width := widthOf(l.w); width > 0 {
		return width
	}
	return 80
}
