package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keyPair is a private key with its public half.
type keyPair struct{ *age.X25519Identity }

func (k keyPair) Recipients() []string { return []string{k.Recipient().String()} }

func newKey(t *testing.T) keyPair {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return keyPair{key}
}

// secret is a value in every snapshot that must not be on a disk in clear.
const secret = "a-value-that-is-a-secret"

// sent makes a snapshot as a member of etcd sends it, with so many changes.
func sent(t testing.TB, changes int) []byte {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &bbolt.Options{NoFreelistSync: true, NoSync: true, PageSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"cluster", "key", "meta", "members"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		for n := range changes {
			key := binary.BigEndian.AppendUint64(append(binary.BigEndian.AppendUint64(nil, uint64(n+2)), '_'), 0)
			value := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprint("/registry/secrets/default/s", n))
			value = protowire.AppendString(protowire.AppendTag(value, 5, protowire.BytesType), secret)
			if err := tx.Bucket([]byte("key")).Put(key, value); err != nil {
				return err
			}
		}
		return errors.Join(
			tx.Bucket([]byte("cluster")).Put([]byte("clusterVersion"), []byte("3.6.0")),
			tx.Bucket([]byte("meta")).Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 99)),
			tx.Bucket([]byte("members")).Put([]byte("1f"), []byte(`{"id":31,"name":"dev-cp-1","peerURLs":["https://10.10.0.11:2380"]}`)))
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(&out)
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(out.Bytes())
	return append(out.Bytes(), sum[:]...)
}

var morning = time.Date(2026, 11, 27, 7, 45, 0, 123, time.UTC)

// from is where a snapshot of dev is from, some hours after the first one.
func from(hours int) Source {
	return Source{
		Name: Name{"dev", retention.Scheduled, morning.Add(time.Duration(hours) * time.Hour)},
		Node: "dev-cp-1", ClusterID: "id", Bundle: "sha256:b", EncryptionKeys: "sha256:e", Talos: "v1.14.1", Kubernetes: "v1.37.0", Etcd: "3.6.5", Commit: "main@sha1:c", Agent: "v1",
	}
}

// newStore is a store of somebody whose key is the first of the recipients.
func newStore(dir Directory, key keyPair, more ...keyPair) *Store {
	c := Config{Directory: dir, Keys: key, Recipients: []Recipient{key.Recipient()}}
	for _, k := range more {
		c.Recipients = append(c.Recipients, k.Recipient())
	}
	return New(c)
}

// mustWrite stores a snapshot.
func mustWrite(t *testing.T, s *Store, from Source, b []byte) Entry {
	t.Helper()
	e, err := s.Write(t.Context(), from, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestWrite: what was stored is listed, and what comes out is what came in, with either
// key, for this program and for age alone.
func TestWrite(t *testing.T) {
	host, offline, dir := newKey(t), newKey(t), newMemory()
	s, b := newStore(dir, host, offline), sent(t, 500)
	e, err := s.Write(t.Context(), from(0), iotest.OneByteReader(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"dev-20261127T074500Z-scheduled.etcd"}; !slices.Equal(dir.names(t), want) || e.File != want[0] || e.State != retention.Verified {
		t.Errorf("stored %+v in %v", e, dir.names(t))
	}
	if h := e.Header; h.Database.Revision != 501 || h.Database.Keys != 500 || h.Database.Members[0].Name != "dev-cp-1" || h.Bundle != "sha256:b" || len(h.Recipients) != 2 {
		t.Errorf("%+v", h)
	}
	all, err := s.List(t.Context())
	if want := e; err != nil || len(all) != 1 {
		t.Fatal(all, err)
	} else if want.State = retention.Unverified; !cmp.Equal(all[0], want) {
		t.Error(cmp.Diff(want, all[0]))
	}
	data := dir.files[e.File].data
	for _, key := range []keyPair{host, offline} {
		o, err := Open(bytes.NewReader(data), int64(len(data)), key)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := o.Copy(t.Context(), &out); err != nil || !bytes.Equal(out.Bytes(), b) {
			t.Errorf("%d bytes come out, and %d went in: %v", out.Len(), len(b), err)
		}
	}
	_, rest, _ := bytes.Cut(data, []byte("\n"))
	_, rest, _ = bytes.Cut(rest, []byte("\n"))
	r, err := age.Decrypt(bytes.NewReader(rest), offline)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := io.ReadAll(r); err != nil || !bytes.Equal(plain[digestSize:], b) {
		t.Errorf("with age alone there are %d bytes: %v", len(plain), err)
	}
	if bytes.Contains(dir.written.Bytes(), []byte(secret)) {
		t.Error("a value was written in clear")
	}
	if bytes.Contains(dir.written.Bytes(), b[4096:4096+64]) {
		t.Error("a page was written in clear")
	}
}

// TestTwice: what is stored is not replaced.
func TestTwice(t *testing.T) {
	dir := newMemory()
	s := newStore(dir, newKey(t))
	e := mustWrite(t, s, from(0), sent(t, 5))
	before := bytes.Clone(dir.files[e.File].data)
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(sent(t, 6))); err == nil {
		t.Error("it was replaced")
	}
	if names := dir.names(t); len(names) != 1 || !bytes.Equal(before, dir.files[e.File].data) {
		t.Errorf("there are %v", names)
	}
}

// TestStreamsThatEnd: a member that dies, or that sends less, leaves nothing, and the next
// one is stored.
func TestStreamsThatEnd(t *testing.T) {
	dir, b := newMemory(), sent(t, 50)
	s := newStore(dir, newKey(t))
	dies := errors.New("transport is closing")
	for _, n := range []int{0, 1, 31, 32, 100, 512, 512 + 32, 4096, 4096 + 32, len(b) - 512, len(b) - 32, len(b) - 1} {
		if _, err := s.Write(t.Context(), from(0), io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(dies))); !errors.Is(err, dies) {
			t.Errorf("it dies after %d bytes: %v", n, err)
		}
		if _, err := s.Write(t.Context(), from(0), bytes.NewReader(b[:n])); !errors.Is(err, ErrDamaged) {
			t.Errorf("it ends after %d bytes: %v", n, err)
		}
	}
	for at := 0; at < len(b); at += 1 + len(b)/50 {
		changed := bytes.Clone(b)
		changed[at] ^= 4
		if _, err := s.Write(t.Context(), from(0), bytes.NewReader(changed)); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d is another one: %v", at, err)
		}
	}
	changed := bytes.Clone(b)
	changed[0]++ // with the right SHA-256, it is still no database
	changed[16]++
	changed[4096+16]++
	sum := sha256.Sum256(changed[:len(b)-32])
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(append(changed[:len(b)-32], sum[:]...))); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "database") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(dies)
	if _, err := s.Write(ctx, from(0), bytes.NewReader(b)); !errors.Is(err, dies) {
		t.Errorf("the context has ended: %v", err)
	}
	s.c.Most = int64(len(b)) - 1
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("it is too large: %v", err)
	}
	if names := dir.names(t); len(names) != 0 {
		t.Errorf("left are %v", names)
	}
	s.c.Most++
	mustWrite(t, s, from(0), b)
}

// TestFullDisk: wherever the room ends, what was there stays, and nothing is left.
func TestFullDisk(t *testing.T) {
	dir, key, b := newMemory(), newKey(t), sent(t, 50)
	s := newStore(dir, key)
	old := mustWrite(t, s, from(0), b)
	needed := dir.written.Len()
	for room := 0; room < needed; room += 1 + needed/40 {
		dir.room = room
		if _, err := s.Write(t.Context(), from(6), bytes.NewReader(b)); err == nil || !strings.Contains(fault.HintOf(err), "make room") {
			t.Fatalf("room for %d of %d bytes: %v (%s)", room, needed, err, fault.HintOf(err))
		}
		if names := dir.names(t); !slices.Equal(names, []string{old.File}) {
			t.Fatalf("room for %d bytes leaves %v", room, names)
		}
	}
	dir.room = -1
	mustWrite(t, s, from(6), b)
}

// TestCrashes: wherever the process ends, and whatever of its writes is lost then, the
// next one finds what was there before and at most the whole new snapshot, and leaves
// nothing else behind.
func TestCrashes(t *testing.T) {
	key, b := newKey(t), sent(t, 20)
	begin := newMemory()
	old := mustWrite(t, newStore(begin, key), from(0), b)
	whole := begin.restart(losesNothing)
	e := mustWrite(t, newStore(whole, key), from(6), b)
	appeared := 0
	for at := 1; at <= whole.calls; at++ {
		dir := begin.restart(losesNothing)
		dir.crashAt = at
		if _, err := newStore(dir, key).Write(t.Context(), from(6), bytes.NewReader(b)); !errors.Is(err, errCrash) {
			t.Fatalf("call %d of %d: %v", at, whole.calls, err)
		}
		for loses := losesNothing; loses <= losesAll; loses++ {
			after := dir.restart(loses)
			s := newStore(after, key)
			all, err := s.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var files []string
			for _, found := range all {
				found, err := s.Verify(t.Context(), found)
				if err != nil || found.State != retention.Verified {
					t.Fatalf("call %d, mode %d: %+v, %v", at, loses, found, err)
				}
				files = append(files, found.File)
			}
			if len(files) == 2 {
				appeared++
			}
			if !slices.Equal(files, []string{old.File}) && !slices.Equal(files, []string{e.File, old.File}) {
				t.Fatalf("call %d, mode %d: there are %v", at, loses, files)
			}
			next := mustWrite(t, s, from(12), b)
			slices.Reverse(files)
			if names := after.names(t); !slices.Equal(names, append(files, next.File)) {
				t.Fatalf("call %d, mode %d: the next one leaves %v", at, loses, names)
			}
		}
	}
	if appeared == 0 || whole.calls < 15 {
		t.Errorf("%d calls, and the new one was there %d times", whole.calls, appeared)
	}
}

// TestStorageThatLies: what the storage returns is compared with what was written.
func TestStorageThatLies(t *testing.T) {
	dir, b := newMemory(), sent(t, 50)
	s := newStore(dir, newKey(t))
	s.c.Keys = nil // also where there is no key to open it
	dir.corrupts = func(b []byte) {
		if bytes.HasPrefix(b, []byte(magic)) {
			b[len(b)-10] ^= 1
		}
	}
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(b)); !errors.Is(err, ErrDamaged) || len(dir.files) != 0 {
		t.Errorf("%v, left are %v", err, dir.names(t))
	}
	dir.corrupts = nil
	if e, err := s.Write(t.Context(), from(0), bytes.NewReader(b)); err != nil || e.State != retention.Unverified {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestKeyThatDoesNotFit: a store whose own key is not among the recipients stores nothing
// that it could not verify later.
func TestKeyThatDoesNotFit(t *testing.T) {
	dir := newMemory()
	s := newStore(dir, newKey(t))
	s.c.Keys = newKey(t)
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(sent(t, 5))); !errors.Is(err, ErrNoKey) || len(dir.files) != 0 {
		t.Errorf("%v, left are %v", err, dir.names(t))
	}
	s.c.Recipients = nil
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(sent(t, 5))); err == nil || !strings.Contains(err.Error(), "no recipient") {
		t.Errorf("for no recipient: %v", err)
	}
}

// TestDamagedFiles: no file of which any bit was changed, or any part is missing, is
// verified, and what opens it never panics.
func TestDamagedFiles(t *testing.T) {
	dir, key := newMemory(), newKey(t)
	s := newStore(dir, key, newKey(t))
	e := mustWrite(t, s, from(0), sent(t, 300))
	data := dir.files[e.File].data
	head := bytes.Index(data, []byte("age-encryption.org")) + 1000
	check := func(what string, changed []byte) {
		t.Helper()
		dir.files[e.File].data = changed
		got, err := s.Verify(t.Context(), e)
		if err != nil || got.State == retention.Verified || got.Problem == "" {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		if known, _ := s.recall(e.File); known.State == retention.Verified {
			t.Errorf("%s: it counts as verified", what)
		}
		if all, err := s.List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("%s: %v, %v", what, all, err)
		}
	}
	for at := 0; at < len(data); at += 5 {
		if at > head {
			at += len(data) / 100
		}
		if at < len(data) {
			changed := bytes.Clone(data)
			changed[at] ^= 1 << (at % 8)
			check(fmt.Sprintf("byte %d of %d", at, len(data)), changed)
		}
	}
	for size := 0; size < len(data); size += 1 + len(data)/100 {
		check(fmt.Sprintf("%d of %d bytes", size, len(data)), data[:size])
	}
	check("more bytes", append(bytes.Clone(data), 0))
	dir.files[e.File].data = data
	if got, err := s.Verify(t.Context(), e); err != nil || got.State != retention.Verified {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestHeaders: what is in clear is believed only as far as the content authenticates it.
func TestHeaders(t *testing.T) {
	dir, key := newMemory(), newKey(t)
	s := newStore(dir, key)
	e := mustWrite(t, s, from(0), sent(t, 5))
	data := dir.files[e.File].data
	for want, change := range map[string]func([]byte) []byte{
		"its header was changed":      func(b []byte) []byte { return bytes.Replace(b, []byte("v1.14.1"), []byte("v1.14.2"), 1) },
		"its format has version 2":    func(b []byte) []byte { return bytes.Replace(b, []byte("version 1"), []byte("version 2"), 1) },
		"it is no encrypted snapshot": func(b []byte) []byte { return []byte("something else") },
		"its header cannot be read":   func(b []byte) []byte { return bytes.Replace(b, []byte("{"), []byte("["), 1) },
		"its header has no end":       func(b []byte) []byte { return append([]byte(firstLine), bytes.Repeat([]byte("x"), 2*mostHeader)...) },
	} {
		dir.files[e.File].data = change(bytes.Clone(data))
		got, err := s.Verify(t.Context(), e)
		if err != nil || !strings.Contains(got.Problem, want) || got.State == retention.Verified {
			t.Errorf("%+v, %v; want %q", got, err, want)
		}
	}
	// A newer version is not damaged: it is kept for whoever can read it.
	dir.files[e.File].data = bytes.Replace(bytes.Clone(data), []byte("version 1"), []byte("version 2"), 1)
	if all, err := s.List(t.Context()); err != nil || all[0].State != retention.Unverified || all[0].Problem == "" {
		t.Errorf("%+v, %v", all, err)
	}
	dir.files[e.File].data = data
	renamed := from(0)
	renamed.Cluster = "prod"
	dir.files[renamed.Name.String()] = &content{data: data}
	if all, err := s.List(t.Context()); err != nil || len(all) != 2 || all[1].State != retention.Damaged || !strings.Contains(all[1].Problem, "by its header it is "+e.File) {
		t.Errorf("another name: %+v, %v", all, err)
	} else if got, err := s.Verify(t.Context(), all[1]); err != nil || got.State != retention.Damaged {
		t.Errorf("another name: %+v, %v", got, err)
	}
	other := newStore(dir, newKey(t))
	if got, err := other.Verify(t.Context(), e); err != nil || got.State != retention.Unverified || !strings.Contains(got.Problem, "no key") {
		t.Errorf("with another key: %+v, %v", got, err)
	}
	if _, err := Open(bytes.NewReader(data), int64(len(data)), nil); !errors.Is(err, ErrNoKey) || !strings.Contains(fault.HintOf(err), key.Recipients()[0]) {
		t.Errorf("without a key: %v (%s)", err, fault.HintOf(err))
	}
}

// forge makes a file whose content is encrypted to a key, whatever it is.
func forge(t *testing.T, h Header, to age.Recipient, content func(head []byte) []byte) []byte {
	t.Helper()
	head, err := encodeHead(h)
	if err != nil {
		t.Fatal(err)
	}
	out := bytes.NewBuffer(bytes.Clone(head))
	encrypted, err := age.Encrypt(out, to)
	if err != nil {
		t.Fatal(err)
	}
	_, err = encrypted.Write(content(head))
	if err := errors.Join(err, encrypted.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestForgedFiles: whoever knows a public key can encrypt anything to it.
func TestForgedFiles(t *testing.T) {
	key, b := newKey(t), sent(t, 5)
	found, err := VerifyPlain(t.Context(), bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	h := Header{Source: from(0), Database: found, Recipients: key.Recipients()}
	other := h
	other.Database.Revision++
	withDigest := func(b []byte) func([]byte) []byte {
		return func(head []byte) []byte {
			sum := sha256.Sum256(head)
			return append(sum[:], b...)
		}
	}
	withSum := func(b []byte) []byte {
		sum := sha256.Sum256(b)
		return append(bytes.Clone(b), sum[:]...)
	}
	for _, c := range []struct {
		what string
		h    Header
		to   age.Recipient
		put  func([]byte) []byte
		want string // "": it is verified
	}{
		{"what is written here", h, key.Recipient(), withDigest(b), ""},
		{"another revision in the header", other, key.Recipient(), withDigest(b), "its header has the revision 7"},
		{"no database", h, key.Recipient(), withDigest(withSum(make([]byte, 8192))), "no database of etcd"},
		{"no SHA-256", h, key.Recipient(), withDigest(make([]byte, 8192+32)), "its SHA-256"},
		{"nothing but the digest", h, key.Recipient(), withDigest(nil), "it is truncated"},
		{"half of the digest", h, key.Recipient(), func([]byte) []byte { return make([]byte, 16) }, "it has no content"},
		{"another key than the header has", h, newKey(t).Recipient(), withDigest(b), "by its header it is encrypted to age1"},
	} {
		data := forge(t, c.h, c.to, c.put)
		o, err := Open(bytes.NewReader(data), int64(len(data)), key)
		if err == nil {
			err = o.Verify(t.Context())
		}
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

// TestDiskThatFails: a read that fails is no damage.
func TestDiskThatFails(t *testing.T) {
	dir, key := newMemory(), newKey(t)
	e := mustWrite(t, newStore(dir, key), from(0), sent(t, 3000)) // several chunks of age
	data := dir.files[e.File].data
	broken := errors.New("input/output error")
	for at := range 20 {
		limit := int64(at * len(data) / 20)
		r := failing{bytes.NewReader(data), limit, broken}
		o, err := Open(r, int64(len(data)), key)
		if err == nil {
			err = o.Verify(t.Context())
		}
		if !errors.Is(err, broken) || errors.Is(err, ErrDamaged) {
			t.Errorf("from byte %d on: %v", limit, err)
		}
	}
	// The end is read when the file is opened, so that only the middle fails later.
	o, err := Open(failingMiddle{bytes.NewReader(data), int64(len(data) / 2), broken}, int64(len(data)), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Verify(t.Context()); !errors.Is(err, broken) || errors.Is(err, ErrDamaged) {
		t.Errorf("in the middle: %v", err)
	}
	if _, _, err := readHead(failing{bytes.NewReader(data), 0, broken}, int64(len(data))); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := VerifyPlain(t.Context(), failing{bytes.NewReader(data), 0, broken}, int64(len(data))); !errors.Is(err, broken) {
		t.Error(err)
	}

	w := watch(failing{bytes.NewReader(data), 100, broken})
	for _, c := range []struct{ at, size int }{{0, 10}, {95, 10}, {0, 10}} {
		_, _ = w.ReadAt(make([]byte, c.size), int64(c.at))
	}
	if err := w.explain(io.ErrUnexpectedEOF); !errors.Is(err, broken) || w.explain(nil) != nil {
		t.Errorf("a read that failed before another is explained by %v", err)
	}
	w = watch(bytes.NewReader(data))
	if _, err := w.ReadAt(make([]byte, 10), int64(len(data))); err != io.EOF || w.explain(broken) != broken || w.explain(nil) != nil {
		t.Errorf("the end of a file is taken for a failure: %v", err)
	}
}

// TestDirectoryThatFails: what a call refuses is reported, and verifies nothing.
func TestDirectoryThatFails(t *testing.T) {
	dir, b := newMemory(), sent(t, 5)
	s := newStore(dir, newKey(t))
	fill(t, s, b, 0, 1)
	write := func() error {
		_, err := s.Write(t.Context(), from(6), bytes.NewReader(b))
		return err
	}
	prune := func() error {
		_, err := s.Prune(t.Context(), "dev")
		return err
	}
	list := func() error {
		_, err := s.List(t.Context())
		return err
	}
	for _, c := range []struct {
		fails string
		do    func() error
	}{{"List", write}, {"List", prune}, {"List", list}, {"Remove", write}, {"Remove", prune}} {
		dir.fails = c.fails
		if err := c.do(); !errors.Is(err, errFails) {
			t.Errorf("%s fails: %v", c.fails, err)
		}
	}
	dir.fails = ""
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errFails)
	if _, err := s.List(ctx); !errors.Is(err, errFails) {
		t.Error(err)
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if e, err := s.Verify(ctx, all[0]); !errors.Is(err, errFails) || e.State == retention.Verified {
		t.Errorf("%+v, %v", e, err)
	}
	s = New(s.c) // which has verified none
	if _, err := s.Prune(ctx, "dev"); !errors.Is(err, errFails) {
		t.Error(err)
	}
	if _, err := s.Prune(endsAfter(t, len(all)), "dev"); !errors.Is(err, context.Canceled) {
		t.Errorf("the context ends after the list: %v", err)
	}
}

// endsAfter is a context that ends when it was asked so often.
func endsAfter(t *testing.T, n int) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	return &asked{ctx, cancel, n}
}

type asked struct {
	context.Context
	cancel context.CancelFunc
	n      int
}

func (a *asked) Err() error {
	if a.n--; a.n < 0 {
		a.cancel()
	}
	return a.Context.Err()
}

// TestFilesOfOthers: what is removed as a leftover is called like one.
func TestFilesOfOthers(t *testing.T) {
	dir, b := newMemory(), sent(t, 5)
	others := []string{".talos-agent-notes", "movie.part"}
	for _, name := range append(others, ".talos-agent-x.part") {
		dir.files[name] = &content{}
	}
	e := mustWrite(t, newStore(dir, newKey(t)), from(0), b)
	if names := dir.names(t); !slices.Equal(names, []string{".talos-agent-notes", e.File, "movie.part"}) {
		t.Errorf("there are %v", names)
	}
}

// TestWithoutKeys: what is no snapshot of etcd is not stored where there is no key to open it
// either, nor what has no place in a header.
func TestWithoutKeys(t *testing.T) {
	dir := newMemory()
	s := newStore(dir, newKey(t))
	s.c.Keys = nil
	sum := sha256.Sum256(make([]byte, 8192))
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(append(make([]byte, 8192), sum[:]...))); !errors.Is(err, ErrDamaged) {
		t.Errorf("no database: %v", err)
	}
	large := from(0)
	large.Node = strings.Repeat("x", mostHeader)
	if _, err := s.Write(t.Context(), large, bytes.NewReader(sent(t, 5))); err == nil || !strings.Contains(err.Error(), "its header has") {
		t.Errorf("a header that is too large: %v", err)
	}
	dir.corrupts = func(b []byte) {
		if !bytes.HasPrefix(b, []byte(magic)) {
			b[len(b)-1] ^= 1
		}
	}
	if _, err := s.Write(t.Context(), from(0), bytes.NewReader(sent(t, 5))); err == nil || !strings.Contains(err.Error(), "read back what was received") {
		t.Errorf("the storage returns something else: %v", err)
	}
	if len(dir.files) != 0 {
		t.Errorf("left are %v", dir.names(t))
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if fault.HintOf(explainFull(full)) == "" || fault.HintOf(explainFull(errFails)) != "" {
			t.Errorf("%v has no hint, or others have it", full)
		}
	}
}

// failingMiddle fails to read one byte.
type failingMiddle struct {
	io.ReaderAt
	at  int64
	err error
}

func (f failingMiddle) ReadAt(b []byte, at int64) (int, error) {
	if at <= f.at && f.at < at+int64(len(b)) {
		return 0, f.err
	}
	return f.ReaderAt.ReadAt(b, at)
}

// failing fails to read from an offset on.
type failing struct {
	io.ReaderAt
	from int64
	err  error
}

func (f failing) ReadAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) > f.from {
		return 0, f.err
	}
	return f.ReaderAt.ReadAt(b, at)
}

// TestExtract: a file in clear appears when it is whole, replaces none, and of one that is
// damaged, or for which there is no room, nothing stays.
func TestExtract(t *testing.T) {
	dir, to, key, b := newMemory(), newMemory(), newKey(t), sent(t, 3000) // several chunks of age
	e := mustWrite(t, newStore(dir, key), from(0), b)
	data := dir.files[e.File].data
	open := func(data []byte) *Opened {
		o, err := Open(bytes.NewReader(data), int64(len(data)), key)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	changed := bytes.Clone(data)
	changed[len(data)/2] ^= 1
	if err := open(changed).Extract(t.Context(), to, "db"); !errors.Is(err, ErrDamaged) || len(to.files) != 0 {
		t.Errorf("%v, left are %v", err, to.names(t))
	}
	to.room = len(b) / 2
	if err := open(data).Extract(t.Context(), to, "db"); !strings.Contains(fault.HintOf(err), "make room") || len(to.files) != 0 {
		t.Errorf("%v, left are %v", err, to.names(t))
	}
	to.room = -1
	if err := open(data).Extract(t.Context(), to, "db"); err != nil || !bytes.Equal(to.restart(losesAll).files["db"].data, b) {
		t.Error(err)
	}
	if err := open(data).Extract(t.Context(), to, "db"); !errors.Is(err, fs.ErrExist) || !slices.Equal(to.names(t), []string{"db"}) {
		t.Errorf("%v, left are %v", err, to.names(t))
	}
	to.files["other.part"] = &content{}
	if err := open(data).Extract(t.Context(), to, "other"); !errors.Is(err, fs.ErrExist) || !slices.Equal(to.names(t), []string{"db", "other.part"}) {
		t.Errorf("%v, left are %v", err, to.names(t))
	}
}

// TestNextDue: the newest scheduled one counts that is not damaged, and the cluster's id.
func TestNextDue(t *testing.T) {
	entry := func(kind retention.Kind, hours int, state retention.State, id string) Entry {
		e := Entry{Name: Name{"dev", kind, morning.Add(time.Duration(hours) * time.Hour)}, State: state}
		if id != "" {
			e.Header = &Header{Source: Source{ClusterID: id}}
		}
		return e
	}
	every, now := 6*time.Hour, morning.Add(20*time.Hour)
	all := []Entry{
		entry(retention.Manual, 19, retention.Verified, "id"), entry(retention.Scheduled, 18, retention.Damaged, "id"),
		entry(retention.Scheduled, 12, retention.Unverified, "id"), entry(retention.Scheduled, 6, retention.Verified, "id"),
	}
	if got, want := NextDue(all, now, every), retention.NextDue(morning.Add(12*time.Hour), now, every, "id"); !got.Equal(want) {
		t.Errorf("%s, want %s", got, want)
	}
	all[2].Header = nil
	if got, want := NextDue(all, now, every), retention.NextDue(morning.Add(12*time.Hour), now, every, "dev"); !got.Equal(want) {
		t.Errorf("without an id: %s, want %s", got, want)
	}
	if got := NextDue(all[:2], now, every); !got.Equal(now) {
		t.Errorf("without one: %s", got)
	}
}

// TestVerifyPlain: what a member sent is verified without any key.
func TestVerifyPlain(t *testing.T) {
	b := sent(t, 40)
	if c, err := VerifyPlain(t.Context(), bytes.NewReader(b), int64(len(b))); err != nil || c.Revision != 41 || c.Size != int64(len(b)-trailerSize) {
		t.Errorf("%+v, %v", c, err)
	}
	for want, b := range map[string][]byte{
		"it is truncated":  b[:len(b)-1],
		"its SHA-256":      b[:len(b)-512],
		"it is empty":      b[:32],
		"32 bytes after a": nil,
	} {
		if _, err := VerifyPlain(t.Context(), bytes.NewReader(b), int64(len(b))); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestNames: names are read back, and others are not ours.
func TestNames(t *testing.T) {
	for _, name := range []string{"dev-20261127T074500Z-scheduled.etcd", "a-b-20261127-20261127T074501Z-before-removal.etcd", "1-20261127T235959Z-manual.etcd"} {
		if n, ours := ParseName(name); !ours || n.String() != name {
			t.Errorf("%s is %+v, %v", name, n, ours)
		}
	}
	for _, name := range []string{
		"", "dev.etcd", "dev-20261127T074500Z-scheduled", "dev-20261127T074500Z-other.etcd", "dev-20261327T074500Z-manual.etcd",
		"dev-20261127T074500Z-manual.etcd.part", "Dev-20261127T074500Z-manual.etcd", "-20261127T074500Z-manual.etcd", "a/dev-20261127T074500Z-manual.etcd",
		"dev-20261127T074500Z-before-upgrade-manual.etcd", ".dev-20261127T074500Z-manual.etcd", strings.Repeat("a", 64) + "-20261127T074500Z-manual.etcd",
	} {
		if n, ours := ParseName(name); ours {
			t.Errorf("%s is taken for %+v", name, n)
		}
	}
	s := newStore(newMemory(), newKey(t))
	for _, cluster := range []string{"", "../dev", "a/b", "Dev", "dev-20261127T074500Z-manual.etcd"} {
		to := from(0)
		to.Cluster = cluster
		if _, err := s.Write(t.Context(), to, bytes.NewReader(sent(t, 1))); err == nil {
			t.Errorf("a snapshot of %q was stored", cluster)
		}
	}
}
