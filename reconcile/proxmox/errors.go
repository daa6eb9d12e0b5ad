package proxmox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// Error is an answer of Proxmox VE that was not a success.
type Error struct {
	Method string
	Path   string // below /api2/json
	Status int    // of HTTP
	Reason string // phrase of the status line: the only place where Proxmox VE always names the error
	Params map[string]string

	token cluster.TokenID // for the hint, as is the pool
	pool  string
}

// Error implements error.
func (e *Error) Error() string {
	what := e.Reason
	if what == "" {
		what = cmp.Or(proxyFailures[e.Status], http.StatusText(e.Status))
	}
	if len(e.Params) > 0 {
		var bad []string
		for _, k := range slices.Sorted(maps.Keys(e.Params)) {
			bad = append(bad, k+": "+e.Params[k])
		}
		what = strings.Join(bad, "; ")
	}
	return fmt.Sprintf("%s %s: %d %s", e.Method, e.Path, e.Status, what)
}

// proxyFailures is what pveproxy means by statuses of its own, with which it answers
// in the place of a host that it forwards to, where it gives no reason.
var proxyFailures = map[int]string{
	595: "pveproxy cannot connect to the host that was asked for",
	596: "the connection of pveproxy to the host that was asked for broke",
	597: "the connection of pveproxy to the host that was asked for broke",
	599: "pveproxy did not get an answer of the host that was asked for",
}

// words is all that Proxmox VE answered.
func (e *Error) words() string {
	parts := []string{e.Reason}
	for _, k := range slices.Sorted(maps.Keys(e.Params)) {
		parts = append(parts, e.Params[k])
	}
	return strings.Join(parts, "\n")
}

// Is reports what the answer means, as far as the table of phrases knows.
func (e *Error) Is(target error) bool {
	if p, ok := phraseIn(e.words()); ok && p.kind == target {
		return true
	}
	switch e.Status {
	case http.StatusUnauthorized:
		return target == errToken
	case http.StatusForbidden:
		return target == errForbidden
	}
	return false
}

// Unwrap holds the hint.
func (e *Error) Unwrap() error { return &fault.Error{Op: e.Error(), Hint: e.hint()} }

// hint is what to do about it, "" when there is nothing to do but wait.
func (e *Error) hint() string {
	if p, ok := phraseIn(e.words()); ok {
		return p.hint
	}
	switch e.Status {
	case http.StatusUnauthorized:
		return fmt.Sprintf("check the token in the host config (user@realm!name=secret): `pveum user token list %s` shows whether %s is there, enabled and not expired; `talos-agent init --rotate-token` makes another", e.token.User(), e.token)
	case http.StatusForbidden:
		return e.privilegeHint()
	}
	return ""
}

// privilegeHint names the privilege to give, and to whom: a token with
// separated privileges has only what both it and its user have.
func (e *Error) privilegeHint() string {
	path, privileges := "/pool/"+e.pool, "VM.Allocate"
	if m := missingPrivilege.FindStringSubmatch(e.Reason); m != nil {
		path, privileges = m[1], strings.ReplaceAll(m[2], "|", " or ")
	} else if !strings.HasSuffix(e.Path, "/qemu") {
		return fmt.Sprintf("see which privileges it has: `pveum user token permissions %s %s`", e.token.User(), e.token.Name())
	}
	if strings.HasPrefix(path, "/vms/") && e.pool != "" {
		return fmt.Sprintf("the vm lies outside the pool %s, or %s is missing there: give it on /pool/%s to the user %s and to the token %s",
			e.pool, privileges, e.pool, e.token.User(), e.token)
	}
	return fmt.Sprintf("give %s on %s to the user %s and to the token %s", privileges, path, e.token.User(), e.token)
}

// TaskError is a task of Proxmox VE that failed.
type TaskError struct {
	UPID string
	Type string   // qmcreate, qmstart, ...
	Exit string   // its exit status
	Log  []string // the last lines of its log
}

// Error implements error.
func (e *TaskError) Error() string {
	s := fmt.Sprintf("task %s failed: %s", e.Type, e.Exit)
	var tail []string
	for _, line := range e.Log {
		// The last line of a log repeats the exit status.
		if !strings.Contains(line, e.Exit) && strings.TrimSpace(line) != "" {
			tail = append(tail, line)
		}
	}
	if len(tail) > 0 {
		s += " (its log ends: " + strings.Join(tail, " / ") + ")"
	}
	return s
}

// Is reports what the exit status means, as far as the table of phrases knows.
func (e *TaskError) Is(target error) bool {
	p, ok := phraseIn(e.Exit)
	return ok && p.kind == target
}

// Unwrap holds the hint.
func (e *TaskError) Unwrap() error { return &fault.Error{Op: e.Error(), Hint: e.hint()} }

// hint is what to do about it.
func (e *TaskError) hint() string {
	if m := missingPrivilege.FindStringSubmatch(e.Exit); m != nil {
		return fmt.Sprintf("give %s on %s to the agent's user and to its token", strings.ReplaceAll(m[2], "|", " or "), m[1])
	}
	p, _ := phraseIn(e.Exit)
	if p.words == qemuExited {
		for _, line := range e.Log {
			if cause, ok := phraseIn(line); ok && cause.words != qemuExited && cause.hint != "" {
				return cause.hint
			}
		}
	}
	return p.hint
}

// isAnswered reports whether an error is a definite answer of the host: what was
// asked for was not done. Otherwise the connection ended first, or a proxy gave
// up waiting, and it may have been.
func isAnswered(err error) bool {
	var e *Error
	return errors.As(err, &e) && !fromProxy(e.Status)
}

// fromProxy reports whether a status comes from a proxy that did not hear from
// the host it forwarded to: pveproxy itself answers one of proxyFailures then
// (pve-http-server's source).
func fromProxy(status int) bool {
	return proxyFailures[status] != "" || status >= http.StatusBadGateway && status <= http.StatusGatewayTimeout
}
