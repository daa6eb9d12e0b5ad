package forge

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Why a status could not be posted. Test with errors.Is.
var (
	// ErrAuth: the forge refuses the token, or the token may not do this.
	ErrAuth = errors.New("forge refuses the token")
	// ErrNotFound: the forge knows no such repository or commit, or hides it.
	ErrNotFound = errors.New("repository or commit not found")
	// ErrRateLimited: too many requests; Error.RetryAfter is how long to wait.
	ErrRateLimited = errors.New("rate limited")
	// ErrRefused: the forge does not take the status as it is.
	ErrRefused = errors.New("status refused")
	// ErrUnavailable: no usable answer; the next try may succeed.
	ErrUnavailable = errors.New("forge unavailable")
)

// Error is a status that was not posted.
type Error struct {
	// Kind is one of the sentinels of this package.
	Kind error
	// Status is the HTTP status; 0 when there was no answer.
	Status int
	// RetryAfter is how long to leave the forge alone, with ErrRateLimited.
	RetryAfter time.Duration
	fault      fault.Error
}

// Error implements error.
func (e *Error) Error() string { return e.fault.Error() }

// Unwrap makes errors.Is find both the kind and the cause, and the hint be found.
func (e *Error) Unwrap() []error { return []error{e.Kind, &e.fault} }

// FieldError is one field of a Config that cannot be used.
type FieldError struct {
	// Field is the name the host's configuration has for it, such as "url".
	Field string
	text  string
	hint  string
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.text }

// Unwrap holds what to write instead.
func (e *FieldError) Unwrap() error { return &fault.Error{Op: e.text, Hint: e.hint} }

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 1 << 20

// judge makes an error of an answer that is not a success; nil if the status
// stands all the same.
func (c *Client) judge(res *http.Response, body []byte, s Status) error {
	reason := c.reason(body)
	e := &Error{Kind: ErrRefused, Status: res.StatusCode, fault: fault.Error{Op: "the forge answers " + strconv.Itoa(res.StatusCode) + " " + http.StatusText(res.StatusCode)}}
	if reason != "" {
		e.fault.Op += ": " + reason
	}
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		e.Kind, e.fault.Op = ErrUnavailable, "the forge answers "+strconv.Itoa(res.StatusCode)+", but not as its API does"
		e.fault.Hint = "url must be that of the forge's API, and a proxy on the way must not answer in its place: a page to sign in at is no success"
	// GitLab has a state machine where the others have a list: what is running
	// cannot be made running, and a 400 with this sentence is all it answers.
	// (lib/api/commit_statuses.rb and the state_machines gem of GitLab 16.)
	case c.kind == GitLab && res.StatusCode == http.StatusBadRequest && strings.Contains(reason, "Cannot transition") &&
		strings.Contains(reason, "from :"+c.forge.states[s.State]):
		return nil
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusForbidden && isRateLimited(res.Header):
		e.Kind, e.RetryAfter = ErrRateLimited, retryAfter(res.Header)
		if e.RetryAfter >= time.Minute {
			e.fault.Op += "; it is tried again at " + time.Now().Add(e.RetryAfter).UTC().Format("15:04 MST")
		}
	case res.StatusCode == http.StatusUnauthorized:
		e.Kind, e.fault.Hint = ErrAuth, "the token may have expired or been revoked, and a new one takes `systemctl restart talos-agent`; "+c.forge.scope
	case res.StatusCode == http.StatusForbidden:
		e.Kind, e.fault.Hint = ErrAuth, c.forge.scope
	case res.StatusCode == http.StatusNotFound:
		e.Kind, e.fault.Hint = ErrNotFound, "check repository; a token that may not see it gets the same answer: "+c.forge.scope
	// GitHub's answer to a commit that it does not have.
	case c.kind == GitHub && res.StatusCode == http.StatusUnprocessableEntity && strings.Contains(reason, "No commit found"):
		e.Kind, e.fault.Hint = ErrNotFound, "check that repository is the one that the agent reads"
	case res.StatusCode >= 300 && res.StatusCode < 400:
		e.fault.Hint = "the repository or the forge has moved to " + keepPrintable(res.Header.Get("Location")) + "; if you trust that place, change url or repository"
	case res.StatusCode >= 500:
		e.Kind = ErrUnavailable
	}
	return e
}

// reason is what the forge gives as its reason, made fit for one line.
func (c *Client) reason(body []byte) string {
	var answer struct {
		Message json.RawMessage `json:"message"`
		Error   json.RawMessage `json:"error"`
		Errors  json.RawMessage `json:"errors"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "" // an HTML page of some proxy; the status is enough
	}
	var parts []string
	for _, raw := range []json.RawMessage{answer.Message, answer.Error, answer.Errors} {
		var text string
		switch raw = bytes.TrimSpace(raw); {
		case len(raw) == 0 || string(raw) == "null":
			continue
		case json.Unmarshal(raw, &text) != nil:
			text = string(raw)
		}
		parts = append(parts, text)
	}
	return keepPrintable(strings.ReplaceAll(strings.Join(parts, ": "), c.token, "[redacted]"))
}

func keepPrintable(s string) string {
	s = text.OneLine(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
	return cutText(s, 300)
}

// isRateLimited reports whether a 403 of GitHub is about the rate and not the token.
func isRateLimited(h http.Header) bool {
	return h.Get("Retry-After") != "" || h.Get("X-RateLimit-Remaining") == "0"
}

// retryAfter reads how long to wait: Retry-After in seconds or as a date, or
// the second at which GitHub and GitLab give out new requests.
func retryAfter(h http.Header) time.Duration {
	wait := time.Minute
	if v := h.Get("Retry-After"); v != "" {
		if n, err := strconv.ParseInt(v, 10, 32); err == nil {
			wait = time.Duration(n) * time.Second
		} else if at, err := http.ParseTime(v); err == nil {
			wait = time.Until(at)
		}
	} else {
		for _, name := range []string{"X-RateLimit-Reset", "RateLimit-Reset"} {
			if n, err := strconv.ParseInt(h.Get(name), 10, 64); err == nil {
				wait = time.Until(time.Unix(n, 0))
				break
			}
		}
	}
	return min(max(wait, time.Second), time.Hour)
}
