package upgrade

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/drift"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
)

// InstallWithin is how long an installer may run of which it is not known how it ended: it goes on
// without who asked for it, and the machine is not rebooted meanwhile.
const InstallWithin = 15 * time.Minute

// Installer is the image that installs the Talos that all nodes are to run now.
func Installer(d cluster.Desired) string {
	asked := d.Repository()
	return asked.Spec.Installer(asked.Schematic)
}

// InstallOf is what was asked for last to be installed on a machine, if that was during the boot that it
// runs since.
func InstallOf(o cluster.Observed, n cluster.Node) (in cluster.Install, ok bool) {
	in, noted := o.Facts.Installs[n.Name]
	boot := o.Machines[n.Name].BootID
	return in, noted && boot != "" && in.Boot == boot
}

// FailedInstall is why the installation of what a node is to have has failed at this revision, or whose command had the node go
// back; "" : neither.
func FailedInstall(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	if in := o.Facts.Installs[n.Name]; (in.Back || in.Image == Installer(d)) && in.Revision == drift.Attempt(d, o.Facts) {
		return in.Failed
	}
	return ""
}

// IsInstalled reports whether the next boot of a machine runs what it is to run, or may: how the
// installation ended is not known, and it has had its time. One of which that is not known, and that another
// commit asked for, is made again: it may never have begun.
func IsInstalled(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	in, ok := InstallOf(o, n)
	return ok && in.Image == Installer(d) && in.Failed == "" && !MayRun(o, n) && (in.Done || in.Revision == drift.Attempt(d, o.Facts))
}

// MayRun reports whether an installer may still run on a machine: how it ended is not known, and it has not had its time.
func MayRun(o cluster.Observed, n cluster.Node) bool {
	in, ok := InstallOf(o, n)
	return ok && in.Unseen() && o.Now.Sub(in.At) < InstallWithin
}

// BootsAnother reports whether a machine runs what it is to run, and its next boot runs, or may run, another Talos: an upgrade
// was taken back when that was installed and not booted yet, and what it runs is not known to be installed over that. One that
// installs on its way down has nothing installed while it runs on.
func BootsAnother(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	in, ok := InstallOf(o, n)
	mach := o.Machines[n.Name]
	if !ok || in.Back || MayRun(o, n) || !runsAsked(d, mach) || !ladder.UsesLifecycle(mach.Talos) {
		return false
	}
	if in.Image == Installer(d) {
		return !in.Done
	}
	return in.Failed == ""
}

// AwaitOverwritten is the wait for a machine that runs what it is to run, and whose next boot may run what was taken back: what has
// been begun may still be installed, or nothing is installed over it for now, which is why left is not "". Without a reason: there is
// none.
func AwaitOverwritten(d cluster.Desired, o cluster.Observed, n cluster.Node, left string) cluster.Wait {
	in, ok := InstallOf(o, n)
	w := cluster.Wait{Subject: n.Name, Reason: cluster.WaitingForInstaller, About: in.Boot,
		Drift: []cluster.FieldDifference{{Field: "next boot", Has: "perhaps Talos " + in.Version(), Wants: o.Machines[n.Name].Talos, By: "a push that was taken back", Since: in.At}}}
	switch {
	case !ok || in.Back || !runsAsked(d, o.Machines[n.Name]):
		return cluster.Wait{}
	case MayRun(o, n):
		w.Within, w.Message = InstallWithin, fmt.Sprintf("it is not known how the installation of %s ended, so that its next boot may run that; it runs what it is to run, which is installed over it at %s", in.Image, text.Moment(in.At.Add(InstallWithin)))
		if in.Image == Installer(d) {
			w.Drift, w.Message = nil, fmt.Sprintf("it is not known how the installation of what it runs ended, so that its next boot may run what was taken back; it is installed again at %s", text.Moment(in.At.Add(InstallWithin)))
		}
	case left != "" && BootsAnother(d, o, n):
		w.Message = fmt.Sprintf("its next boot may run what was taken back, and nothing is installed over that: %s", left)
	default:
		return cluster.Wait{}
	}
	return w
}

// BlockOverwrite is that what a machine runs could not be installed over what was taken back; without a reason: it could, or was not
// tried.
func BlockOverwrite(d cluster.Desired, o cluster.Observed, n cluster.Node) cluster.Block {
	failed := FailedInstall(d, o, n)
	if failed == "" {
		return cluster.Block{}
	}
	return cluster.Block{Subject: n.Name, Reason: cluster.UpgradeFailed, About: o.Machines[n.Name].Talos, Message: "its next boot may run what was taken back: to install what it runs over that failed: " + failed,
		Hint:  "see what the installer has printed; a commit that changes the cluster's files has it tried again",
		Drift: []cluster.FieldDifference{{Field: "next boot", Has: "what was taken back", Wants: o.Machines[n.Name].Talos, By: "a push that was taken back", Since: o.Facts.Installs[n.Name].At}}}
}

// runsAsked reports whether a machine is seen to run what all are to run now, and has booted it as that is to be.
func runsAsked(d cluster.Desired, mach cluster.Machine) bool {
	asked := d.Repository()
	_, otherwise := drift.OfSecureBoot(asked, mach)
	return !otherwise && mach.Reach == cluster.Configured && mach.Talos != "" && mach.Talos == asked.Spec.Versions.Talos && mach.Schematic != "" && mach.Schematic == asked.Schematic
}

// runsImage reports whether a machine is seen to run what an installer installs.
func runsImage(d cluster.Desired, mach cluster.Machine, image string) bool {
	return mach.Reach == cluster.Configured && mach.Talos != "" && mach.Schematic != "" && image == drift.InstallerRun(d, mach)
}

// hasBootedSince reports whether a machine is seen in another boot than the one in which something was installed on it.
func hasBootedSince(mach cluster.Machine, in cluster.Install) bool {
	return mach.Reach == cluster.Configured && mach.BootID != "" && mach.BootID != in.Boot
}

// AfterInstall is what becomes of a machine on which an installer has had its time, for people.
func AfterInstall(d cluster.Desired, in cluster.Install) string {
	if in.Image == Installer(d) {
		return "rebooted, and then runs what it runs"
	}
	return "given what is asked for now"
}

// IsPending reports whether the machine of a node has, or may have, what it is to run from its next boot on, or an
// installer may still run on it.
func IsPending(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	return IsInstalled(d, o, n) || MayRun(o, n)
}

// HasUnbooted reports whether another Talos than a machine runs was installed on it in this boot, or may have been: it runs with the
// next, whatever that is for, unless something is installed over it.
func HasUnbooted(o cluster.Observed, n cluster.Node) bool {
	in, ok := InstallOf(o, n)
	mach := o.Machines[n.Name]
	return ok && in.Failed == "" && !strings.HasSuffix(in.Image, "/"+mach.Schematic+":"+mach.Talos)
}

// MayRepeat reports whether what a node is to have may be installed once more at this revision: it is not known how
// that ended, so that it may never have begun, and the machine runs what it ran before, in another boot. That is
// done once, and not after its VM was reset: what has kept the machine from coming back would again.
func MayRepeat(d cluster.Desired, o cluster.Observed, n cluster.Node) bool {
	was, boot := o.Facts.Installs[n.Name], o.Machines[n.Name].BootID
	now := cluster.Install{Image: Installer(d), Boot: boot, Revision: drift.Attempt(d, o.Facts)}
	return boot != "" && !was.Again && now.Follows(was) && !wasReset(d, o, n)
}

// EndedInstalls lists the nodes whose machines are seen to run what all are to run now, and those that are deleted, or that the
// inventory no longer has. That no upgrade is seen is not enough: before all nodes have answered there is none,
// and what was forgotten then would be installed once more.
func EndedInstalls(d cluster.Desired, o cluster.Observed) []string {
	var out []string
	for name, in := range o.Facts.Installs {
		_, stays := d.Spec.Node(name)
		mach := o.Machines[name]
		ended := runsAsked(d, mach) || runsImage(d, mach, in.Image)
		if in.Back { // for this commit it goes no way of the others, and whether it went back is shown
			ended = in.Revision != drift.Attempt(d, o.Facts)
		}
		if !stays || o.VMs[name].Presence == cluster.Absent || hasBootedSince(mach, in) && ended {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// FindSoaking is the node that was upgraded and has not been Ready for as long as the cluster asks for, and until
// when it has to be; "" : there is none.
func FindSoaking(d cluster.Desired, o cluster.Observed) (name string, until time.Time) {
	if d.Spec.Soak == 0 {
		return "", until
	}
	for _, n := range d.Spec.Nodes {
		kn := o.Nodes.Value[n.Name]
		end := kn.ReadySince.Add(d.Spec.Soak)
		if isNew := o.Machines[n.Name].Talos == d.Repository().Spec.Versions.Talos; isNew && !kn.ReadySince.IsZero() && end.After(o.Now) && end.After(until) {
			name, until = n.Name, end
		}
	}
	return name, until
}

// Retry takes out of f what keeps an upgrade that has failed from being tried again at a revision: installers that failed there, and that nodes
// which are back were taken down for it in vain. A rollback is no failure, and what does not come back is not reset once more.
func Retry(f *cluster.Facts, at cluster.Revision) {
	installs := f.Installs
	f.Installs, f.Restarts = maps.Clone(f.Installs), maps.Clone(f.Restarts)
	maps.DeleteFunc(f.Installs, func(_ string, in cluster.Install) bool {
		return in.Revision == at && in.Failed != "" && !in.Back
	})
	for node, r := range f.Restarts {
		if r.Revision == at && r.Returned && installs[node].Boot == r.Boot { // it was for what was installed, and not for another change alone
			r.Revision = ""
			f.Restarts[node] = r
		}
	}
}

// RetriedBy is what has an upgrade that failed tried again, for people.
func RetriedBy(d cluster.Desired) string {
	return fmt.Sprintf("a commit that changes the cluster's files has it tried again, and so has `talos-agent upgrade %s --now`", d.Spec.Name)
}
