package outbox

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestPaced: however often it is woken, it does its work once per gap, at once
// when it was quiet, and once more for what came meanwhile.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop, wake := make(chan struct{}), make(chan struct{}, 1)
		began := time.Now()
		var done []time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			RunPaced(stop, wake, 5*time.Second, func() { done = append(done, time.Since(began)) })
		})
		flood := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
				Wake(wake)
			}
		}
		flood(10 * time.Second) // ten thousand
		time.Sleep(time.Minute)
		Wake(wake)
		time.Sleep(time.Minute)
		close(stop)
		wg.Wait()
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 70 * time.Second}
		if len(done) != len(want) {
			t.Fatalf("done at %v, want %v", done, want)
		}
		for i := range want {
			if done[i].Round(time.Second) != want[i] {
				t.Errorf("done at %v, want %v", done, want)
			}
		}
	})
}
