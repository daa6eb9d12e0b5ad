package talos

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/talos/redaction"
)

// maxWords is how much of a machine's message is repeated, in bytes.
const maxWords = redaction.MaxWords

// sanitize makes foreign words fit for one line of a log or a terminal.
func sanitize(s string) string { return text.Sanitize(s, maxWords) }

// noise is what errors carry that people do not need: gRPC's preamble, and the
// addresses of a connection, whose port is another one every time.
var noise = pattern.New(`rpc error: code = \w+ desc = |\w+ tcp \S+->\S+: |dial tcp \S+: `)

// late is what a time that is over is called: gRPC has several texts for it
// (recorded).
const late = "no answer in time"

// expired is what is left of an error when the machine refused the agent's
// certificate for its dates. clockHint is what to do about it.
const (
	expired   = "it refuses the agent's certificate as expired or not yet valid"
	clockHint = "compare the clocks: `timedatectl` on this host must show the right time; the agent's certificates are good for a day before and after it"
)

var expiredAlert = pattern.New(`(connection error: desc = )?"?([^":]*: )*remote error: ` + text.Expired + `"?`)

// formatError returns an error in one line, and the same words for the same
// error.
func formatError(err error) string {
	words := err.Error()
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) {
		if st := answer.GRPCStatus(); st.Code() == codes.DeadlineExceeded && st.Message() != "" {
			words = strings.ReplaceAll(words, st.Message(), late)
		}
	}
	words = expiredAlert.ReplaceAllString(noise.ReplaceAllString(words, ""), expired)
	return sanitize(strings.ReplaceAll(words, context.DeadlineExceeded.Error(), late))
}

// worded is an error whose message is its words.
type worded struct{ error }

func (w worded) Error() string { return formatError(w.error) }
func (w worded) Unwrap() error { return w.error }
