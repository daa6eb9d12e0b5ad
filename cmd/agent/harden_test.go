package main

import (
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/daemon"
)

// hardened is a program that does what the daemon does first, and tells what
// came of it.
func hardened() {
	must(daemon.Harden())
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	must(err)
	var core unix.Rlimit
	must(unix.Getrlimit(unix.RLIMIT_CORE, &core))
	fmt.Printf("dumpable %d, core %d of %d, umask %04o", dumpable, core.Cur, core.Max, unix.Umask(0))
}

func TestHarden(t *testing.T) {
	out, err := exec.Command("sh", "-c", "umask 0; ulimit -c unlimited 2>/dev/null; exec hardened").CombinedOutput()
	if want := "dumpable 0, core 0 of 0, umask 0077"; err != nil || string(out) != want {
		t.Errorf("%s, %v; want %s", out, err, want)
	}
}
