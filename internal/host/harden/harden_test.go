package harden

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

const inside = "TALOS_AGENT_HARDENED"

// report hardens this process and prints what came of it.
func report() error {
	if err := Process(); err != nil {
		return err
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return err
	}
	fmt.Printf("dumpable %d, core %d of %d, umask %04o", dumpable, core.Cur, core.Max, unix.Umask(0))
	return nil
}

func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(m.Run())
	}
	if err := report(); err != nil {
		fmt.Print(err)
		os.Exit(1)
	}
}

func TestProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `umask 0; ulimit -c unlimited 2>/dev/null; exec "$0"`, self)
	cmd.Env = append(os.Environ(), inside+"=yes")
	out, err := cmd.CombinedOutput()
	if want := "dumpable 0, core 0 of 0, umask 0077"; err != nil || string(out) != want {
		t.Errorf("%s, %v; want %s", out, err, want)
	}
}
