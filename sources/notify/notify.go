package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// Kind is a way to send.
type Kind string

// The kinds.
const (
	Webhook Kind = "webhook"
	Chat    Kind = "chat"
)

// Notice is what is sent. Its JSON is what a webhook gets. Without a cluster it
// is of the repository, which concerns them all.
type Notice struct {
	Agent     string `json:"agent"` // its owner, as in the config
	Host      string `json:"host"`
	Cluster   string `json:"cluster"`
	Condition string `json:"condition"`
	// Reason is the code of why the condition is what it is, Concerns whom it
	// concerns, and About which of several alike.
	Reason   string    `json:"reason,omitempty"`
	Concerns string    `json:"concerns,omitempty"`
	About    string    `json:"about,omitempty"`
	Message  string    `json:"message"`
	Hint     string    `json:"hint,omitempty"`
	Since    time.Time `json:"since"` // since when the condition holds
	Revision string    `json:"revision"`
	Applied  string    `json:"applied"`
}

// title is the notice in a few words.
func (n Notice) title() string {
	if n.Cluster == "" {
		return n.Agent + " on " + n.Host
	}
	return n.Cluster + " is " + n.Condition
}

// text is the notice for people, without its title.
func (n Notice) text() string {
	out := n.Message
	if n.Hint != "" {
		out += "\n-> " + n.Hint
	}
	if n.Cluster == "" {
		return out
	}
	out += "\n" + n.Agent + " on " + n.Host
	if n.Revision != "" {
		out += ", " + shortRevision(n.Revision)
	}
	return out
}

// shortRevision cuts the hash of a revision to the digits that people read.
func shortRevision(revision string) string {
	const digits = 12
	if i := strings.LastIndexByte(revision, ':') + 1; len(revision) > i+digits {
		return revision[:i+digits]
	}
	return revision
}

// Config holds the address and how to send to it. Kind and URL are required.
type Config struct {
	Kind Kind
	// URL is a web address, or one of shoutrrr's (ntfy://..., slack://...).
	URL string
	// Secret signs what a webhook gets; empty: nothing does.
	Secret string
	// CA holds PEM certificates to trust besides the system's. It, Dial and Wrap are
	// for the connections that are not Apart.
	CA []byte
	// Dial opens connections; nil means the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Wrap puts something in front of the transport; nil: nothing.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Format implements fmt.Formatter, so that no verb prints the secrets.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "{Kind:%s}", c.Kind) }

// LogValue implements slog.LogValuer.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// Target is a receiver of notices.
type Target interface {
	// Send sends a notice, or gives up when ctx ends. Its errors hold nothing of
	// the target's address.
	Send(ctx context.Context, n Notice) error
}

// New checks c; it sends nothing. An error names what is wrong with the address
// or the secret, without them, and carries a hint.
func New(c Config) (Target, error) {
	if strings.TrimSpace(c.URL) != c.URL || strings.ContainsAny(c.URL, "\n\r\t ") {
		return nil, &fault.Error{Op: "it holds more than an address", Hint: "the file holds the address, in one line, and nothing else"}
	}
	switch c.Kind {
	case Webhook:
		return newWebhook(c)
	case Chat:
		if c.Secret != "" {
			return nil, &fault.Error{Op: "a chat service takes no signature", Hint: "remove secret_file"}
		}
		return newChat(c)
	}
	return nil, &fault.Error{Op: fmt.Sprintf("kind %q is neither webhook nor chat", c.Kind)}
}

// stopError returns the error of a context that ended, distinguished from a
// slow service.
func stopError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &fault.Error{Op: "there was no answer in time"}
	}
	return ctx.Err()
}
