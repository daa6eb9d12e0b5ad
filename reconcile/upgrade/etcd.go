package upgrade

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/ladder"
	"github.com/talos-agent/talos-agent/reconcile/quorum"
)

// etcdHint is the way from an old etcd to a new one.
const etcdHint = "take cluster.etcd.image out of the patches while Talos is 1.10.9 or a newer 1.10, which brings etcd 3.5.26, and reboot each control plane; from there it goes on"

// JudgeEtcd is what a node has to wait for, or what stops it, before a hop changes it, by what is known of etcd; neither has a reason:
// nothing. Of one whose turn has begun only an alarm that is known holds the step that takes its member down.
func JudgeEtcd(d cluster.Desired, o cluster.Observed, etcd quorum.Etcd, n cluster.Node, begun bool) (w cluster.Wait, b cluster.Block) {
	if begun && n.Role == cluster.ControlPlane {
		if why := etcd.Alarms(); why != "" {
			w = cluster.Wait{Subject: n.Name, Reason: cluster.EtcdAlarm, About: "upgrade", Message: "is drained, and waits to be upgraded: " + why}
		}
	}
	if begun {
		return w, b
	}
	if why := etcd.Alarmed(); why != "" && !(n.Role == cluster.Worker && d.Repository().Back != (cluster.Back{})) {
		return cluster.Wait{Subject: n.Name, Reason: cluster.EtcdAlarm, About: "upgrade", Message: "waits to be upgraded: " + why}, b
	}
	switch why, known := FindOldEtcd(d, o); {
	case !known:
		w = cluster.Wait{Subject: n.Name, Reason: cluster.EtcdMembersUnknown, About: "upgrade", Message: "waits to be upgraded: " + why}
	case why != "":
		b = cluster.Block{Subject: n.Name, Reason: cluster.EtcdTooOld, Message: "is not upgraded: " + why, Hint: etcdHint}
	}
	return w, b
}

// FindOldEtcd is why the first hop of Talos would lead an etcd that is too old to one that does not read it as it is, "" : it would
// not; known is whether that is known of all members. Talos brings the etcd of its version, unless a config names another image.
func FindOldEtcd(d cluster.Desired, o cluster.Observed) (why string, known bool) {
	asked := d.Repository()
	if !asked.IsHop(cluster.HopTalos) || !ladder.BringsNewEtcd(asked.Hops[0].From, asked.Hops[0].To) {
		return "", true
	}
	for _, n := range d.Spec.ControlPlanes() {
		if has := pinnedEtcd(o.Machines[n.Name].Summary); ladder.IsOldEtcd(has) {
			return fmt.Sprintf("the machine config of %s has etcd %s", n.Name, has), true
		}
	}
	switch has := o.Etcd.Value.Server; {
	case has == "":
		return "which version of etcd runs is not known of all members", false
	case ladder.IsOldEtcd(has):
		return "a member of etcd is " + has, true
	}
	return "", true
}

// SkipsEtcd is why the config that a control plane is to get would do that, "" : it does not. Where every member is newer already
// what the config has was never taken.
func SkipsEtcd(d cluster.Desired, o cluster.Observed, n cluster.Node) string {
	mach := o.Machines[n.Name]
	has, want := pinnedEtcd(mach.Summary), pinnedEtcd(d.Repository().Configs[n.Name].Summary)
	if !ladder.IsOldEtcd(has) || o.Etcd.Value.Server != "" && !strings.HasPrefix(o.Etcd.Value.Server, "3.5.") || want != "" && strings.HasPrefix(want, "3.5.") || want == "" && !ladder.BringsNewEtcd("", mach.Talos) {
		return ""
	}
	return fmt.Sprintf("its machine config has etcd %s, and is to have %s", has, cmp.Or(want, "that of Talos "+mach.Talos))
}

// pinnedEtcd is the version of etcd whose image a config names, by its tag; "" : none, or it is not in the tag.
func pinnedEtcd(s cluster.ConfigSummary) string {
	image, _, _ := strings.Cut(s.Images.Etcd, "@")
	_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	return strings.TrimPrefix(tag, "v")
}
