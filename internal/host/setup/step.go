package setup

import (
	"fmt"
	"io/fs"
	"strings"
)

// Step is one thing to do to a host, idempotent: done twice, or interrupted and done
// again, it leads to the same host. Exactly one of Call, Dir, File, Remove and
// Run describes what it is.
type Step struct {
	// Name distinguishes the steps of a plan, for the record: "pool talos".
	Name string
	// What describes it, in the imperative.
	What string
	// Makes names what the step makes that was not there, so that undo may take
	// it away: mostly the step's own name.
	Makes []string

	Call   *Call
	Dir    *NewFile // only Path and Mode
	File   *NewFile
	Remove string   // the path of a file
	Run    []string // a program and its arguments
}

// Call is a call of Proxmox VE's API as root, by pvesh.
type Call struct {
	Verb    string // create, set or delete
	Path    string
	Options []Option
	// SecretTo is the file that takes the token which the answer holds.
	SecretTo *NewFile
}

// Option is a parameter of a call.
type Option struct{ Name, Value string }

// Args are the arguments of pvesh. None is a secret.
func (c Call) Args() []string {
	args := []string{c.Verb, c.Path}
	for _, o := range c.Options {
		args = append(args, "--"+o.Name, o.Value)
	}
	return args
}

// Origin is where the content of a file comes from.
type Origin string

// The origins of content. Keys are made when the step is carried out, so that
// they are never anywhere else.
const (
	FromContent   Origin = ""
	FromAgeKey    Origin = "a new age key"
	FromSSHKey    Origin = "a new ssh key"
	FromProxmoxVE Origin = "the secret of the new token"
)

// NewFile is a file to write. A file that is there is replaced whole.
type NewFile struct {
	Path    string
	Mode    fs.FileMode
	Group   string // "" is root's
	Content []byte // of origin FromContent
	Origin  Origin
	// Kept content is what the file holds already: only its owner and mode are
	// given to it.
	Kept bool
	// Secret content is never shown.
	Secret bool
}

// String keeps the content out of logs and errors.
func (f NewFile) String() string { return fmt.Sprintf("%s, mode %04o", f.Path, f.Mode) }

// Shown is the step as people read it and could type it: a line of pvesh, a file
// with owner and mode, a command.
func (s Step) Shown() string {
	access := func(f NewFile) string { return fmt.Sprintf("root:%s %04o", fileOwner(f), f.Mode) }
	switch {
	case s.Call != nil:
		words := []string{"pvesh"}
		for _, a := range s.Call.Args() {
			words = append(words, quoteArg(a))
		}
		line := strings.Join(words, " ")
		if to := s.Call.SecretTo; to != nil {
			line += fmt.Sprintf("   # its secret goes to %s (%s)", to.Path, access(*to))
		}
		return line
	case s.Dir != nil:
		return fmt.Sprintf("directory %s (%s)", s.Dir.Path, access(*s.Dir))
	case s.File != nil && s.File.Origin != FromContent:
		return fmt.Sprintf("file %s (%s): %s", s.File.Path, access(*s.File), s.File.Origin)
	case s.File != nil:
		return fmt.Sprintf("file %s (%s)", s.File.Path, access(*s.File))
	case s.Remove != "":
		return "remove " + s.Remove
	}
	return strings.Join(s.Run, " ")
}

// quoteArg is a word as a shell takes it.
func quoteArg(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n'\"\\$`!*?[](){}<>|&;~#") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Plan is what a host still needs.
type Plan struct {
	Steps []Step
	// Notes describe what is left as it is, and why.
	Notes []string
	// Conflicts are files that somebody else wrote or changed. They are replaced
	// only with --force.
	Conflicts []Conflict
}

// Conflict is a file whose content is not what this program wrote.
type Conflict struct {
	Path       string
	Have, Want []byte
	Secret     bool // not to be shown
}

// String keeps what the files hold out of logs and errors.
func (c Conflict) String() string { return c.Path }

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}
