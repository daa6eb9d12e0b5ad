package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	syscallLandlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// findProgram is this program, also after a package has replaced its file.
func findProgram() (string, error) { return "/proc/self/exe", nil }

// listEnvironment is that of a worker.
func listEnvironment() []string { return []string{"GOTRACEBACK=none", "MALLOC_ARENA_MAX=1"} }

// confineProcess bounds this process and gives away what it does not need. Rlimits must hold;
// Landlock and seccomp are had where the kernel and the unit of the daemon allow them.
func confineProcess(l Limits) error {
	base, err := addressSpace()
	if err != nil {
		return err
	}
	seconds := uint64(l.CPU.Seconds())
	debug.SetMemoryLimit(l.Memory * 3 / 4) // collect garbage rather than run into the limit
	for _, limit := range []struct {
		resource    int
		most, grace uint64
	}{
		// Go reserves the address space of its heap as that grows. (RLIMIT_DATA holds for
		// nothing that was reserved before: Linux 6.18, mm/vma.c, may_expand_vm.)
		{syscall.RLIMIT_AS, base + uint64(l.Memory)*shadow, 0},
		{syscall.RLIMIT_CPU, seconds, 1}, // SIGXCPU, of which Go dies by itself, and then SIGKILL
		{syscall.RLIMIT_FSIZE, 0, 0},
		{syscall.RLIMIT_CORE, 0, 0},
	} {
		if err := syscall.Setrlimit(limit.resource, &syscall.Rlimit{Cur: limit.most, Max: limit.most + limit.grace}); err != nil {
			return err
		}
	}
	// sprig's functions of dates read time zones.
	version, err := syscallLandlock.LandlockGetABIVersion()
	if err == nil && landlock.V6.BestEffort().Restrict(landlock.RODirs("/usr/share/zoneinfo").IgnoreIfMissing()) == nil {
		had.Landlock = version
	}
	had.Seccomp = refuseCalls() == nil
	return nil
}

// refuseCalls has the kernel refuse system calls to this process.
func refuseCalls() error {
	info, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	// One that a processor's kernel does not have, such as fork on arm64, is no name there.
	names := slices.DeleteFunc(slices.Clone(refused), func(name string) bool { _, known := info.SyscallNames[name]; return !known })
	return seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{
			{Action: seccomp.ActionErrno, Names: names, NamesWithCondtions: []seccomp.NameWithConditions{
				// Threads only.
				{Name: "clone", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsNotSet, Value: syscall.CLONE_THREAD}}},
			}},
			// Its flags lie in memory, where no filter sees them; C libraries use clone then.
			{Action: seccomp.ActionErrno | seccomp.Action(syscall.ENOSYS), Names: []string{"clone3"}},
		},
	}})
}

// refused are system calls with which a process reaches another one, the network, or more
// rights. Not one of them is needed to read and to calculate.
var refused = []string{
	"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
	"execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_open", "pidfd_getfd", "kill", "tkill",
	"mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_by_handle_at", "name_to_handle_at",
	"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "add_key", "request_key", "keyctl", "prlimit64", "setrlimit",
	"init_module", "finit_module", "delete_module", "kexec_load", "reboot",
}

// addressSpace is what of it this process has, in bytes.
func addressSpace() (uint64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var pages uint64
	if _, err := fmt.Sscan(strings.TrimSpace(string(b)), &pages); err != nil {
		return 0, errors.New("/proc/self/statm has no number")
	}
	return pages * uint64(os.Getpagesize()), nil
}
