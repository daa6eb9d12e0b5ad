package cluster

import "errors"

// Change is what a machine answered when it was asked what the config that is wanted
// would do. Nothing of the config is in it.
type Change struct {
	For     string // digest of the config that it was asked about
	Reboots bool   // it takes effect only with a reboot
	Assumed bool   // by a forecast: it was not asked
	Refused string // why the machine does not take it, "" when it does
}

// Why a config is not changed, besides what failed.
var (
	// ErrOtherAuthority: the machine's config names another certificate authority than
	// the cluster's secrets: to replace it would lock somebody out.
	ErrOtherAuthority = errors.New("the machine's config has another certificate authority than the cluster's secrets")
	// ErrStagedByOthers: a config is saved on the machine that is neither the one that
	// runs nor the one that is wanted.
	ErrStagedByOthers = errors.New("somebody has saved another config on the machine, which waits for a reboot or runs on trial")
	// ErrNeedsReboot: the machine takes the config only with a reboot.
	ErrNeedsReboot = errors.New("the config takes effect only with a reboot")
)
