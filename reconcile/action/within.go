package action

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// How long an action may take before it is overdue: so many times what one of its
// kind took at most so far, no less than leastWithin and no more than
// mostWithin; of a kind that was never done, mostWithin.
const (
	usualTimes  = 10
	leastWithin = 10 * time.Minute
)

var mostWithin = map[cluster.ActionKind]time.Duration{
	cluster.RegisterSchematic: 10 * time.Minute,
	cluster.DownloadImage:     2 * time.Hour, // over a slow line
	cluster.UploadImage:       30 * time.Minute,
	cluster.CreateVM:          30 * time.Minute,
	cluster.StartVM:           10 * time.Minute,
	cluster.ResumeVM:          10 * time.Minute,
	cluster.ResetVM:           10 * time.Minute,
	cluster.ApplyConfig:       10 * time.Minute,
	cluster.Bootstrap:         10 * time.Minute,
	cluster.FetchChart:        10 * time.Minute,
	cluster.InstallAddon:      30 * time.Minute, // its hooks included
	cluster.RollBackAddon:     30 * time.Minute,
	cluster.LabelNamespace:    10 * time.Minute,
	cluster.MarkAddon:         10 * time.Minute,
	cluster.UninstallAddon:    30 * time.Minute, // its hooks included
	cluster.DeleteVM:          30 * time.Minute,
	cluster.ChangeVM:          30 * time.Minute,
	cluster.ShutDownVM:        10 * time.Minute,
	cluster.PullImages:        30 * time.Minute, // five minutes each
	cluster.ChangeConfig:      10 * time.Minute,
	cluster.DropConfig:        10 * time.Minute,
	cluster.DrainNode:         time.Hour, // evictions have a timeout of their own
	cluster.RebootNode:        20 * time.Minute,
	cluster.CheckInstallers:   time.Hour, // the factory may build each
	cluster.PullInstaller:     20 * time.Minute,
	cluster.InstallTalos:      20 * time.Minute,
	cluster.UpgradeTalos:      30 * time.Minute,
	cluster.RollBackTalos:     20 * time.Minute,
	cluster.SetAvailability:   10 * time.Minute,
	cluster.SetApart:          10 * time.Minute,
	cluster.UncordonNode:      10 * time.Minute,
	cluster.RemoveMember:      10 * time.Minute,
	cluster.DeleteNode:        10 * time.Minute,
	cluster.LabelNode:         10 * time.Minute,
	cluster.TakeSnapshot:      time.Hour, // of a large database to a slow storage
	cluster.SyncManifests:     10 * time.Minute,
	cluster.StartJob:          10 * time.Minute, // it does not wait for its end
	cluster.DeleteJob:         10 * time.Minute,
}

// Within is how long an action of a kind may take, where usual is how long
// each kind took at most so far.
func Within(kind cluster.ActionKind, usual map[cluster.ActionKind]time.Duration) time.Duration {
	most, took := mostWithin[kind], usual[kind]
	if took == 0 {
		return most
	}
	return min(max(usualTimes*took, leastWithin), most)
}

// KindOfTask is what the agent begins a task of Proxmox VE on a VM for, by its type.
func KindOfTask(task string) cluster.ActionKind {
	switch task {
	case "qmstart":
		return cluster.StartVM
	case "qmresume":
		return cluster.ResumeVM
	case "qmreset":
		return cluster.ResetVM
	case "qmstop", "qmdestroy":
		return cluster.DeleteVM
	case "qmshutdown":
		return cluster.ShutDownVM
	case "qmconfig", "resize":
		return cluster.ChangeVM
	}
	return cluster.CreateVM
}
