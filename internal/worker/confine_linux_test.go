package worker

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// TestConfinement: a worker reports what confines it, as far as this kernel has it.
func TestConfinement(t *testing.T) {
	c, err := FindConfinement(t.Context(), Run)
	if err != nil {
		t.Fatal(err)
	}
	if version, err := landlock.LandlockGetABIVersion(); err == nil && c.Landlock != version || err != nil && c.Landlock != 0 {
		t.Errorf("%+v, and this kernel has Landlock %d, %v", c, version, err)
	}
	t.Log(c)
}

// forking is a job that begins a process, which would have a bound of the processor of its own.
var forking = Register("test-fork", func([]byte, Ask) ([]byte, error) {
	child, _, errno := syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
	if errno == 0 && child == 0 {
		syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	}
	_, _, another := syscall.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
	return fmt.Append(nil, errno == syscall.EPERM, " ", another == syscall.ENOSYS), nil
})

// TestForks: a worker begins no process, while it has threads.
func TestForks(t *testing.T) {
	if c, err := FindConfinement(t.Context(), Run); err != nil || !c.Seccomp {
		t.Skipf("there is no seccomp here: %v, %v", c, err)
	}
	if got, err := Run(t.Context(), forking, moderate, nil, nil); err != nil || string(got) != "true true" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestConfinementInWords: what is missing is named.
func TestConfinementInWords(t *testing.T) {
	for c, want := range map[Confinement]string{
		{Landlock: 4, Seccomp: true}: "Landlock: yes, seccomp: yes; ",
		{Landlock: 4}:                "Landlock: yes, seccomp: no; seccomp",
		{Seccomp: true}:              "Landlock: no, seccomp: yes; Landlock",
		{}:                           "Landlock: no, seccomp: no; Landlock and seccomp",
	} {
		if got := c.String() + "; " + c.Missing(); got != want {
			t.Errorf("%+v: %s, want %s", c, got, want)
		}
	}
}

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
