package accesslog

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"
)

// mode is what pveproxy and logrotate create the file with.
const mode = 0o640

// zone is the host's: few are in UTC.
var zone = time.FixedZone("CET", 3600)

// Log is the access log of one host. A nil one takes everything and keeps nothing.
type Log struct {
	path string

	mu   sync.Mutex
	file *os.File
	err  error // of the first line that could not be written
}

// Open opens the log at a path, where what is there stays. Close it when done.
func Open(path string) (*Log, error) {
	l := &Log{path: path}
	return l, l.Reopen()
}

// Append adds the line of a request that is about to be answered: with who sent it, ""
// where that was not authenticated, and with the bytes of the answer, 0 where it has no
// content. An error is that of Close.
func (l *Log) Append(r *http.Request, user string, at time.Time, status, bytes int) {
	if l == nil {
		return
	}
	remote := "127.0.0.1"
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		remote = from.Addr().Unmap().String()
	}
	length := "-"
	if bytes > 0 {
		length = strconv.Itoa(bytes)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// It listens on IPv6, which shows clients of IPv4 like this. The request is as it was
	// sent, nothing of it is escaped.
	if _, err := fmt.Fprintf(l.file, "::ffff:%s - %s [%s] \"%s %s %s\" %d %s\n", remote, cmp.Or(user, "-"), at.In(zone).Format("02/01/2006:15:04:05 -0700"),
		r.Method, r.RequestURI, r.Proto, status, length); err != nil && l.err == nil {
		l.err = err
	}
}

// Rotate does what logrotate does once a day: this file becomes that of the day before,
// that one is compressed, and an empty one takes its place. Lines go on into the file that
// was renamed until Reopen.
func (l *Log) Rotate() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := compressFile(l.path+".1", l.path+".2.gz"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return err
	}
	return os.WriteFile(l.path, nil, mode)
}

// compressFile puts a compressed file in the place of another.
func compressFile(from, to string) (err error) {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	_, err = z.Write(data)
	if err := errors.Join(err, z.Close(), f.Close()); err != nil {
		return err
	}
	return os.Remove(from)
}

// Reopen has lines go into the file at the path, as the reload of pveproxy does after a
// rotation.
func (l *Log) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, mode)
	if err != nil {
		return err
	}
	before := l.file
	l.file = f
	if before == nil {
		return nil
	}
	return before.Close()
}

// Close closes the file, and returns the first error of all.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.err, l.file.Close())
}
