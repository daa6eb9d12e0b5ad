package yamlschema

import (
	"strings"
	"testing"
	"time"
)

// FuzzDecode checks what holds of every file: decoding ends, and each problem
// is whole, can be printed on one line and points into the file.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "name: x", "name: x\nbeds: [{plant: rose, rows: 3}]\nposts: [100-199]\nfor: 90m\n", "a: &a [*a]", "? [a]\n: b", "<<: {}", "name: |\n x\n",
		"beds: {", "name: \"\\u0000\"", "# x\n---\n...\n---\n", "%YAML 1.1\n---\na: b", "labels: {a: ~}", strings.Repeat("- ", 100)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, problems := decodeGarden(string(data))
		if len(problems) > MaxErrors+1 {
			t.Errorf("%d problems", len(problems))
		}
		for _, p := range problems {
			if p.File == "" || p.Message == "" || p.Line < 0 || p.Column < 0 {
				t.Errorf("incomplete problem %+v", p)
			}
			if text := p.String(); strings.ContainsAny(text, "\n\r\x00\x1b") || len(text) > 2000 {
				t.Errorf("unprintable problem %q", text)
			}
		}
		if !problems.HasErrors() && g.Name == "" {
			t.Error("a required text is missing, and nothing reports it")
		}
	})
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"40G", "100GiB", "40", "1T", "512M", "9223372036854775807T", "-1G", "4e1G", "40 G", "GG", "0G"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseSize(s)
		if err != nil {
			return
		}
		if got <= 0 || got > maxSize {
			t.Fatalf("%q is %d", s, got)
		}
		if again, err := ParseSize(got.String()); err != nil || again != got {
			t.Fatalf("%q prints as %s, which is %d, %v", s, got, again, err)
		}
	})
}

// FuzzScalars checks the bounds of the other scalars.
func FuzzScalars(f *testing.F) {
	for _, s := range []string{"10.10.0.0/24", "10.10.0.11", "501-599", "100-999999999", "5-", "15m", "0.5s", "::1", "10.10.0.1/24", "-1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := parseAddr(s); err == nil && !a.Is4() {
			t.Errorf("%q is %s", s, a)
		}
		if p, err := parsePrefix(s); err == nil && (!p.Addr().Is4() || p != p.Masked()) {
			t.Errorf("%q is %s", s, p)
		}
		if r, err := parseVMIDs(s); err == nil && (r.First < MinVMID || r.Last > MaxVMID || r.First > r.Last) {
			t.Errorf("%q is %v", s, r)
		}
		if d, err := parseDuration(s); err == nil && (d < time.Second || d > maxDuration) {
			t.Errorf("%q is %s", s, d)
		}
	})
}
