package turns

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestWhoHasTheTurn: who waits for a turn learns who has it, so that people do.
func TestWhoHasTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Turns
		nobody := func(holder string) { t.Errorf("waits for %q", holder) }
		done, err := all.Take(t.Context(), "storage pve1/local-lvm", "the creation of vm 411 (dev-cp-1)", nobody)
		if err != nil {
			t.Fatal(err)
		}
		other, err := all.Take(t.Context(), "storage pve1/local", "the creation of vm 412 (dev-cp-2)", nobody)
		if err != nil {
			t.Fatal(err)
		}
		other()
		heard := make(chan string, 2)
		next := make(chan func(), 1)
		go func() {
			mine, err := all.Take(t.Context(), "storage pve1/local-lvm", "the creation of vm 611 (test-cp-1)", func(holder string) { heard <- holder })
			if err != nil {
				t.Error(err)
			}
			next <- mine
		}()
		if holder := <-heard; holder != "the creation of vm 411 (dev-cp-1)" {
			t.Errorf("heard of %q", holder)
		}
		done()
		mine := <-next
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := all.Take(ctx, "storage pve1/local-lvm", "a third", func(holder string) { heard <- holder; cancel() }); err == nil {
			t.Error("two have the turn")
		}
		if holder := <-heard; holder != "the creation of vm 611 (test-cp-1)" {
			t.Errorf("heard of %q", holder)
		}
		mine()
		if len(all.waiting) != 0 {
			t.Errorf("%d turns are kept", len(all.waiting))
		}
	})
}
