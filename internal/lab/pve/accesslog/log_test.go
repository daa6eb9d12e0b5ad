package accesslog

import (
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := Open(path)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	defer func() { must(l.Close()) }()
	at := time.Date(2026, 11, 22, 23, 31, 5, 0, time.UTC)
	r := &http.Request{RemoteAddr: "192.0.2.7:4711", Method: "PUT", RequestURI: "/api2/json/nodes/pve1/qemu/110/config?a=%22", Proto: "HTTP/1.1"}
	const line = `::ffff:192.0.2.7 - root@pam [23/11/2026:00:31:05 +0100] "PUT /api2/json/nodes/pve1/qemu/110/config?a=%22 HTTP/1.1" 200 13` + "\n"
	const refused = `::ffff:127.0.0.1 - - [23/11/2026:00:31:05 +0100] "PUT /api2/json/nodes/pve1/qemu/110/config?a=%22 HTTP/1.1" 401 -` + "\n"
	holds := func(name, want string) {
		t.Helper()
		data, err := os.ReadFile(path + name)
		must(err)
		if string(data) != want {
			t.Errorf("access.log%s holds %q, want %q", name, data, want)
		}
	}
	l.Append(r, "root@pam", at, 200, 13)
	r.RemoteAddr = "pipe"
	l.Append(r, "", at, 401, 0)
	holds("", line+refused)
	must(l.Rotate())
	l.Append(r, "", at, 401, 0) // by who has not opened the new one yet
	holds("", "")
	holds(".1", line+refused+refused)
	must(l.Reopen())
	l.Append(r, "", at, 401, 0)
	holds("", refused)
	must(l.Rotate())
	must(l.Reopen())
	holds(".1", refused)
	f, err := os.Open(path + ".2.gz")
	must(err)
	z, err := gzip.NewReader(f)
	must(err)
	if data, err := io.ReadAll(z); err != nil || string(data) != line+refused+refused {
		t.Errorf("%v %q", err, data)
	}
	must(f.Close())
	(*Log)(nil).Append(r, "", at, 401, 0)
}
