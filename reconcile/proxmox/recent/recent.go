// Package recent remembers what Proxmox VE has answered, for as long as nobody is the worse for it: several clusters are looked at
// at once, and one on which something goes on is looked at for every word of a machine. Only looks are answered from it
// (With): what an action asks before it changes something is asked again.
package recent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// For how long answers hold. What is not named here is asked each time.
const (
	// listsFor is for the lists that every look begins with, for what the token sees, for VMs that the lists do not settle, and for the quorum of
	// the hosts, after a change of ours: less than the pause between two looks that nothing calls for, so that only those that something
	// calls for, and those of several clusters, share them.
	listsFor = 900 * time.Millisecond
	// quietFor is for the same once nothing of ours was changed, and no task of ours has ended, for as long: looks are called for by what
	// machines and Kubernetes report then, or by a task that goes on, and what others do in Proxmox VE needs be seen within an interval only.
	quietFor = 3 * time.Second
	// storesFor is for what people change now and then: storages, and what is in them.
	storesFor = 10 * time.Second
	// armedFor is for whether the HA manager is armed, which none of our changes touches: as long as a round of that.
	armedFor = 10 * time.Second
	// freeFor is for whether a VMID is free, where the token may not see who has it. Who creates a VM asks again, and Proxmox VE
	// refuses one that has been taken.
	freeFor = time.Minute
)

// reach is which of our changes an answer does not outlive: those that reach so far, and those that reach further.
type reach int

const (
	none    reach = iota
	storing       // storages show it
	every         // any, such as a start
)

type rule struct {
	asked  *pattern.Pattern // a path, with its query
	within time.Duration
	quiet  time.Duration // in its place, when we have changed nothing lately; 0: the same
	until  reach
	// first: a look begins with it, and what it asks next and outlives no change of ours is not older.
	first bool
}

var rules = []*rule{
	{asked: pattern.New(`^/cluster/resources map\[\]$`), within: listsFor, quiet: quietFor, until: every, first: true},
	{asked: pattern.New(`^/nodes/[^/]+/tasks map\[.*source:active\]$`), within: listsFor, quiet: quietFor, until: every},
	{asked: pattern.New(`^/access/permissions map\[path:`), within: listsFor, quiet: quietFor, until: every}, // not older than the list: without rights that is empty
	{asked: pattern.New(`^/nodes/[^/]+/qemu/[0-9]+/(status/current|config|pending) `), within: listsFor, quiet: quietFor, until: every},
	{asked: pattern.New(`^/nodes/[^/]+/storage(/[^/]+/content)? `), within: storesFor, until: storing},
	{asked: pattern.New(`^/cluster/status `), within: listsFor, quiet: quietFor},
	{asked: pattern.New(`^/cluster/ha/status/current `), within: armedFor},
	{asked: pattern.New(`^/cluster/nextid `), within: freeFor},
}

var (
	// onlyVM are requests that no storage shows; to POST a config may make a disk.
	onlyVM = pattern.New(`^(PUT /nodes/[^/]+/qemu/[0-9]+/config|POST /nodes/[^/]+/qemu/[0-9]+/status/[a-z]+)$`)
	// onlyPower are the tasks of which no storage shows anything (PVE 9: qemu-server).
	onlyPower = []string{"qmstart", "qmshutdown", "qmstop", "qmreset", "qmreboot", "qmresume", "vncproxy"}
)

// Answers are what was answered lately. The zero value is ready; it may be used from many goroutines.
type Answers struct {
	mu      sync.Mutex
	held    map[string]answer
	changed [every + 1]int // how often answers were dropped, by their reach
	last    time.Time      // when we last changed something, or a task of ours ended
}

type answer struct {
	raw  json.RawMessage
	at   time.Time
	rule *rule
}

type key struct{}

// With has the questions of a look answered from what is remembered.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Get answers a question into a value: from what is remembered, or by ask, whose answer is remembered then. An error is not.
func (a *Answers) Get(ctx context.Context, path string, query map[string]string, into any, ask func(into any) error) error {
	if ctx.Value(key{}) == nil {
		return ask(into)
	}
	name := nameOf(path, query)
	at := slices.IndexFunc(rules, func(r *rule) bool { return r.asked.MatchString(name) })
	if at < 0 {
		return ask(into)
	}
	r := rules[at]
	known, ok, changed := a.recall(name, r)
	if ok {
		return decode(path, known.raw, into)
	}
	now := answer{at: time.Now(), rule: r} // it may be true for then only
	if err := ask(&now.raw); err != nil {
		return err
	}
	if err := decode(path, now.raw, into); err != nil {
		return err
	}
	a.keep(name, now, changed)
	return nil
}

// recall returns an answer that still holds, if there is one, and else how often such answers were dropped before it is asked for.
func (a *Answers) recall(name string, r *rule) (known answer, ok bool, changed int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok = a.held[name]
	if ok = ok && time.Since(known.at) < a.holds(r); !ok && r.first {
		a.drop(every)
	}
	return known, ok, a.changed[r.until]
}

// holds is for how long answers hold now. a.mu is held.
func (a *Answers) holds(r *rule) time.Duration {
	if time.Since(a.last) < quietFor {
		return r.within
	}
	return max(r.within, r.quiet)
}

// decode reads an answer. One without data has none to be read (PVE: "data": null).
func decode(path string, raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// keep remembers an answer, unless we have changed something since it was asked for, and drops what is too old.
func (a *Answers) keep(name string, now answer, changed int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for other, held := range a.held {
		if time.Since(held.at) >= a.holds(held.rule) {
			delete(a.held, other)
		}
	}
	kept := a.changed[now.rule.until] == changed
	if now.rule.first { // what was asked while it was on its way may be older than it
		a.drop(every)
	}
	if !kept {
		return
	}
	if a.held == nil {
		a.held = map[string]answer{}
	}
	a.held[name] = now
}

// Requested drops what a request of ours to a path may have changed; it has been answered, or not.
func (a *Answers) Requested(method, path string) {
	if onlyVM.MatchString(method + " " + path) {
		a.changedBy(every)
		return
	}
	a.changedBy(storing)
}

// Ended drops what a task of a kind may have changed, which has ended.
func (a *Answers) Ended(kind string) {
	if slices.Contains(onlyPower, kind) {
		a.changedBy(every)
		return
	}
	a.changedBy(storing)
}

// changedBy drops what a change of ours may have changed, by how far that reaches.
func (a *Answers) changedBy(from reach) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
	a.drop(from)
}

// Asked is when the oldest of the remembered answers to some questions without a query was asked for; a given time where none is older.
func (a *Answers) Asked(before time.Time, paths ...string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, path := range paths {
		if known, ok := a.held[nameOf(path, nil)]; ok && known.at.Before(before) {
			before = known.at
		}
	}
	return before
}

// Taken drops that a VMID is free.
func (a *Answers) Taken(vmid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed[none]++ // what is asked now is not kept
	delete(a.held, freeName(vmid))
}

// freeName is the question whether a VMID is free.
func freeName(vmid int) string {
	return nameOf("/cluster/nextid", map[string]string{"vmid": strconv.Itoa(vmid)})
}

// nameOf is a question by its path and its query, in the order of its keys.
func nameOf(path string, query map[string]string) string { return path + " " + fmt.Sprint(query) }

// Clear drops everything: somebody wants to see what there is now.
func (a *Answers) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(none)
}

// drop drops the answers of a reach and of all after it. a.mu is held.
func (a *Answers) drop(from reach) {
	for until := from; until <= every; until++ {
		a.changed[until]++
	}
	for name, held := range a.held {
		if held.rule.until >= from {
			delete(a.held, name)
		}
	}
}
