package harden

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const inside = "TALOS_AGENT_HARDENED"

// forbid has the kernel refuse system calls to this process, as a filter of a service manager
// does.
func forbid(calls ...uint32) error {
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS} // the number of the call
	program := []unix.SockFilter{load}
	for _, nr := range calls {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return errno
	}
	return nil
}

// report hardens this process and prints what came of it.
func report() error {
	runtime.LockOSThread()
	var err error
	switch os.Getenv(inside) {
	case "without prctl":
		err = forbid(unix.SYS_PRCTL)
	case "without limits":
		err = forbid(unix.SYS_SETRLIMIT, unix.SYS_PRLIMIT64)
	}
	if err != nil {
		fmt.Print("no filter")
		return nil
	}
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
	for how, want := range map[string]string{
		"as it is":       "dumpable 0, core 0 of 0, umask 0077",
		"without prctl":  "close the memory to other processes: operation not permitted",
		"without limits": "forbid core dumps: operation not permitted",
	} {
		cmd := exec.Command("sh", "-c", `umask 0; ulimit -c unlimited 2>/dev/null; exec "$0"`, self)
		cmd.Env = append(os.Environ(), inside+"="+how)
		out, err := cmd.CombinedOutput()
		switch {
		case string(out) == "no filter":
			t.Logf("%s: not tried, this kernel lets nobody have a filter of system calls", how)
		case string(out) != want || (err != nil) != (how != "as it is"):
			t.Errorf("%s: %s, %v; want %s", how, out, err, want)
		}
	}
}
