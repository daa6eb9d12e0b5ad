package daemon

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// reload loads config, policy and the files that they name anew, because some
// have changed or somebody asks for it. Only what differs is touched: a new
// policy is in force at the next pass, anything else restarts the agent inside
// the daemon. What cannot be loaded leaves everything as it is, but the policy:
// that on the disk is the one in force, and where it is not known which it is,
// nothing is changed. An error means that nothing works any more, neither with
// the new settings nor with the old ones.
func (d *Daemon) reload(ctx context.Context, asked bool) error {
	d.notify(reloadingState())
	defer d.notify(daemon.SdNotifyReady)
	changed := cmp.Or(strings.Join(d.own.Changed(), ", "), d.c.Path)
	running := d.settings
	next, problems := config.Reload(d.c.Path, running.PolicyPath)
	d.own = config.NewWatch(next.Used)
	old := running.WithPolicy(policyBeside(running, next, problems))
	if problems.HasErrors() {
		next = old
	}
	if next.EqualButPolicy(running) && d.agent != nil {
		d.adopt(next)
		d.reportLoad(problems, asked)
		if differs := !reflect.DeepEqual(next.Policy, running.Policy); !problems.HasErrors() && (asked || differs) {
			d.log.Info("config and policy loaded", logging.Hint, restartNote(next))
		} else if differs && next.Policy.Problems == nil {
			d.log.Info("the policy is loaded, and holds whatever is wrong beside it")
		}
		d.agent.LookAll()
		return nil
	}
	if next.Socket != running.Socket || next.StateDir != running.StateDir || next.Election != running.Election {
		d.log.Warn("a changed socket, state_dir or leader_election takes a restart of the daemon: `systemctl restart talos-agent`")
	}
	d.log.Info("restarting with changed files", logging.Detail, changed)
	// An address that the daemon does without already must not keep it from the
	// rest.
	missing := d.setMissing
	if next.Metrics != running.Metrics || next.Webhook.Listen != running.Webhook.Listen {
		missing = nil
	}
	if stop, err := d.readyForReload(next, problems, asked); stop || err != nil {
		return err
	}
	d.adopt(next)
	err := d.startAgent(ctx, missing)
	if err == nil {
		d.reportLoad(problems, asked)
		return nil
	}
	d.adopt(old)
	d.useTerms(old)
	d.reportLoad(cluster.Problems{{Severity: cluster.Error, File: changed, Message: "the agent cannot start with it: " + err.Error(),
		Hint: cmp.Or(fault.HintOf(err), "fix it") + "; then `systemctl reload talos-agent`"}}, asked)
	if err := d.startAgent(ctx, d.setMissing); err != nil {
		return fmt.Errorf("start over with the old config: %w", err)
	}
	return nil
}

// readyForReload stops the agent before it is started with other settings. rests is whether there is none to start: another agent acts.
func (d *Daemon) readyForReload(next config.Settings, problems cluster.Problems, asked bool) (rests bool, err error) {
	if d.standby.elector == nil {
		d.stopAgent()
		return false, nil
	}
	d.useTerms(next)
	if d.standby.lease == nil {
		d.adopt(next)
		d.reportLoad(problems, asked)
		return true, nil
	}
	d.keepSuspended()
	if !d.quit() { // while it hangs another one may lead
		d.standby.stuck = true
		return true, errStuck
	}
	return false, nil
}

// useTerms has the election go on with the Proxmox VE of some settings.
func (d *Daemon) useTerms(s config.Settings) {
	if d.standby.elector == nil {
		return
	}
	if err := d.standby.terms.use(s.Proxmox); err != nil {
		d.log.Warn("the election of a leader goes on as it was", logging.Err, err)
	}
}

// policyBeside is the policy on the disk, for the settings that run and beside
// those that were loaded. A config that is wrong and names another policy is no
// reason to hold to either.
func policyBeside(running, loaded config.Settings, problems cluster.Problems) cluster.Policy {
	p := loaded.Policy
	if problems.HasErrors() && p.Problems == nil && loaded.PolicyPath != running.PolicyPath {
		p.Problems = cluster.Problems{{Severity: cluster.Error, File: loaded.Path, Field: "policy_file",
			Message: "names another policy than " + running.PolicyPath + ", in a config that cannot be loaded", Hint: "fix what else is wrong with it"}}
	}
	return p
}

// adopt puts settings in force, and their policy with them.
func (d *Daemon) adopt(s config.Settings) {
	s.PolicyNow = d.settings.PolicyNow
	s.PolicyNow.Store(&s.Policy)
	d.settings = s
}

// restartNote says what a reload cannot load anew, "" when it can load everything.
func restartNote(s config.Settings) string {
	if !s.CredentialsGiven {
		return ""
	}
	return "keys and tokens that systemd hands over are those of the start; new ones take `systemctl restart talos-agent`"
}

// reportLoad reports how it went to take up the daemon's own files: status has what is
// wrong with them until it is mended, and the log when it is news or somebody
// asked.
func (d *Daemon) reportLoad(problems cluster.Problems, asked bool) {
	doubt := d.settings.Policy.Problems
	rest := slices.DeleteFunc(slices.Clone(problems), func(p cluster.Problem) bool { return slices.Contains(doubt, p) })
	var trouble []string
	for _, p := range doubt {
		trouble = append(trouble, p.String()+"; nothing is changed until it is fixed")
	}
	for _, p := range rest {
		if p.Severity == cluster.Error {
			trouble = append(trouble, p.String()+"; what was loaded before stays in force")
		}
	}
	d.monitor.Reload(trouble == nil, time.Now())
	switch news := d.setTrouble(trouble); {
	case trouble == nil && !news, trouble != nil && !news && !asked:
	case trouble == nil:
		d.log.Info("the agent's own files are in order again")
	case len(doubt) > 0:
		d.log.Error("it is not known what the host allows; nothing is changed until it is", logging.Err, slices.Concat(doubt, rest))
	default:
		d.log.Error("the agent's own files cannot be loaded as they are now; what was loaded before stays in force", logging.Err, rest)
	}
}
