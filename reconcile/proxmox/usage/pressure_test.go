package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLately: each host is asked once a minute, however many want to know, who wait for the one answer; what is not answered, and
// what takes longer than two seconds, is not known for as long.
func TestLately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		takes, fails := time.Second, false
		get := func(ctx context.Context, _ string, _ map[string]string, into any) error {
			asked.Add(1)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(takes):
			}
			if fails {
				return errors.New("403 Permission check failed (/nodes/pve1, Sys.Audit)")
			}
			return json.Unmarshal(fmt.Appendf(nil, `[{"time":%d,"pressurecpusome":1,"pressureiosome":12,"pressurememorysome":3}]`, time.Now().Unix()), into)
		}
		var l Lately
		wants := func(what string, calls int32, known bool, hosts ...string) {
			t.Helper()
			began := time.Now()
			asked.Store(0)
			var all sync.WaitGroup
			for range 3 {
				for _, host := range hosts {
					all.Go(func() {
						if p := l.Pressure(t.Context(), get, host); (p != nil) != known || known && p.IO != 12 {
							t.Errorf("%s: %s: %+v", what, host, p)
						}
					})
				}
			}
			all.Wait()
			if n := asked.Load(); n != calls || time.Since(began) > answerWithin {
				t.Errorf("%s: %d calls in %v, want %d", what, n, time.Since(began), calls)
			}
		}
		wants("at first", 1, true, "pve1")
		wants("and another", 1, true, "pve1", "pve2")
		time.Sleep(answerFor - 2*time.Second)
		wants("nearly a minute later", 0, true, "pve2")
		time.Sleep(2 * time.Second)
		takes = time.Minute
		wants("no answer", 2, false, "pve1", "pve2")
		wants("right after that", 0, false, "pve1", "pve2")
		time.Sleep(answerFor)
		takes, fails = time.Second, true
		wants("refused", 1, false, "pve1")
		time.Sleep(answerFor)
		fails = false
		wants("answered again", 1, true, "pve1")
	})
}
