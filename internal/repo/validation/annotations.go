package validation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Forges show problems at the line in their pages if they get them in a form of their
// own. Files are named as seen from the root of the repository, which is the directory
// that jobs work in.

// WorkflowCommand returns a problem of the repository in dir as a workflow command of
// GitHub Actions, which Gitea and Forgejo know too. At most ten of a kind are shown at
// their lines for each step, and all of them in its log.
func WorkflowCommand(p cluster.Problem, dir string) string {
	level := map[cluster.Severity]string{cluster.Error: "error", cluster.Warning: "warning", cluster.Note: "notice"}[p.Severity]
	var properties []string
	add := func(key, value string) {
		properties = append(properties, key+"="+strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C").Replace(value))
	}
	if p.File != "" {
		add("file", path.Join(filepath.ToSlash(dir), p.File))
	}
	if p.Line > 0 {
		add("line", fmt.Sprint(p.Line))
	}
	if p.Column > 0 {
		add("col", fmt.Sprint(p.Column))
	}
	return fmt.Sprintf("::%s %s::%s", level, strings.Join(properties, ","), strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(withoutPlace(p)))
}

// WithoutCommands is a text for the log of a job in which nothing is a workflow command:
// much of it was named by whoever wrote the repository. A command is a line that begins
// with "::" after blanks or, in the older form, that has "##[" anywhere.
func WithoutCommands(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "##[", "## ["), "\n")
	for i, line := range lines {
		if rest := strings.TrimLeftFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }); strings.HasPrefix(rest, "::") {
			lines[i] = line[:len(line)-len(rest)] + ": " + rest[1:]
		}
	}
	return strings.Join(lines, "\n")
}

// withoutPlace is a problem in words, where its place is shown besides.
func withoutPlace(p cluster.Problem) string {
	p.File, p.Line, p.Column, p.Severity = "", 0, 0, cluster.Error
	return p.String()
}

// finding is one entry of a Code Quality report.
type finding struct {
	Description string `json:"description"`
	Check       string `json:"check_name"`
	Fingerprint string `json:"fingerprint"` // by which GitLab knows it in another revision
	Severity    string `json:"severity"`
	Location    struct {
		Path  string `json:"path"`
		Lines struct {
			Begin int `json:"begin"`
		} `json:"lines"`
	} `json:"location"`
}

// CodeQuality returns the problems as a Code Quality report, the artifact of which
// GitLab shows what is new in a merge request, at its line.
func (r Result) CodeQuality(dir string) ([]byte, error) {
	out := []finding{}
	seen := map[string]int{}
	for _, p := range r.Problems {
		f := finding{Description: withoutPlace(p), Check: "talos-agent validate",
			Severity: map[cluster.Severity]string{cluster.Error: "critical", cluster.Warning: "minor", cluster.Note: "info"}[p.Severity]}
		f.Location.Path = path.Join(filepath.ToSlash(dir), p.File)
		f.Location.Lines.Begin = max(p.Line, 1)
		// Its line may move with what stands above it.
		key := f.Location.Path + "\x00" + f.Description
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", key, seen[key]))
		f.Fingerprint = hex.EncodeToString(sum[:])
		seen[key]++
		out = append(out, f)
	}
	return json.MarshalIndent(out, "", "  ")
}
