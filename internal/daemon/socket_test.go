package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/api"
)

// TestSocketIsMadeAgain: whoever removes the socket's file, or its directory, locks
// nobody out of a daemon that runs on.
func TestSocketIsMadeAgain(t *testing.T) {
	d := &Daemon{log: slog.New(slog.DiscardHandler)}
	dir := filepath.Join(t.TempDir(), "run")
	d.settings.Socket = filepath.Join(dir, "agent.sock")
	var err error
	if d.socket, err = api.Listen(d.settings.Socket, d, d.log); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.socket.Close() }()
	ask := func() error {
		_, err := api.NewClient(d.settings.Socket).StatusAll(t.Context())
		return err
	}
	for _, what := range []string{d.settings.Socket, dir} {
		if err := os.RemoveAll(what); err != nil {
			t.Fatal(err)
		}
		if ask() == nil {
			t.Fatal("a socket that was removed answers")
		}
		d.keepSocket()
		if err := ask(); err != nil {
			t.Error(err)
		}
		before := d.socket
		if d.keepSocket(); d.socket != before {
			t.Error("a socket that is there is made again")
		}
	}

	// What lies in the way is named, and its end is waited for.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.keepSocket()
	}
	if all := d.problems.list(nil); len(all) != 1 || !strings.HasPrefix(all[0], "socket: it was removed, and cannot be made again") {
		t.Errorf("%q", all)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	d.keepSocket()
	if err, all := ask(), d.problems.list(nil); err != nil || len(all) != 0 {
		t.Errorf("%v, %q", err, all)
	}
}
