package proxmox

import (
	"reflect"
	"slices"
	"time"
)

// changers are the types of task that change a VM or its state.
var changers = map[string]bool{
	"qmconfig": true, "resize": true, "qmmove": true, "qmtemplate": true, "qmrestore": true, "qmrollback": true, "qmigrate": true, "hamigrate": true,
	"qmstart": true, "qmstop": true, "qmshutdown": true, "qmreboot": true, "qmreset": true, "qmsuspend": true, "qmpause": true, "qmresume": true, "qmdestroy": true,
}

// findChanger remembers whose task it was and since when, if a VM is not what it was when it
// was read before. It is asked for once for each change, and a host that does not answer leaves it
// unknown: it is for people, and nothing depends on it.
//
// PVE 9.2: without Sys.Audit on the host a token sees its own tasks only.
func (l *look) findChanger(vmid int, host string, before, now facts) {
	if before.read.IsZero() || before.power == now.power && reflect.DeepEqual(before.hw, now.hw) && reflect.DeepEqual(before.active, now.active) && before.lock == now.lock &&
		before.marked == now.marked && slices.Equal(before.tags, now.tags) {
		return
	}
	since := before.read
	if before.power != now.power {
		since = before.looked
	}
	tasks, err := l.c.vmTasks(l.ctx, host, vmid)
	found := change{after: since}
	if err != nil {
		l.c.attribute(vmid, found)
		return
	}
	for _, t := range tasks { // newest first
		if !t.started.Before(since.Truncate(time.Second)) && // a UPID has whole seconds
			changers[t.kind] && !l.c.ours(t.upid) {
			by := l.c.describeTask(t)
			found.by = &by
			break
		}
	}
	l.c.attribute(vmid, found)
}
