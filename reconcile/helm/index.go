package helm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
)

// The bounds of a repository's index.
const (
	maxIndex = 50 << 20
	maxLine  = 4 << 20
	maxEntry = 8 << 20 // all versions of one chart
)

// version is one version of a chart as an index lists it.
type version struct {
	Version string   `yaml:"version" json:"version"`
	Digest  string   `yaml:"digest" json:"digest"` // hex SHA-256 of the archive, often missing
	URLs    []string `yaml:"urls" json:"urls"`     // of the archive, relative to the repository or absolute
}

// errNoChart: an index lists no chart of that name.
var errNoChart = errors.New("no chart of that name")

// versionsIn reads the versions of one chart from an index.yaml. An index may
// have 50 MiB, of which one chart is a small part: the rest is skipped line by
// line and never parsed.
func versionsIn(index io.Reader, name string) ([]version, error) {
	in := bufio.NewReader(index)
	if first, err := in.Peek(1); err == nil && first[0] == '{' {
		return versionsInJSON(in, name)
	}
	block, err := entryOf(in, name)
	if err != nil {
		return nil, err
	}
	var entry map[string][]version
	if err := yaml.Unmarshal(block, &entry); err != nil {
		return nil, fmt.Errorf("its entry of %s cannot be read: %s", name, sanitize(err.Error()))
	}
	for _, versions := range entry {
		return versions, nil
	}
	return nil, errNoChart
}

// entryOf takes the lines of one chart out of an index: its key below
// "entries:" and everything that is indented deeper, or is an item of a list at
// the key's own indentation.
func entryOf(in io.Reader, name string) ([]byte, error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	var block []byte
	inside, found, indent := false, false, -1
	for lines.Scan() {
		line := withoutBreaks(lines.Bytes())
		text := bytes.TrimLeft(line, " ")
		depth := len(line) - len(text)
		blank := len(text) == 0 || text[0] == '#'
		switch {
		case !inside:
			inside = depth == 0 && string(bytes.TrimRight(text, " \r")) == "entries:"
			continue
		case !blank && depth == 0:
			return block, endOfEntries(found)
		case !blank && indent < 0:
			indent = depth
		}
		if !blank && depth == indent && text[0] != '-' {
			if found {
				return block, nil
			}
			found = keyOf(text) == name
		}
		if found {
			block = append(append(block, line...), '\n')
			if len(block) > maxEntry {
				return nil, fmt.Errorf("its entry of %s is larger than %d MiB", name, maxEntry>>20)
			}
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("it has a line of more than %d MiB", maxLine>>20)
	} else if err != nil {
		return nil, err
	}
	if !inside {
		return nil, errors.New("it is no index of a chart repository")
	}
	return block, endOfEntries(found)
}

// oddBreaks are the line breaks of YAML 1.1 besides those of everybody: next
// line, line separator and paragraph separator.
const oddBreaks = "\u0085\u2028\u2029"

// withoutBreaks is a line without odd breaks before it: what follows them is
// indented like any line.
func withoutBreaks(line []byte) []byte { return bytes.TrimLeft(line, oddBreaks) }

func endOfEntries(found bool) error {
	if !found {
		return errNoChart
	}
	return nil
}

// keyOf is the key of a line of YAML, without quotes.
func keyOf(line []byte) string {
	key, _, ok := strings.Cut(string(line), ":")
	if !ok {
		return ""
	}
	key = strings.TrimSpace(key)
	for _, quote := range []string{`"`, `'`} {
		if len(key) > 1 && strings.HasPrefix(key, quote) && strings.HasSuffix(key, quote) {
			key = key[1 : len(key)-1]
		}
	}
	return key
}

// versionsInJSON is versionsIn for an index that is written as JSON.
func versionsInJSON(in io.Reader, name string) ([]version, error) {
	d := json.NewDecoder(in)
	bad := func(err error) error {
		return fmt.Errorf("it is no index of a chart repository: %s", sanitize(err.Error()))
	}
	depth := 0
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil, errNoChart
		}
		if err != nil {
			return nil, bad(err)
		}
		key, isKey := t.(string)
		switch {
		case t == json.Delim('{'):
			depth++
		case t == json.Delim('}'):
			depth--
		case isKey && depth == 1 && key == "entries":
			// The charts are the next object.
		case isKey && depth == 2 && key == name:
			var versions []version
			if err := d.Decode(&versions); err != nil {
				return nil, fmt.Errorf("its entry of %s cannot be read: %s", name, sanitize(err.Error()))
			}
			return versions, nil
		default:
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return nil, bad(err)
			}
		}
	}
}
