package validation

import (
	"path"
	"strings"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// longestExcerpt is how much of a line is shown.
const longestExcerpt = 100

// credentials are the user and password of a URL.
var credentials = pattern.New(`://[^/\s"']*@`)

// Excerpt returns the line that a problem points at, and the column in it, both
// for display: cut around the place, with blanks for tabs. There is none of a
// file of secrets, and none with the credentials of a URL.
func (r Result) Excerpt(p cluster.Problem) (line string, column int, ok bool) {
	if r.files == nil || p.Line == 0 || strings.Contains(path.Base(p.File), ".sops.") {
		return "", 0, false
	}
	data, err := inventory.ReadFile(r.files, p.File)
	if err != nil {
		return "", 0, false
	}
	lines := strings.Split(string(data), "\n")
	if p.Line > len(lines) || !utf8.ValidString(lines[p.Line-1]) || credentials.MatchString(lines[p.Line-1]) {
		return "", 0, false
	}
	shown := []rune(strings.ReplaceAll(strings.TrimRight(lines[p.Line-1], " \t\r"), "\t", " "))
	column = min(max(p.Column, 1), len(shown)+1)
	if from := column - longestExcerpt*3/4; from > 0 && len(shown) > longestExcerpt {
		shown, column = append([]rune("..."), shown[from:]...), column-from+len("...")
	}
	if len(shown) > longestExcerpt {
		shown = append(shown[:longestExcerpt:longestExcerpt], []rune("...")...)
	}
	return string(shown), column, strings.TrimSpace(string(shown)) != ""
}
