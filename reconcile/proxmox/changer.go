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

// findChanger remembers whose task or request it was and since when, if a VM is not what
// it was when it was read before. It is asked for once for each change, and a host that does
// not answer leaves it unknown: it is for people, and nothing depends on it.
//
// PVE 9.2: without Sys.Audit on the host a token sees its own tasks only.
func (l *look) findChanger(vmid, touches int, host string, before, now facts) {
	if before.read.IsZero() || before.power == now.power && reflect.DeepEqual(before.hw, now.hw) && reflect.DeepEqual(before.active, now.active) && before.lock == now.lock &&
		before.marked == now.marked && slices.Equal(before.tags, now.tags) {
		return
	}
	found := change{after: before.read}
	if before.power != now.power {
		found.after = before.looked
	}
	if found.by = l.findTask(vmid, host, found.after); found.by == nil {
		found.with = l.findRequest(vmid, host, found.after)
	}
	l.c.attribute(vmid, touches, found)
}

// findTask is the last task of somebody else that changed a VM since a time; nil: that is
// not known.
func (l *look) findTask(vmid int, host string, since time.Time) *cluster.Task {
	tasks, err := l.c.vmTasks(l.ctx, host, vmid)
	if err != nil {
		return nil
	}
	for _, t := range tasks { // newest first
		if !t.started.Before(since.Truncate(time.Second)) && // a UPID has whole seconds
			changers[t.kind] && !l.c.ours(t.upid) {
			by := l.c.describeTask(t)
			return &by
		}
	}
	return nil
}

// findRequest is the last request of somebody else that changed a VM since a time; nil:
// that is not known.
func (l *look) findRequest(vmid int, host string, since time.Time) *cluster.Request {
	r, ok := l.c.accessLog.Last(vmid, host, string(l.c.token), since, time.Now())
	if !ok {
		return nil
	}
	return &cluster.Request{Method: r.Method, Call: r.Call, At: r.At, User: r.User}
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
