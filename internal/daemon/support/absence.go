//go:build linux

package support

import (
	"errors"
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
)

// ExplainAbsence adds to the error that no daemon listens what keeps one from starting:
// what is wrong with the config, its policy and the files they name, as far as this
// user may read them. (A unit that was edited may have keys from elsewhere.) It may
// be nothing, and any other error stays as it is.
func ExplainAbsence(err error, config string) error {
	if !errors.Is(err, api.ErrDown) {
		return err
	}
	problems := startProblems(config)
	if len(problems) == 0 {
		return err
	}
	return fault.WithHint(fmt.Errorf("%w; as far as can be seen from here, it does not start with these files:\n%w", err, problems),
		"correct them, then `systemctl restart talos-agent`; `systemctl status talos-agent` and `journalctl -u talos-agent` show how it ended")
}

// startProblems reads a config as a daemon does that starts, and returns why it would not.
// What this user may not read counts for nothing.
func startProblems(path string) cluster.Problems {
	if !probe.MayRead(path) {
		return nil
	}
	s, problems := config.Load(path)
	return slices.DeleteFunc(s.WithoutHidden(problems), func(p cluster.Problem) bool {
		return p.Severity != cluster.Error || p.File == s.PolicyPath && !probe.MayRead(s.PolicyPath)
	})
}
