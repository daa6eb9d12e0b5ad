// Package journaltest has a file system in memory for tests of what a journal must outlive.
package journaltest

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Files is a file system in memory that can die before or after any step.
type Files struct {
	Mu      sync.Mutex
	Saved   map[string][]byte
	Unsaved map[string][]byte // written, not synced
	Steps   int
	Full    string // no room for what has this in it
	DieAt   int    // step that does not happen any more; 0: immortal
	Torn    bool
}

// ErrDead is what a file system that has died answers.
var ErrDead = errors.New("the machine is off")

// NewFiles returns an empty file system that never dies.
func NewFiles() *Files {
	return &Files{Saved: map[string][]byte{}, Unsaved: map[string][]byte{}}
}

func (m *Files) step() error {
	m.Steps++
	if m.DieAt > 0 && m.Steps >= m.DieAt {
		return ErrDead
	}
	return nil
}

func (m *Files) Read(name string) ([]byte, error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	b, ok := m.Saved[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(b), nil
}

func (m *Files) Write(name string, data []byte) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	if m.Full != "" && strings.Contains(string(data), m.Full) {
		return syscall.ENOSPC
	}
	m.Unsaved[name] = slices.Clone(data)
	return nil
}

func (m *Files) Sync(name string) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	m.Saved[name] = m.Unsaved[name]
	delete(m.Unsaved, name)
	return nil
}

func (m *Files) Remove(name string) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	delete(m.Saved, name)
	return nil
}

func (m *Files) Rename(from, to string) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	b, ok := m.Saved[from]
	if half, unsynced := m.Unsaved[from]; unsynced {
		b, ok = half[:len(half)/2], true // all the disk has of it when the power goes
	}
	if !ok {
		return fs.ErrNotExist
	}
	if m.Torn {
		b = b[:len(b)/2]
	}
	m.Saved[to] = b
	delete(m.Saved, from)
	return nil
}
