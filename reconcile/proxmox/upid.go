package proxmox

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
)

// upid is the name of a task, taken apart. It is all one ever needs to know of
// a task: where it runs, what it does, to whom, and who started it.
type upid struct {
	text    string
	host    string
	started time.Time
	kind    string // qmcreate, imgcopy, ...
	id      string // mostly a VMID; "" for imgcopy
	user    string // user@realm, or user@realm!token
}

// parseUPID reads UPID:host:pid:pstart:starttime:type:id:user: with the three
// numbers in hex.
func parseUPID(s string) (upid, error) {
	f := strings.Split(s, ":")
	if len(f) != 9 || f[0] != "UPID" || f[8] != "" {
		return upid{}, fmt.Errorf("task name %q is none of Proxmox VE", sanitize(s))
	}
	for _, n := range f[2:5] {
		if _, err := strconv.ParseUint(n, 16, 40); err != nil || len(n) < 8 {
			return upid{}, fmt.Errorf("task name %q: %q is not a hexadecimal number of its length", sanitize(s), sanitize(n))
		}
	}
	if !hardware.HostPattern.MatchString(f[1]) || f[5] == "" || f[7] == "" {
		return upid{}, fmt.Errorf("task name %q lacks its host, type or user", sanitize(s))
	}
	sec, err := strconv.ParseInt(f[4], 16, 64)
	if err != nil {
		return upid{}, fmt.Errorf("task name %q: %w", sanitize(s), err)
	}
	return upid{text: s, host: f[1], started: time.Unix(sec, 0), kind: f[5], id: f[6], user: f[7]}, nil
}

// vmid is the VM a task is about, 0 for none.
func (u upid) vmid() int {
	n, err := strconv.Atoi(u.id)
	if err != nil || n < 100 {
		return 0
	}
	return n
}
