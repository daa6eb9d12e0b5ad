package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestReportConfinement: what the processes lack is a warning with what to do, and a daemon
// that ends warns of nothing.
func TestReportConfinement(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx   context.Context
		lacks string
		err   error
		want  string
	}{
		"nothing":   {ctx: t.Context(), want: `level=INFO msg="the processes that read what is pushed are confined" detail="all there is"`},
		"Landlock":  {ctx: t.Context(), lacks: "Landlock", want: `level=WARN msg="the processes that read what is pushed are confined by their limits, but not by all that there could be" detail="all there is" hint="kernels of Proxmox VE have Landlock; a drop-in of the unit must not forbid it"`},
		"processes": {ctx: t.Context(), err: errors.New("fork: no"), want: `level=WARN msg="no process can be begun to read what is pushed, so that nothing new is read" err="fork: no" hint=`},
		"time":      {ctx: ended, err: context.Canceled},
	} {
		var b bytes.Buffer
		reportConfinement(c.ctx, func(context.Context) (string, string, error) { return "all there is", c.lacks, c.err }, slog.New(slog.NewTextHandler(&b, nil)))
		if got := b.String(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("lacks %s: %s", name, got)
		}
	}
}
