package action

import (
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// TestTexts: what an action does, in words and in what an approval is for, where that depends
// on what it is given.
func TestTexts(t *testing.T) {
	web := cluster.Addon{Name: "web", Namespace: "apps", Ownership: cluster.Managed}
	node := cluster.Node{Name: "wk-1", VMID: 521}
	value := "a"
	kubelet := []drift.Component{{Name: "kubelet", From: "v1.35.4", To: "v1.36.1"}}
	for _, c := range []struct {
		action       Action
		text, change string // of which these are parts
	}{
		{InstallAddon{Addon: web}, "install addon web into apps", "from="},
		{InstallAddon{Addon: web, Status: "deployed"}, "upgrade addon web in apps", "from=deployed"},
		{InstallAddon{Addon: web, Status: "deployed", Drift: []cluster.FieldDifference{{Field: drift.FieldChart, Has: "1.2.2", Wants: "1.2.3"}, {Field: drift.FieldValues, Has: "others at replicas, image.tag", Wants: "those of the inventory", By: "revision 5 by helm at 2026-11-22 11:31 UTC: Rollback to 2"}}},
			"upgrade addon web in apps: chart version from 1.2.2 to 1.2.3, replicas, image.tag of its values (revision 5 by helm at 2026-11-22 11:31 UTC)", "from=deployed"},
		{InstallAddon{Addon: web, Status: "deployed", Drift: []cluster.FieldDifference{{Field: "digest of chart and values", Has: "a", Wants: "b"}}}, "upgrade addon web in apps", "from=deployed"},
		{InstallAddon{Addon: web, Status: "deployed", Drift: []cluster.FieldDifference{{Field: "digest of chart and values", Has: "a", Wants: "b", By: "revision 5"}}}, "upgrade addon web in apps (revision 5)", "from=deployed"},
		{InstallAddon{Addon: web, Status: "failed"}, "recover addon web in apps, which is failed", "from=failed"},
		{InstallAddon{Addon: web, Status: "deployed", PutBack: "deployment x is missing"}, "upgrade addon web in apps: deployment x is missing", "put-back=deployment x is missing"},
		{MarkAddon{Addon: web}, "is managed", "ownership=managed"},
		{MarkAddon{Addon: web, Good: true}, "is ready, to roll back to", "ownership=managed good"},
		{LabelNode{Node: node}, "note what of the Node object of wk-1 is the inventory's", ""},
		{LabelNode{Node: node, Edits: []cluster.MetaEdit{{Kind: cluster.MetaLabel, Key: "zone", Want: &value}}}, "change the Node object of wk-1: label zone", "labels="},
		{ChangeConfig{Node: node, Edited: true}, "back (edited on the node; Talos does not note by whom)", "config="},
		{ChangeConfig{Node: node, Edited: true, Since: time.Date(2026, 11, 22, 11, 31, 0, 0, time.UTC)}, "it runs that since 2026-11-22 11:31 UTC", "config="},
		{ChangeConfig{Node: node, Components: kubelet, Only: true, Asks: true}, "upgrade kubelet of wk-1 to v1.36.1, or reboot it for that", "config="},
		{ChangeConfig{Node: node, Components: kubelet}, "change the machine config of wk-1, and upgrade kubelet of wk-1 to v1.36.1", "config="},
		{ChangeConfig{Node: node, Components: kubelet, Network: "n"}, "change the machine config of wk-1, only what is about its network", "network=n"},
		{PullImages{Node: node, Images: "k:v1", Ahead: true}, "pull the images of Kubernetes for wk-1 before any node is changed: k:v1", "images=k:v1"},
		{PullImages{Node: node, Images: "k:v1"}, "pull the images of the next machine config of wk-1: k:v1", "images=k:v1"},
		{ApplyConfig{Node: node, Kept: Kept{Config: "main@sha1:1111111111111111111111111111111111111111"}}, "with the config of", "config=main@sha1:1"},
		{ApplyConfig{Node: node, Kept: Kept{Versions: cluster.Versions{Talos: "v1.13.9", Kubernetes: "v1.36.1"}}}, "with Talos v1.13.9 and Kubernetes v1.36.1", "talos=v1.13.9 kubernetes=v1.36.1"},
	} {
		i := c.action.Info()
		if !strings.Contains(i.Text, c.text) || !strings.Contains(i.Change, c.change) || c.change == "" && i.Change != "" {
			t.Errorf("%q, %q; want %q, %q", i.Text, i.Change, c.text, c.change)
		}
	}
	if i := (ApplyConfig{Node: node}).Info(); strings.Contains(i.Text, "which the cluster runs") || i.Change != "" {
		t.Errorf("a node that is like the repository: %+v", i)
	}
}

// TestPullImagesIn: ahead of a hop what its config has in the end is pulled, and at each step what that config has then.
func TestPullImagesIn(t *testing.T) {
	n := cluster.Node{Name: "wk-1"}
	d := cluster.Desired{Configs: map[string]cluster.Config{n.Name: {Summary: cluster.ConfigSummary{Images: cluster.Images{Kubelet: "now"}}, Final: cluster.Images{Kubelet: "then"}}}}
	for ahead, want := range map[bool]string{true: "then", false: "now"} {
		if got := (PullImages{Node: n, Ahead: ahead}).In(d).Configs[n.Name].Summary.Images.Kubelet; got != want {
			t.Errorf("ahead %v: %s", ahead, got)
		}
	}
	if got := d.Configs[n.Name].Summary.Images.Kubelet; got != "now" {
		t.Errorf("what others are asked for has %s", got)
	}
}

// TestAwaitClaim: what waits for another action about the same is not called to wait for itself.
func TestAwaitClaim(t *testing.T) {
	i := Info{Subject: "cp-1"}
	for want, c := range map[string]struct {
		claim cluster.Claim
		by    []cluster.ActionID
	}{
		"waits until change config has ended":                                                  {cluster.ClaimNode("cp-1"), []cluster.ActionID{{Kind: cluster.ChangeConfig, Subject: "cp-1"}}},
		"waits for its turn on etcd until bootstrap etcd of cp-2 has ended":                    {cluster.ClaimEtcd, []cluster.ActionID{{Kind: cluster.Bootstrap, Subject: "cp-2"}}},
		"waits for its turn on storage pve1/local until create vm of cp-2 has ended":           {cluster.ClaimStorage("pve1", "local"), []cluster.ActionID{{Kind: cluster.CreateVM, Subject: "cp-2"}}},
		"waits for its turn on storage pve1/fast until create vm of cp-2 or another has ended": {cluster.ClaimCopy("pve1", "fast"), []cluster.ActionID{{Kind: cluster.CreateVM, Subject: "cp-2"}, {Kind: cluster.CreateVM, Subject: "wk-1"}}},
	} {
		if w := AwaitClaim(i, c.claim, c.by, nil); w.Message != want || w.Subject != "cp-1" || w.About != string(c.claim.Resource()) || w.Reason != cluster.WaitingForTurn {
			t.Errorf("%+v, want %q", w, want)
		}
	}
}
