package journal

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/journal/journaltest"
)

func TestJournalSurvivesEveryCrash(t *testing.T) {
	first := func(f *cluster.Facts) { f.Applied, f.Lost = rev(1), false }
	second := func(f *cluster.Facts) {
		f.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, Node: "cp-1", UUID: "u", At: time.Unix(1, 0).UTC()})
		f.Images["a"] = cluster.ImagePin{SHA256: "00", Bytes: 5}
	}
	for die := 1; die <= 8; die++ {
		t.Run(fmt.Sprint("step ", die), func(t *testing.T) {
			files := journaltest.NewFiles()
			j, err := Open(files, "dev", "id")
			if err != nil {
				t.Fatal(err)
			}
			files.DieAt = die
			err1 := j.Update(first)
			before := j.Facts()
			err2 := j.Update(second)
			after := j.Facts()
			if (err1 == nil) != (die > 3) || (err2 == nil) != (die > 6) {
				t.Fatalf("with three steps each: %v, %v", err1, err2)
			}
			if err2 != nil && !cmp.Equal(before, after) {
				t.Errorf("an update that failed changed the facts in memory: %s", cmp.Diff(before, after))
			}
			files.DieAt = 0
			files.Unsaved = map[string][]byte{}
			again, err := Open(files, "dev", "id")
			if err != nil {
				t.Fatal(err)
			}
			if err1 != nil {
				if !again.Fresh() {
					t.Error("nothing was written, and the journal is not fresh")
				}
				return
			}
			if d := cmp.Diff(after.Intents, again.Facts().Intents); d != "" {
				t.Errorf("what Update promised is not what is read back:\n%s", d)
			}
			if again.Facts().Applied != rev(1) || again.Facts().Lost {
				t.Errorf("facts %+v", again.Facts())
			}
		})
	}
}

func TestJournalDetectsDamage(t *testing.T) {
	files := journaltest.NewFiles()
	j, _ := Open(files, "dev", "id")
	if err := j.Update(func(f *cluster.Facts) { f.Intend(cluster.Intent{Kind: cluster.IntendSuspend}) }); err != nil {
		t.Fatal(err)
	}
	good := files.Saved["dev.json"]
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x10
		files := journaltest.NewFiles()
		files.Saved["dev.json"] = bad
		j, err := Open(files, "dev", "id")
		if err != nil {
			t.Fatalf("bit %d: %v", i, err)
		}
		if f := j.Facts(); !f.Lost {
			t.Fatalf("a flipped bit at byte %d went unnoticed: %+v", i, f)
		}
		if string(files.Saved["dev.json.corrupt"]) != string(bad) {
			t.Fatalf("the damaged journal was not kept")
		}
		// The loss is itself durable.
		if j, _ = Open(files, "dev", "id"); !j.Facts().Lost {
			t.Fatal("the loss was forgotten at the next start")
		}
	}
	torn := journaltest.NewFiles()
	torn.Saved["dev.json"] = good[:len(good)/2]
	if j, err := Open(torn, "dev", "id"); err != nil || !j.Facts().Lost {
		t.Errorf("torn: %v", err)
	}
}

func TestJournalOfSomebodyElse(t *testing.T) {
	files := journaltest.NewFiles()
	j, _ := Open(files, "dev", "id")
	if err := j.Update(func(*cluster.Facts) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(files, "dev", "other"); err == nil {
		t.Error("a journal of another cluster was taken")
	}
	raw, err := encodeRecord(record{Version: journalVersion + 1, Cluster: "id"})
	if err != nil {
		t.Fatal(err)
	}
	files.Saved["dev.json"] = raw
	if _, err := Open(files, "dev", "id"); err == nil {
		t.Error("a journal of a newer agent was overwritten")
	}
}

// TestReadFingerprint: the secrets of a cluster are known from every journal that can be
// read, and none keeps others from being built.
func TestReadFingerprint(t *testing.T) {
	files := journaltest.NewFiles()
	for name, r := range map[string]record{
		"built": {Version: journalVersion, Facts: cluster.Facts{Fingerprint: "sha256:1"}},
		"newer": {Version: journalVersion + 1, Facts: cluster.Facts{Fingerprint: "sha256:2"}},
		"new":   {Version: journalVersion},
	} {
		raw, err := encodeRecord(r)
		if err != nil {
			t.Fatal(err)
		}
		files.Saved[NameOf(name)] = raw
	}
	files.Saved[NameOf("torn")] = []byte(`{"version":6,"finger`)
	files.Saved[NameOf("by hand")] = []byte(`{"fingerprint":"sha256:3"}`)
	for name, want := range map[string]string{"built": "sha256:1", "newer": "sha256:2", "new": "", "torn": "", "by hand": "sha256:3", "none": ""} {
		if got, err := ReadFingerprint(files, name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestJournalOfTheVersionBefore: nothing that an older agent wrote is lost, and
// what is written then is of this version.
func TestJournalOfTheVersionBefore(t *testing.T) {
	files := journaltest.NewFiles()
	files.Saved["dev.json"] = withChecksum(`{"version":1,"cluster":"id","bootstrap":{"node":"cp-1","uuid":"u","at":"2026-11-20T10:00:00Z","done":true},` +
		`"suspended":true,"destroying":true,"applied":"main@sha1:1","fingerprint":"f","images":{"i":{"schematic":"s","sha256":"00","bytes":1}},"charts":{"c":"d"}}`)
	want := cluster.Facts{
		Intents: []cluster.Intent{
			{Kind: cluster.IntendBootstrap, Node: "cp-1", UUID: "u", At: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC), Done: true},
			{Kind: cluster.IntendSuspend}, {Kind: cluster.IntendDestroy}},
		Applied: "main@sha1:1", Fingerprint: "f", Images: map[string]cluster.ImagePin{"i": {Schematic: "s", SHA256: "00", Bytes: 1}}, Charts: map[string]string{"c": "d"},
	}
	second := withChecksum(`{"version":2,"cluster":"id","intents":[{"kind":"Bootstrap","at":"2026-11-20T10:00:00Z","node":"cp-1","uuid":"u","done":true},{"kind":"Suspend"},{"kind":"Destroy"}],` +
		`"applied":"main@sha1:1","fingerprint":"f","images":{"i":{"schematic":"s","sha256":"00","bytes":1}},"charts":{"c":"d"}}`)
	third := withChecksum(strings.Replace(strings.TrimSpace(strings.SplitN(string(second), "\n", 2)[0]), `"version":2`, `"version":3`, 1))
	fourth := withChecksum(strings.Replace(strings.TrimSpace(strings.SplitN(string(second), "\n", 2)[0]), `"version":2`, `"version":4`, 1))
	fifth := withChecksum(strings.Replace(strings.TrimSpace(strings.SplitN(string(second), "\n", 2)[0]), `"version":2`, `"version":5`, 1))
	sixth := withChecksum(strings.Replace(strings.TrimSpace(strings.SplitN(string(second), "\n", 2)[0]), `"version":2`, `"version":6`, 1))
	seventh := withChecksum(strings.Replace(strings.TrimSpace(strings.SplitN(string(second), "\n", 2)[0]), `"version":2`, `"version":7`, 1))
	eighth := withChecksum(strings.Replace(strings.TrimSpace(strings.SplitN(string(second), "\n", 2)[0]), `"version":2`, `"version":8`, 1))
	ninth := withChecksum(strings.Replace(strings.TrimSpace(strings.SplitN(string(second), "\n", 2)[0]), `"version":2`, `"version":9`, 1))
	for _, older := range [][]byte{nil, nil, second, nil, third, nil, fourth, nil, fifth, nil, sixth, nil, seventh, nil, eighth, nil, ninth, nil} {
		if older != nil {
			files.Saved["dev.json"] = older
		}
		j, err := Open(files, "dev", "id")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, j.Facts()); d != "" {
			t.Fatalf("-want +got:\n%s", d)
		}
		if err := j.Update(func(*cluster.Facts) {}); err != nil {
			t.Fatal(err)
		}
		if raw := string(files.Saved["dev.json"]); !strings.HasPrefix(raw, `{"version":14,`) {
			t.Fatalf("written: %s", raw)
		}
	}
	files.Saved["dev.json"] = withChecksum(`{"version":0,"cluster":"id"}`)
	if j, err := Open(files, "dev", "id"); err != nil || !j.Facts().Lost {
		t.Errorf("a version that never was: %v", err)
	}
}

// brokenFiles fail at one operation, and have a torn journal.
type brokenFiles struct {
	*journaltest.Files
	at  string
	err error
}

func (b brokenFiles) Read(name string) ([]byte, error) {
	if b.at == "read" {
		return nil, b.err
	}
	return b.Files.Read(name)
}

func (b brokenFiles) Write(name string, data []byte) error {
	if b.at == "write" {
		return b.err
	}
	return b.Files.Write(name, data)
}

func (b brokenFiles) Rename(from, to string) error {
	if b.at == "aside" && strings.HasSuffix(to, ".corrupt") {
		return b.err
	}
	return b.Files.Rename(from, to)
}

// TestJournalOnABrokenDisk: a journal that the file system does not give is not lost, and one
// that is lost is not overwritten before it was set aside.
func TestJournalOnABrokenDisk(t *testing.T) {
	torn := []byte(`{"version":7`)
	for at, words := range map[string]string{"read": "read journal dev.json", "aside": "set unreadable journal", "write": "write journal dev.json"} {
		files := brokenFiles{journaltest.NewFiles(), at, syscall.EIO}
		files.Saved["dev.json"] = torn
		j, err := Open(files, "dev", "id")
		if !errors.Is(err, syscall.EIO) || !strings.Contains(fmt.Sprint(err), words) {
			t.Errorf("%s fails: %v, and the journal %+v", at, err, j)
		}
		kept := files.Saved["dev.json"]
		if at == "write" {
			kept = files.Saved["dev.json.corrupt"]
		}
		if string(kept) != string(torn) {
			t.Errorf("%s fails: what was there is overwritten: %q", at, kept)
		}
	}
	if got, err := ReadFingerprint(brokenFiles{journaltest.NewFiles(), "read", syscall.EIO}, "dev"); !errors.Is(err, syscall.EIO) || got != "" {
		t.Errorf("secrets of a journal that cannot be read: %q, %v", got, err)
	}
}

// TestJournalIsReadStrictly: what an agent of this version never writes is damage, whatever
// its checksum.
func TestJournalIsReadStrictly(t *testing.T) {
	for line, fine := range map[string]bool{
		`{"version":7,"cluster":"id","fingerprint":"f"}`:   true,
		`{"version":7,"cluster":"id","unknown":1}`:         false,
		`{"version":7,"cluster":"id","fingerprint":7}`:     false,
		`{"version":1,"cluster":"id","fingerprint":7}`:     false,
		`{"version":"7","cluster":"id","fingerprint":"f"}`: false,
		`{"version":7,"cluster":"id","fingerprint":"f"`:    false,
		`{"cluster":"id","fingerprint":"f"}`:               false,
		`{"version":-1,"cluster":"id","fingerprint":"f"}`:  false,
	} {
		r, err := decodeRecord(withChecksum(line))
		if (err == nil) != fine || fine && r.Fingerprint != "f" {
			t.Errorf("%s: %+v, %v", line, r, err)
		}
	}
	// The last line may be missing with the end of the first.
	if _, err := decodeRecord([]byte(`{"version":7,"cluster":"id"}`)); err == nil {
		t.Error("a journal without its checksum is read")
	}
	files := journaltest.NewFiles()
	files.Saved["dev.json"] = []byte(`{"version":7,"fingerprint":"f","x":`)
	if got, err := ReadFingerprint(files, "dev"); err != nil || got != "" {
		t.Errorf("of half a line: %q, %v", got, err)
	}
	files.Saved["dev.json"] = []byte(`{"fingerprint":"f","fingerprint":7}`)
	if got, err := ReadFingerprint(files, "dev"); err != nil || got != "" {
		t.Errorf("of a line that is no journal: %q, %v", got, err)
	}
}

func TestRecordsHint(t *testing.T) {
	for err, want := range map[error]string{syscall.EMFILE: "restart", syscall.ENFILE: "restart", syscall.ENOSPC: "make room", syscall.EACCES: "make room"} {
		if got := RecordsHint(fmt.Errorf("write: %w", err)); !strings.Contains(got, want) {
			t.Errorf("%v: %s", err, got)
		}
	}
}

// withChecksum is a line as it stands in a journal.
func withChecksum(line string) []byte {
	sum := sha256.Sum256([]byte(line))
	return fmt.Appendf(nil, "%s\n%x\n", line, sum)
}

func FuzzDecodeRecord(f *testing.F) {
	good, _ := encodeRecord(record{Version: journalVersion, Cluster: "id"})
	f.Add(good)
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decodeRecord(raw)
		if err == nil {
			if _, err := encodeRecord(r); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestJournalOfNothing: what is learned of a cluster of which nothing is made leaves no file
// until it is kept; a file is discarded when nothing in it matters without the cluster.
func TestJournalOfNothing(t *testing.T) {
	files := journaltest.NewFiles()
	open := func() *Journal {
		t.Helper()
		j, err := Open(files, "dev", "id")
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	j := open()
	j.Hold(func(f *cluster.Facts) { f.Applied, f.Lost = rev(1), false })
	if f := j.Facts(); f.Applied != rev(1) || f.Lost || !j.Fresh() || len(files.Saved) > 0 {
		t.Fatalf("%+v, fresh %v, files %v", f, j.Fresh(), files.Saved)
	}
	if whole, err := j.Discard(); !whole || err != nil || j.Facts().Applied != rev(1) || files.Steps > 0 {
		t.Errorf("nothing to discard: %v, %v, %d steps", whole, err, files.Steps)
	}
	for i := range 2 {
		before := files.Steps
		if err := j.Keep(); err != nil || (files.Steps > before) != (i == 0) {
			t.Fatalf("kept once more: %v, %v", files.Steps > before, err)
		}
	}
	if f := open().Facts(); f.Applied != rev(1) || f.Lost || j.Fresh() {
		t.Errorf("kept: %+v", f)
	}
	for what, change := range map[string]func(*cluster.Facts){
		"suspended": func(f *cluster.Facts) { f.Intend(cluster.Intent{Kind: cluster.IntendSuspend}) },
		"built":     func(f *cluster.Facts) { f.Fingerprint = "f" },
		"lost":      func(f *cluster.Facts) { f.Lost = true },
	} {
		before := j.Facts()
		if err := j.Update(change); err != nil {
			t.Fatal(err)
		}
		if gone, err := j.Discard(); gone || err != nil || open().Fresh() {
			t.Errorf("%s: discarded %v, %v", what, gone, err)
		}
		if err := j.Update(func(f *cluster.Facts) { *f = before }); err != nil {
			t.Fatal(err)
		}
	}
	files.DieAt = files.Steps + 1
	if whole, err := j.Discard(); whole || !errors.Is(err, journaltest.ErrDead) || j.Fresh() || open().Fresh() {
		t.Errorf("it cannot be removed: %v, %v", whole, err)
	}
	files.DieAt = 0
	if gone, err := j.Discard(); !gone || err != nil || !open().Fresh() {
		t.Errorf("nothing in it: discarded %v, %v", gone, err)
	}
}

func rev(n int) cluster.Revision { return cluster.Revision(fmt.Sprintf("main@sha1:%040d", n)) }
