package action

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The actions that bring another Talos to a machine.
type (
	// CheckInstallers looks whether the installers of all hops are there.
	CheckInstallers struct {
		Cluster string
		Images  []string
	}

	// PullInstaller has a machine pull the installer of the Talos that it is to run.
	PullInstaller struct {
		Node   cluster.Node
		Image  string
		For    string // what changes, for people
		Fields []string
	}

	// InstallTalos installs another Talos beside the one that a machine runs, from the next boot on.
	InstallTalos struct {
		Node    cluster.Node
		Image   string // its installer
		Boot    string // id of the boot that the machine runs since
		For     string // what changes, for people
		Fields  []string
		From    string // version that it runs
		Version string
	}

	// UpgradeTalos has the machine of a drained node install another Talos on its way down, and boot
	// it: what a Talos does that cannot do the first without the second.
	UpgradeTalos struct {
		Node    cluster.Node
		Image   string // its installer
		Restart cluster.Restart
		Fields  []string
		From    string // version that it runs
		Version string
	}

	// RollBackTalos has the machine of a drained node boot the Talos that it ran before, by an administrator's command.
	RollBackTalos struct {
		Node          cluster.Node
		Image         string // installer of what it runs
		Restart       cluster.Restart
		Config        cluster.Config // for its next boot, in the place of what somebody has staged; none: nobody has
		Fields        []string
		From, Version string // that it runs, and that it ran before
		// Undrained: it does not work, and cannot be drained, or has nothing to drain.
		Undrained bool
	}
)

// Info implements Action.
func (a CheckInstallers) Info() Info {
	return Info{Kind: cluster.CheckInstallers, Subject: a.Cluster, Text: "look whether the image factory has the installers of all hops of " + a.Cluster}
}

// Info implements Action.
func (a PullInstaller) Info() Info {
	i := infoOfNode(cluster.PullInstaller, a.Node, fmt.Sprintf("pull the installer of %s, to change %s", a.Node.Name, a.For))
	i.Change, i.Fields = "image="+a.Image, a.Fields
	return i
}

// Info implements Action. Nothing of the node stops; it is disruptive for what comes next, so that
// what is installed is booted soon.
func (a InstallTalos) Info() Info {
	i := infoOfNode(cluster.InstallTalos, a.Node, fmt.Sprintf("install Talos %s on %s for its next boot, to change %s", a.Version, a.Node.Name, a.For))
	i.Disrupts, i.Change, i.Fields = true, "image="+a.Image, a.Fields
	return i
}

// Info implements Action.
func (a UpgradeTalos) Info() Info {
	i := infoOfNode(cluster.UpgradeTalos, a.Node, fmt.Sprintf("upgrade %s to Talos %s, and reboot it", a.Node.Name, a.Version))
	i.Disrupts, i.Reboots, i.Change, i.Fields = true, true, "for="+a.Restart.Target+" image="+a.Image, a.Fields
	return i
}

// Info implements Action. It disrupts nothing: its node is down already.
func (a ResetVM) Info() Info {
	i := infoOfNode(cluster.ResetVM, a.Node, fmt.Sprintf("reset vm %d (%s), whose machine does not come back from the reboot of its upgrade", a.Node.VMID, a.Node.Name))
	i.Reboots = true
	return i
}

// Info implements Action.
func (a RollBackTalos) Info() Info {
	i := infoOfNode(cluster.RollBackTalos, a.Node, fmt.Sprintf("roll %s back from Talos %s to %s, and reboot it", a.Node.Name, a.From, a.Version)+describeUndrained(a.Undrained))
	i.Disrupts, i.Reboots, i.Change, i.Fields = true, true, "for="+a.Restart.Target, a.Fields
	return i
}
