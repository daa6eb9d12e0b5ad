package agent_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// A cluster that is pushed just when the repository was read for its clusters is
// taken up as soon as somebody has it fetched, and not an interval later.
func TestClusterThatIsSeenMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
		defer s.Close()
		s.Log = slog.New(onRecord(func(message string) {
			if message != agent.ReadAgain {
				return
			}
			s.Push(map[string][]byte{"inventory/prod/cluster.yaml": []byte("cluster_name: prod\n")}, "a second cluster")
			s.Agent.LookAll()
		}))
		s.Lab.World.Inject(world.Fault{System: "git", Kind: world.Answer, Status: 503, Text: "down", Times: 1})
		s.Boot(func(c *agent.Config) { c.Clusters, c.Interval = nil, time.Hour })
		time.Sleep(time.Minute) // the first look fails, and is soon made again
		if got := s.Agent.Clusters(); !slices.Equal(got, []string{"dev", "prod"}) {
			t.Errorf("clusters %v are looked after", got)
		}
		s.Halt()
	})
}

// onRecord is a log that is a function of the sentence of each record.
type onRecord func(message string)

func (onRecord) Enabled(context.Context, slog.Level) bool { return true }
func (h onRecord) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h onRecord) WithGroup(string) slog.Handler          { return h }
func (h onRecord) Handle(_ context.Context, r slog.Record) error {
	var attrs []slog.Attr
	r.Attrs(func(a slog.Attr) bool { attrs = append(attrs, a); return true })
	h(logging.Sentence(r.Message, attrs))
	return nil
}
