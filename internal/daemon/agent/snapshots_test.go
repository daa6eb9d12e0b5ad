package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/daemon/snapshots"
	"github.com/talos-agent/talos-agent/internal/host/archive"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/snapshot"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/retention"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

const snapshotCall = "machine.MachineService/EtcdSnapshot"

// vault is a folder of snapshots, and the outcomes of those that were taken into it.
type vault struct {
	dir, key string
	mu       sync.Mutex
	outcomes []cluster.Outcome
	statuses []cluster.Status
	full     bool // no byte can be written
}

// tightFolder is a folder on a disk that may be full.
type tightFolder struct {
	*snapshot.Folder
	v *vault
}

func (f tightFolder) Create(name string) (snapshot.NewFile, error) {
	file, err := f.Folder.Create(name)
	return tightFile{file, f.v}, err
}

type tightFile struct {
	snapshot.NewFile
	v *vault
}

func (f tightFile) Write(b []byte) (int, error) {
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	if f.v.full {
		return 0, syscall.ENOSPC
	}
	return f.NewFile.Write(b)
}

// snapshotsEvery is how often one is scheduled.
const snapshotsEvery = 6 * time.Hour

// inSnapshots plays a story over a cluster that is Ready for the first time, of which snapshots
// are taken.
func inSnapshots(t *testing.T, sz size, story func(t *testing.T, s *sim, v *vault)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := &vault{dir: filepath.Join(t.TempDir(), "snapshots"), key: filepath.Join(t.TempDir(), "age.key")}
		must(os.WriteFile(v.key, daemontest.Keys().AgeKey, 0o600))
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Removals = 2
		// When scheduled ones are due follows from the cluster, which is another one in each process: here they are when these
		// stories begin, and six hours later.
		time.Sleep(time.Until(retention.NextDue(time.Now(), time.Now(), snapshotsEvery, daemontest.Keys().ClusterID)) + time.Second)
		s.Boot(v.wire)
		s.UntilReady(30 * time.Minute)
		story(t, s, v)
		s.Halt()
	})
}

// wire has an agent take snapshots.
func (v *vault) wire(c *agent.Config) {
	ids := daemontest.Keys().IDs
	to, err := secrets.ParseRecipient(ids.Recipients()[0])
	must(err)
	c.Snapshots = snapshots.New(snapshots.Config{
		Open: func() (snapshots.Folder, error) {
			f, err := snapshot.OpenFolder(v.dir)
			return tightFolder{f, v}, err
		},
		Recipients: []snapshot.Recipient{to}, Keys: ids, Every: snapshotsEvery, Agent: "test", Log: c.Log})
	c.OnAction = func(_ string, o cluster.Outcome) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if o.Action == cluster.TakeSnapshot {
			v.outcomes = append(v.outcomes, o)
		}
	}
	c.OnStatus = func(st cluster.Status) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.statuses = append(v.statuses, st)
	}
}

func (v *vault) setFull(full bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.full = full
}

// taken counts the snapshots that were stored, and those that could not be.
func (v *vault) taken() (done, failed int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.outcomes {
		if o.Result == cluster.Done {
			done++
		} else {
			failed++
		}
	}
	return done, failed
}

// check reads every snapshot that there is to its end, and returns their kinds, the newest first.
func (v *vault) check(t *testing.T) (kinds []string) {
	t.Helper()
	in, err := archive.FindPlace(v.dir, []string{v.key})
	if err != nil {
		t.Fatal(err)
	}
	l, err := archive.List(context.Background(), in, "dev", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range l.Snapshots {
		if k.State != "verified" {
			t.Errorf("%s is %s: %s", k.File, k.State, k.Problem)
		}
		h := k.Header
		if h.Node == "" || h.ClusterID == "" || h.Bundle == "" || h.EncryptionKeys == "" || h.Talos != "v1.13.9" || h.Kubernetes != "v1.36.1" || h.Etcd == "" || h.Commit == "" || h.Database.Keys == 0 || len(h.Database.Members) == 0 {
			t.Errorf("the header of %s is %+v", k.File, h)
		}
		kinds = append(kinds, string(k.Kind))
	}
	parts, err := filepath.Glob(filepath.Join(v.dir, ".talos-agent-*.part"))
	must(err)
	if len(parts) > 0 {
		t.Errorf("left: %v", parts)
	}
	return kinds
}

// untilTaken waits until so many snapshots were stored.
func (v *vault) untilTaken(s *sim, n int, within time.Duration) {
	s.T.Helper()
	s.Until(within, fmt.Sprintf("%d snapshots", n), func(cluster.Status) bool {
		done, _ := v.taken()
		return done >= n
	})
}

// TestSnapshotsOnSchedule: one is taken when a cluster is Ready for the first time, and every six
// hours, while the cluster stays Ready; an agent that is restarted takes none before that.
func TestSnapshotsOnSchedule(t *testing.T) {
	t.Parallel()
	inSnapshots(t, size{ControlPlanes: 1, Workers: 1}, func(t *testing.T, s *sim, v *vault) {
		v.untilTaken(s, 1, 3*time.Minute)
		s.Until(time.Minute, "shown", func(st cluster.Status) bool {
			return st.Snapshots != nil && time.Since(st.Snapshots.Verified) < 2*time.Minute && st.Snapshots.Kept == 1 && st.Snapshots.Bytes > 0 && st.Snapshots.Due.After(time.Now())
		})
		due, n := s.Status().Snapshots.Due, 1
		if left := time.Until(due); left > snapshotsEvery || left < snapshotsEvery-10*time.Minute {
			t.Errorf("the next is due %v", due)
		}
		v.mu.Lock()
		v.statuses = nil
		v.mu.Unlock()
		s.Halt()
		s.Boot(v.wire)
		time.Sleep(time.Until(due) - time.Minute)
		if done, failed := v.taken(); done != n || failed != 0 {
			t.Errorf("%d taken, %d failed before the next was due", done, failed)
		}
		if st := s.Status().Snapshots; st == nil || !st.Verified.Equal(st.Newest) || st.Newest.IsZero() {
			t.Errorf("after a restart: %+v", st)
		}
		v.untilTaken(s, n+1, 3*time.Minute)
		v.untilTaken(s, n+2, 6*time.Hour+2*time.Minute)
		if kinds := v.check(t); len(kinds) < 2 || slices.ContainsFunc(kinds, func(k string) bool { return k != "scheduled" }) {
			t.Errorf("there are %v", kinds)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		ready := false
		for _, st := range v.statuses {
			if ready = ready || st.Condition == cluster.Ready; ready && st.Condition != cluster.Ready {
				t.Errorf("%s: %s", st.Condition, st.Message)
			}
		}
	})
}

// TestSnapshotsThatFail: whatever a member sends, or a disk does, no bad file is there, and the next
// attempt stores a good one; the cluster is kept up meanwhile, and shows what is wrong.
func TestSnapshotsThatFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault world.Fault
		full  bool
		want  string // of the error
	}{
		{"the member dies", world.Fault{Kind: world.BreakStream, Bytes: 10_000}, false, "take a snapshot of etcd"},
		{"its etcd dies", world.Fault{Kind: world.EndStream, Bytes: 10_000}, false, "truncated"},
		{"its etcd dies before the end", world.Fault{Kind: world.EndStream, Bytes: -32}, false, "truncated"},
		{"a bit flips", world.Fault{Kind: world.FlipBit, Bytes: 10_000}, false, "its SHA-256 is not the one at its end"},
		{"the disk is full", world.Fault{}, true, "no space left on device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inSnapshots(t, size{ControlPlanes: 1}, func(t *testing.T, s *sim, v *vault) {
				v.untilTaken(s, 1, 3*time.Minute)
				before := v.check(t)
				v.setFull(c.full)
				if !c.full {
					c.fault.System, c.fault.Op = "talos", snapshotCall
					s.Lab.World.Inject(c.fault)
				}
				s.Until(7*time.Hour, "stalled", func(st cluster.Status) bool { return st.Condition == cluster.Stalled })
				if st := s.Status(); st.Reason != cluster.ActionFailed || st.Snapshots == nil || !strings.Contains(st.Snapshots.Error, c.want) || c.full && st.Hint == "" {
					t.Errorf("%s: %s [%s], %+v", st.Reason, st.Message, st.Hint, st.Snapshots)
				}
				if kinds := v.check(t); len(kinds) != len(before) {
					t.Errorf("there are %v, and were %v", kinds, before)
				}
				v.setFull(false)
				s.Lab.World.Heal()
				v.untilTaken(s, 2, 10*time.Minute)
				s.Until(time.Minute, "Ready", func(st cluster.Status) bool { return st.Condition == cluster.Ready && st.Snapshots.Error == "" })
				v.check(t)
			})
		})
	}
}

// TestSnapshotBeforeARemoval: no member of a control plane that works leaves etcd before there is a
// verified snapshot that is younger than an hour, and none is drained without one.
func TestSnapshotBeforeARemoval(t *testing.T) {
	t.Parallel()
	inSnapshots(t, size{ControlPlanes: 3, Workers: 1}, func(t *testing.T, s *sim, v *vault) {
		v.untilTaken(s, 1, 3*time.Minute)
		time.Sleep(2 * time.Hour)
		s.Lab.World.OnCall(func(c world.CallRecord) {
			s.Witness(c)
			if st := s.Status().Snapshots; strings.HasSuffix(c.Op, "/EtcdRemoveMemberByID") && (st == nil || time.Since(st.Verified) > time.Hour) {
				s.Lab.World.Violate("snapshot", "a member is removed, and the snapshots are %+v", st)
			}
		})
		s.Lab.World.Inject(world.Fault{System: "talos", Op: snapshotCall, Kind: world.EndStream, Bytes: 10_000})
		s.Push(size{ControlPlanes: 1, Workers: 1}.Files(), "two control planes less")
		s.Until(time.Hour, "held", func(st cluster.Status) bool {
			return slices.ContainsFunc(st.Waiting, func(w cluster.WaitStatus) bool { return w.Reason == cluster.WaitingForSnapshot })
		})
		time.Sleep(10 * time.Minute)
		if got := s.members(); len(got) != 3 || len(s.cordoned()) > 0 {
			t.Errorf("members %v, cordoned %v without a snapshot", got, s.cordoned())
		}
		s.Lab.World.Heal()
		s.UntilReady(2 * time.Hour)
		v.check(t)
		s.CheckRules(size{ControlPlanes: 1, Workers: 1})
	})
}

// flipNewest changes a bit of the newest snapshot, as a bad disk does.
func (v *vault) flipNewest() {
	files, err := filepath.Glob(filepath.Join(v.dir, "*.etcd"))
	must(err)
	newest := slices.Max(files)
	b, err := os.ReadFile(newest)
	must(err)
	b[len(b)/2] ^= 4
	must(os.WriteFile(newest, b, 0o600))
}

// TestUpgradeAfterARestart: an upgrade stands on a snapshot that is minutes old also when the agent was restarted
// since, once it was read again. One of which a bit is another since then is found, and another is taken before
// anything is installed.
func TestUpgradeAfterARestart(t *testing.T) {
	t.Parallel()
	for _, flipped := range []bool{false, true} {
		t.Run(fmt.Sprintf("flipped %v", flipped), func(t *testing.T) {
			sz := size{ControlPlanes: 1, Workers: 1}
			inSnapshots(t, sz, func(t *testing.T, s *sim, v *vault) {
				v.untilTaken(s, 1, 3*time.Minute)
				s.Until(time.Minute, "shown", func(st cluster.Status) bool { return !st.Snapshots.Verified.IsZero() })
				if due := time.Until(s.Status().Snapshots.Due); due < time.Hour { // it follows from the id of the cluster
					v.untilTaken(s, 2, due+3*time.Minute)
				}
				before := s.Status().Snapshots
				n, _ := v.taken()
				s.Halt()
				time.Sleep(5 * time.Minute)
				if flipped {
					v.flipNewest()
				}
				calls := len(s.Lab.World.Calls())
				files := sz.Files()
				changed(t, files, "inventory/dev/cluster.yaml", "talos_version: v1.13.9", "talos_version: v1.14.1")
				s.Push(files, "another talos")
				s.Lab.World.OnCall(func(c world.CallRecord) {
					s.Witness(c)
					if done, _ := v.taken(); flipped && strings.HasSuffix(c.Op, "/Upgrade") && done == n {
						s.Lab.World.Violate("snapshot", "%s is upgraded, and the snapshots are %+v", c.Subject, s.Status().Snapshots)
					}
				})
				s.Boot(v.wire)
				s.untilAppliedIn(2*time.Hour, "upgraded")
				s.wantTalos("v1.14.1")
				if got := s.timesInstalled(calls); len(got) != 2 {
					t.Errorf("got another Talos: %v", got)
				}
				done, failed := v.taken()
				switch st := s.Status().Snapshots; {
				case !flipped && (done != n || !st.Verified.Equal(before.Verified) || st.Damaged != 0):
					t.Errorf("%d taken: %+v, and before %+v", done, st, before)
				case flipped && (done <= n || !st.Verified.After(before.Verified) || st.Damaged != 1):
					t.Errorf("%d taken: %+v, and before %+v", done, st, before)
				case failed != 0:
					t.Errorf("%d failed", failed)
				}
				s.CheckRules(sz)
			})
		})
	}
}

// TestSnapshotThatSomebodyAsksFor: it is taken at once, also after attempts that failed, is manual, and the
// status shows that it was asked for until it is there; a cluster that is suspended takes none.
func TestSnapshotThatSomebodyAsksFor(t *testing.T) {
	t.Parallel()
	inSnapshots(t, size{ControlPlanes: 1}, func(t *testing.T, s *sim, v *vault) {
		v.untilTaken(s, 1, 3*time.Minute)
		v.setFull(true)
		must(s.Cluster().RequestSnapshot())
		if st := s.Status().Snapshots; !st.Requested || st.Error != "" {
			t.Errorf("%+v", st)
		}
		s.Until(time.Minute, "failed", func(st cluster.Status) bool { return st.Snapshots.Requested && st.Snapshots.Error != "" })
		time.Sleep(10 * time.Minute) // the backoff grows
		v.setFull(false)
		must(s.Cluster().RequestSnapshot())
		if took := s.Until(10*time.Second, "taken", func(st cluster.Status) bool {
			return !st.Snapshots.Requested && time.Since(st.Snapshots.Verified) < 15*time.Second
		}); took >= 10*time.Second {
			t.Error(took)
		}
		if kinds := v.check(t); !slices.Equal(kinds, []string{"manual", "scheduled"}) {
			t.Errorf("there are %v", kinds)
		}
		must(s.Cluster().Suspend())
		if err := s.Cluster().RequestSnapshot(); cluster.ReasonOf(err) != cluster.NoSnapshots {
			t.Error(err)
		}
	})
}

// TestNoSnapshots: a host that takes none shows none, and removes control planes all the same.
func TestNoSnapshots(t *testing.T) {
	t.Parallel()
	inReadyCluster(t, size{ControlPlanes: 1}, nil, func(t *testing.T, s *sim) {
		if err := s.Cluster().RequestSnapshot(); cluster.ReasonOf(err) != cluster.NoSnapshots || s.Status().Snapshots != nil {
			t.Errorf("%v, %+v", err, s.Status().Snapshots)
		}
	})
}
