package reconcile

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestBackoffAfter(t *testing.T) {
	refused := errors.New("connection refused")
	for _, c := range []struct {
		err    error
		failed int
		want   time.Duration
	}{
		{refused, 1, time.Second},
		{refused, 4, 8 * time.Second},
		{refused, 9, 256 * time.Second},
		{refused, 10, 5 * time.Minute},
		{refused, 1000, 5 * time.Minute},
		{fmt.Errorf("dev-wk-1: %w", cluster.ErrUndrained), 1, 5 * time.Minute},
		{fmt.Errorf("dev-wk-1: %w", cluster.ErrUncordoned), 1, 5 * time.Minute},
	} {
		if got := backoffAfter(c.err, c.failed); got != c.want {
			t.Errorf("after %d failures (%v): %s, want %s", c.failed, c.err, got, c.want)
		}
	}
}
