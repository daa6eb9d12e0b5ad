package talos

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// A firewall that lets nothing in, what lets the host reach the Talos API all the same,
// and another address.
const (
	blocksAll  = "apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n"
	admitsHost = "apiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: talos\nportSelector: {ports: [50000], protocol: tcp}\ningress: [{subnet: 10.5.0.0/24}]\n"
	moves      = "machine: {network: {interfaces: [{interface: ens18, addresses: [10.5.0.99/24]}]}}"
)

// TestTrial: a change that may make a machine unreachable is kept when it answers with it.
func TestTrial(t *testing.T) {
	for _, version := range []string{"v1.9.6", newest, "v1.14.1"} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.calls()
				cfg := render(t, b.secrets, cp(1), version, blocksAll, admitsHost)
				if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), cfg, false); err != nil {
					t.Fatal(err)
				}
				if calls := b.calls(); calls["ApplyConfiguration"] != 2 {
					t.Errorf("calls %v", calls)
				}
				time.Sleep(5 * time.Minute)
				if m := b.see(cp(1)); m.ConfigDigest != cfg.Digest || m.Reach != cluster.Configured {
					t.Errorf("%+v", m)
				}
				if saved := b.saved(cp(1)); version != "v1.9.6" && saved != cfg.Digest {
					t.Errorf("saved is %s", saved)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestTrialThatDisconnects: a machine that does not answer with a config has the one from
// before, is not given the same again, and takes a corrected one.
func TestTrialThatDisconnects(t *testing.T) {
	for name, patch := range map[string]string{"firewall": blocksAll, "address": moves} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				had := b.see(cp(1)).ConfigDigest
				bad := render(t, b.secrets, cp(1), newest, patch)
				b.desired.Configs["cp-1"] = bad
				b.calls()
				err := b.fleet.Change(within(time.Hour), b.desired, cp(1), bad, false)
				if !errors.Is(err, cluster.ErrUnreachable) {
					t.Fatal(err)
				}
				if calls := b.calls(); calls["ApplyConfiguration"] != 1 {
					t.Errorf("calls %v", calls)
				}
				m := b.see(cp(1))
				if m.Reach != cluster.Configured || m.ConfigDigest != had || m.Change == nil || m.Change.For != bad.Digest ||
					m.Change.Refused != "on trial with it, it did not answer at 10.5.0.11 within 30s, and went back to the config that it had; `talos-agent reconcile` has it tried once more" {
					t.Errorf("%+v, change %+v", m, m.Change)
				}
				if saved := b.saved(cp(1)); saved == bad.Digest {
					t.Error("it is saved")
				}
				b.fleet.Retry()
				if m := b.see(cp(1)); m.Change == nil || m.Change.Refused != "" {
					t.Errorf("after reconcile: %+v", m.Change)
				}
				good := render(t, b.secrets, cp(1), newest, blocksAll, admitsHost)
				b.desired.Configs["cp-1"] = good
				if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), good, false); err != nil {
					t.Fatal(err)
				}
				if m := b.see(cp(1)); m.ConfigDigest != good.Digest || m.Change != nil {
					t.Errorf("%+v", m)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestNetworkIsTriedBeforeAReboot: what of a config is about the network is on trial by itself where
// the rest takes a reboot, and kept only when the machine answers; what the inventory no longer has
// of that, as well.
func TestNetworkIsTriedBeforeAReboot(t *testing.T) {
	const reboots14 = "cluster: {etcd: {extraArgs: {election-timeout: '5000'}}}" // where a variable does not
	for version, rest := range map[string]string{newest: withEnv, "v1.9.6": withEnv, "v1.14.1": reboots14} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				had, first := b.see(cp(1)).ConfigDigest, b.desired.Configs["cp-1"]
				bad := b.config(cp(1), rest, blocksAll)
				m := b.see(cp(1))
				if c := m.Change; c == nil || c.For != bad.Digest || !c.Reboots || c.Network == "" || c.Network == bad.Digest || c.Refused != "" {
					t.Fatalf("%+v", c)
				}
				b.calls()
				if err := b.fleet.ChangeNetwork(within(time.Hour), b.desired, cp(1), bad); !errors.Is(err, cluster.ErrUnreachable) {
					t.Fatal(err)
				}
				if calls := b.calls(); calls["ApplyConfiguration"] != 1 {
					t.Errorf("calls %v", calls)
				}
				if m := b.see(cp(1)); m.Reach != cluster.Configured || m.ConfigDigest != had || m.Change == nil || !strings.Contains(m.Change.Refused, "did not answer at 10.5.0.11") {
					t.Errorf("%+v, change %+v", m, m.Change)
				}
				good := b.config(cp(1), rest, blocksAll, admitsHost)
				give := func(cfg cluster.Config) {
					t.Helper()
					m := b.see(cp(1))
					if m.Change == nil || !m.Change.Reboots || m.Change.Network == "" {
						t.Fatalf("%+v", m.Change)
					}
					boot, meanwhile := m.BootID, m.Change.Network
					for range 2 { // it has it the second time
						if err := b.fleet.ChangeNetwork(within(time.Hour), b.desired, cp(1), cfg); err != nil {
							t.Fatal(err)
						}
						if m := b.see(cp(1)); m.ConfigDigest != meanwhile || m.BootID != boot || m.Staged != "" || m.Change == nil || *m.Change != (cluster.Change{For: cfg.Digest, Reboots: true}) {
							t.Fatalf("%+v, change %+v", m, m.Change)
						}
					}
					if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), cfg, true); err != nil {
						t.Fatal(err)
					}
					if err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), boot, nil); err != nil {
						t.Fatal(err)
					}
					if m := b.see(cp(1)); m.ConfigDigest != cfg.Digest || m.Change != nil {
						t.Fatalf("%+v, change %+v", m, m.Change)
					}
				}
				give(good)
				b.desired.Configs["cp-1"] = first
				give(first)
				b.wantNoViolations()
			})
		})
	}
}

// TestTrialIsBroken: a trial whose agent stops ends by itself, and begins again later;
// none is begun on top of another.
func TestTrialIsBroken(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		had := b.see(cp(1)).ConfigDigest
		cfg := render(t, b.secrets, cp(1), newest, blocksAll, admitsHost)
		other := render(t, b.secrets, cp(1), newest, blocksAll, admitsHost, withDebug)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan error)
		go func() { done <- b.fleet.Change(ctx, b.desired, cp(1), cfg, false) }()
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "goes back to the one before") {
			t.Error(err)
		}
		if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), other, false); !errors.Is(err, cluster.ErrOnTrial) {
			t.Error(err)
		}
		time.Sleep(2 * time.Minute)
		if m := b.see(cp(1)); m.ConfigDigest != had {
			t.Errorf("%+v", m)
		}
		if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), cfg, false); err != nil {
			t.Error(err)
		}
		b.wantNoViolations()
	})
}

// TestTrialAfterABoot: a machine that has booted shows no saved config. One that somebody has on
// trial there is seen to be that all the same, by an agent that saw what it booted with as by one
// that did not, and ends by itself; what was taken back is no trial.
func TestTrialAfterABoot(t *testing.T) {
	for name, saw := range map[string]bool{"seen": true, "not seen": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				if err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), b.see(cp(1)).BootID, nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				had, ours := b.see(cp(1)).ConfigDigest, b.desired.Configs["cp-1"]
				theirs := render(t, b.secrets, cp(1), newest, "machine: {nodeLabels: {rack: b2}}")
				if _, err := b.raw(cp(1)).machine.ApplyConfiguration(within(time.Minute), &machineapi.ApplyConfigurationRequest{
					Data: theirs.Bytes.Reveal(), Mode: machineapi.ApplyConfigurationRequest_TRY,
				}); err != nil {
					t.Fatal(err)
				}
				if !saw {
					b.fleet.Close()
					b.fleet = b.newFleet()
				}
				b.until("it runs theirs", func(o cluster.Observed) bool { return o.Machines["cp-1"].ConfigDigest == theirs.Digest })
				locks := render(t, b.secrets, cp(1), newest, blocksAll)
				for _, cfg := range []cluster.Config{locks, b.config(cp(1), withDebug)} {
					if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), cfg, false); !errors.Is(err, cluster.ErrOnTrial) {
						t.Errorf("on trial: %v", err)
					}
				}
				time.Sleep(10 * time.Minute)
				if m := b.see(cp(1)); m.ConfigDigest != had {
					t.Errorf("it did not end: %+v", m)
				}
				if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), locks, false); !errors.Is(err, cluster.ErrUnreachable) {
					t.Errorf("after its end: %v", err)
				}
				if m := b.see(cp(1)); m.ConfigDigest != had {
					t.Errorf("it did not go back: %+v", m)
				}
				if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), render(t, b.secrets, cp(1), newest, withDebug), false); err != nil && saw {
					t.Errorf("what takes no trial: %v", err)
				}
				time.Sleep(10 * time.Minute)
				if err := b.fleet.Change(within(time.Hour), b.desired, cp(1), ours, false); err != nil {
					t.Errorf("back: %v", err)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestTrialWithoutAnAnswer: whether the machine took a config on trial is what it shows.
func TestTrialWithoutAnAnswer(t *testing.T) {
	for kind, taken := range map[world.FaultKind]bool{world.LoseReply: true, world.LoseRequest: false} {
		t.Run(string(kind), func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.world.Inject(world.Fault{System: "talos", Op: applyCall, Times: 1, Kind: kind})
				cfg := render(t, b.secrets, cp(1), newest, blocksAll, admitsHost)
				err := b.fleet.Change(within(time.Hour), b.desired, cp(1), cfg, false)
				if (err == nil) != taken || err != nil && !strings.Contains(err.Error(), "it was not taken") {
					t.Error(err)
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if m := b.see(cp(1)); (m.ConfigDigest == cfg.Digest) != taken {
					t.Errorf("%+v", m)
				}
			})
		})
	}
}
