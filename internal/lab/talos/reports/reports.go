// Package reports is what a simulated Talos machine keeps another service informed of, such as Kubernetes of its kubelet:
// at most one thing of a kind at a time, which is taken back when it is not so any more.
//
// It must not know the machine, nor whom it informs.
package reports

import "reflect"

// Machine is what a report needs of whom it is about.
type Machine interface {
	// QueueEffect has something done later, in order, without the lock of the fleet.
	QueueEffect(func())
	// ChangeState changes the fleet, with its lock held; the machine is looked at afterwards if do returns true.
	ChangeState(do func() bool)
}

// Report is one thing that another service knows, and how to take it back.
type Report[T any] struct {
	What *T     // nil: nothing
	stop func() // touched only by what the fleet carries out, one at a time
}

// SetWanted reports what is wanted when it differs from what was reported before.
// receive is called, inside of a change, for what comes back.
func (t *Report[T]) SetWanted(m Machine, want *T, notify func(T, func(bool)) func(), receive func(bool)) {
	if reflect.DeepEqual(t.What, want) {
		return
	}
	t.What = want
	m.QueueEffect(func() {
		if t.stop != nil {
			t.stop()
			t.stop = nil
		}
		if want == nil {
			return
		}
		t.stop = notify(*want, func(ready bool) {
			m.ChangeState(func() bool {
				if t.What != want {
					return false
				}
				receive(ready)
				return true
			})
		})
	})
}

// Withdraw takes back what was reported.
func (t *Report[T]) Withdraw(m Machine) { t.SetWanted(m, nil, nil, nil) }
