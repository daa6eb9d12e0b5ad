package proxmox

import (
	"errors"
	"strings"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// What a refusal means. Errors of this package carry these as kinds where the
// table below knows one; test with errors.Is.
var (
	errLocked    = errors.New("vm is locked")
	errBusy      = errors.New("lock timed out")
	errExists    = errors.New("already exists")
	errMissing   = errors.New("does not exist")
	errDigest    = errors.New("changed by somebody else")
	errNoQuorum  = errors.New("no quorum")
	errRunning   = errors.New("already running")
	errForbidden = errors.New("permission denied")
	errToken     = errors.New("token refused")
	errNoTask    = errors.New("no such task")
	errKilled    = errors.New("worker was killed")
	errGivenUp   = errors.New("given up by the HA manager")
)

// phrase is one row of the table: words of Proxmox VE, and what they mean.
type phrase struct {
	kind  error
	words string // contained in the reason, a parameter's text or a task's exit status
	// seen is where the words were met: calls and versions of a real host, or
	// the source they are from.
	seen string
	hint string
}

// phrases is the one place that reads the prose of Proxmox VE, which has a
// status code of its own for next to nothing: nearly every refusal is a 500
// whose reason phrase names the problem. The first row that fits counts.
var phrases = []phrase{
	{errLocked, "VM is locked (", "PUT config, and qmstart, qmdestroy and resize tasks of a locked vm (9.2.11, 8.4.21)",
		"wait until whatever holds the lock has ended: a backup, a snapshot, a migration"},
	{errBusy, "/pve-manager/pve-storage-", "lock_file of a storage that is not shared in pve-storage's source, `can't lock file '/var/lock/pve-manager/pve-storage-x' - got timeout`", lockedStorage},
	{errBusy, "cfs-lock 'storage-", "cfs-lock of a storage in pve-cluster's source, `cfs-lock 'storage-x' error: got lock request timeout`", lockedStorage},
	{errBusy, "can't lock file", "PUT config and qmstart while another worker held the vm's lock file for 10 s (9.2.11, 8.4.21)", ""},
	{errBusy, "lock request timeout", "cfs_lock in pve-cluster's source, `cfs-lock 'file-user_cfg' error: got lock request timeout`", ""},
	{errNoQuorum, "no quorum", "check_cfs_quorum in pve-cluster's source, `cluster not ready - no quorum?`",
		"bring the other hosts back; `pvecm status` shows who is missing"},
	{errDigest, "checksum mismatch (file change by other user?)", "PUT and POST config, and resize tasks, with an old digest (9.2.11, 8.4.21)", ""},
	{errRunning, "already running", "qmstart of a running vm (9.2.11, 8.4.21)", ""},
	{errNoTask, "no such task", "status of a task that is not there (9.2.11, 8.4.21)", ""},
	{errKilled, "unexpected status", "exit status of a qmcreate whose worker was killed (9.2.11, 8.4.21)", ""},
	{errExists, "already exists", "nextid of a VMID that is taken, and POST qemu over a vm (9.2.11, 8.4.21)", ""},
	{errForbidden, "(pool '", "POST qemu with a pool that is not there (9.2.11, 8.4.21)", "create the pool first: `pveum pool add NAME`"},
	{errMissing, "does not exist", "config of a vm that is not there, and volumes and storages that are not (9.2.11, 8.4.21)", ""},
	{errMissing, "unable to find configuration file", "qmstop of a vm that is not there (9.2.11, 8.4.21)", ""},
	{errGivenUp, "in error state, must be disabled", "PUT of a resource in pve-ha-manager's source, `service 'vm:410' in error state, must be disabled and fixed first`", ""},
	{nil, "protection mode enabled", "DELETE of a protected vm (9.2.11, 8.4.21)", "clear the vm's protection, or leave it alone"},
	{nil, "no physical interface on bridge", "qmstart with a vlan tag on a bridge that has no port (9.2.11)", "make the bridge vlan-aware, or leave the vlan out"},
	{nil, qemuExited, "qmstart that QEMU refused (9.2.11, 8.4.21)", "`qm start` of the vm on the host shows what QEMU says"},
}

// lockedStorage is for who waited too long for the lock of a storage.
const lockedStorage = "it is tried again; where that does not end, something allocates on the storage for long: a disk that is written in full (`preallocation`), or a storage that answers slowly; `pvesm status` on its host shows whether it answers"

// qemuExited is all that the exit status of a start has of what QEMU complains of:
// that is in the task's log.
const qemuExited = "QEMU exited with code"

// phraseIn finds the row that fits some words of Proxmox VE.
func phraseIn(words string) (phrase, bool) {
	for _, p := range phrases {
		if strings.Contains(words, p.words) {
			return p, true
		}
	}
	return phrase{}, false
}

// missingPrivilege matches what Proxmox VE answers about a missing privilege:
// `Permission check failed (/storage/local, Datastore.AllocateSpace)` (9.2.11,
// 8.4.21). A list with | asks for one of them.
var missingPrivilege = pattern.New(`Permission check failed \((/[^,]*), ([A-Za-z.|, ]+)\)`)
