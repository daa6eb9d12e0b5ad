package worker

import (
	"net"
	"os"
	"testing"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// TestConfined: a worker reaches no network, no other program and no file, and knows
// nothing of the environment.
func TestConfined(t *testing.T) {
	t.Setenv("TALOS_AGENT_TEST_SECRET", "hunter2")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if version, err := landlock.LandlockGetABIVersion(); err != nil || version < 1 {
		t.Skipf("this kernel has no Landlock: %v", err)
	}
	got, err := Run(t.Context(), escaping, moderate, []byte(l.Addr().String()), nil)
	if want := "GOTRACEBACK=none MALLOC_ARENA_MAX=1"; err != nil || string(got) != want {
		t.Errorf("it did: %s, %v; want %s", got, err, want)
	}
	if _, err := os.Stat("/usr/share/zoneinfo/Europe/Berlin"); err != nil {
		t.Logf("this machine has no time zones: %v", err)
	}
}
