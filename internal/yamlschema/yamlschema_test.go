package yamlschema

import (
	_ "embed"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/yamlschema/schematest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// garden is a kind of file with every kind of field.
type garden struct {
	// Name of the garden.
	Name string `yaml:"name" is:"word" required:"true" example:"north"`
	// Its gate.
	Gate string `yaml:"gate" enum:"open,closed" later:"ajar" default:"closed"`
	// Whether it is watered.
	Watered bool `yaml:"watered" later:"true" default:"false"`
	// Its beds.
	Beds []bed `yaml:"beds" example:"[{plant: rose, rows: 3}]"`
	// The bed by the door. Its keys are those of beds.
	Door bed `yaml:"door" keys:"elsewhere"`
	// Words about it.
	Tags []string `yaml:"tags" is:"word" example:"[old]"`
	// How it is watered: how long, or in detail.
	Rain rain `yaml:"rain" short:"least" example:"{least: 15m}"`
	// Texts about it.
	Labels map[string]string `yaml:"labels" example:"{soil: sand}"`
	// What somebody else understands.
	Rest Tree `yaml:"rest" example:"{any: thing}"`
	fence
}

type rain struct {
	// How long at least.
	Least time.Duration `yaml:"least" example:"15m"`
	// How long at most.
	Most time.Duration `yaml:"most" example:"30m"`
}

// fence adds its keys to the garden's.
type fence struct {
	// Where it is.
	At netip.Addr `yaml:"at" example:"10.0.0.1"`
	// What it encloses.
	Around netip.Prefix `yaml:"around" example:"10.0.0.0/24"`
	// How much of it there is.
	Length Size `yaml:"length" example:"40G"`
	// Which posts.
	Posts []cluster.Range `yaml:"posts" example:"[100-199]"`
	// How long it lasts.
	For time.Duration `yaml:"for" default:"1h" example:"15m"`
	// The file with the key.
	KeyFile string `yaml:"key_file" is:"path" example:"key"`
	// The mark on it, or nothing.
	Mark string `yaml:"mark" is:"mark"`
}

type bed struct {
	// What grows in it.
	Plant string `yaml:"plant" is:"word" required:"true" example:"rose"`
	// How many rows of it.
	Rows int `yaml:"rows" unit:"number of rows" min:"1" max:"9" example:"3"`
	// Water for it.
	RAM int `yaml:"ram" unit:"number of MiB" min:"1" max:"4096" example:"8"`
}

//go:embed yamlschema_test.go
var testSource string

var gardens = Language{
	Formats: map[string]Format{
		"word": Text("a word", "rose", `^[a-z]+$`, 8),
		"path": Text("a path", "key", `^[a-z/]+$`, 100).AsPrivate(),
		"mark": Text("a mark", "", `^[0-9]{4}$`, 4).OrEmpty(),
	},
	Synonyms: map[string][]string{"beds": {"borders"}},
	Foreseen: map[string]string{"pond": "remove it"},
	Foreign:  map[string]string{"lawn": "write a bed", "door.hinge": "doors have none", "gate": "never, it is a key"},
	Sources:  []string{testSource},
}

func decodeGarden(text string) (garden, cluster.Problems) {
	d := Document{File: "g.yaml", Report: NewReport()}
	d.Where[""] = cluster.Position{File: "g.yaml"}
	var g garden
	if n := d.Single([]byte(text)); n != nil {
		gardens.Decode(d, n, "", &g)
	}
	return g, d.Finish()
}

func TestDecodeFillsEverything(t *testing.T) {
	g, problems := decodeGarden(`
name: north
gate: open
beds:
  - {plant: rose, rows: 3}
  - plant: iris
    ram: 16
door: {plant: ivy}
tags: [old, wild]
labels: {soil: 010, sun: true, none: ""}
rest: {any: [1, x]}
at: 10.0.0.1
around: 10.0.0.0/24
length: 512M
posts: [100-199, 300-300]
for: 90m
key_file: a/b
mark: ""
`)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if g.Rest.Node == nil || len(g.Rest.Content) != 2 {
		t.Errorf("the tree was not handed on: %+v", g.Rest)
	}
	g.Rest = Tree{}
	want := garden{Name: "north", Gate: "open", Beds: []bed{{Plant: "rose", Rows: 3}, {Plant: "iris", RAM: 16}}, Door: bed{Plant: "ivy"},
		Tags: []string{"old", "wild"}, Labels: map[string]string{"soil": "010", "sun": "true", "none": ""},
		fence: fence{At: netip.MustParseAddr("10.0.0.1"), Around: netip.MustParsePrefix("10.0.0.0/24"), Length: 512 * MiB,
			Posts: []cluster.Range{{First: 100, Last: 199}, {First: 300, Last: 300}}, For: 90 * time.Minute, KeyFile: "a/b"}}
	if !reflect.DeepEqual(g, want) {
		t.Errorf("got  %+v\nwant %+v", g, want)
	}
}

// TestDecodeReports: every mistake has its place, its words and its hint.
func TestDecodeReports(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"gate: open", "g.yaml:1:1: name: is missing (write name: north)"},
		{"name: x\nbeds: [{rows: 1}]", "g.yaml:2:8: beds[0].plant: is missing (write plant: rose)"},
		{"name: x\nbordrs: 1", `g.yaml:2:1: unknown key "bordrs" (known here: name, gate, watered, beds, door, tags, rain, labels, rest, at, around, length, posts, for, key_file, mark)`},
		{"name: x\nborders: 1", `g.yaml:2:1: unknown key "borders" (did you mean beds?)`},
		{"name: x\ngaet: 1", `g.yaml:2:1: unknown key "gaet" (did you mean gate?)`},
		{"name: x\nplant: 1", `g.yaml:2:1: unknown key "plant" (it belongs to beds[].plant)`},
		{"name: x\npond: 1", "g.yaml:2:1: pond: is not supported yet (remove it)"},
		{"name: x\nlawn: 1", `g.yaml:2:1: unknown key "lawn" (write a bed)`},
		{"name: x\ndoor: {plant: ivy, hinge: 1}", `g.yaml:2:20: door: unknown key "hinge" (doors have none)`},
		{"name: Upper", `g.yaml:1:7: name: "Upper" is not a word (write one like north)`},
		{"name: muchtoolong", "g.yaml:1:7: name: is longer than 8 characters (shorten it)"},
		{"name: https://a:secret@b", "g.yaml:1:7: name: a URL with credentials is not a word (write one like north)"},
		{"name:", "g.yaml:1:6: name: has no value (write one like north, or remove the line)"},
		{"name: x\nbeds: [{plant: rose}, {plant: \"010\"x}]", "g.yaml:2:36: not valid YAML: a comma or the closing } is missing here (close what is open, and separate what is in it by commas)"},
		{"name: [a]", "g.yaml:1:7: name: is a word, not a list (write one like north)"},
		{"name: x\nkey_file: S3CRET=", "g.yaml:2:11: key_file: this is not a path (write one like key)"},
		{"name: x\nmark: 12", `g.yaml:2:7: mark: "12" is not a mark`},
		{"name: x\ngate: ajar", "g.yaml:2:7: gate: ajar is not supported yet (write open or closed)"},
		{"name: x\ngate: oben", `g.yaml:2:7: gate: "oben" is not known (did you mean open?)`},
		{"name: x\nwatered: yes", `g.yaml:2:10: watered: "yes" is not true or false (write true or false, without quotes)`},
		{"name: x\nwatered: true", "g.yaml:2:10: watered: watered: true is not supported yet (write false, or remove the line)"},
		{"name: x\nbeds: {}", "g.yaml:2:7: beds: is a list, not a mapping (write [a, b], or one line with a - for each)"},
		{"name: x\nbeds: [~]", "g.yaml:2:8: beds[0]: has no value (write one, or remove the line)"},
		{"name: x\nbeds: [x]", `g.yaml:2:8: beds[0]: needs keys of its own, not the single value "x" (write lines of the form key: value below it)`},
		{"name: x\nbeds: [{plant: x, rows: 10}]", "g.yaml:2:25: beds[0].rows: 10 is too large for a number of rows (write 9 or less)"},
		{"name: x\nbeds: [{plant: x, rows: 0}]", "g.yaml:2:25: beds[0].rows: 0 is too small for a number of rows (write 1 or more)"},
		{"name: x\nbeds: [{plant: x, rows: '3'}]", `g.yaml:2:25: beds[0].rows: "3" is a text, not a number of rows (write 3 without the quotes)`},
		{"name: x\nbeds: [{plant: x, rows: 03}]", `g.yaml:2:25: beds[0].rows: "03" is not a number of rows (write 3)`},
		{"name: x\nbeds: [{plant: x, ram: 2G}]", `g.yaml:2:24: beds[0].ram: "2G" is not a number of MiB (write 2048)`},
		{"name: x\nlabels: {a: [b]}", "g.yaml:2:13: labels.a: is a text, not a list (write one text)"},
		{"name: x\nlabels: {a: ~}", `g.yaml:2:13: labels.a: has no value (write "" for an empty text, or quote it)`},
		{"name: x\nlabels: 1", `g.yaml:2:9: labels: needs keys of its own, not the single value "1" (write lines of the form key: value below it)`},
		{"name: x\nat: 10.0.0.1/8", `g.yaml:2:5: at: "10.0.0.1/8" is not an IPv4 address (write the address alone, without the /)`},
		{"name: x\nat: fe80::1", `g.yaml:2:5: at: "fe80::1" is not an IPv4 address (write an IPv4 address; IPv6 has keys of its own)`},
		{"name: x\naround: 10.0.0.1/8", `g.yaml:2:9: around: "10.0.0.1/8" is not a network in CIDR notation (write 10.0.0.0/8: the bits after the / must be zero)`},
		{"name: x\nlength: 5 gb", `g.yaml:2:9: length: "5 gb" is not a size (write 5G: sizes are powers of 1024)`},
		{"name: x\nposts: [199-100]", `g.yaml:2:9: posts[0]: "199-100" is not a range of VMIDs (write the lower one first: 100-199)`},
		{"name: x\nposts: [1-2]", `g.yaml:2:9: posts[0]: "1-2" is not a range of VMIDs (VMIDs go from 100 to 999999999)`},
		{"name: x\nfor: 5", `g.yaml:2:6: for: "5" is not a duration (write a number with h, m or s, like 15m)`},
		{"name: x\nrain: 5", `g.yaml:2:7: rain.least: "5" is not a duration (write a number with h, m or s, like 15m)`},
		{"name: x\nrain: [5m]", "g.yaml:2:7: rain: needs keys of its own, not a list (write lines of the form key: value below it)"},
		{"name: x\nrain: {most: 5m, leest: 1m}", `g.yaml:2:18: rain: unknown key "leest" (did you mean least?)`},
		{"name: x\nfor: 100h", `g.yaml:2:6: for: "100h" is too long (write something between 1s and 24h)`},
		{"name: x\nfor: 10ms", `g.yaml:2:6: for: "10ms" is too short (write something between 1s and 24h)`},
		{"name: x\nname: y", `g.yaml:2:1: duplicate key "name" (it stands in line 1 already: remove one)`},
		{"name: x\n---\nname: y", "g.yaml:3:1: a second document (keep one and remove the --- line)"},
		{"name: &a x", "g.yaml:1:7: an anchor (&) is not allowed (write the value out where it is needed)"},
		{"name: !!str x", "g.yaml:1:7: a tag (!) is not allowed (quote the value if it is a text)"},
		{"[a]", "g.yaml:1:1: the file is not a mapping (write lines of the form key: value)"},
		{"", "g.yaml: the file is empty"},
		{"\tname: x", "g.yaml:1:1: not valid YAML: a tab in the indentation (indent with spaces)"},
		{"name: a\x00b", "g.yaml:1:8: control character U+0000 (remove it)"},
		{"name: \xff", "g.yaml:1:7: a byte that is not UTF-8 (save the file as UTF-8)"},
		{"\xff\xfen\x00", "g.yaml:1:1: the file is UTF-16 (save it as UTF-8)"},
		{"name: " + strings.Repeat("x", MaxFileBytes), "g.yaml: larger than 1024 KiB (split it, or check that it is the right file)"},
		{"name: x\nrest: " + strings.Repeat("[", 60), "g.yaml:2:57: not valid YAML: while increasing flow level: nested deeper than 50 levels"},
	} {
		_, problems := decodeGarden(c.text)
		if got := problems.Error(); got != c.want {
			t.Errorf("%.60q\ngot  %s\nwant %s", c.text, got, c.want)
		}
	}
}

// TestSecretFilesAreNotQuoted: a problem of a secret file names the place, not
// what stands there.
func TestSecretFilesAreNotQuoted(t *testing.T) {
	for _, text := range []string{"s3cret: 1\ns3cret: 2", "a: [s3cret", "s3cret", "a: *s3cret", "? [s3cret]\n: 1"} {
		d := Document{File: "s", Secret: true, Report: NewReport()}
		d.Single([]byte(text))
		problems := d.Finish()
		if len(problems) == 0 || strings.Contains(problems.Error(), "s3cret") {
			t.Errorf("%q: %v", text, problems)
		}
	}
}

func TestReport(t *testing.T) {
	r := NewReport()
	r.Where[""] = cluster.Position{File: "f"}
	r.Where["a"] = cluster.Position{File: "f", Line: 2, Column: 1}
	r.Where["a.b[1]"] = cluster.Position{File: "f", Line: 3, Column: 5}
	for field, want := range map[string]int{"a": 2, "a.b[1].c.d": 3, "a.b[0]": 2, "z": 0} {
		if got := r.Place(field); got.Line != want || got.File != "f" {
			t.Errorf("%s stands at %+v", field, got)
		}
	}
	if r.Cite("a.x") != "f:2" || r.Cite("z") != "f" || !r.Has("a") || r.Has("a.b") {
		t.Error("places are reported wrongly")
	}
	r.Note("z", "", "third by line: %d", 0)
	r.Wrong("a", "do", "second")
	r.Wrong("a", "do", "second")
	r.Warn("a.b[1]", "", "last")
	got := r.Finish()
	want := cluster.Problems{
		{Severity: cluster.Note, File: "f", Field: "z", Message: "third by line: 0"},
		{Severity: cluster.Error, File: "f", Line: 2, Column: 1, Field: "a", Message: "second", Hint: "do"},
		{Severity: cluster.Warning, File: "f", Line: 3, Column: 5, Field: "a.b[1]", Message: "last"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestReportIsBounded: a hostile file makes us report only so much, and that
// there is more.
func TestReportIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("name: x\n")
	for i := range 3 * MaxErrors {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	_, problems := decodeGarden(b.String())
	problems.Sort() // as whoever joins them with others does
	if last := problems[len(problems)-1]; len(problems) != MaxErrors+1 || !strings.Contains(last.Message, "100 more errors are not shown") {
		t.Errorf("%d problems, the last being %v", len(problems), last)
	}
	if first := problems.First(); !strings.Contains(first, "unknown key") {
		t.Errorf("in one line they are %s", first)
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"a\x1b": `"a\x1b"`, strings.Repeat("ä", 61): `"` + strings.Repeat("ä", 60) + `"...`} {
		if got := Quote(in); got != want {
			t.Errorf("%q: %s", in, got)
		}
	}
}

func TestSuggest(t *testing.T) {
	keys := []string{"controlplane", "workers", "ip", "ram"}
	l := Language{Synonyms: map[string][]string{"ram": {"memory"}}}
	for word, want := range map[string]string{"controlplanes": "controlplane", "wrokers": "workers", "worker": "workers", "pi": "ip", "memory": "ram", "unrelated": "", "": ""} {
		if got := l.Suggest(word, keys); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// TestShortForm: a single value in the place of a mapping is that of one key below it, at its own
// place; and the schema takes what the decoder does.
func TestShortForm(t *testing.T) {
	text, err := gardens.Schema("garden.yaml", reflect.TypeFor[garden]())
	if err != nil {
		t.Fatal(err)
	}
	schema := schematest.Compile(t, "garden", text)
	for _, c := range []struct {
		text  string
		want  rain
		valid bool
	}{
		{"rain: 15m", rain{Least: 15 * time.Minute}, true},
		{"rain: \"15m\"", rain{Least: 15 * time.Minute}, true},
		{"rain: {least: 15m, most: 30m}", rain{Least: 15 * time.Minute, Most: 30 * time.Minute}, true},
		{"rain: {most: 30m}", rain{Most: 30 * time.Minute}, true},
		{"rain:", rain{}, true},
		{"rain: ~", rain{}, true},
		{"rain: 15", rain{}, false},
		{"rain: [15m]", rain{}, false},
		{"rain: {least: {most: 15m}}", rain{}, false},
	} {
		d := Document{File: "g.yaml", Report: NewReport()}
		var g garden
		gardens.Decode(d, d.Single([]byte("name: x\n"+c.text)), "", &g)
		if problems := d.Finish(); g.Rain != c.want || problems.HasErrors() == c.valid {
			t.Errorf("%s: %+v %v", c.text, g.Rain, problems)
		}
		if at := d.Place("rain.least"); c.text == "rain: 15m" && (at.Line != 2 || at.Column != 7) {
			t.Errorf("%s: it stands at %+v", c.text, at)
		}
		if err := schema.Validate(schematest.Instance(t, []byte("name: x\n"+c.text))); (err == nil) != c.valid {
			t.Errorf("%s: the schema reports %v", c.text, err)
		}
	}
}

// path has keys that may be written in the place of others: one of the first two must be there,
// and not both of the last two.
type path struct {
	// Where it begins.
	From string `yaml:"from" is:"word" required:"true" or:"begin" example:"north"`
	// Instead of from: how many steps from the door.
	Begin int `yaml:"begin" unit:"number of steps" min:"1" max:"9" example:"3"`
	// Where it ends.
	To string `yaml:"to" is:"word" or:"end"`
	// Instead of to: after how many steps.
	End int `yaml:"end" unit:"number of steps" min:"1" max:"9"`
}

// TestOneOfTwoKeys: the decoder, the schema and the reference agree about keys that stand in the
// place of others.
func TestOneOfTwoKeys(t *testing.T) {
	text, err := gardens.Schema("path.yaml", reflect.TypeFor[path]())
	if err != nil {
		t.Fatal(err)
	}
	schema := schematest.Compile(t, "path", text)
	for _, c := range []struct{ text, want string }{
		{"from: north", ""},
		{"begin: 3", ""},
		{"begin: 3\nto: east", ""},
		{"begin: 3\nend: 5", ""},
		{"to: east", "g.yaml:1:1: from: is missing (write from: north, or begin: 3)"},
		{"begn: 3", `g.yaml:1:1: unknown key "begn" (did you mean begin?)`},
		{"form: x", `g.yaml:1:1: unknown key "form" (did you mean from?)`},
		{"from: north\nbegin: 3", "g.yaml:2:1: begin: from and begin are both written (keep one of them)"},
		{"begin: 3\nfrom: north", "g.yaml:1:1: begin: from and begin are both written (keep one of them)"},
		{"from: north\nto: east\nend: 5", "g.yaml:3:1: end: to and end are both written (keep one of them)"},
		{"from: north\nto: east\nend: 0", "g.yaml:3:1: end: to and end are both written (keep one of them)\ng.yaml:3:6: end: 0 is too small for a number of steps (write 1 or more)"},
	} {
		d := Document{File: "g.yaml", Report: NewReport()}
		var p path
		gardens.Decode(d, d.Single([]byte(c.text)), "", &p)
		problems := d.Finish()
		if got := problems.Error(); problems.HasErrors() && got != c.want || problems.HasErrors() != (c.want != "") {
			t.Errorf("%q\ngot  %s\nwant %s", c.text, got, c.want)
		}
		if err := schema.Validate(schematest.Instance(t, []byte(c.text))); (err == nil) != (c.want == "") {
			t.Errorf("%q: the schema reports %v", c.text, err)
		}
	}
	table, err := gardens.Table(reflect.TypeFor[path]())
	if err != nil || !strings.Contains(table, "| `from` | text | **required**, or `begin` | `north` | Where it begins. |\n") {
		t.Errorf("%s, %v", table, err)
	}
}

func TestTableAndSchema(t *testing.T) {
	table, err := gardens.Table(reflect.TypeFor[garden]())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"| `name` | text | **required** | `north` | Name of the garden. |",
		"| `gate` | one of open, closed | `closed` |  | Its gate. Not yet: `ajar`. |",
		"| `beds` | list of mappings |  | `[{plant: rose, rows: 3}]` | Its beds. |",
		"| `beds[].plant` | text | **required** | `rose` | What grows in it. |",
		"| `rain` | mapping, or duration |  | `{least: 15m}` | How it is watered: how long, or in detail. |",
		"| `rain.least` | duration |  | `15m` | How long at least. |",
		"| `posts` | list |  | `[100-199]` | Which posts. |",
		"| `for` | duration | `1h` | `15m` | How long it lasts. |",
	} {
		if !strings.Contains(table, row+"\n") {
			t.Errorf("no row %s in\n%s", row, table)
		}
	}
	if strings.Contains(table, "door.plant") {
		t.Error("keys that stand elsewhere are listed again")
	}
	page, err := FillTable("a\n<!-- keys of g -->\nold\n<!-- end of g -->\nz", "g", "new\n")
	if err != nil || page != "a\n<!-- keys of g -->\nnew\n<!-- end of g -->\nz" {
		t.Errorf("%q, %v", page, err)
	}
	if _, err := FillTable("a", "g", ""); err == nil {
		t.Error("a page without a place was filled")
	}
	schema, err := gardens.Schema("garden.yaml", reflect.TypeFor[garden]())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"title": "garden.yaml"`, `"additionalProperties": false`, `"pattern": "^$|^[0-9]{4}$"`, `"description": "Its gate. Default: closed. Not yet: ajar."`, `"required": [`} {
		if !strings.Contains(string(schema), part) {
			t.Errorf("no %s in the schema", part)
		}
	}
}

// TestVerify: it finds nothing in a good model and everything in a bad one.
func TestVerify(t *testing.T) {
	if wrong := gardens.Verify(reflect.TypeFor[garden]()); len(wrong) > 0 {
		t.Error(wrong)
	}
	bad := gardens
	bad.Formats = map[string]Format{"odd": {What: "odd", Write: "1", Pattern: pattern.New("^2$")}}
	got := strings.Join(bad.Verify(reflect.TypeFor[weeds]()), "\n")
	for _, want := range []string{"weeds.Silent says nothing whole", "weeds.Ruleless is a text without a rule", "weeds.Endless is a number without unit or bounds",
		"weeds.Lying has an example that is wrong", `weeds.Short has a short form for "nothing"`, `weeds.Counted has a short form for "many"`, `weeds.Alone may be replaced by "other"`, `format odd shows "1", which it refuses`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not found in\n%s", want, got)
		}
	}
	bad.Sources = []string{"no Go"}
	if len(bad.Verify(reflect.TypeFor[weeds]())) == 0 {
		t.Error("sources that are none are not found")
	}
}

type count struct {
	// How many.
	Many int `yaml:"many" unit:"number" min:"1" max:"9"`
}

// weeds has every mistake a model can have.
type weeds struct {
	Silent bool `yaml:"silent"`
	// Says something.
	Ruleless string `yaml:"ruleless"`
	// Counts.
	Endless int `yaml:"endless"`
	// Shows something else.
	Lying bool `yaml:"lying" example:"maybe"`
	// Is shortened to what is not there.
	Short rain `yaml:"short" short:"nothing"`
	// Is shortened to a number.
	Counted count `yaml:"counted" short:"many"`
	// Is replaced by what is not there.
	Alone bool `yaml:"alone" or:"other"`
}
