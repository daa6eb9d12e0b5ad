package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"
	"golang.org/x/term"
)

// Printer writes for people or for programs. Colour is for terminals only, and
// never carries anything the words do not.
type Printer struct {
	w      io.Writer
	json   bool
	colour bool
	width  int // of the screen; 0: there is none
	now    time.Time
}

// New makes a printer for the format of --output: text, "" for the same, or json.
func New(w io.Writer, output string) (Printer, error) {
	p := NewPlain(w)
	switch output {
	case "json":
		p.json, p.w = true, w
	case "", "text":
		p.colour = showsColours(IsTerminal(w), os.Environ())
		p.width = widthOf(w)
	default:
		return p, fmt.Errorf("--output %q: write text or json", output)
	}
	return p, nil
}

// NewPlain makes a printer for people that shows no colours.
func NewPlain(w io.Writer) Printer { return Printer{w: NewCleaner(w), now: time.Now()} }

// IsTerminal reports whether somebody sees at once what is written to w.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && takesSequences(f)
}

// IsDumb reports whether the terminal of this process can do nothing but print:
// no moving about, no second screen.
func IsDumb() bool { return os.Getenv("TERM") == "dumb" }

// widthOf is how many columns a terminal has; 0 for anything else.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return 0
}

// showsColours reports whether there are to be colours: on a terminal that has
// them, and anywhere else where they are asked for, as for the log of a CI run.
// Who wants none has the last word.
func showsColours(terminal bool, environment []string) bool {
	forced := false
	for _, v := range environment {
		key, value, _ := strings.Cut(v, "=")
		switch key {
		case "NO_COLOR":
			if value != "" {
				return false
			}
		case "CLICOLOR_FORCE", "FORCE_COLOR":
			forced = forced || value != "" && value != "0" && value != "false"
		}
	}
	// Not Detect, which runs tmux where it is: that there are colours is enough.
	return forced || terminal && colorprofile.Env(environment) >= colorprofile.ANSI
}

// At is the printer at a moment, which ages are counted to.
func (p Printer) At(now time.Time) Printer {
	p.now = now
	return p
}

// IsJSON reports whether it writes for a program.
func (p Printer) IsJSON() bool { return p.json }

// PrintJSON writes one value in the envelope every JSON output of the program
// has.
func (p Printer) PrintJSON(kind string, v any) error {
	enc := json.NewEncoder(p.w)
	enc.SetIndent("", "  ")
	return enc.Encode(NewEnvelope(kind, v))
}

// PrintJSONLine writes one value in its envelope on one line.
func (p Printer) PrintJSONLine(kind string, v any) error {
	return json.NewEncoder(p.w).Encode(NewEnvelope(kind, v))
}

// Envelope is around every JSON output of the program.
type Envelope struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Data       any    `json:"data"`
}

// NewEnvelope puts a value into its envelope.
func NewEnvelope(kind string, v any) Envelope { return Envelope{Kind: kind, APIVersion: "v1", Data: v} }

// Printf prints as fmt.Printf does.
func (p Printer) Printf(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format, args...) }

// Colour is how a word is painted, in the form that terminals take.
type Colour string

// What is good, what may become so, what is not, and what matters little.
const (
	Green  Colour = "32"
	Yellow Colour = "33"
	Red    Colour = "31"
	Faint  Colour = "2"
)

// Paint colours a word on a terminal.
func (p Printer) Paint(word string, c Colour) string {
	if !p.colour {
		return word
	}
	return "\x1b[" + string(c) + "m" + word + "\x1b[0m"
}
