package outbox

import "time"

// RunPaced does something each time it is woken, but begins no sooner than gap
// after the time before ended. wake has one slot, so that any number of wakes
// meanwhile is one more time, and the last is never lost. It returns when stop
// is closed.
func RunPaced(stop <-chan struct{}, wake <-chan struct{}, gap time.Duration, do func()) {
	for {
		select {
		case <-stop:
			return
		case <-wake:
		}
		do()
		pause := time.NewTimer(gap)
		select {
		case <-stop:
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// Wake fills a channel of one slot, unless it is full.
func Wake(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
