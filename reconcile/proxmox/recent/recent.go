// Package recent remembers what Proxmox VE has answered, for as long as nobody is the worse for it: several clusters are looked at
// at once, and one on which something goes on is looked at for every word of a machine. Only looks are answered from it
// (With): what an action asks before it changes something is asked again.
package recent

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"
)

// For how long answers hold. What is not named here is asked each time.
const (
	// listsFor is for the lists that every look begins with: less than the pause between two looks that nothing calls for,
	// so that only looks within one share them.
	listsFor = 900 * time.Millisecond
	// stateFor is for what people change now and then: the quorum of the hosts, rights of the token, storages and their contents.
	stateFor = 10 * time.Second
	// freeFor is for whether a VMID is free, where the token may not see who has it. Who creates a VM asks again, and Proxmox VE
	// refuses one that has been taken.
	freeFor = time.Minute
)

// reach is which of our changes an answer does not outlive.
type reach int

const (
	none    reach = iota
	storing       // those that storages show
	every
)

type rule struct {
	asked  *regexp.Regexp // a path, with its query
	within time.Duration
	until  reach
}

var rules = []*rule{
	{asked: regexp.MustCompile(`^/cluster/resources map\[\]$`), within: listsFor, until: every},
	{asked: regexp.MustCompile(`^/nodes/[^/]+/tasks map\[.*source:active\]$`), within: listsFor, until: every},
	{asked: regexp.MustCompile(`^/nodes/[^/]+/storage(/[^/]+/content)? `), within: stateFor, until: storing},
	{asked: regexp.MustCompile(`^(/cluster/status|/access/permissions) `), within: stateFor},
	{asked: regexp.MustCompile(`^/cluster/nextid `), within: freeFor},
}

var (
	// onlyVM are requests that no storage shows.
	onlyVM = regexp.MustCompile(`^/nodes/[^/]+/qemu/[0-9]+/(config|status/[a-z]+)$`)
	// onlyPower are the tasks of which no storage shows anything (PVE 9: qemu-server).
	onlyPower = []string{"qmstart", "qmshutdown", "qmstop", "qmreset", "qmreboot", "qmresume", "vncproxy"}
)

// Answers are what was answered lately. The zero value is ready; it may be used from many goroutines.
type Answers struct {
	mu      sync.Mutex
	held    map[string]answer
	changed [every + 1]int // how often we changed what is within a reach
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
	name := path + " " + fmt.Sprint(query) // in the order of its keys
	at := slices.IndexFunc(rules, func(r *rule) bool { return r.asked.MatchString(name) })
	if at < 0 || ctx.Value(key{}) == nil {
		return ask(into)
	}
	r := rules[at]
	a.mu.Lock()
	known, ok := a.held[name]
	changed := a.changed[r.until]
	a.mu.Unlock()
	if ok && time.Since(known.at) < r.within {
		return json.Unmarshal(known.raw, into)
	}
	now := answer{at: time.Now(), rule: r} // it may be true for then only
	if err := ask(&now.raw); err != nil {
		return err
	}
	a.keep(name, now, changed)
	return json.Unmarshal(now.raw, into)
}

// keep remembers an answer, unless we have changed something since it was asked for, and drops what is too old.
func (a *Answers) keep(name string, now answer, changed int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for other, held := range a.held {
		if time.Since(held.at) >= held.rule.within {
			delete(a.held, other)
		}
	}
	if a.changed[now.rule.until] != changed {
		return
	}
	if a.held == nil {
		a.held = map[string]answer{}
	}
	a.held[name] = now
}

// Requested drops what a request of ours to a path may have changed; it has been answered, or not.
func (a *Answers) Requested(path string) { a.drop(onlyVM.MatchString(path)) }

// Ended drops what a task of a kind may have changed, which has ended.
func (a *Answers) Ended(kind string) { a.drop(slices.Contains(onlyPower, kind)) }

// Clear drops everything: somebody wants to see what there is now.
func (a *Answers) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.held)
	for i := range a.changed {
		a.changed[i]++
	}
}

// drop drops what a change of ours does not leave true.
func (a *Answers) drop(storesNothing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for until := storing; until <= every; until++ {
		if until == storing && storesNothing {
			continue
		}
		a.changed[until]++
		for name, held := range a.held {
			if held.rule.until == until {
				delete(a.held, name)
			}
		}
	}
}
