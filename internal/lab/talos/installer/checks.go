package installer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Member is a member of etcd as the older of the two calls looks at it.
type Member struct {
	ID      uint64
	Started bool // it has published its name
	Up      bool // it can be reached
	Learner bool
	Healthy bool
}

// RefuseMembers is that call's guard of etcd: all members have to be healthy, and two are too few.
// One that does not answer is waited for before it counts as dead; wait fails when the caller gives
// up first.
// Source: talos v1.13.9, etcd.ValidateForUpgrade; the dead member is recorded.
func RefuseMembers(members []Member, wait func() error) error {
	const what = "error validating etcd for upgrade: "
	if len(members) == 2 {
		return errors.New(what + "etcd member count(2) is insufficient to maintain quorum if upgrade commences")
	}
	for _, m := range members {
		unhealthy := fmt.Sprintf(what+"etcd member %016x is not healthy; all members must be healthy to perform an upgrade: ", m.ID)
		switch {
		case !m.Started:
			return fmt.Errorf(what+"etcd member %016x is not started, all members must be running to perform an upgrade", m.ID)
		case m.Up && m.Learner:
			return errors.New(unhealthy + "etcdserver: rpc not supported for learner")
		case !m.Healthy:
			if err := wait(); err != nil {
				return status.FromContextError(err).Err()
			}
			return status.Error(codes.DeadlineExceeded, unhealthy+context.DeadlineExceeded.Error())
		}
	}
	return nil
}

// Phase is a phase of a sequence that has one task.
type Phase struct{ Name, Task string }

// PhaseNumber is that of the phase that installs, among those of its sequence, from 1.
const PhaseNumber = 9

// ListUnmounts lists what comes between the end of the services and the installer, or, where the
// upgrade is staged, the reboot.
// Source: talos v1.13.9, v1alpha1_sequencer.go: Upgrade, StageUpgrade.
func ListUnmounts(staged bool) []Phase {
	phases := []Phase{{"unmount", "unmountPodMounts"}, {"unmountBind", "unmountSystemDiskBindMounts"}, {"unmountSystem", "unmountEphemeralPartition"}, {"volumeFinalize", "teardownLifecycle"}}
	if staged {
		phases[0].Name = "umount"
	}
	return phases
}
