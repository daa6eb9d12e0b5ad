package snapshot

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// errCrash is what every call returns once the process has ended.
var errCrash = errors.New("the process has ended")

// memory is a Directory with the faults of a disk: it is full, or the process ends at some
// call, and what was not made durable by then is lost or not.
type memory struct {
	mu       sync.Mutex
	files    map[string]*content
	durable  map[string]*content // as the last Sync of the directory left them
	calls    int
	crashAt  int // this call is not done, or half of it, and none after it; 0: never
	room     int // bytes that can still be written; -1: any
	locked   bool
	opened   map[string]int // how often each file was opened
	written  bytes.Buffer   // all that was ever written
	corrupts func([]byte)   // changes what is read
	fails    string         // what fails: List or Remove
}

// errFails is the error of a call that fails.
var errFails = errors.New("operation not permitted")

// content is one file.
type content struct{ data, durable []byte }

func newMemory() *memory {
	return &memory{files: map[string]*content{}, durable: map[string]*content{}, room: -1, opened: map[string]int{}}
}

// What of the writes before a crash is there after it that no Sync has made durable.
const (
	losesNothing = iota
	losesData    // names are there, and what was written to the files is not
	losesAll
)

// restart is the directory as the next process finds it.
func (m *memory) restart(loses int) *memory {
	next := newMemory()
	from := m.files
	if loses == losesAll {
		from = m.durable
	}
	for name, c := range from {
		data := c.data
		if loses != losesNothing {
			data = c.durable
		}
		kept := &content{bytes.Clone(data), bytes.Clone(data)}
		next.files[name], next.durable[name] = kept, kept
	}
	return next
}

// call counts a call; half reports that it is the last one, and done by half.
func (m *memory) call() (half bool, err error) {
	m.calls++
	switch {
	case m.crashAt == 0 || m.calls < m.crashAt:
		return false, nil
	case m.calls == m.crashAt:
		return true, errCrash
	}
	return false, errCrash
}

func (m *memory) names(t *testing.T) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(m.files))
}

func (m *memory) List() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.call(); err != nil {
		return nil, err
	}
	if m.fails == "List" {
		return nil, errFails
	}
	return slices.Collect(maps.Keys(m.files)), nil // in no order
}

func (m *memory) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.call(); err != nil {
		return nil, err
	}
	c := m.files[name]
	if c == nil {
		return nil, fs.ErrNotExist
	}
	m.opened[name]++
	data := bytes.Clone(c.data)
	if m.corrupts != nil {
		m.corrupts(data)
	}
	return memoryFile{bytes.NewReader(data)}, nil
}

type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

// Changed implements File: nobody changes a file in memory.
func (memoryFile) Changed() time.Time { return time.Time{} }

func (m *memory) Create(name string) (NewFile, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.call(); err != nil {
		return nil, err
	}
	if m.files[name] != nil {
		return nil, fs.ErrExist
	}
	m.files[name] = &content{}
	return &memoryNew{m, m.files[name]}, nil
}

type memoryNew struct {
	of *memory
	c  *content
}

func (f *memoryNew) Write(b []byte) (int, error) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	half, err := f.of.call()
	if err != nil && !half {
		return 0, err
	}
	n := len(b)
	if half {
		n /= 2
	}
	if f.of.room >= 0 && n > f.of.room {
		n, err = f.of.room, syscall.ENOSPC
	}
	if f.of.room >= 0 {
		f.of.room -= n
	}
	f.c.data = append(f.c.data, b[:n]...)
	f.of.written.Write(b[:n])
	return n, err
}

func (f *memoryNew) Sync() error {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if _, err := f.of.call(); err != nil {
		return err
	}
	f.c.durable = bytes.Clone(f.c.data)
	return nil
}

func (f *memoryNew) Close() error { return nil }

func (m *memory) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.call(); err != nil {
		return err
	}
	if m.files[to] != nil {
		return fs.ErrExist
	}
	m.files[to] = m.files[from]
	delete(m.files, from)
	return nil
}

func (m *memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.call(); err != nil {
		return err
	}
	if m.files[name] == nil {
		return fs.ErrNotExist
	}
	if m.fails == "Remove" {
		return errFails
	}
	delete(m.files, name)
	return nil
}

func (m *memory) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.call(); err != nil {
		return err
	}
	m.durable = maps.Clone(m.files)
	return nil
}

func (m *memory) Lock() (func() error, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked {
		return nil, errors.New("another process writes to it")
	}
	m.locked = true
	return func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.locked = false
		return nil
	}, nil
}
