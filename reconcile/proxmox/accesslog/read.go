package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// mostRead is how much of the end of a file is read, in bytes: some 8,000 requests.
const mostRead = 1 << 20

// longestLine is more bytes than a line has: the server takes 8 KiB of a request's header.
const longestLine = 16 << 10

// rotated is what logrotate adds to the name of the file of the day before. Older ones
// are compressed, and not read.
const rotated = ".1"

// readRequests returns the requests since a time that changed a VM, oldest first, out of
// the end of the log and, where the log begins later than that, of the file before its
// rotation. earlier is why the latter cannot be read, which leaves what is in the log.
// Errors have a hint.
//
// It never blocks: what is no regular file is not read.
func readRequests(path string, since time.Time) (found []Request, earlier, err error) {
	since = since.Truncate(time.Second) // the log has whole seconds
	now, err := readEnd(path)
	if err != nil {
		return nil, nil, err
	}
	found = now.requests
	if !now.cut && (now.begins.IsZero() || !now.begins.Before(since)) {
		var before end
		if before, earlier = readEnd(path + rotated); errors.Is(earlier, fs.ErrNotExist) {
			earlier = nil
		}
		found = append(before.requests, found...)
	}
	found = slices.DeleteFunc(found, func(r Request) bool { return r.At.Before(since) })
	// Several workers write, for a while after the rotation also into the file before.
	slices.SortStableFunc(found, func(a, b Request) int { return a.At.Compare(b.At) })
	return found, earlier, nil
}

// checkFile reports why a log cannot be read, nil when it can.
func checkFile(path string) error {
	f, _, err := openLog(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// end is the end of a file.
type end struct {
	requests []Request
	begins   time.Time // of its first line with a time; zero: there is none
	cut      bool      // there is more before it
}

// readEnd reads the end of a file.
func readEnd(path string) (end, error) {
	f, size, err := openLog(path)
	if err != nil {
		return end{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	from := max(size-mostRead, 0)
	data, err := io.ReadAll(io.NewSectionReader(f, from, mostRead))
	if err != nil {
		return end{}, explainUnreadable(path, err)
	}
	out := end{cut: from > 0}
	lines := bytes.Split(data, []byte("\n"))
	if out.cut {
		lines = lines[1:] // it may have no beginning
	}
	for _, line := range lines {
		if len(line) > longestLine {
			continue
		}
		if out.begins.IsZero() {
			if at, ok := parseTime(line); ok {
				out.begins = at
			}
		}
		// Most lines are of a GET, and need not be matched.
		if !bytes.Contains(line, []byte("/qemu/")) || bytes.Contains(line, []byte(`"GET `)) {
			continue
		}
		if r, ok := parseLine(line); ok {
			out.requests = append(out.requests, r)
		}
	}
	return out, nil
}

// openLog opens a regular file, and returns its size in bytes.
func openLog(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|platform.NoFollow|platform.NoWait, 0)
	if err != nil {
		return nil, 0, explainUnreadable(path, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = errors.New("it is a directory")
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return nil, 0, errors.Join(explainUnreadable(path, err), f.Close())
	}
	return f, info.Size(), nil
}

// serviceUser is the user of the packaged unit.
const serviceUser = "talos-agent"

// explainUnreadable names the file that cannot be read, and what to do about it. The
// directory of the log is mode 0700, so that it takes more than the mode of the file.
func explainUnreadable(path string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	dir, name := filepath.Split(filepath.Clean(path))
	dir = filepath.Clean(dir)
	hint := "name the access log of pveproxy, /var/log/pveproxy/access.log unless it was moved, or remove proxmox.access_log from the config"
	switch {
	case errors.Is(err, fs.ErrPermission):
		hint = fmt.Sprintf("`setfacl -m u:%[1]s:x,d:u:%[1]s:r,d:g::r %[2]s && setfacl -m u:%[1]s:r %[2]s/%[3]s*` lets the agent read it, also after its rotation; or remove proxmox.access_log from the config",
			serviceUser, dir, strings.TrimSuffix(name, rotated))
	case platform.IsLink(err):
		err = errors.New("it is a symbolic link, which is not followed")
	}
	return fault.WithHint(fmt.Errorf("read %s: %w", path, err), hint)
}
