package snapshot

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
)

// fill stores a snapshot every so many hours, and returns the names, the oldest first.
func fill(t *testing.T, s *Store, b []byte, hours ...int) (files []string) {
	t.Helper()
	for _, h := range hours {
		files = append(files, mustWrite(t, s, from(h), b).File)
	}
	return files
}

func removed(kept []Kept) (files []string) {
	for _, k := range slices.Backward(kept) {
		if k.Prune {
			files = append(files, k.File)
		}
	}
	return files
}

// TestPrune: what is no longer needed is removed, and nothing of others: other clusters,
// other names, and what only has such a name.
func TestPrune(t *testing.T) {
	dir, key, b := newMemory(), newKey(t), sent(t, 5)
	s := newStore(dir, key)
	files := fill(t, s, b, 0, 1, 2, 3)
	other := from(0)
	other.Cluster = "dev-2"
	kept := []string{files[3], mustWrite(t, s, other, b).File, "dev-20200101T000000Z-scheduled.etcd", "dev-20200101T000000Z-yearly.etcd", "notes.txt", "dev-20200101T000000Z-scheduled.etcd.sha256"}
	for _, name := range kept[2:] {
		dir.files[name] = &content{data: []byte("of others")}
	}
	got, err := s.Prune(t.Context(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	// 07:45 and 08:45 to 10:45 are of one quarter of a day.
	if !slices.Equal(removed(got), files[:3]) {
		t.Errorf("removed %v of %v", removed(got), files)
	}
	slices.Sort(kept)
	if names := dir.names(t); !slices.Equal(names, kept) {
		t.Errorf("there are %v, want %v", names, kept)
	}
	if !slices.Equal(dir.restart(losesAll).names(t), kept) {
		t.Error("it was not made durable")
	}
	if again, err := s.Prune(t.Context(), "dev"); err != nil || removed(again) != nil {
		t.Errorf("then %v, %v", again, err)
	}
}

// TestPruneOfANamesake: two clusters of one name share a folder, as those of two hosts may. What one keeps takes the place
// of none of the other's, whose last ones stay.
func TestPruneOfANamesake(t *testing.T) {
	dir, key, b := newMemory(), newKey(t), sent(t, 5)
	s := newStore(dir, key)
	var kept []string
	for _, h := range []int{-4000, -3000, -2000} {
		other := from(h)
		other.ClusterID = "another"
		kept = append(kept, mustWrite(t, s, other, b).File)
	}
	files := fill(t, s, b, 0, 1, 2, 3)
	got, err := s.Prune(t.Context(), "dev")
	if err != nil || !slices.Equal(removed(got), files[:3]) {
		t.Errorf("removed %v of %v, %v", removed(got), files, err)
	}
	kept = append(kept, files[3])
	slices.Sort(kept)
	if names := dir.names(t); !slices.Equal(names, kept) {
		t.Errorf("there are %v, want %v", names, kept)
	}
}

// TestPruneVerifies: nothing is removed before something newer was read to its end; what
// is damaged counts for nothing, and is left to people.
func TestPruneVerifies(t *testing.T) {
	dir, key, b := newMemory(), newKey(t), sent(t, 5)
	files := fill(t, newStore(dir, key), b, 0, 1, 2, 3)
	damage := func(file string) { dir.files[file].data[len(dir.files[file].data)-1] ^= 1 }

	damage(files[3])
	s := newStore(dir, key) // another process, which has verified none
	got, err := s.Prune(t.Context(), "dev")
	if err != nil || !slices.Equal(removed(got), files[:2]) {
		t.Fatalf("removed %v, %v", removed(got), err)
	}
	if got[0].State != retention.Damaged || got[0].Why != "damaged" || got[1].State != retention.Verified {
		t.Errorf("%+v", got[:2])
	}

	// What was verified once is not read again by the same process.
	opened := dir.opened[files[2]]
	if _, err := s.Prune(t.Context(), "dev"); err != nil || dir.opened[files[2]] != opened+1 {
		t.Errorf("%s was opened %d times more: %v", files[2], dir.opened[files[2]]-opened, err)
	}

	// All are damaged, and then no key fits.
	more := fill(t, s, b, 4, 5)
	for _, file := range append(more, files[2]) {
		damage(file)
	}
	if got, err := newStore(dir, key).Prune(t.Context(), "dev"); err != nil || removed(got) != nil {
		t.Errorf("all are damaged: %v, %v", removed(got), err)
	}
	for _, file := range append(more, files[2]) {
		damage(file) // it is a bit
	}
	if got, err := newStore(dir, newKey(t)).Prune(t.Context(), "dev"); err != nil || removed(got) != nil || got[0].State != retention.Unverified {
		t.Errorf("no key fits: %v, %v", got, err)
	}
	s = newStore(dir, key)
	s.c.Keys = nil
	if _, err := s.Prune(t.Context(), "dev"); err == nil {
		t.Error("without a key it prunes")
	}
}

// TestPruneLeavesWhatIsKnownDamaged: what a process has found to be damaged is left to people, also
// where nobody would miss it.
func TestPruneLeavesWhatIsKnownDamaged(t *testing.T) {
	dir, key, b := newMemory(), newKey(t), sent(t, 5)
	files := fill(t, newStore(dir, key), b, 0, 1)
	dir.files[files[1]].data[len(dir.files[files[1]].data)-1] ^= 1
	s := newStore(dir, key)
	all, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e, err := s.Verify(t.Context(), all[0]); err != nil || e.State != retention.Damaged {
		t.Fatalf("%+v, %v", e, err)
	}
	fill(t, s, b, 2) // of the same quarter of a day
	got, err := s.Prune(t.Context(), "dev")
	if err != nil || !slices.Equal(removed(got), files[:1]) || got[1].State != retention.Damaged || got[1].Problem == "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestPruneReadsWhatStays: to its end are read those that the rules keep, and neither
// those that are removed nor those that are left to people; and what a process has
// verified does not stay so when its header no longer is one.
func TestPruneReadsWhatStays(t *testing.T) {
	dir, key, b := newMemory(), newKey(t), sent(t, 5)
	files := fill(t, newStore(dir, key), b, 0, 1, 2, -40)
	manual := from(3)
	manual.Kind = retention.Manual
	files = append(files, mustWrite(t, newStore(dir, key), manual, b).File)
	clear(dir.opened)
	s := newStore(dir, key)
	if got, err := s.Prune(t.Context(), "dev"); err != nil || !slices.Equal(removed(got), files[:2]) {
		t.Fatalf("removed %v, %v", removed(got), err)
	}
	for i, want := range []int{1, 1, 2, 2, 1} { // each once for the list
		if got := dir.opened[files[i]]; got != want {
			t.Errorf("%s was opened %d times, want %d", files[i], got, want)
		}
	}
	dir.files[files[2]].data = []byte("something else")
	if got, err := s.Prune(t.Context(), "dev"); err != nil || got[1].File != files[2] || got[1].State != retention.Damaged {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestCrashesWhilePruning: wherever the process ends, what must be kept is there.
func TestCrashesWhilePruning(t *testing.T) {
	begin, key, b := newMemory(), newKey(t), sent(t, 5)
	files := fill(t, newStore(begin, key), b, 0, 1, 2, 3)
	whole := begin.restart(losesNothing)
	if _, err := newStore(whole, key).Prune(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	for at := 1; at <= whole.calls; at++ {
		dir := begin.restart(losesNothing)
		dir.crashAt = at
		// What cannot be read is a snapshot with a problem, and no error.
		if _, err := newStore(dir, key).Prune(t.Context(), "dev"); err != nil && !errors.Is(err, errCrash) {
			t.Fatalf("call %d: %v", at, err)
		}
		for loses := losesNothing; loses <= losesAll; loses++ {
			after := dir.restart(loses)
			if !slices.Contains(after.names(t), files[3]) {
				t.Fatalf("call %d leaves %v", at, after.names(t))
			}
			if _, err := newStore(after, key).Prune(t.Context(), "dev"); err != nil {
				t.Fatal(err)
			}
			if names := after.names(t); !slices.Equal(names, files[3:]) {
				t.Fatalf("call %d, and the next one leaves %v", at, names)
			}
		}
	}
}

// TestOneAtATime: a second process does not remove what the first one is writing.
func TestOneAtATime(t *testing.T) {
	dir, key, b := newMemory(), newKey(t), sent(t, 5)
	s := newStore(dir, key)
	within := func() {
		if _, err := newStore(dir, key).Write(t.Context(), from(6), bytes.NewReader(b)); err == nil {
			t.Error("two write at once")
		}
		if _, err := newStore(dir, key).Prune(t.Context(), "dev"); err == nil {
			t.Error("one prunes while another writes")
		}
		if _, err := newStore(dir, key).List(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Write(t.Context(), from(0), &during{bytes.NewReader(b), within}); err != nil {
		t.Error(err)
	}
	mustWrite(t, s, from(6), b)
}

// during calls something when it is read first.
type during struct {
	*bytes.Reader
	call func()
}

func (d *during) Read(b []byte) (int, error) {
	if d.call != nil {
		d.call()
		d.call = nil
	}
	return d.Reader.Read(b)
}
