package plan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/drift"
)

// differs are the reasons of blocks that are about something which is not as the inventory has
// it and is left so; otherwise are all others. A new reason belongs to one of them. While a
// cluster is destroyed, nothing of it should be as the inventory has it; and a node that is
// locked before it is Ready may have all that it should.
var differs = []cluster.Reason{
	cluster.NodeLocked, cluster.HardwareDrift, cluster.TalosVersionDrift, cluster.UpgradeFailed, cluster.UpgradeFellBack, cluster.RolledBack, cluster.KubernetesDrift, cluster.PoolDrift,
	cluster.ConfigRefused, cluster.FixedConfigChanged, cluster.ChangeNotTaken, cluster.SystemDiskMissing, cluster.ForeignVM, cluster.VMPaused,
	cluster.HealingOff, cluster.ApplyingOff, cluster.ChangeUnapproved, cluster.OrphanEtcdMember, cluster.OrphanNodeObject, cluster.DuplicateVM,
	cluster.NodeIdentityChanged, cluster.ReleaseForeign, cluster.ConfigDrift, cluster.EtcdTooOld, cluster.SecureBootDrift,
}

var otherwise = []cluster.Reason{
	cluster.ActionFailed, cluster.AddressInUse, cluster.BootstrapUncertain, cluster.ContractChanged, cluster.ControlPlaneUnproven, cluster.DeletionUnfinished,
	cluster.DestroyExpired, cluster.EndpointIsNode, cluster.EtcdAlarm, cluster.EtcdLost, cluster.EtcdMemberLost, cluster.EtcdMemberStuck, cluster.EvenControlPlanes, cluster.ForeignVolumes,
	cluster.HADisarmed, cluster.HANotHeld, cluster.HAUnknown, cluster.HostMemoryShort, cluster.HostNoQuorum, cluster.HostTooSmall, cluster.ImageMismatch, cluster.InstallerMissing, cluster.JournalLost, cluster.NodeDead,
	cluster.NodeProtected, cluster.OnlyControlPlane, cluster.PolicyUnknown, cluster.PolicyViolation, cluster.ReleaseRolledBack, cluster.RollbackNotTaken,
	cluster.RemovalUnapproved, cluster.RunningConfigUnknown, cluster.SecretsChanged, cluster.SecretsMissing, cluster.StorageContent,
	cluster.StorageInactive, cluster.StorageMissing, cluster.StorageShort, cluster.UnexpectedMachine, cluster.UpgradeStuck, cluster.VMLockOrphaned, cluster.VMManaged,
	cluster.VMNotShown, cluster.VMProtected, cluster.VMsUnknown, cluster.WaitingForCapacity,
}

// TestDriftIsReportedWhole: whatever is blocked because it is not as the inventory has it has
// what that is, from what to what, and since when, in every plan of every scenario.
func TestDriftIsReportedWhole(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[cluster.Reason]bool{}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(1, 0)
		for line := range strings.Lines(string(src)) {
			if line = strings.TrimSpace(line); line == "" || strings.ContainsAny(line[:1], ">#") {
				continue
			}
			w.run(t, line)
			checkDrift(t, file+": "+line, w, seen)
		}
	}
	for _, c := range changes { // what no scenario has
		if !strings.Contains(c.field, "its role") {
			continue
		}
		w := converged()
		c.edit(w, &w.d.Spec.Nodes[slices.IndexFunc(w.d.Spec.Nodes, func(n cluster.Node) bool { return n.Name == "wk-1" })])
		checkDrift(t, c.field, w, seen)
	}
	for _, reason := range differs {
		if !seen[reason] {
			t.Errorf("no scenario shows %s", reason)
		}
	}
}

// checkDrift plans a world that has been like this for an hour.
func checkDrift(t *testing.T, where string, w *world, seen map[cluster.Reason]bool) {
	t.Helper()
	o, began := w.o, w.o.Now.Add(-time.Hour)
	o.DriftNotes = map[cluster.DriftKey]cluster.DriftNote{}
	for key := range drift.Notes(w.d, o) {
		o.DriftNotes[key] = cluster.DriftNote{Since: began}
	}
	plan := Make(w.d, o, w.p)
	for _, b := range plan.Blocked {
		switch {
		case slices.Contains(differs, b.Reason) && len(b.Drift) == 0 && !o.Facts.Destroying() && !(b.Reason == cluster.NodeLocked && b.About == ""):
			t.Errorf("%s: %s %s has nothing that differs: %s", where, b.Subject, b.Reason, b.Message)
		case !slices.Contains(differs, b.Reason) && !slices.Contains(otherwise, b.Reason):
			t.Errorf("%s: whether %s is about something that differs is not listed", where, b.Reason)
		}
		seen[b.Reason] = true
		checkFields(t, where, b.Key(), b.Drift, w.o.Now)
	}
	for _, wait := range plan.Waiting {
		corrects := slices.Contains(delayed, wait.Reason) && wait.About != "removal" && wait.About != string(cluster.DeleteVM) && !o.Facts.Destroying()
		_, stays := w.d.Spec.Node(wait.Subject)
		if corrects && stays && len(wait.Drift) == 0 {
			t.Errorf("%s: %s %s has nothing that is corrected later: %s", where, wait.Subject, wait.Reason, wait.Message)
		}
		checkFields(t, where, wait.Key(), wait.Drift, w.o.Now)
	}
}

// delayed are the reasons of waits before something of a node is corrected.
var delayed = []cluster.Reason{cluster.ConfigDrift, cluster.NodeCordoned, cluster.VMLocked, cluster.VMManaged, cluster.WaitingForCanary, cluster.WaitingForWindow,
	cluster.HostNoQuorum, cluster.WaitingForEndpoint, cluster.SecretsChanged, cluster.FixedConfigChanged}

// TestWaitsNameWhatDiffers: whatever delays the correction of an edit, the wait or block has what that is,
// from what to what, since when, and who made it so.
func TestWaitsNameWhatDiffers(t *testing.T) {
	for _, c := range []struct {
		what, field string
		reason      cluster.Reason
		lines       []string
	}{
		{"the host has no quorum", "bridge", cluster.HostNoQuorum, []string{"edit wk-1 bridge=vmbr9 by=alice@pam", "host noquorum"}},
		{"the host has no quorum, and it takes a turn", "cores", cluster.HostNoQuorum, []string{"edit wk-1 cores=2 by=alice@pam", "host noquorum"}},
		{"a backup", "cores", cluster.VMLocked, []string{"edit wk-1 cores=2 lock=backup by=alice@pam"}},
		{"a failure", "bridge", cluster.ActionFailed, []string{"edit wk-1 bridge=vmbr9 by=alice@pam", "failed change-vm wk-1"}},
		{"high availability", "cores", cluster.VMManaged, []string{"edit wk-1 cores=2 managed=1 by=alice@pam"}},
		{"another authority", "cores", cluster.SecretsChanged, []string{"edit wk-1 cores=2 by=alice@pam", "authorities cp-1 new,ours"}},
		{"another role", "cores", cluster.FixedConfigChanged, []string{"edit wk-1 cores=2 by=alice@pam", "reassigned wk-2"}},
		{"a disk that is too many", "disk talos-more", cluster.HardwareDrift, []string{"edit wk-1 more-disk=10 by=alice@pam"}},
	} {
		w := newWorld(1, 2)
		for _, line := range append([]string{"made cps=1 workers=2", "facts bootstrap=cp-1 done was-ready", "settled"}, c.lines...) {
			switch name := strings.Fields(line)[0]; name {
			case "failed":
				w.o.Backoffs = append(w.o.Backoffs, cluster.Backoff{ActionID: cluster.ActionID{Kind: cluster.ChangeVM, Subject: "wk-1"}, Until: w.o.Now.Add(time.Minute), Failed: 1, Error: "596 broken pipe"})
			case "reassigned":
				mach := w.o.Machines["wk-2"]
				mach.Summary.Role = cluster.ControlPlane
				w.o.Machines["wk-2"] = mach
			default:
				w.run(t, line)
			}
		}
		plan, has := Make(w.d, w.o, w.p), false
		check := func(subject string, reason cluster.Reason, fields []cluster.FieldDifference) {
			has = has || subject == "wk-1" && reason == c.reason && slices.ContainsFunc(fields, func(f cluster.FieldDifference) bool {
				return f.Field == c.field && strings.Contains(f.By, "alice@pam") && !f.Since.IsZero() && f.Has != "" && f.Wants != ""
			})
		}
		for _, wait := range plan.Waiting {
			check(wait.Subject, wait.Reason, wait.Drift)
		}
		for _, b := range plan.Blocked {
			check(b.Subject, b.Reason, b.Drift)
		}
		if !has {
			t.Errorf("%s: %v %v", c.what, plan.Waiting, plan.Blocked)
		}
	}
}

// checkFields checks that what differs is whole.
func checkFields(t *testing.T, where string, of cluster.Key, fields []cluster.FieldDifference, now time.Time) {
	t.Helper()
	for _, f := range fields {
		if f.Field == "" || f.Has == "" || f.Wants == "" || f.Has == f.Wants || f.Since.IsZero() || f.By == "" && f.Since.Equal(now) {
			t.Errorf("%s: %v: %+v", where, of, f)
		}
	}
}
