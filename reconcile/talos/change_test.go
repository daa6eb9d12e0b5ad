package talos

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Patches whose change takes effect at once, and only with a reboot (recorded: 1.13.9).
const (
	withDebug = "debug: true"
	withEnv   = "machine: {env: {GRPC_GO_LOG_SEVERITY_LEVEL: info}}"
)

// stage saves a config on a machine as a person would.
func (b *bench) stage(n cluster.Node, cfg cluster.Config) {
	b.Helper()
	l := b.raw(n)
	defer l.close()
	if _, err := l.machine.ApplyConfiguration(within(time.Minute), &machineapi.ApplyConfigurationRequest{
		Data: cfg.Bytes.Reveal(), Mode: machineapi.ApplyConfigurationRequest_STAGED,
	}); err != nil {
		b.Fatal(err)
	}
}

// saved is the digest of the config that is saved on a machine, "" when none is shown.
func (b *bench) saved(n cluster.Node) string {
	b.Helper()
	l := b.raw(n)
	defer l.close()
	read, err := l.readConfig(within(time.Minute), config.PersistentID)
	if isMissing(err) {
		return ""
	}
	if err != nil {
		b.Fatal(err)
	}
	sum, err := digest(read.text)
	if err != nil {
		b.Fatal(err)
	}
	return sum
}

// TestChange: a config that takes effect at once does so when Change returns, and is
// sent once.
func TestChange(t *testing.T) {
	for _, version := range []string{"v1.9.6", newest, "v1.14.1"} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.calls()
				cfg := b.config(cp(1), withDebug)
				for range 2 {
					if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), cfg, false); err != nil {
						t.Fatal(err)
					}
				}
				// It is seen at once, whatever Talos notes in whole seconds.
				if m := b.see(cp(1)); m.ConfigDigest != cfg.Digest || m.Stage != "running" || time.Since(m.ConfigSince).Abs() > time.Second {
					t.Errorf("%+v", m)
				}
				if calls := b.calls(); calls["ApplyConfiguration"] != 1 {
					t.Errorf("calls %v", calls)
				}
				b.wantNoViolations()
			})
		})
	}
}

// TestChangeAsksForWhatItNeeds: before a config is sent, and after, a machine is asked for its UUID and
// for its configs; which Talos it runs decides about staged configs only.
func TestChangeAsksForWhatItNeeds(t *testing.T) {
	for stage, questions := range map[bool]int{false: 6, true: 7} {
		t.Run(fmt.Sprint("staged: ", stage), func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.calls()
				if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), b.config(cp(1), withDebug), stage); err != nil {
					t.Fatal(err)
				}
				if calls := b.calls(); calls["Get"] != questions || calls["List"] != 0 || calls["ApplyConfiguration"] != 1 {
					t.Errorf("calls %v, want %d of Get", calls, questions)
				}
			})
		})
	}
}

// TestChangeStaged: a config that is staged takes effect at the next boot, and is sent
// once, where the machine shows what it has saved.
func TestChangeStaged(t *testing.T) {
	for version, sent := range map[string]int{"v1.9.6": 2, newest: 1, "v1.14.1": 1} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, version, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				m := b.see(cp(1))
				b.calls()
				cfg := render(t, b.secrets, cp(1), version, withEnv)
				for range 2 {
					if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), cfg, true); err != nil {
						t.Fatal(err)
					}
				}
				if calls := b.calls(); calls["ApplyConfiguration"] != sent {
					t.Errorf("calls %v", calls)
				}
				if now := b.see(cp(1)); now.ConfigDigest != m.ConfigDigest || now.BootID != m.BootID || now.Stage != "running" {
					t.Errorf("%+v", now)
				}
				b.desired.Configs["cp-1"] = cfg
				if err := b.fleet.Reboot(within(time.Hour), b.desired, cp(1), m.BootID, nil); err != nil {
					t.Fatal(err)
				}
				if now := b.see(cp(1)); now.ConfigDigest != cfg.Digest || now.BootID == m.BootID {
					t.Errorf("%+v", now)
				}
				// What runs is what is saved, though none is shown after a boot.
				if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), cfg, true); err != nil {
					t.Error(err)
				}
				if calls := b.calls(); calls["ApplyConfiguration"] != 0 {
					t.Errorf("calls %v", calls)
				}
			})
		})
	}
}

// TestChangeNeedsReboot: what cannot take effect at once is refused, without a word of
// the difference.
func TestChangeNeedsReboot(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		cfg := render(t, b.secrets, cp(1), newest, withEnv)
		err := b.fleet.Change(within(time.Minute), b.desired, cp(1), cfg, false)
		if !errors.Is(err, cluster.ErrNeedsReboot) || err.Error() != "change config of cp-1 (10.5.0.11): the machine refuses: the config takes effect only with a reboot" {
			t.Error(err)
		}
		if m := b.see(cp(1)); m.ConfigDigest != b.desired.Configs["cp-1"].Digest {
			t.Errorf("%+v", m)
		}
	})
}

// TestChangeOfStagedConfig: what a person staged is replaced, and that is recorded; one with
// other authorities is left.
func TestChangeOfStagedConfig(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		had := b.desired.Configs["cp-1"]
		theirs := render(t, b.secrets, cp(1), newest, withEnv)
		ours := render(t, b.secrets, cp(1), newest, withDebug)
		const record = `level=WARN msg="replace a config that waits for the next boot" node=cp-1`
		for _, c := range []struct {
			cfg   cluster.Config
			stage bool
		}{{had, false}, {ours, true}, {ours, false}} {
			b.stage(cp(1), theirs)
			time.Sleep(2 * time.Second)
			before := strings.Count(b.log.String(), record)
			if m := b.see(cp(1)); m.Staged != theirs.Digest || m.ConfigDigest != had.Digest || m.StagedSince.IsZero() {
				t.Errorf("%+v", m)
			}
			if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), c.cfg, c.stage); err != nil {
				t.Error(err)
			}
			if b.saved(cp(1)) != c.cfg.Digest || strings.Count(b.log.String(), record) != before+1 {
				t.Errorf("saved is %s, want %s; log:\n%s", b.saved(cp(1)), c.cfg.Digest, b.log.String())
			}
			// What the agent staged waits as well.
			if m := b.see(cp(1)); c.stage != (m.Staged == c.cfg.Digest) || !c.stage && (m.Staged != "" || m.ConfigDigest != c.cfg.Digest) {
				t.Errorf("%+v", m)
			}
		}
		other, err := otherSecrets()
		if err != nil {
			t.Fatal(err)
		}
		rotated, certs := *b.secrets, *b.secrets.Certs
		certs.K8s = other.Certs.K8s
		rotated.Certs = &certs
		b.stage(cp(1), render(t, &rotated, cp(1), newest))
		b.calls()
		for _, stage := range []bool{false, true} {
			if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), had, stage); !errors.Is(err, cluster.ErrOtherAuthority) || !strings.Contains(err.Error(), "nothing was sent") {
				t.Error(err)
			}
		}
		if calls := b.calls(); calls["ApplyConfiguration"] != 0 {
			t.Errorf("calls %v", calls)
		}
	})
}

// TestDropStaged: a machine keeps what it runs, and is given nothing when that is another
// config by now.
func TestDropStaged(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		had, theirs := b.desired.Configs["cp-1"], render(t, b.secrets, cp(1), newest, withEnv)
		b.stage(cp(1), theirs)
		time.Sleep(2 * time.Second)
		b.calls()
		if err := b.fleet.DropStaged(within(time.Minute), b.desired, cp(1), render(t, b.secrets, cp(1), newest, withDebug)); err == nil || err.Error() != "drop the staged config of cp-1 (10.5.0.11): nothing was sent: it runs another config by now" {
			t.Error(err)
		}
		if calls := b.calls(); calls["ApplyConfiguration"] != 0 || b.saved(cp(1)) != theirs.Digest {
			t.Errorf("calls %v", calls)
		}
		for range 2 {
			if err := b.fleet.DropStaged(within(time.Minute), b.desired, cp(1), had); err != nil {
				t.Error(err)
			}
			if m := b.see(cp(1)); m.Staged != "" || m.ConfigDigest != had.Digest || b.saved(cp(1)) != had.Digest {
				t.Errorf("%+v", m)
			}
		}
		if calls := b.calls(); calls["ApplyConfiguration"] != 1 {
			t.Errorf("calls %v", calls)
		}
	})
}

// TestStagedOrOnTrial: what was saved last waits, unless what runs was given later; the clock
// may have been set since the boot.
func TestStagedOrOnTrial(t *testing.T) {
	version := func(n string, second int64) *resource.Metadata {
		v, err := resource.ParseVersion(n)
		if err != nil {
			t.Fatal(err)
		}
		md := resource.NewMetadata(config.NamespaceName, config.MachineConfigType, config.ActiveID, v)
		md.SetUpdated(time.Unix(second, 0))
		return &md
	}
	for _, c := range []struct {
		running, saved *resource.Metadata
		want           bool
	}{
		{version("2", 10), version("1", 11), true}, {version("2", 10), version("1", 10), false}, {version("2", 10), version("1", 9), false},
		{version("1", 10), version("1", 9), true},
	} {
		if got := isStaged(c.running, c.saved); got != c.want {
			t.Errorf("%v and %v: %v", c.running, c.saved, got)
		}
	}
	// An event without a resource is about no config.
	v := &view{}
	v.readConfig(state.Event{Type: state.Noop})
	var m cluster.Machine
	if v.compareConfigs(&m); m.ConfigDigest != "" || m.Staged != "" {
		t.Errorf("%+v", m)
	}
}

// TestChangeDuringTrial: a config on trial is somebody's work, too.
func TestChangeDuringTrial(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		l := b.raw(cp(1))
		if _, err := l.machine.ApplyConfiguration(within(time.Minute), &machineapi.ApplyConfigurationRequest{
			Data: render(t, b.secrets, cp(1), newest, "machine: {nodeLabels: {rack: b2}}").Bytes.Reveal(), Mode: machineapi.ApplyConfigurationRequest_TRY,
		}); err != nil {
			t.Fatal(err)
		}
		ours := render(t, b.secrets, cp(1), newest, withDebug)
		// Neither another one is given to it, nor the one that it goes back to.
		for _, cfg := range []cluster.Config{ours, b.desired.Configs["cp-1"]} {
			if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), cfg, false); !errors.Is(err, cluster.ErrOnTrial) || fault.HintOf(err) == "" {
				t.Error(err)
			}
		}
		if m := b.see(cp(1)); m.Staged != "" {
			t.Errorf("%+v", m)
		}
		time.Sleep(2 * time.Minute) // it has ended by itself
		if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), ours, false); err != nil {
			t.Error(err)
		}
	})
}

// TestChangeOfAnotherAuthority: who rotates an authority is not locked out.
func TestChangeOfAnotherAuthority(t *testing.T) {
	other, err := newSecrets()
	if err != nil {
		t.Fatal(err)
	}
	for what, rotate := range map[string]func(*secrets.Certs){
		"Kubernetes": func(c *secrets.Certs) { c.K8s = other.Certs.K8s },
		"etcd":       func(c *secrets.Certs) { c.Etcd = other.Certs.Etcd },
		"Talos":      func(c *secrets.Certs) { c.OS = other.Certs.OS },
	} {
		bundle, err := bubbleSecrets()
		if err != nil {
			t.Fatal(err)
		}
		rotated, certs := *bundle, *bundle.Certs
		rotate(&certs)
		rotated.Certs = &certs
		for _, n := range []cluster.Node{cp(1), wk(1)} {
			was, is := render(t, &rotated, n, newest).Bytes.Reveal(), render(t, bundle, n, newest).Bytes.Reveal()
			err := checkAuthorities(was, is)
			if want := what != "etcd" || n.Role == cluster.ControlPlane; errors.Is(err, cluster.ErrOtherAuthority) != want || want && (!strings.Contains(err.Error(), "(that of "+what+")") || fault.HintOf(err) == "") {
				t.Errorf("%s of %s: %v", what, n.Name, err)
			}
		}
	}
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		rotated, certs := *b.secrets, *b.secrets.Certs
		certs.K8s = other.Certs.K8s
		rotated.Certs = &certs
		b.rawApply(cp(1), render(t, &rotated, cp(1), newest))
		b.calls()
		for _, stage := range []bool{false, true} {
			err := b.fleet.Change(within(time.Minute), b.desired, cp(1), b.config(cp(1)), stage)
			if !errors.Is(err, cluster.ErrOtherAuthority) || !strings.Contains(err.Error(), "nothing was sent") {
				t.Error(err)
			}
		}
		if calls := b.calls(); calls["ApplyConfiguration"] != 0 {
			t.Errorf("calls %v", calls)
		}
	})
}

// TestChangeAddsAuthorities: those that are accepted besides are settings as any other.
func TestChangeAddsAuthorities(t *testing.T) {
	bundle, err := bubbleSecrets()
	if err != nil {
		t.Fatal(err)
	}
	other, err := otherSecrets()
	if err != nil {
		t.Fatal(err)
	}
	plain := render(t, bundle, cp(1), newest).Bytes.Reveal()
	more := render(t, bundle, cp(1), newest, "machine: {acceptedCAs: [{crt: "+base64.StdEncoding.EncodeToString(other.Certs.OS.Crt)+"}]}").Bytes.Reveal()
	if err := errors.Join(checkAuthorities(plain, more), checkAuthorities(more, plain), checkAuthorities([]byte("kind: ["), plain), checkAuthorities(plain, []byte("kind: ["))); err != nil {
		t.Error(err)
	}
}

// TestChangeFaults: whatever happens to the call, Change reports the truth, a second
// one fixes what the first could not, and nothing quotes the config.
func TestChangeFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault world.Fault
		want  string // of the first error, "" : none
		sent  int    // calls until it has the config
	}{
		{"request lost", world.Fault{Kind: world.LoseRequest}, "it was not taken: error reading from server: EOF", 2},
		{"reply lost", world.Fault{Kind: world.LoseReply}, "", 1},
		{"slow", world.Fault{Kind: world.Slow, Delay: 10 * time.Second}, "", 1},
		{"too slow", world.Fault{Kind: world.Slow, Delay: time.Minute}, "it was not taken: no answer in time", 2},
		{"in progress", world.Fault{Kind: world.Answer, Status: int(codes.FailedPrecondition), Text: "another apply configuration is already in progress"},
			"it was not taken: another apply configuration is already in progress", 2},
		{"refused", world.Fault{Kind: world.Answer, Status: int(codes.InvalidArgument), Text: "1 error occurred:\n\t* v1alpha1.Config: 1 error occurred:\n\t* bad token {TOKEN} in {OLD}\n\n"},
			"the machine refuses the config: v1alpha1.Config: bad token [...] in [...]", 2},
		{"not authorized", world.Fault{Kind: world.Answer, Status: int(codes.PermissionDenied), Text: "not authorized"}, "the machine refuses: not authorized", 2},
	} {
		for _, stage := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, " stage ", stage), func(t *testing.T) {
				inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
					b.bringUp(cp(1))
					const theirs, ours = "secret-of-mine-12345", "secret-of-mine-67890"
					b.rawApply(cp(1), render(t, b.secrets, cp(1), newest, "machine: {nodeAnnotations: {note: "+theirs+"}}"))
					cfg := render(t, b.secrets, cp(1), newest, "machine: {nodeAnnotations: {note: "+ours+"}}")
					b.calls()
					tc.fault.System, tc.fault.Op, tc.fault.Nth = "talos", applyCall, 1
					tc.fault.Text = strings.NewReplacer("{TOKEN}", ours, "{OLD}", theirs).Replace(tc.fault.Text)
					b.world.Inject(tc.fault)
					err := b.fleet.Change(within(10*time.Minute), b.desired, cp(1), cfg, stage)
					if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), "change config of cp-1 (10.5.0.11): "+tc.want)) {
						t.Errorf("error %v, want %q", err, tc.want)
					}
					if err != nil {
						b.noSecrets("the error", cfg, err.Error())
						if err := b.fleet.Change(within(10*time.Minute), b.desired, cp(1), cfg, stage); err != nil {
							t.Error(err)
						}
					}
					if n := b.calls()["ApplyConfiguration"]; n != tc.sent || b.saved(cp(1)) != cfg.Digest {
						t.Errorf("%d calls, want %d", n, tc.sent)
					}
					if m := b.see(cp(1)); (m.ConfigDigest == cfg.Digest) == stage {
						t.Errorf("%+v", m)
					}
					if text := fmt.Sprint(err) + b.log.String(); strings.Contains(text, "secret-of-mine") {
						t.Errorf("a secret is shown: %s", text)
					}
				})
			})
		}
	}
}

// TestChangeUnread: what cannot be read is not replaced.
func TestChangeUnread(t *testing.T) {
	inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
		b.bringUp(cp(1))
		cfg := render(t, b.secrets, cp(1), newest, withDebug)
		for nth, want := range map[int]string{1: "read its SMBIOS UUID", 2: "read its config", 3: "read its saved config"} {
			b.calls()
			b.world.Inject(world.Fault{System: "talos", Op: "cosi.resource.State/Get", Nth: nth, Kind: world.Answer, Status: int(codes.Internal), Text: "panic"})
			if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), cfg, false); err == nil || !strings.Contains(err.Error(), want+": panic") {
				t.Errorf("%d: %v, want %s", nth, err, want)
			}
			if calls := b.calls(); calls["ApplyConfiguration"] != 0 {
				t.Errorf("%d: calls %v", nth, calls)
			}
			b.world.Heal()
		}
		for _, tc := range []struct {
			cfg    cluster.Config
			access cluster.Access
		}{{cluster.Config{}, b.desired.Access}, {cfg, cluster.Access{}}, {cluster.Config{Bytes: cfg.Bytes}, b.desired.Access}} {
			d := b.desired
			d.Access = tc.access
			if err := b.fleet.Change(within(time.Minute), d, cp(1), tc.cfg, false); err == nil {
				t.Errorf("%+v: it was changed", tc.cfg.Digest)
			}
		}
		b.fleet.digest = nil
		if err := b.fleet.Change(within(time.Minute), b.desired, cp(1), cfg, false); err == nil {
			t.Error("it was changed without a look at what is there")
		}
	})
}

// TestChangeIsInterrupted: a caller that gives up, or a fleet that closes, ends it at once.
func TestChangeIsInterrupted(t *testing.T) {
	for _, how := range []string{"caller", "close"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, newest, []cluster.Node{cp(1)}, func(b *bench) {
				b.bringUp(cp(1))
				b.world.Inject(world.Fault{System: "talos", Op: applyCall, Kind: world.Slow, Delay: time.Hour})
				ctx, cancel := context.WithCancelCause(context.Background())
				done := make(chan error)
				go func() {
					done <- b.fleet.Change(ctx, b.desired, cp(1), render(t, b.secrets, cp(1), newest, withDebug), false)
				}()
				time.Sleep(time.Second)
				synctest.Wait()
				start, want := time.Now(), errClosed
				if how == "caller" {
					want = errors.New("enough")
					cancel(want)
				} else {
					go b.fleet.Close()
				}
				if err := <-done; !errors.Is(err, want) || !strings.Contains(err.Error(), "whether it was taken is not known") || time.Since(start) > 0 {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
				cancel(nil)
			})
		})
	}
}
