package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// screen shows statuses in place on a terminal.
type screen struct {
	f      *os.File
	p      Printer
	size   func() (cols, rows int)
	tick   *time.Ticker
	ticked chan time.Time
	resize chan os.Signal
	stop   chan struct{}
	last   []byte
}

// What a terminal is sent: a screen of its own, without the cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

func newScreen(f *os.File, p Printer) *screen {
	return &screen{f: f, p: p, size: func() (int, int) {
		cols, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || cols <= 0 || rows <= 0 {
			return 80, 24
		}
		return cols, rows
	}}
}

func (s *screen) Begin() error {
	s.resize, s.ticked, s.stop = make(chan os.Signal, 1), make(chan time.Time), make(chan struct{})
	notifyResize(s.resize)
	s.tick = time.NewTicker(time.Second)
	go func() {
		for {
			var at time.Time
			select {
			case <-s.stop:
				return
			case at = <-s.tick.C:
			case <-s.resize:
				at = time.Now()
			}
			select {
			case s.ticked <- at:
			case <-s.stop:
				return
			}
		}
	}()
	_, err := io.WriteString(s.f, enterScreen)
	return err
}

func (s *screen) End() {
	signal.Stop(s.resize)
	s.tick.Stop()
	close(s.stop)
	_, _ = io.WriteString(s.f, leaveScreen) // a terminal that was closed needs none
}

func (s *screen) Ticks() <-chan time.Time { return s.ticked }

func (s *screen) Show(all []cluster.Status, _ *cluster.Status, problems []string, away error) error {
	var b bytes.Buffer
	cols, rows := s.size()
	p := s.p
	p.w, p.width, p.now = NewCleaner(&b), cols, time.Now()
	if away != nil {
		p.Printf("%s\n\n", p.Paint(away.Error(), Yellow))
	}
	p.PrintProblems(problems)
	p.PrintStatuses(all)
	frame := drawFrame(b.Bytes(), cols, rows)
	if bytes.Equal(frame, s.last) {
		return nil
	}
	s.last = frame
	_, err := s.f.Write(frame)
	return err
}

// drawFrame returns what draws a text over the one before, in one piece so that nothing
// flickers: tables cut to the width, hints and what they belong to wrapped, and what is
// left of older lines wiped.
func drawFrame(text []byte, cols, rows int) []byte {
	lines := wrapHints(strings.Split(strings.TrimRight(string(text), "\n"), "\n"), cols)
	if over := len(lines) - rows; over > 0 && rows > 1 {
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("... %d more lines", over+1))
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(ansi.Truncate(line, cols, "…"))
		b.WriteString("\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.Bytes()
}

// wrapHints breaks the lines that begin with an arrow, and those before them, where
// they are wider than the screen: what to do is of no use by half.
func wrapHints(lines []string, cols int) []string {
	isHint := func(i int) bool { return i < len(lines) && strings.HasPrefix(strings.TrimLeft(lines[i], " "), "-> ") }
	var out []string
	for i, line := range lines {
		if isHint(i) || isHint(i+1) {
			out = append(out, wrapLine(line, cols)...)
			continue
		}
		out = append(out, line)
	}
	return out
}

// wrapLine breaks a line between words. What follows is indented as its text is.
func wrapLine(line string, cols int) []string {
	words := strings.Fields(line)
	if len(words) == 0 {
		return []string{line}
	}
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	now, arrow := indent+words[0], indent+"->"
	if now == arrow {
		indent += "   "
	}
	var out []string
	for _, w := range words[1:] {
		if now == arrow || ansi.StringWidth(now)+1+ansi.StringWidth(w) <= cols {
			now += " " + w
			continue
		}
		out = append(out, now)
		now = indent + w
	}
	return append(out, now)
}
