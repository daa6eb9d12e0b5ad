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
		done, err := all.Take(t.Context(), "storage pve1/local-lvm", "the creation of vm 411 (dev-cp-1)", 1, nobody)
		if err != nil {
			t.Fatal(err)
		}
		other, err := all.Take(t.Context(), "storage pve1/local", "the creation of vm 412 (dev-cp-2)", 1, nobody)
		if err != nil {
			t.Fatal(err)
		}
		other()
		heard := make(chan string, 2)
		next := make(chan func(), 1)
		go func() {
			mine, err := all.Take(t.Context(), "storage pve1/local-lvm", "the creation of vm 611 (test-cp-1)", 1, func(holder string) { heard <- holder })
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
		if _, err := all.Take(ctx, "storage pve1/local-lvm", "a third", 1, func(holder string) { heard <- holder; cancel() }); err == nil {
			t.Error("two have the turn")
		}
		if holder := <-heard; holder != "the creation of vm 611 (test-cp-1)" {
			t.Errorf("heard of %q", holder)
		}
		mine()
		if len(all.all) != 0 {
			t.Errorf("%d turns are kept", len(all.all))
		}
	})
}

// TestPlaces: as many as there are places have a turn at once, whoever asked first is next, and
// who asks for fewer at once waits for that.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Turns
		var dones []func()
		waits := 0
		take := func(who string, places int) <-chan func() {
			got := make(chan func(), 1)
			go func() {
				done, err := all.Take(t.Context(), "storage", who, places, func(string) { waits++ })
				if err != nil {
					t.Error(err)
				}
				got <- done
			}()
			synctest.Wait()
			return got
		}
		for _, who := range []string{"a", "b"} {
			select {
			case done := <-take(who, 2):
				dones = append(dones, done)
			default:
				t.Fatalf("%s waits", who)
			}
		}
		alone, last := take("alone", 1), take("last", 2)
		if waits != 2 {
			t.Fatalf("%d wait", waits)
		}
		dones[0]()
		synctest.Wait()
		if len(alone)+len(last) != 0 {
			t.Error("one that wants to be alone has a turn beside another, or was overtaken")
		}
		dones[1]()
		synctest.Wait()
		if len(alone) != 1 || len(last) != 1 {
			t.Errorf("%d and %d have a turn", len(alone), len(last))
		}
		(<-alone)()
		(<-last)()
		if len(all.all) != 0 {
			t.Errorf("%d turns are kept", len(all.all))
		}
	})
}
