package daemontest

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Disk is the host's disk: what the journal made durable survives.
type Disk struct {
	mu    sync.Mutex
	files map[string][]byte
	// Steps counts the durable steps. DieAt is the one before which the agent dies;
	// negative: after which.
	Steps, DieAt int
}

// journals are the clusters that have one, as the daemon lists them when it starts.
func (d *Disk) journals() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for file := range d.files {
		if name, ok := strings.CutSuffix(file, ".json"); ok {
			names = append(names, name)
		}
	}
	return names
}

// Names are the files that the disk has, sorted.
func (d *Disk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files))
}

// Lose deletes a file, as whoever loses the state directory does.
func (d *Disk) Lose(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, name)
}

// simFiles is one agent's view of the disk; it ends with the agent.
type simFiles struct {
	disk    *Disk
	sim     *Sim
	cut     atomic.Bool
	unsaved map[string][]byte
}

var errPowerless = errors.New("the agent is dead")

// step counts a durable step and lets the agent die at the chosen one.
func (f *simFiles) step(do func()) error {
	f.disk.mu.Lock()
	f.disk.Steps++
	n, die := f.disk.Steps, f.disk.DieAt
	if f.cut.Load() {
		f.disk.mu.Unlock()
		return errPowerless
	}
	if n == die {
		f.disk.mu.Unlock()
		f.sim.Die()
		return errPowerless
	}
	do()
	f.disk.mu.Unlock()
	if n == -die {
		f.sim.Die()
		return errPowerless
	}
	return nil
}

func (f *simFiles) Read(name string) ([]byte, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	b, ok := f.disk.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(b), nil
}

func (f *simFiles) Write(name string, data []byte) error {
	return f.step(func() {
		if f.unsaved == nil {
			f.unsaved = map[string][]byte{}
		}
		f.unsaved[name] = slices.Clone(data)
	})
}

func (f *simFiles) Sync(name string) error {
	return f.step(func() { f.disk.files[name] = f.unsaved[name] })
}

func (f *simFiles) Remove(name string) error {
	return f.step(func() { delete(f.disk.files, name) })
}

func (f *simFiles) Rename(from, to string) error {
	return f.step(func() {
		f.disk.files[to] = f.disk.files[from]
		delete(f.disk.files, from)
	})
}
