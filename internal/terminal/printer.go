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
	now    time.Time
}

// New makes a printer for the format of --output: text, "" for the same, or json.
func New(w io.Writer, output string) (Printer, error) {
	p := NewPlain(w)
	switch output {
	case "json":
		p.json, p.w = true, w
	case "", "text":
		p.colour = IsTerminal(w) && showsColours(os.Environ())
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
	return ok && term.IsTerminal(int(f.Fd()))
}

// showsColours reports whether a terminal has colours, and is to show them.
func showsColours(environment []string) bool {
	for _, v := range environment {
		if value, ok := strings.CutPrefix(v, "NO_COLOR="); ok && value != "" {
			return false
		}
	}
	// Not Detect, which runs tmux where it is: that there are colours is enough.
	return colorprofile.Env(environment) >= colorprofile.ANSI
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
