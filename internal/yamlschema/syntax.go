package yamlschema

import (
	"errors"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// syntax records an error of the YAML parser, at the place that is to be
// corrected: the parser often stops a line later.
func (d Document) syntax(err error, data []byte) {
	m := explainSyntax(err, strings.Split(string(data), "\n"))
	message := "not valid YAML"
	if !d.Secret {
		message += ": " + m.message
	}
	d.Problem(m.at.Line, m.at.Column, "", message, m.hint)
}

// misreading is why a text is not YAML, in words for whoever wrote it. It quotes
// nothing of the text.
type misreading struct {
	at            cluster.Position
	message, hint string
}

const (
	hintQuotes = "put the whole value in quotes"
	hintIndent = "keys beside each other begin in the same column, and what belongs to one stands two spaces further right"
	hintPair   = "write key: value"
)

var (
	// noSpace is a line like key:value; the rest of a URL is no value.
	noSpace = pattern.New(`^(\s*(?:- )?[A-Za-z_][A-Za-z0-9_.-]*:)[^\s:/]`)
	// pair is a line with a key, or an item of a list, or no content.
	pair = pattern.New(`:(\s|$)|^\s*(-(\s|$)|#|$)`)
	// flow are the brackets that the parser was between, by its words for it.
	flow = map[string]string{"while parsing a flow mapping": "{}", "while parsing a flow sequence": "[]"}
	// reasons are what the parser's messages come from, in most files.
	reasons = map[string]func(lines []string, at, context cluster.Position) misreading{
		"could not find expected ':'": func(_ []string, _, context cluster.Position) misreading {
			return misreading{context, "the line is no key with a value", hintPair}
		},
		"found unexpected end of stream": func(_ []string, _, context cluster.Position) misreading {
			return misreading{context, "a quote that is never closed", "close it at the end of the value"}
		},
		"mapping values are not allowed in this context":         explainColon,
		"did not find expected key":                              explainKey,
		"found character that cannot start any token":            always("a value cannot begin with this character", hintQuotes),
		"did not find expected alphabetic or numeric character":  always("a value cannot begin with this character", hintQuotes),
		"block sequence entries are not allowed in this context": always("a list cannot begin behind its key", "begin it on the next line, or write [a, b]"),
		"did not find expected '-' indicator":                    always("the indentation fits no line of the list above", "items of a list begin in the same column, and so do the keys of one item"),
		"found unknown escape character":                         always("a backslash that means nothing between double quotes", `write \\ for a backslash, or use single quotes`),
		"did not find expected comment or line break":            always("text behind the | or >", "begin the text on the next line"),
		"did not find expected node content":                     always("a value is missing here, or a bracket is too many", ""),
	}
)

// always explains a message that needs no look at the text.
func always(message, hint string) func([]string, cluster.Position, cluster.Position) misreading {
	return func(_ []string, at, _ cluster.Position) misreading { return misreading{at, message, hint} }
}

// explainSyntax finds out what the writer of a text got wrong.
func explainSyntax(err error, lines []string) misreading {
	e, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return misreading{message: err.Error()}
	}
	at, context := cluster.Position{Line: e.Mark.Line, Column: e.Mark.Column}, cluster.Position{Line: e.ContextMark.Line, Column: e.ContextMark.Column}
	if m, found := findAccident(lines, at, context); found {
		return m
	}
	if between := flow[e.ContextMsg]; between != "" {
		return explainFlow(between, lineAt(lines, at.Line), at, context)
	}
	if explain := reasons[e.Message]; explain != nil {
		return explain(lines, at, context)
	}
	return misreading{at, strings.TrimPrefix(e.ContextMsg+": "+e.Message, ": "), ""}
}

// findAccident finds what happens to everybody, wherever the parser stumbled
// over it: what git leaves in a file, tabs, and a missing space.
func findAccident(lines []string, at, context cluster.Position) (misreading, bool) {
	for i, line := range lines {
		if strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") {
			return misreading{cluster.Position{Line: i + 1, Column: 1}, "a merge conflict that is not resolved",
				"keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>"}, true
		}
	}
	line := lineAt(lines, at.Line)
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	if i := strings.IndexByte(indent, '\t'); i >= 0 {
		return misreading{cluster.Position{Line: at.Line, Column: i + 1}, "a tab in the indentation", "indent with spaces"}, true
	}
	for _, n := range []int{at.Line, at.Line - 1, context.Line} {
		if m := noSpace.FindStringSubmatch(lineAt(lines, n)); m != nil {
			return misreading{cluster.Position{Line: n, Column: len(m[1]) + 1}, "there is no space after the colon", hintPair}, true
		}
	}
	return misreading{}, false
}

// explainFlow explains what is wrong between brackets or braces.
func explainFlow(between, line string, at, context cluster.Position) misreading {
	m := misreading{at, "a comma or the closing " + between[1:] + " is missing here", "close what is open, and separate what is in it by commas"}
	switch {
	case at.Line != context.Line:
		m.at, m.message = context, "a "+between[:1]+" without its "+between[1:]
	case strings.Contains(line, "${"):
		m.hint = "quote values with ${ between brackets or braces"
	}
	return m
}

// explainColon explains a colon where no key can be.
func explainColon(lines []string, at, _ cluster.Position) misreading {
	before := lineAt(lines, at.Line)
	before = before[:min(max(at.Column-1, 0), len(before))]
	if strings.Contains(before, ": ") {
		return misreading{at, "a second colon in the line", hintQuotes}
	}
	if above := lineAt(lines, at.Line-1); !pair.MatchString(above) {
		return misreading{cluster.Position{Line: at.Line - 1, Column: indentOf(above) + 1}, "the line is no key with a value", hintPair}
	}
	return misreading{cluster.Position{Line: at.Line, Column: indentOf(before) + 1}, "the line is indented further than the one above, whose key has a value already", hintIndent}
}

// explainKey explains what stands where the next key should.
func explainKey(lines []string, at, _ cluster.Position) misreading {
	line := lineAt(lines, at.Line)
	switch {
	case at.Column > indentOf(line)+1:
		return misreading{at, "text behind the end of the value", hintQuotes}
	case strings.HasPrefix(strings.TrimSpace(line), "-"):
		return misreading{at, "an item of a list where a key should stand", hintIndent}
	}
	return misreading{at, "the indentation fits no key above", hintIndent}
}

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// lineAt returns a line, counted from 1; "" where there is none.
func lineAt(lines []string, n int) string {
	if n < 1 || n > len(lines) {
		return ""
	}
	return strings.TrimSuffix(lines[n-1], "\r")
}
