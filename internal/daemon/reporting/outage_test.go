package reporting

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/git"
)

// TestOutageIsReportedOnce: whatever words the server finds for it, and also where no
// cluster is known yet. A repository to which nothing was pushed is no trouble.
func TestOutageIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, log := &noted{}, &bytes.Buffer{}
		n := startNotifier(Target{Name: "x", Clusters: []string{"dev"}, On: []cluster.Condition{cluster.Unknown}}, target, nil)
		outage := &Outage{Notifier: n, Covered: func() bool { return false }, Log: slog.New(slog.NewTextHandler(log, nil))}
		for hour, c := range []struct {
			err   func(minute int) error
			told  int
			words string
		}{
			{func(int) error { return nil }, 0, ""},
			{func(int) error { return fmt.Errorf("of org/infra: %w", git.ErrEmpty) }, 0, ""},
			{func(minute int) error { return fmt.Errorf("connection %d is reset", minute) }, 1, "Unknown:the repository has not been fetched for 15m00s, and what is pushed is not applied: connection 15 is reset"},
			{func(int) error { return nil }, 2, "Ready:the repository is fetched again"},
			{func(minute int) error {
				if minute%14 == 0 {
					return nil
				}
				return errors.New("it flaps")
			}, 2, "Ready:the repository is fetched again"},
		} {
			for minute := range 60 {
				outage.Observe(c.err(minute))
				time.Sleep(time.Minute)
			}
			synctest.Wait()
			if len(target.sent) != c.told || c.told > 0 && target.sent[c.told-1] != c.words {
				t.Errorf("hour %d: told %q", hour, target.sent)
			}
		}
		n.Close()
		if n := strings.Count(log.String(), "has not been fetched for"); n != 1 {
			t.Errorf("%d events:\n%s", n, log)
		}
	})
}

// TestOutageThatEachClusterReports: who is notified of each cluster needs not be notified of
// the repository.
func TestOutageThatEachClusterReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &noted{}
		n := startNotifier(Target{Name: "x", On: []cluster.Condition{cluster.Unknown}}, target, nil)
		covered := true
		outage := &Outage{Notifier: n, Covered: func() bool { return covered }, Log: slog.New(slog.DiscardHandler)}
		for range 60 {
			outage.Observe(errors.New("no route"))
			time.Sleep(time.Minute)
		}
		before := len(target.sent)
		covered = false
		outage.Observe(errors.New("no route"))
		time.Sleep(time.Minute)
		n.Close()
		if before != 0 || len(target.sent) != 1 {
			t.Errorf("notified of %q, %d of it while each cluster was", target.sent, before)
		}
	})
}
