package accesslog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/talos-agent/talos-agent/internal/fault"
)

const (
	edit  = `::ffff:192.0.2.7 - root@pam [22/11/2026:11:31:05 +0100] "PUT /api2/extjs/nodes/pve1/qemu/110/config HTTP/1.1" 200 13`
	query = `192.0.2.7 - root@pam [22/11/2026:11:31:05 +0100] "GET /api2/json/nodes/pve1/qemu/110/config HTTP/1.1" 200 813`
)

func TestParse(t *testing.T) {
	at := time.Date(2026, 11, 22, 10, 31, 5, 0, time.UTC)
	for line, want := range map[string]Request{
		edit: {at, "root@pam", "PUT", "pve1", 110, "config"},
		`2001:db8::7 - ci@pve!deploy [22/11/2026:10:31:05 +0000] "DELETE /api2/json/nodes/pve-1/qemu/110?purge=1 HTTP/1.1" 200 -`: {at, "ci@pve!deploy", "DELETE", "pve-1", 110, ""},
		`192.0.2.7 - me@example.org@ldap [22/11/2026:05:31:05 -0500] "POST /api2/json/nodes/localhost/qemu/110/status/stop HTTP/1.0" 200 85`: {
			at, "me@example.org@ldap", "POST", "localhost", 110, "status/stop"},
		`192.0.2.7 - jürgen@pve [22/11/2026:10:31:05 +0000] "POST /api2/json/nodes/pve1/qemu/999999999/snapshot/one/rollback HTTP/1.1" 200 85`: {
			at, "jürgen@pve", "POST", "pve1", 999999999, "snapshot/one/rollback"},
	} {
		got, ok := parseLine([]byte(line))
		if !ok || !got.At.Equal(want.At) {
			t.Errorf("%s: %v %+v", line, ok, got)
		}
		if got.At = want.At; got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", line, got, want)
		}
	}
}

// TestParseRefuses: a line that somebody made up in a request, or that is of no change,
// counts for no one.
func TestParseRefuses(t *testing.T) {
	change := func(old, new string) string {
		out := strings.Replace(edit, old, new, 1)
		if out == edit {
			t.Fatalf("%q is not in the line", old)
		}
		return out
	}
	for what, line := range map[string]string{
		"nothing": "", "words": "garbage", "a read": query, "half a line": edit[:80], "a line with more": edit + " x", "two lines": edit + "\n" + edit,
		"not authenticated": change("root@pam", "-"), "no realm": change("root@pam", "root"), "a realm that is none": change("root@pam", "root@-"),
		"a user with a control character": change("root@pam", "ro\x1bot@pam"), "a user written backwards": change("root@pam", "ro\u202eot@pam"),
		"a user that is no text": change("root@pam", "ro\xffot@pam"), "a long user": change("root@pam", strings.Repeat("a", 300)+"@pam"),
		"a user with a quote": change("root@pam", `ro"ot@pam`), "two tokens": change("root@pam", "root@pam!a!b"),
		"denied": change(" 200 ", " 403 "), "failed": change(" 200 ", " 500 "), "moved": change(" 200 ", " 302 "), "a status that is none": change(" 200 ", " 20 "),
		"no vmid": change("/110/", "/x/"), "a low vmid": change("/110/", "/99/"), "a vmid that is too long": change("/110/", "/11000000000/"),
		"a container": change("/qemu/", "/lxc/"), "no api": change("/api2/extjs", "/pve2"), "a key that is sent": change("/config", "/sendkey"),
		"a firewall": change("/config", "/firewall/options"), "no call": change("/config", ""), "the guest agent": change("PUT /api2/extjs/nodes/pve1/qemu/110/config", "POST /api2/extjs/nodes/pve1/qemu/110/agent/ping"),
		"another protocol": change("HTTP/1.1", "HTTP/2.0"), "a day that is none": change("22/11", "32/11"), "a month in words": change("22/11", "22/Nov"),
		"no address":                         change("::ffff:192.0.2.7", "evil"),
		"an encoded path":                    change("/config", "/%63onfig"),
		"a request that ends its own quotes": `192.0.2.7 - mallory@pve [22/11/2026:11:31:05 +0100] "GET /x - root@pam [22/11/2026:11:31:05 +0100] "PUT /api2/json/nodes/pve1/qemu/110/config HTTP/1.1" 200 13" 501 -`,
		"a request with an answer in it":     `192.0.2.7 - mallory@pve [22/11/2026:11:31:05 +0100] "PUT /api2/json/nodes/pve1/qemu/110/config HTTP/1.1" 200 13" 403 -`,
		"a query with an answer in it":       `192.0.2.7 - mallory@pve [22/11/2026:11:31:05 +0100] "PUT /api2/json/nodes/pve1/qemu/110/config?x" 200 13 HTTP/1.1" 403 -`,
	} {
		if got, ok := parseLine([]byte(line)); ok {
			t.Errorf("%s: %+v of %q", what, got, line)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(edit))
	f.Add([]byte(query))
	f.Add([]byte(`::1 - a@b!c [01/01/2026:00:00:00 +0000] "DELETE /api2/json/nodes/a/qemu/100 HTTP/1.1" 200 -`))
	f.Add([]byte(`- - - [01/01/2026:00:00:00 +0000] "-" 403 -`))
	f.Fuzz(func(t *testing.T, line []byte) {
		parseTime(line)
		r, ok := parseLine(line)
		if !ok {
			if r != (Request{}) {
				t.Errorf("%+v of a line that was refused", r)
			}
			return
		}
		// What is handed on is in the line, on its own, and can be shown.
		if !strings.Contains(string(line), " - "+r.User+" [") || !strings.Contains(string(line), fmt.Sprintf(`"%s /api2/`, r.Method)) || r.VMID < 100 || r.At.IsZero() {
			t.Errorf("%+v of %q", r, line)
		}
		for _, c := range r.User + r.Host + r.Call {
			if !unicode.IsPrint(c) || unicode.IsSpace(c) || c == '"' {
				t.Errorf("%q in %+v", c, r)
			}
		}
	})
}

// write writes a file of lines.
func write(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o640); err != nil {
		t.Fatal(err)
	}
}

// editAt is a line of an edit at a time.
func editAt(at time.Time, user string) string {
	return fmt.Sprintf(`::ffff:192.0.2.7 - %s [%s] "PUT /api2/json/nodes/pve1/qemu/110/config HTTP/1.1" 200 13`, user, at.Format(stampLayout))
}

// usersOf are the users of requests.
func usersOf(found []Request) string {
	var out []string
	for _, r := range found {
		out = append(out, r.User)
	}
	return strings.Join(out, " ")
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	start := time.Date(2026, 11, 22, 10, 0, 0, 500, time.UTC)
	at := func(minutes int, user string) string {
		return editAt(start.Add(time.Duration(minutes)*time.Minute), user)
	}
	read := func(minutes int) string {
		t.Helper()
		found, earlier, err := readRequests(path, start.Add(time.Duration(minutes)*time.Minute))
		if err != nil || earlier != nil {
			t.Fatal(err, earlier)
		}
		return usersOf(found)
	}
	write(t, path)
	if got := read(0); got != "" {
		t.Errorf("an empty log: %q", got)
	}
	write(t, path+rotated, at(0, "a@pam"), at(1, "b@pam"), at(4, "late@pam"))
	write(t, path, "garbage", at(2, "c@pam"), query, "", at(3, "d@pam"), at(5, "e@pam")[:90])
	for minutes, want := range map[int]string{
		0: "a@pam b@pam c@pam d@pam late@pam", 1: "b@pam c@pam d@pam late@pam",
		2: "c@pam d@pam late@pam", // the log may begin in that second
		3: "d@pam",                // it begins before
		4: "", 9: "",
	} {
		if got := read(minutes); got != want {
			t.Errorf("since %d: %q, want %q", minutes, got, want)
		}
	}
	write(t, path)
	if got := read(1); got != "b@pam late@pam" {
		t.Errorf("an empty log after its rotation: %q", got)
	}
	write(t, path, at(2, "c@pam"), at(3, "d@pam"))
	if err := os.Remove(path + rotated); err != nil {
		t.Fatal(err)
	}
	if got := read(0); got != "c@pam d@pam" {
		t.Errorf("without the file of the day before: %q", got)
	}
}

// TestReadEnd: of a log of any size its end is read, and no line that is cut.
func TestReadEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	var lines []string
	for i := range 3 * mostRead / len(query) {
		if i%1000 == 0 {
			lines = append(lines, editAt(at, fmt.Sprintf("u%d@pam", i)))
		}
		lines = append(lines, query)
	}
	lines = append(lines, editAt(at, "last@pam"))
	write(t, path, lines...)
	write(t, path+rotated, editAt(at, "rotated@pam"))
	found, _, err := readRequests(path, at)
	if err != nil || len(found) == 0 || len(found) > len(lines)/1000/2 || found[len(found)-1].User != "last@pam" || found[0].User == "rotated@pam" || found[0].User == "u0@pam" {
		t.Errorf("%v, %d of %d: %s", err, len(found), len(lines)/1000, usersOf(found))
	}
	// Wherever the end begins, a line is whole or none.
	for cut := 0; cut <= len(edit); cut += 3 {
		filler := strings.Repeat("x", mostRead-2*len(edit)-2+cut)
		write(t, path, edit, filler, edit)
		found, _, err := readRequests(path, time.Time{})
		if err != nil || usersOf(found) != "root@pam" && usersOf(found) != "root@pam root@pam rotated@pam" && usersOf(found) != "rotated@pam root@pam root@pam" {
			t.Fatalf("cut at %d: %v %s", cut, err, usersOf(found))
		}
	}
}

// TestUnreadable: what cannot be read is an error with a hint, and blocks no one.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	write(t, file, edit)
	if err := errors.Join(os.Symlink(file, link), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", link: "symbolic link", pipe: "not a regular file", dir: "it is a directory",
	} {
		_, _, err := readRequests(path, time.Time{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "read "+path) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", path, err, fault.HintOf(err))
		}
		if again := checkFile(path); again == nil || again.Error() != err.Error() {
			t.Errorf("check %s: %v", path, again)
		}
	}
	if err := checkFile(file); err != nil {
		t.Error(err)
	}
	// The file of the day before is asked for as well.
	if err := os.Symlink(link, file+rotated); err != nil {
		t.Fatal(err)
	}
	found, earlier, err := readRequests(file, time.Time{})
	if err != nil || earlier == nil || !strings.Contains(earlier.Error(), file+rotated) || usersOf(found) != "root@pam" {
		t.Errorf("%v, %v, %s", err, earlier, usersOf(found))
	}
	err = explainUnreadable("/var/log/pveproxy/access.log.1", &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES})
	if want := "`setfacl -m u:talos-agent:x,d:u:talos-agent:r,d:g::r /var/log/pveproxy && setfacl -m u:talos-agent:r /var/log/pveproxy/access.log*`"; !strings.Contains(fault.HintOf(err), want) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
}

// TestReport: what cannot be read is reported once, and what can be again.
func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	var reports []string
	l := &Log{Path: path, Host: "pve1", Report: func(err error) { reports = append(reports, fmt.Sprint(err)) }}
	now := time.Date(2026, 11, 22, 10, 32, 0, 0, time.UTC)
	ask := func(want bool) {
		t.Helper()
		if found := l.Changes(110, "pve1", now.Add(-time.Minute), now); len(found) > 0 != want || want && found[0].User != "root@pam" {
			t.Errorf("%+v", found)
		}
	}
	l.CheckOnce()
	l.CheckOnce()
	ask(false)
	if err := os.Symlink(path, path+rotated); err != nil {
		t.Fatal(err)
	}
	write(t, path, edit) // the file before is asked for, too
	ask(true)
	ask(true)
	write(t, path, editAt(now.Add(-time.Hour), "u@pam"), edit)
	ask(true)
	write(t, path, edit)
	ask(true)
	if found := l.Changes(111, "pve1", now.Add(-time.Minute), now); len(found) > 0 {
		t.Error("a request for another vm counts")
	}
	if found := l.Changes(110, "pve2", now.Add(-time.Minute), now); len(found) > 0 {
		t.Error("a vm of another host is looked for")
	}
	want := []string{"read " + path + ": no such file or directory", "<nil>", "read " + path + ".1: it is a symbolic link, which is not followed"}
	if !slices.Equal(reports, want) {
		t.Errorf("reported %q, want %q", reports, want)
	}
}
