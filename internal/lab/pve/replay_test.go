package pve

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/golden"
)

// exchange is one recorded request and its answer.
type exchange struct {
	file    string // without .json
	Request struct {
		Method  string            `json:"method"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Body    *string           `json:"body"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Reason  string            `json:"reason"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body_raw"`
		Seconds float64           `json:"seconds"`
	} `json:"response"`
}

// began is when the request was sent.
func (e *exchange) began() time.Time {
	at, err := time.Parse(time.RFC1123, e.Response.Headers["Date"])
	if err != nil {
		return time.Time{}
	}
	return at.Add(-time.Duration(e.Response.Seconds * float64(time.Second)))
}

// isLog reports whether it is the log of a case's task, which was read after the
// case itself.
func (e *exchange) isLog() bool { return strings.HasSuffix(e.file, "log") }

// load reads the exchanges of a folder in the order they happened.
func load(t *testing.T, dir string) []*exchange {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no exchanges in %s: %v", dir, err)
	}
	var out []*exchange
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		e := &exchange{file: strings.TrimSuffix(filepath.Base(f), ".json")}
		if err := json.Unmarshal(text, e); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, e)
	}
	number := func(e *exchange) string { n, _, _ := strings.Cut(e.file, "-"); return n }
	slices.SortStableFunc(out, func(a, b *exchange) int {
		da, db := a.Response.Headers["Date"], b.Response.Headers["Date"]
		switch {
		case da != db:
			return strings.Compare(da, db)
		case number(a) != number(b):
			return strings.Compare(number(a), number(b))
		case a.isLog() != b.isLog():
			return encodeBit(a.isLog()) - encodeBit(b.isLog())
		}
		return strings.Compare(a.file, b.file)
	})
	return out
}

// folders are the recordings of one host's life each.
var folders = []string{"golden-9.2", "golden-8.4", "recorded-9.2", "recorded-8.4"}

// shown are their rows in the table for users.
var shown = map[string]string{
	"golden-9.2": "Proxmox VE 9.2, the agent's own path with a pool-scoped token", "golden-8.4": "Proxmox VE 8.4, the same",
	"recorded-9.2": "Proxmox VE 9.2, other API calls", "recorded-8.4": "Proxmox VE 8.4, other API calls",
}

// TestReplay sends every recorded request to a lab that was prepared like the
// recorded host and compares the answers. What differs must have a reason.
func TestReplay(t *testing.T) {
	dir := recordings(t)
	for _, folder := range folders {
		t.Run(folder, func(t *testing.T) {
			exchanges := load(t, filepath.Join(dir, folder))
			synctest.Test(t, func(t *testing.T) { replay(t, folder, exchanges) })
		})
	}
}

func replay(t *testing.T, folder string, exchanges []*exchange) {
	// The rounds of statistics of the recorded 8.4 fell between other requests.
	phase := map[string]time.Duration{"recorded-8.4": 3 * time.Second}[folder]
	time.Sleep(time.Until(exchanges[0].began().Add(-time.Hour + phase)))
	st := newStage(t, folder, exchanges)
	defer st.close()
	agreed := 0
	for _, e := range exchanges {
		time.Sleep(time.Until(e.began()))
		difference := st.play(e)
		reason, known := reasonFor(folder, e.file)
		switch {
		case difference == "":
			agreed++
			if known {
				t.Errorf("%s agrees now: drop its reason %q", e.file, reason)
			}
		case known:
			t.Logf("%s differs: %s", e.file, reason)
		default:
			t.Errorf("%s differs:\n%s", e.file, difference)
		}
	}
	t.Logf("%s: %d of %d agree", folder, agreed, len(exchanges))
	golden.CheckShown(t, shown[folder], agreed, len(exchanges))
}

// fits reports whether a row of a table is about an exchange.
func fits(folder, pattern, inFolder, file string) bool {
	ok, err := path.Match(pattern, file)
	return err == nil && ok && (folder == "" || folder == inFolder)
}

func reasonFor(folder, file string) (string, bool) {
	for _, r := range reasons {
		if fits(r.folder, r.pattern, folder, file) {
			return r.why, true
		}
	}
	return "", false
}

// TestTablesFit: every direction and every reason is about an exchange that was
// recorded.
func TestTablesFit(t *testing.T) {
	dir := recordings(t)
	type name struct{ folder, file string }
	var all []name
	for _, folder := range folders {
		for _, e := range load(t, filepath.Join(dir, folder)) {
			all = append(all, name{folder, e.file})
		}
	}
	check := func(what, folder, pattern string) {
		if !slices.ContainsFunc(all, func(n name) bool { return fits(folder, pattern, n.folder, n.file) }) {
			t.Errorf("the %s for %s %s is about no exchange", what, folder, pattern)
		}
	}
	for _, r := range reasons {
		check("reason", r.folder, r.pattern)
	}
	for _, d := range directions {
		check("direction", d.folder, d.file)
	}
}
