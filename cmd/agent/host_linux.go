package main

import (
	"errors"
	"io/fs"
	"os"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/daemon/support"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/harden"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// installGit is what next steps begin with where there is no git.
const installGit = "apt install git   #"

// explainAbsence adds to the error that no daemon listens on this host what keeps one
// from starting. What root reads for that opens clusters.
func explainAbsence(err error) error {
	if harden.Process() != nil {
		return err
	}
	return support.ExplainAbsence(err, setup.ConfigFile)
}

// hintFor is what to do about an error, "" if there is none. Without a config, a
// start of the unit does nothing and succeeds: it is no hint then.
func hintFor(err error, elsewhere bool, config string) string {
	if errors.Is(err, api.ErrNoDaemon) && !elsewhere {
		if _, missing := os.Stat(config); errors.Is(missing, fs.ErrNotExist) {
			return "this host is not set up yet: `talos-agent init`, as root on the Proxmox VE host; a daemon that listens elsewhere is named with `--socket`"
		}
	}
	return fault.HintOf(err)
}
