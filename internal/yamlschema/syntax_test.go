package yamlschema

import (
	"strings"
	"testing"
)

// TestSyntaxInPlainWords: what people get wrong in YAML is told at the line that
// is to be corrected, in words about the text and not about the parser.
func TestSyntaxInPlainWords(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a: 1\n\tb: 2\n", "2:1: a tab in the indentation (indent with spaces)"},
		{"a:\n  \t- x\n", "2:3: a tab in the indentation (indent with spaces)"},
		{"a:v1\nb: 2\n", "1:3: there is no space after the colon (write key: value)"},
		{"x: 1\na:v1\nb: 2\n", "2:3: there is no space after the colon (write key: value)"},
		{"x: 1\na:v1\n", "2:3: there is no space after the colon (write key: value)"},
		{"x:\n  a:v1\n  b: 2\n", "2:5: there is no space after the colon (write key: value)"},
		{"a: 1\n b: 2\n", "2:2: the line is indented further than the one above, whose key has a value already (" + hintIndent + ")"},
		{"a:\n    b: 1\n  c: 2\n", "3:3: the indentation fits no key above (" + hintIndent + ")"},
		{"a:\n  - x: 1\n   y: 2\n", "3:4: the indentation fits no line of the list above (items of a list begin in the same column, and so do the keys of one item)"},
		{"a: \"x\nb: 2\n", "1:4: a quote that is never closed (close it at the end of the value)"},
		{"a: {b: 1\nc: 2\n", "1:4: a { without its } (close what is open, and separate what is in it by commas)"},
		{"a: [b\n", "1:4: a [ without its ] (close what is open, and separate what is in it by commas)"},
		{"a: {b: 1 c: 2}\n", "1:11: a comma or the closing } is missing here (close what is open, and separate what is in it by commas)"},
		{"a: b: c\n", "1:5: a second colon in the line (put the whole value in quotes)"},
		{"a: @x\n", "1:4: a value cannot begin with this character (put the whole value in quotes)"},
		{"a: *\n", "1:5: a value cannot begin with this character (put the whole value in quotes)"},
		{"a: - b\n", "1:4: a list cannot begin behind its key (begin it on the next line, or write [a, b])"},
		{"<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> x\n", "1:1: a merge conflict that is not resolved (keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>)"},
		{"b: 1\r\n<<<<<<< HEAD\r\na: 1\r\n", "2:1: a merge conflict that is not resolved (keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>)"},
		{"a: \"x\" y\n", "1:8: text behind the end of the value (put the whole value in quotes)"},
		{"a: \"\\d\"\n", "1:5: a backslash that means nothing between double quotes (write \\\\ for a backslash, or use single quotes)"},
		{"b: 1\n- a\n", "2:1: an item of a list where a key should stand (" + hintIndent + ")"},
		{"b: 1\nkey without colon\nc: 1\n", "2:1: the line is no key with a value (write key: value)"},
		{"key without colon\nb: 1\n", "1:1: the line is no key with a value (write key: value)"},
		{"a: }\n", "1:4: a value is missing here, or a bracket is too many"},
	} {
		d := Document{File: "f", Report: NewReport()}
		d.Single([]byte(c.text))
		got := strings.TrimPrefix(d.Finish().Error(), "f:")
		if want := strings.Replace(c.want, ": ", ": not valid YAML: ", 1); got != want {
			t.Errorf("%q\ngot  %s\nwant %s", c.text, got, want)
		}
	}
}

// TestMisspeltKeyIsOneMistake: what is missing because its key is misspelt is not
// told beside it.
func TestMisspeltKeyIsOneMistake(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"nmae: x", `g.yaml:1:1: unknown key "nmae" (did you mean name?)`},
		{"{name:x, gate: open}", `g.yaml:1:2: unknown key "name:x" (put a space after the colon: name: x)`},
		{"name: x\nbeds:\n  -plant: rose\n", `g.yaml:3:3: beds: is a list, not a mapping (put a space after each dash)`},
		{"name: x\nbeds: [{-plant: rose}]", `g.yaml:2:9: beds[0]: unknown key "-plant" (put a space after the dash: - plant)`},
		{"name: x\ntags:\n  -a\n  -b", `g.yaml:3:3: tags: is a list, not the single value "-a -b" (put a space after each dash)`},
		{"name: x\ndoor: plant:rose", `g.yaml:2:7: door: needs keys of its own, not the single value "plant:rose" (put a space after the colon)`},
	} {
		_, problems := decodeGarden(c.text)
		if got := problems.Error(); got != c.want {
			t.Errorf("%q\ngot  %s\nwant %s", c.text, got, c.want)
		}
	}
	r := NewReport()
	d := decoder{Document: Document{Report: r}}
	d.misspelt["a.b"] = true
	r.Wrong("a.b", "", "is missing")
	r.Wrong("a.b.c", "", "is missing")
	r.Wrong("a.c", "", "is told")
	if len(r.Problems) != 1 || r.Problems[0].Message != "is told" {
		t.Error(r.Problems)
	}
}
