package accesslog

import (
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Request is a request of somebody who was authenticated, which changed a VM and
// succeeded.
type Request struct {
	At     time.Time // when it was answered, in whole seconds
	User   string    // user@realm, or user@realm!token
	Method string    // PUT, POST or DELETE
	Host   string    // as the path has it, which may be localhost
	VMID   int
	// Call is what of the VM was asked for, as the path has it: config, resize,
	// status/stop; "" is the VM itself.
	Call string
}

// linePattern is a line of a request to a VM that was answered with success. The server
// writes address, user and time before the request, which is the one part that is raw:
// a request that contains quotes or more words than three matches nothing.
var linePattern = pattern.New(`^[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)? - (\S+) \[(` + stamp + `)\] ` +
	`"(PUT|POST|DELETE) /api2/[a-z][a-z0-9]*/nodes/([A-Za-z0-9][A-Za-z0-9-]*)/qemu/([1-9][0-9]{2,8})(?:/([A-Za-z0-9_/-]*))?(?:\?[^"\s]*)? HTTP/1\.[01]" ` +
	`2[0-9]{2} (?:[0-9]+|-)$`)

// stampPattern is the beginning of any line, with its time.
var stampPattern = pattern.New(`^\S+ - \S+ \[(` + stamp + `)\] "`)

// stamp is a time as the log has it, and stampLayout the same for package time.
const (
	stamp       = `[0-9]{2}/[0-9]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4}`
	stampLayout = "02/01/2006:15:04:05 -0700"
)

// userPattern is the name of a user or a token (PVE::Auth::Plugin and
// PVE::AccessControl), without what could pass for another part of a line.
var userPattern = pattern.New(`^[^\s:/"\[\]]+@[A-Za-z][A-Za-z0-9._-]*(?:![A-Za-z][A-Za-z0-9._-]*)?$`)

// longestUser is more bytes than the 64 characters of a user and those of a token take.
const longestUser = 200

// callPattern are the calls that change a VM or its state. The console, the guest agent,
// the firewall and snapshots that are taken are none.
var callPattern = pattern.New(`^(?:PUT (?:config|resize|unlink)|POST (?:config|move_disk|migrate|remote_migrate|template|status/(?:start|stop|shutdown|reboot|reset|suspend|resume)|snapshot/[A-Za-z0-9_-]+/rollback)|DELETE )$`)

// parseLine reads one line of the log, without its newline. ok is false where it is no
// request that changed a VM with success, or not well-formed.
func parseLine(line []byte) (r Request, ok bool) {
	m := linePattern.FindSubmatch(line)
	if m == nil {
		return Request{}, false
	}
	r = Request{User: string(m[1]), Method: string(m[3]), Host: string(m[4]), Call: string(m[6])}
	if !isUser(r.User) || !callPattern.MatchString(r.Method+" "+r.Call) {
		return Request{}, false
	}
	var err error
	if r.At, err = time.Parse(stampLayout, string(m[2])); err != nil {
		return Request{}, false
	}
	if r.VMID, err = strconv.Atoi(string(m[5])); err != nil {
		return Request{}, false
	}
	return r, true
}

// isUser reports whether a name is that of a user or a token, and can be shown.
func isUser(name string) bool {
	if len(name) > longestUser || !utf8.ValidString(name) || !userPattern.MatchString(name) {
		return false
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// parseTime reads the time of any line.
func parseTime(line []byte) (time.Time, bool) {
	m := stampPattern.FindSubmatch(line)
	if m == nil {
		return time.Time{}, false
	}
	at, err := time.Parse(stampLayout, string(m[1]))
	return at, err == nil
}
