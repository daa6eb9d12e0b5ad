package rules

import "time"

// A controller tries again what failed, after a time that doubles each time.
// Source: client-go, util/workqueue, DefaultTypedControllerRateLimiter.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 1000 * time.Second
)

// Refusals are the workloads of controllers whose pods the server refused.
type Refusals[K comparable] map[K]*refusal

type refusal struct {
	tries   int
	hash    string // of the template that was refused
	message string
	waits   bool // for the next try
}

// MayTry reports whether a controller makes pods of a workload from a template, or
// waits, because the last one was refused.
func (r Refusals[K]) MayTry(key K, hash string) bool {
	have := r[key]
	return have == nil || !have.waits || have.hash != hash
}

// Note notes that a pod was refused. It returns how long the controller waits, and
// what to call then.
func (r Refusals[K]) Note(key K, hash, message string) (wait time.Duration, again func()) {
	have := r[key]
	if have == nil || have.hash != hash {
		have = &refusal{hash: hash}
		r[key] = have
	}
	have.message, have.waits = message, true
	wait = lastRetry
	if have.tries < 18 { // doubled so often, the first is more than the last
		wait = min(lastRetry, firstRetry<<have.tries)
	}
	have.tries++
	return wait, func() { have.waits = false }
}

// Message is why the last pod of a workload was refused, "" if it was not.
func (r Refusals[K]) Message(key K, hash string) string {
	if have := r[key]; have != nil && have.hash == hash {
		return have.message
	}
	return ""
}
