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
		done, err := all.Take(t.Context(), "storage pve1/local-lvm", "the creation of vm 411 (dev-cp-1)", Alone, nobody)
		if err != nil {
			t.Fatal(err)
		}
		other, err := all.Take(t.Context(), "storage pve1/local", "the creation of vm 412 (dev-cp-2)", Alone, nobody)
		if err != nil {
			t.Fatal(err)
		}
		other()
		heard := make(chan string, 2)
		next := make(chan func(), 1)
		go func() {
			mine, err := all.Take(t.Context(), "storage pve1/local-lvm", "the creation of vm 611 (test-cp-1)", Alone, func(holder string) { heard <- holder })
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
		if _, err := all.Take(ctx, "storage pve1/local-lvm", "a third", Alone, func(holder string) { heard <- holder; cancel() }); err == nil {
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
// nobody is beside one that wants to be alone.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Turns
		var dones []func()
		waits := 0
		take := func(who string, places func() int) <-chan func() {
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
		two := func() int { return 2 }
		for _, who := range []string{"a", "b"} {
			select {
			case done := <-take(who, two):
				dones = append(dones, done)
			default:
				t.Fatalf("%s waits", who)
			}
		}
		alone, last, after := take("alone", Alone), take("last", two), take("after", two)
		if waits != 3 {
			t.Fatalf("%d wait", waits)
		}
		dones[0]()
		synctest.Wait()
		if len(alone)+len(last) != 0 {
			t.Error("one that wants to be alone has a turn beside another, or was overtaken")
		}
		dones[1]()
		synctest.Wait()
		if len(alone) != 1 || len(last)+len(after) != 0 {
			t.Error("others have a turn beside one that is alone")
		}
		(<-alone)()
		synctest.Wait()
		if len(last) != 1 || len(after) != 1 {
			t.Errorf("%d and %d have a turn", len(last), len(after))
		}
		(<-last)()
		(<-after)()
		if len(all.all) != 0 {
			t.Errorf("%d turns are kept", len(all.all))
		}
	})
}

// TestPlacesChange: who waits has a turn when there are as many places as that takes.
func TestPlacesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all Turns
		n := 1
		places := func() int { return n }
		take := func() <-chan func() {
			got := make(chan func(), 1)
			go func() {
				done, err := all.Take(t.Context(), "storage", "one", places, func(string) {})
				if err != nil {
					t.Error(err)
				}
				got <- done
			}()
			synctest.Wait()
			return got
		}
		first, second, third := take(), take(), take()
		if len(first) != 1 || len(second)+len(third) != 0 {
			t.Error("more than one have a turn")
		}
		n = 2
		(<-first)()
		synctest.Wait()
		if len(second) != 1 || len(third) != 1 {
			t.Errorf("%d and %d of two places are taken", len(second), len(third))
		}
		(<-second)()
		(<-third)()
	})
}
