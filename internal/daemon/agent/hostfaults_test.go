package agent_test

import (
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// loseQuorum has the Proxmox VE cluster lose its quorum for a while, where it is one of several hosts:
// nothing of it can be changed, by anybody.
func (l *life) loseQuorum(target) {
	l.plan("Proxmox VE loses its quorum, as one of several hosts: %v", l.several)
	if l.several && !l.noQuorum {
		l.noQuorum = true
		l.Lab.PVE.LoseQuorum(true)
		l.later(func() bool {
			l.noQuorum = false
			l.Lab.PVE.LoseQuorum(false)
			return true
		})
	}
}

// fillStorage has the storage of the disks be full for a while: tasks that make or grow a disk fail,
// and a VM that writes is halted, and goes on when somebody has made room and resumes it.
func (l *life) fillStorage(t target) {
	l.plan("the storage is full, and vm %d halts for that", t.id)
	const host, storage = "pve1", "local-lvm"
	content := []string{"images", "rootdir"}
	l.Lab.PVE.ChangeStorage(host, storage, content, true, l.room)
	for _, op := range []string{"POST /nodes/{node}/qemu", "PUT /nodes/{node}/qemu/{vmid}/resize"} {
		l.Lab.World.Inject(world.Fault{System: "pve", Op: op, Kind: world.FailTask, Text: "no space left on device"})
	}
	if t.isOurs() && t.vm.Power == pve.Running {
		l.guard.touch(t.name)
		_ = l.Lab.PVE.Pause(t.id, true) // it may have stopped
	}
	l.later(func() bool {
		l.Lab.PVE.ChangeStorage(host, storage, content, true, 0)
		if vm, ok := l.Lab.PVE.VM(t.id); ok && vm.Config["vmgenid"] == t.vm.Config["vmgenid"] && vm.Power == pve.Paused {
			_ = l.Lab.PVE.Pause(t.id, false)
		}
		return true
	})
}
