package talos_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestBringUp(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), cp(2), cp(3), wk(1))
		l.wantStage(cp(1), booting)
		l.wantStage(wk(1), running)
		l.bootstrap(cp(1))
		time.Sleep(3 * time.Minute)
		for _, n := range []node{cp(1), cp(2), cp(3), wk(1)} {
			if v := l.view(n); v.Stage != running || !v.Ready || !v.NodeReady {
				t.Errorf("%s: %+v", n.name, v)
			}
			if st := status(t, l.admin(n)); !st.Status.Ready {
				t.Errorf("%s says of itself: %+v", n.name, st)
			}
		}
		apis := l.kube.serving()
		if len(apis) != 3 {
			t.Fatalf("%d APIs serve, want 3", len(apis))
		}
		for _, a := range apis {
			if a.ca != certFingerprint(l.secrets.Certs.K8s.Crt) || a.etcd != apis[0].etcd || a.Kubernetes != "v1.36.1" ||
				a.CNI != "flannel" || !a.KubeProxy || a.PodCIDR != "10.244.0.0/16" || a.ServiceCIDR != "10.96.0.0/12" || !slices.Contains(a.SANs, "10.5.0.11") {
				t.Errorf("API was told %+v", a)
			}
		}
		if k, ok := l.kube.kubelet("cp1"); !ok || !k.Control || k.Schedulable || len(k.Taints) > 0 {
			t.Errorf("the kubelet of a control plane was told %+v", k)
		}
		k, ok := l.kube.kubelet("w1")
		if !ok || k.Control || k.Kubernetes != "v1.36.1" || k.Talos != "v1.13.9" || k.VMID != 501 || k.Address.String() != "10.5.0.21" {
			t.Errorf("kubelet was told %+v", k)
		}
		l.wantViolations()
	})
}

// TestSpans: what nobody could have been faster than: founding after the
// founder's config, joining one after the other.
func TestSpans(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.world.Spend("start", "401", time.Second)
		l.bring("v1.13.9", cp(1), cp(2), cp(3))
		l.bootstrap(cp(1))
		time.Sleep(time.Minute)
		_, chain := l.world.LongestChain()
		got := world.ChainText(chain)
		want := "start/401 1s -> boot/401 12s -> apply/401 500ms -> etcd/cp1 6s -> learn/cp2 5s -> learn/cp3 5s"
		if got != want {
			t.Errorf("longest chain\n%s, want\n%s", got, want)
		}
	})
}

// TestExtensionServicesHoldTheBoot: an extension without what it waits for
// keeps the machine in stage booting.
func TestExtensionServicesHoldTheBoot(t *testing.T) {
	tailscale := "apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: tailscale\nenvironment: [TS_AUTHKEY=x]\n"
	for _, tc := range []struct {
		name, extension string
		agent           bool
		patches         []string
		want            string
	}{
		{"guest agent without device", "siderolabs/qemu-guest-agent", false, nil, booting},
		{"guest agent with device", "siderolabs/qemu-guest-agent", true, nil, running},
		{"tailscale without config", "siderolabs/tailscale", false, nil, booting},
		{"tailscale with config", "siderolabs/tailscale", false, []string{tailscale}, running},
		{"one that waits for nothing", "siderolabs/util-linux-tools", false, nil, running},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.bring("v1.13.9", cp(1))
				l.bootstrap(cp(1))
				g := wk(1).guest("v1.13.9", tc.extension)
				g.Agent = tc.agent
				l.fleet.PowerOn(g)
				time.Sleep(time.Minute)
				l.apply(wk(1), l.config(wk(1), "v1.13.9", tc.patches...))
				time.Sleep(2 * time.Minute)
				l.wantStage(wk(1), tc.want)
				if tc.want == booting && len(tc.patches) == 0 && tc.extension == "siderolabs/tailscale" {
					// The config that was missing may come later.
					if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.13.9", tailscale), machineapi.ApplyConfigurationRequest_AUTO); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
					l.wantStage(wk(1), running)
				}
			})
		})
	}
}

// TestResourcesDescribeTheMachine: what proves in maintenance mode which machine
// this is, and what image it runs.
func TestResourcesDescribeTheMachine(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		g := cp(1).guest("v1.13.9", "siderolabs/iscsi-tools")
		l.fleet.PowerOn(g)
		time.Sleep(time.Minute)
		c := l.insecure(cp(1))
		sys, err := safe.StateGetByID[*hardware.SystemInformation](within(time.Second), c.COSI, hardware.SystemInformationID)
		if err != nil || sys.TypedSpec().UUID != g.UUID {
			t.Errorf("system information %v, %v", sys, err)
		}
		exts, err := safe.StateListAll[*runtimeres.ExtensionStatus](within(time.Second), c.COSI)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for e := range exts.All() {
			found[e.TypedSpec().Metadata.Name] = e.TypedSpec().Metadata.Version
		}
		if found["schematic"] != g.Boot.Image.Schematic || found["iscsi-tools"] == "" {
			t.Errorf("extensions %v", found)
		}
		if _, err := safe.StateListAll[*configres.MachineConfig](within(time.Second), c.COSI); client.StatusCode(err) != codes.PermissionDenied {
			t.Errorf("machine configs in maintenance mode: %v", err)
		}
	})
}

// TestWatchPushes follows a machine's stages by a watch, as the agent does.
func TestWatchPushes(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		events := make(chan state.Event)
		if err := l.admin(cp(1)).COSI.Watch(ctx, runtimeres.NewMachineStatus().Metadata(), events); err != nil {
			t.Fatal(err)
		}
		var seen []string
		go func() {
			l.bootstrap(cp(1))
		}()
		for ev := range during(events, 3*time.Minute) {
			ms, ok := ev.Resource.(*runtimeres.MachineStatus)
			if !ok {
				t.Fatalf("event %+v", ev)
			}
			now := ms.TypedSpec().Stage.String()
			if ms.TypedSpec().Status.Ready {
				now += " and ready"
			}
			if len(seen) == 0 || seen[len(seen)-1] != now {
				seen = append(seen, now)
			}
		}
		// Ready comes, goes and comes again, as it was recorded.
		want := []string{"booting", "running", "running and ready", "running", "running and ready"}
		if !slices.Equal(seen, want) {
			t.Errorf("watched %q, want %q", seen, want)
		}
	})
}

// during yields events until d has passed.
func during(events <-chan state.Event, d time.Duration) func(func(state.Event) bool) {
	return func(yield func(state.Event) bool) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		for {
			select {
			case ev := <-events:
				if !yield(ev) {
					return
				}
			case <-timer.C:
				return
			}
		}
	}
}

func TestPowerCycle(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		g := cp(1).guest("v1.13.9")
		l.fleet.PowerOn(g)
		time.Sleep(time.Minute)
		data := l.config(cp(1), "v1.13.9")
		l.apply(cp(1), data)
		time.Sleep(5 * time.Second)
		before := l.view(cp(1)).BootID
		c := l.admin(cp(1))
		if _, err := safe.StateGetByID[*configres.MachineConfig](within(time.Second), c.COSI, configres.PersistentID); err != nil {
			t.Errorf("the saved config after an apply: %v", err)
		}

		// Switched off: what is open breaks, at once.
		watching := make(chan error)
		go func() {
			_, err := c.MachineClient.EtcdMemberList(within(time.Hour), &machineapi.EtcdMemberListRequest{})
			watching <- err
		}()
		synctest.Wait()
		start := time.Now()
		l.fleet.PowerOff(401)
		if err := <-watching; client.StatusCode(err) != codes.Unavailable || time.Since(start) > time.Millisecond {
			t.Errorf("an open call ended after %v with %v", time.Since(start), err)
		}
		if _, err := l.world.Net.DialContext(within(time.Second), "tcp", "10.5.0.11:50000"); err == nil {
			t.Error("a machine that is off can be dialled")
		}
		synctest.Wait()
		if _, ok := l.kube.kubelet("cp1"); ok {
			t.Error("the kubelet of a machine that is off runs")
		}

		l.fleet.PowerOn(g)
		time.Sleep(time.Minute)
		if v := l.view(cp(1)); !v.Configured || v.BootID == before {
			t.Errorf("after a power cycle: %+v", v)
		}
		c = l.admin(cp(1))
		if _, err := safe.StateGetByID[*configres.MachineConfig](within(time.Second), c.COSI, configres.ActiveID); err != nil {
			t.Errorf("the active config: %v", err)
		}
		if _, err := safe.StateGetByID[*configres.MachineConfig](within(time.Second), c.COSI, configres.PersistentID); !state.IsNotFoundError(err) {
			t.Errorf("the saved config before the next apply: %v, want not found", err)
		}
		if err := l.applyConfigured(cp(1), data, machineapi.ApplyConfigurationRequest_AUTO); err != nil {
			t.Fatal(err)
		}
		if _, err := safe.StateGetByID[*configres.MachineConfig](within(time.Second), c.COSI, configres.PersistentID); err != nil {
			t.Errorf("the saved config after the next apply: %v", err)
		}
	})
}

// TestNothingToBoot: guests that are dead, blank or hang stay silent.
func TestNothingToBoot(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		dead, blank, diskless := cp(1).guest("v1.13.9"), cp(2).guest("v1.13.9"), cp(3).guest("v1.13.9")
		dead.Dead = true
		blank.Boot = &world.Disk{}
		diskless.Boot = nil
		for _, g := range []world.Guest{dead, blank, diskless} {
			l.fleet.PowerOn(g)
		}
		time.Sleep(time.Hour)
		for _, n := range []node{cp(1), cp(2), cp(3)} {
			if v := l.view(n); v.Stage != "" || v.Address.IsValid() {
				t.Errorf("%s: %+v", n.name, v)
			}
			if l.fleet.Shutdown(n.vmid, func() { t.Error("it shut down") }) {
				t.Errorf("%s reacts to the power button", n.name)
			}
		}
	})
}

func TestPowerButton(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		off := make(chan struct{})
		if !l.fleet.Shutdown(401, func() { close(off) }) {
			t.Fatal("no reaction to the power button")
		}
		<-off
		if len(l.fleet.Machines()) != 0 {
			t.Errorf("still on: %+v", l.fleet.Machines())
		}
		if l.fleet.Shutdown(401, func() {}) {
			t.Error("a machine that is off reacts to the power button")
		}
	})
}

func TestPartition(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), wk(1))
		l.bootstrap(cp(1))
		time.Sleep(2 * time.Minute)
		if err := l.fleet.Partition(501, true); err != nil {
			t.Fatal(err)
		}
		if _, err := l.admin(wk(1)).Version(within(time.Second)); client.StatusCode(err) != codes.DeadlineExceeded {
			t.Errorf("a machine that is cut off answers %v", err)
		}
		synctest.Wait()
		if _, ok := l.kube.kubelet("w1"); ok {
			t.Error("its kubelet still reaches Kubernetes")
		}
		if err := l.fleet.Partition(501, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := l.admin(wk(1)).Version(within(time.Second)); err != nil {
			t.Error(err)
		}
		if v := l.view(wk(1)); !v.NodeReady {
			t.Errorf("%+v", v)
		}
		// Who was partitioned when it was switched off comes back whole.
		if err := l.fleet.Partition(501, true); err != nil {
			t.Fatal(err)
		}
		l.bring("v1.13.9", wk(1))
		if err := l.fleet.Partition(999, true); err == nil {
			t.Error("a machine that does not exist was cut off")
		}
	})
}

func TestKillAndReboot(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", wk(1), cp(1))
		if err := l.fleet.Kill(501); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err := l.admin(wk(1)).Version(within(time.Second)); err == nil {
			t.Error("a dead machine answers")
		}
		if err := l.fleet.Reboot(501); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.wantStage(wk(1), running)
	})
}

// TestFaultsStrike: every call passes the world's faults under the name of its
// VM.
func TestFaultsStrike(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(wk(1).guest("v1.13.9"))
		l.bring("v1.13.9", cp(1))
		l.world.Inject(world.Fault{System: "talos", Op: "machine.MachineService/ApplyConfiguration", Subject: "w1", Nth: 1, Kind: world.LoseReply})
		_, err := l.insecure(wk(1)).ApplyConfiguration(within(time.Second), &machineapi.ApplyConfigurationRequest{
			Data: l.config(wk(1), "v1.13.9"), Mode: machineapi.ApplyConfigurationRequest_AUTO,
		})
		if client.StatusCode(err) != codes.Unavailable {
			t.Errorf("a lost reply: %v", err)
		}
		time.Sleep(10 * time.Second)
		if !l.view(wk(1)).Configured {
			t.Error("the reply was lost, and so was the config")
		}
		mutating := l.world.CountCalls(func(c world.CallRecord) bool { return c.Subject == "w1" && c.Mutating })
		if mutating != 1 {
			t.Errorf("%d calls that change something were counted, want 1", mutating)
		}
	})
}

// TestSecretsRule: a config that reaches another machine than the one it names.
func TestSecretsRule(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(cp(2).guest("v1.13.9"))
		time.Sleep(time.Minute)
		l.apply(cp(2), l.config(cp(2), "v1.13.9"))
		l.wantViolations()
		l.fleet.PowerOn(cp(3).guest("v1.13.9"))
		time.Sleep(time.Minute)
		l.apply(cp(3), l.config(cp(1), "v1.13.9"))
		l.wantViolations("secrets")
	})
}

// TestCloseInAnyOrder: whichever of the two closes first, nothing is left.
func TestCloseInAnyOrder(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		l.fleet.PowerOn(cp(2).guest("v1.13.9"))
		hung := make(chan error)
		go func() {
			_, err := l.admin(cp(1)).EtcdStatus(within(time.Hour))
			hung <- err
		}()
		synctest.Wait()
		l.world.Close()
		l.fleet.Close()
		if err := <-hung; err == nil {
			t.Error("a call into a closed lab succeeded")
		}
		l.fleet.PowerOn(cp(3).guest("v1.13.9"))
		if got := l.fleet.Machines(); len(got) != 0 {
			t.Errorf("machines of a closed fleet: %+v", got)
		}
	})
}
