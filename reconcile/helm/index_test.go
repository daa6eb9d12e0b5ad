package helm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"
)

func TestVersionsIn(t *testing.T) {
	want := []version{{Version: "1.10", Digest: "abc", URLs: []string{"x.tgz"}}, {Version: "1.9.0"}}
	for name, index := range map[string]string{
		"as helm writes it": "apiVersion: v1\nentries:\n  aaa:\n  - version: 0.1.0\n  web:\n  - digest: abc\n    urls:\n    - x.tgz\n    version: 1.10\n  - version: 1.9.0\n  web-2:\n  - version: 2.0.0\ngenerated: \"2026\"\n",
		"indented lists":    "entries:\n    web:\n        - digest: abc\n          urls: [x.tgz]\n          version: \"1.10\"\n        - version: 1.9.0\n    zzz: []\n",
		"quoted key":        "entries:\n  \"web\":\n  - {digest: abc, urls: [x.tgz], version: \"1.10\"}\n  - {version: 1.9.0}\n",
		"last":              "generated: x\nentries:\n  'web':\n  # a comment\n\n  - {digest: abc, urls: [x.tgz], version: \"1.10\"}\n  - {version: 1.9.0}",
		"inline":            "entries:\n  web: [{digest: abc, urls: [x.tgz], version: \"1.10\"}, {version: 1.9.0}]\n",
		"windows":           "apiVersion: v1\r\nentries:\r\n  web:\r\n  - digest: abc\r\n    urls: [x.tgz]\r\n    version: \"1.10\"\r\n  - version: 1.9.0\r\n",
		"texts in between":  "entries:\n  web:\n  - description: |\n      entries:\n        web:\n    digest: abc\n    urls: [x.tgz]\n    version: \"1.10\"\n  - version: 1.9.0\n",
		"JSON":              `{"apiVersion":"v1","entries":{"aaa":[{"version":"1"}],"web":[{"digest":"abc","urls":["x.tgz"],"version":"1.10"},{"version":"1.9.0"}]},"generated":"x"}`,
	} {
		got, err := versionsIn(strings.NewReader(index), "web")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if got, err := versionsIn(strings.NewReader(index), "we"); err == nil || got != nil {
			t.Errorf("%s: a chart that is not there is %+v", name, got)
		}
	}
}

func TestVersionsInWhatIsNone(t *testing.T) {
	for _, index := range []string{"", "x", "<html>", "{", "{}", "[]", `{"entries": []}`, `{"entries": {"web": 1}}`, "entries:\n  web: {\n", "entries: {}\n", "web:\n- version: 1\n"} {
		if got, err := versionsIn(strings.NewReader(index), "web"); err == nil {
			t.Errorf("%q: %+v", index, got)
		}
	}
	if _, err := versionsIn(strings.NewReader("entries:\n  web:\n"+strings.Repeat("  - version: 1.0.0\n", maxEntry/10)), "web"); err == nil || !strings.Contains(err.Error(), "8 MiB") {
		t.Errorf("a large entry: %v", err)
	}
}

// TestVersionsLikeAParser: reading the lines of one chart gives what parsing
// all of the index gives, however it is written.
func TestVersionsLikeAParser(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z][a-z0-9-]{0,8}`)
		text := rapid.OneOf(rapid.StringMatching(`[a-z0-9:# \n'"{}\[\]|-]{0,30}`), rapid.String())
		entries := rapid.MapOfN(name, rapid.SliceOfN(rapid.Custom(func(t *rapid.T) map[string]any {
			return map[string]any{
				"version": rapid.StringMatching(`\d\.\d{1,2}\.\d`).Draw(t, "version"), "digest": rapid.StringMatching(`[0-9a-f]{4}`).Draw(t, "digest"),
				"description": text.Draw(t, "description"), "urls": []string{"a.tgz"},
			}
		}), 1, 3), 1, 5).Draw(t, "entries")
		index := map[string]any{"apiVersion": "v1", "entries": entries, "generated": "x"}
		var out bytes.Buffer
		e := yaml.NewEncoder(&out)
		e.SetIndent(rapid.IntRange(2, 5).Draw(t, "indent"))
		if err := e.Encode(index); err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "json") {
			b, err := json.Marshal(index)
			if err != nil {
				t.Fatal(err)
			}
			out.Reset()
			out.Write(b)
		}
		var whole struct{ Entries map[string][]version }
		if err := yaml.Unmarshal(out.Bytes(), &whole); err != nil {
			t.Skip("the encoder wrote what the parser cannot read: ", err)
		}
		for chart := range entries {
			got, err := versionsIn(bytes.NewReader(out.Bytes()), chart)
			if err != nil || !reflect.DeepEqual(got, whole.Entries[chart]) {
				t.Fatalf("%s: %+v, %v, want %+v in\n%s", chart, got, err, whole.Entries[chart], out.String())
			}
		}
	})
}

// TestVersionsBehindAnOddBreak: YAML 1.1 has line breaks besides the usual ones,
// which begin a line without being part of it.
func TestVersionsBehindAnOddBreak(t *testing.T) {
	for _, br := range []string{"\u0085", "\u2028", "\u2029\u2028"} {
		index := "entries:\n  a:\n  - description: |-\n      x\n" + br + "      y\n    version: 1.0.0\n    urls: [a.tgz]\n  web:\n  - version: 2.0.0\n    urls: [a.tgz]\n"
		got, err := versionsIn(strings.NewReader(index), "web")
		if err != nil || len(got) != 1 || got[0].Version != "2.0.0" {
			t.Errorf("%q: %+v, %v", br, got, err)
		}
	}
}

func FuzzVersionsIn(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nentries:\n  web:\n  - version: 1.0.0\n    urls: [x]\n"))
	f.Add([]byte(`{"entries":{"web":[{"version":"1"}]}}`))
	f.Add([]byte("entries:\n- web:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if versions, err := versionsIn(bytes.NewReader(b), "web"); err != nil && versions != nil {
			t.Errorf("%+v and %v", versions, err)
		}
	})
}

// BenchmarkVersionsIn is an index of 20 MB, as some repositories have.
func BenchmarkVersionsIn(b *testing.B) {
	var index bytes.Buffer
	index.WriteString("apiVersion: v1\nentries:\n")
	for chart := range 100 {
		fmt.Fprintf(&index, "  chart-%02d:\n", chart)
		for v := range 200 {
			fmt.Fprintf(&index, "  - apiVersion: v2\n    version: 1.0.%d\n    description: %s\n    urls:\n    - https://example.org/chart.tgz\n", v, strings.Repeat("word ", 180))
		}
	}
	b.SetBytes(int64(index.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if v, err := versionsIn(bytes.NewReader(index.Bytes()), "chart-50"); err != nil || len(v) != 200 {
			b.Fatal(len(v), err)
		}
	}
}
