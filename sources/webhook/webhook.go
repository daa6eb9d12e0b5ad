package webhook

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/logging"
)

// Result is what became of a request.
type Result string

// The results.
const (
	Accepted Result = "accepted" // it is a hint
	Ignored  Result = "ignored"  // its content does not matter here
	Refused  Result = "refused"  // its sender does not know the secret
	Invalid  Result = "invalid"  // it cannot be read
)

// maxBody bounds a body, in bytes. A push of thousands of commits has less.
const maxBody = 2 << 20

// warnEvery is how often refused requests are logged at most: whoever reaches
// the listener can send as many as he likes.
const warnEvery = 10 * time.Minute

// Config defines what is a hint. Secret and Hint are required.
type Config struct {
	// Secret is what the forge knows too: a text, or a signing token of GitLab
	// (whsec_...).
	Secret string
	// Branch is the one that is followed; empty: any push is a hint.
	Branch string
	// Repository is the address of the repository that is followed, in any form
	// that git takes; one that names no forge's repository lets any pass.
	Repository string
	// Hint is called for every hint. It must not block.
	Hint func()
	// Count gets what became of each request; nil: no call.
	Count func(Result)
	Log   *slog.Logger
}

// Listener answers forges. It is an http.Handler.
type Listener struct {
	c      Config
	path   string // of the repository, "org/infra"; empty: any
	warned chan time.Time
}

// New makes a Listener.
func New(c Config) *Listener {
	if c.Count == nil {
		c.Count = func(Result) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	l := &Listener{c: c, path: pathOf(c.Repository), warned: make(chan time.Time, 1)}
	l.warned <- time.Time{}
	return l
}

// pathOf is the path of a repository in its forge, as far as the address shows:
// "org/infra" of git@example.org:org/infra.git, "" of a directory.
func pathOf(address string) string {
	path := ""
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		path = u.Path
	} else if _, after, ok := strings.Cut(address, ":"); ok && !strings.HasPrefix(address, "/") {
		path = after
	}
	return strings.TrimSuffix(strings.Trim(path, "/"), ".git")
}

// ServeHTTP implements http.Handler: POST at any path, so that a reverse proxy
// may choose one. The answer is what became of the request, for the forge's
// list of deliveries.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "webhooks are sent with POST", http.StatusMethodNotAllowed)
		return
	}
	result, why := Invalid, "the body is too large"
	status := http.StatusRequestEntityTooLarge
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); err != nil && !large {
		return // the sender has left, or is too slow: no one is there to answer
	}
	if err == nil {
		result, why = l.Judge(r.Header, body, time.Now())
		status = map[Result]int{Accepted: http.StatusAccepted, Ignored: http.StatusAccepted, Refused: http.StatusUnauthorized, Invalid: http.StatusBadRequest}[result]
	}
	l.c.Count(result)
	switch result {
	case Accepted:
		l.c.Hint()
	case Refused:
		l.warn(why)
	default:
		l.c.Log.Debug("webhook ignored", logging.Detail, why)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, string(result)+": "+why+"\n") // a forge that has left does not want it
}

// warn logs a refused request, but not each.
func (l *Listener) warn(why string) {
	last := <-l.warned
	now := time.Now()
	if now.Sub(last) >= warnEvery {
		l.c.Log.Warn("webhook refused", logging.Detail, why, logging.Hint, "the secret of the forge's webhook and the one in webhook.secret_file must be the same; if nobody knows of a webhook, close the way to the listener")
		last = now
	}
	l.warned <- last
}
