package accesslog

import (
	"slices"
	"sync"
	"time"
)

// Log is the access log of this host, for who asks for it again and again. The zero value
// has nothing in it. It may be used from many goroutines.
type Log struct {
	Path string // "": there is none to read
	Host string // what Proxmox VE calls this host
	// Report is called when the log cannot be read, with an error that has a hint, and
	// with nil when it can be again: once, until that changes. That the file before its
	// rotation cannot be read is reported once.
	Report func(error)

	first, earlier sync.Once
	mu             sync.Mutex
	fault          string // why it could not be read the last time
}

// Changes returns the requests that changed a VM of a host since a time, newest first; none
// where they are not known.
//
// Only of VMs of its own host a log has all requests. Those that are later than now are of
// a clock that was wrong.
func (l *Log) Changes(vmid int, host string, since, now time.Time) []Request {
	if l.Path == "" || host != l.Host {
		return nil
	}
	found, earlier, err := readRequests(l.Path, since)
	l.note(err)
	if earlier != nil {
		l.earlier.Do(func() { l.Report(earlier) })
	}
	slices.Reverse(found)
	return slices.DeleteFunc(found, func(r Request) bool {
		// localhost is whichever host was asked, so this one.
		return r.VMID != vmid || r.Host != host && r.Host != "localhost" || r.At.After(now)
	})
}

// Check returns the path of the log, "" where there is none, and why it cannot be read.
func (l *Log) Check() (path string, err error) {
	if l.Path == "" {
		return "", nil
	}
	return l.Path, checkFile(l.Path)
}

// CheckOnce looks whether the log can be read, the first time that it is called, so that
// this is known before it is needed.
func (l *Log) CheckOnce() {
	l.first.Do(func() {
		if _, err := l.Check(); err != nil {
			l.note(err)
		}
	})
}

// note reports how reading the log ended, if that is news.
func (l *Log) note(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	l.mu.Lock()
	before := l.fault
	l.fault = why
	l.mu.Unlock()
	if why != before {
		l.Report(err)
	}
}
