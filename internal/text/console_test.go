package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestConsoleIsCleaned(t *testing.T) {
	for raw, want := range map[string]string{
		"[talos] up\r\nnext\n":                       "[talos] up\nnext\n",
		"\x1b[2J\x1b[01;01HBooting\x1b[0m":           "Booting",
		"\x1b]0;title\x07text\x1b]52;c;x\x1b\\more":  "textmore",
		"\x1b(Ba\x1bcb\x08\x00\x7f":                  "ab",
		"caf\xc3\xa9 \xff \u202eevil\u009b":          "café ? evil",
		"\x1b[38;5;1":                                "",
		"a\tb\nc\rd":                                 "a\tb\ncd",
		"\x1b[1\x7f;2mx":                             "x",
		"\u202a\u202e\u2066\u2069\u2029\u206a\u2028": "\u2029\u206a\u2028",
		"\u0080\u009f\u00a0":                         "\u00a0",
	} {
		var c Console
		if got := c.Clean([]byte(raw)); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
		// In pieces of one byte: as far as no character is split the same.
		var whole strings.Builder
		c = Console{}
		for i := range len(raw) {
			whole.WriteString(c.Clean([]byte(raw[i : i+1])))
		}
		if got := whole.String(); strings.IndexFunc(raw, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 && got != want {
			t.Errorf("%q in pieces: %q, want %q", raw, got, want)
		}
	}
}

func FuzzConsole(f *testing.F) {
	f.Add([]byte("\x1b[2Jx"), []byte("\x1b]"))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var c Console
		text := c.Clean(one) + c.Clean(two)
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q", text)
		}
	})
}
