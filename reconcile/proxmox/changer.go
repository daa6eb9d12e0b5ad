package proxmox

import (
	"reflect"
	"slices"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// changers are the types of task that change a VM or its state.
var changers = map[string]bool{
	"qmconfig": true, "resize": true, "qmmove": true, "qmtemplate": true, "qmrestore": true, "qmrollback": true, "qmigrate": true, "hamigrate": true,
	"qmstart": true, "qmstop": true, "qmshutdown": true, "qmreboot": true, "qmreset": true, "qmsuspend": true, "qmpause": true, "qmresume": true, "qmdestroy": true,
}

// findChanger remembers whose tasks and requests may have changed a VM, and since when, if it is
// not what it was when it was read before, or is looked at by this process for the first time
// and an earlier one has noted until when it saw all changes. It is asked for once for each
// change, and a host that does not answer leaves it unknown: it is for people, and nothing
// depends on it. hosts are those that it may have been on. PVE 9.2: without Sys.Audit on the host a token sees its own tasks only.
func (l *look) findChanger(vmid, touches int, hosts []string, before, now facts) {
	found := change{after: before.read}
	switch {
	case before.read.IsZero():
		if found.after = l.since; l.since.IsZero() || touches > 0 || !l.c.lastChange(vmid).after.IsZero() {
			return
		}
	case before.power != now.power:
		found.after = before.looked
	case reflect.DeepEqual(before.hw, now.hw) && reflect.DeepEqual(before.active, now.active) && before.lock == now.lock && before.marked == now.marked && slices.Equal(before.tags, now.tags):
		return
	}
	for _, host := range hosts {
		if tasks, err := l.c.vmTasks(l.ctx, host, vmid); err == nil {
			for _, t := range tasks { // newest first
				if changers[t.kind] && (t.running || isSuccess(t.exit)) && !t.started.Before(found.after.Truncate(time.Second)) { // a UPID has whole seconds
					found.by = append(found.by, l.c.describeTask(t))
				}
			}
		}
		for _, r := range l.c.accessLog.Changes(vmid, host, found.after, time.Now()) {
			found.with = append(found.with, cluster.Request{Method: r.Method, Call: r.Call, At: r.At, User: r.User, Ours: r.User == string(l.c.token)})
		}
	}
	l.c.attribute(vmid, touches, found)
}

// CheckAccessLog returns the path of the access log of this host, "" where none is read,
// and why it cannot be read. Errors have a hint.
func (c *Client) CheckAccessLog() (path string, err error) { return c.accessLog.Check() }

func (c *Client) reportAccessLog(err error) {
	if err == nil {
		c.log.Info("the access log of the host can be read again")
		return
	}
	c.log.Warn("the access log of the host cannot be read", logging.Err, err, logging.Hint, fault.HintOf(err))
}
