package talos_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const (
	auto     = machineapi.ApplyConfigurationRequest_AUTO
	noReboot = machineapi.ApplyConfigurationRequest_NO_REBOOT
	//lint:ignore SA1019 versions up to v1.13 take it
	reboot = machineapi.ApplyConfigurationRequest_REBOOT
	staged = machineapi.ApplyConfigurationRequest_STAGED
	try    = machineapi.ApplyConfigurationRequest_TRY
)

// TestMaintenanceUpTo112 is the little server of old: few calls, few modes,
// other codes.
func TestMaintenanceUpTo112(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(cp(1).guest("v1.12.11"))
		time.Sleep(time.Minute)
		c := l.insecure(cp(1))
		data := l.config(cp(1), "v1.12.11")
		ctx := within(time.Minute)
		ask := func(data []byte, mode machineapi.ApplyConfigurationRequest_Mode, dry bool) error {
			_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: data, Mode: mode, DryRun: dry})
			return err
		}
		_, version := c.Version(ctx)
		_, services := c.ServiceList(ctx)
		for _, tc := range []struct {
			what string
			err  error
			code codes.Code
			text string
		}{
			{"version", version, codes.Unimplemented, "API is not implemented in maintenance mode"},
			{"services", services, codes.Unimplemented, "not implemented"},
			{"no-reboot", ask(data, noReboot, false), codes.Unimplemented, "apply configuration --mode='no-reboot' is not supported in maintenance mode"},
			{"staged", ask(data, staged, false), codes.Unimplemented, "--mode='staged'"},
			{"not yaml", ask([]byte("{"), auto, true), codes.Unknown, "failed to parse config: "},
			{"unknown document", ask(append(bytes.Clone(data), "---\napiVersion: v1alpha1\nkind: KubeSpanConfig\n"...), auto, true), codes.Unknown, `"KubeSpanConfig" "v1alpha1": not registered`},
			{"invalid", ask([]byte("version: v1alpha1\nmachine: {type: controlplane}\ncluster: {}\n"), auto, true), codes.InvalidArgument, "configuration validation failed: "},
			{"dry run", ask(data, auto, true), codes.OK, ""},
		} {
			st := grpcstatus.Convert(tc.err)
			if st.Code() != tc.code || !strings.Contains(st.Message(), tc.text) {
				t.Errorf("%s: %v, want %v with %q", tc.what, tc.err, tc.code, tc.text)
			}
		}
		if _, err := safe.StateGetByID[*runtimeres.Version](ctx, c.COSI, "version"); err != nil {
			t.Errorf("version resource: %v", err)
		}
		resp, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: data, Mode: auto})
		if err != nil || resp.GetMessages()[0].GetModeDetails() != "" {
			t.Fatalf("apply: %v, %v", resp, err)
		}
		time.Sleep(5 * time.Second)
		if _, err := l.admin(cp(1)).Version(ctx); err != nil {
			t.Errorf("version of the configured node: %v", err)
		}
		l.bring("v1.12.11", wk(1))
		if err := l.admin(wk(1)).Bootstrap(within(time.Second), &machineapi.BootstrapRequest{}); client.StatusCode(err) != codes.FailedPrecondition {
			t.Errorf("bootstrap of a worker: %v", err)
		}
	})
}

// TestOldVersionsKnowLess: what a version does not have, it does not show.
func TestOldVersionsKnowLess(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(cp(1).guest("v1.8.2"))
		time.Sleep(time.Minute)
		ctx := within(time.Minute)
		_, err := l.insecure(cp(1)).ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: l.config(cp(1), "v1.13.9"), Mode: auto})
		if err == nil || !strings.Contains(err.Error(), `document v1alpha1/HostnameConfig/ (line `) || !strings.Contains(err.Error(), "not registered") {
			t.Errorf("a document of v1.12: %v", err)
		}
		if _, err := safe.StateGetByID[*runtimeres.Version](ctx, l.insecure(cp(1)).COSI, "version"); client.StatusCode(err) != codes.PermissionDenied {
			t.Errorf("version resource: %v, want it unsupported", err)
		}
		data := l.config(cp(1), "v1.8.2")
		l.apply(cp(1), data)
		time.Sleep(5 * time.Second)
		if err := l.applyConfigured(cp(1), data, auto); err != nil {
			t.Fatal(err)
		}
		list, err := safe.StateListAll[*configres.MachineConfig](ctx, l.admin(cp(1)).COSI)
		if err != nil || list.Len() != 1 {
			t.Errorf("machine configs %v, %v, want the active one alone", list, err)
		}
	})
}

// TestKubernetesOfTheOwnVersion: a machine judges the images of Kubernetes by the
// window of its own version of Talos, whatever the library's is, and names it.
func TestKubernetesOfTheOwnVersion(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		for i, c := range []struct{ talos, kubernetes, words string }{
			{"v1.8.2", "v1.31.5", ""},
			{"v1.8.2", "v1.32.0", "kubelet image is not valid: version of Kubernetes 1.32.0 is too new to be used with Talos 1.8.2"},
			{"v1.11.2", "v1.32.1", ""},
			{"v1.12.4", "v1.35.0", ""},
			{"v1.13.9", "v1.31.5", ""},
			{"v1.13.9", "v1.30.9", "v1alpha1.Config: 4 errors occurred:\n\t* kubelet image is not valid: version of Kubernetes 1.30.9 is too old to be used with Talos 1.13.9"},
			{"v1.13.9", "v1.37.0", "kube-apiserver image is not valid: version of Kubernetes 1.37.0 is too new to be used with Talos 1.13.9"},
			{"v1.14.0", "v1.37.0", ""},
			{"v1.14.0", "v1.31.5", "KubeletConfig: kubelet image is not valid: version of Kubernetes 1.31.5 is too old to be used with Talos 1.14.0"},
		} {
			n := cp(i + 1)
			l.fleet.PowerOn(n.guest(c.talos))
			time.Sleep(time.Minute)
			data := bytes.ReplaceAll(l.config(n, c.talos), []byte(":v"+kubernetesFor(c.talos)), []byte(":"+c.kubernetes))
			_, err := l.insecure(n).ApplyConfiguration(within(time.Minute), &machineapi.ApplyConfigurationRequest{Data: data, Mode: auto})
			switch {
			case c.words == "" && err != nil:
				t.Errorf("Talos %s refuses Kubernetes %s: %v", c.talos, c.kubernetes, err)
			case c.words != "" && (client.StatusCode(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.words)):
				t.Errorf("Talos %s with Kubernetes %s answers %v, want %q", c.talos, c.kubernetes, err, c.words)
			}
		}
	})
}

// TestNoRebootsFrom114: the mode was removed, and an automatic apply is immediate
// whatever changes.
func TestNoRebootsFrom114(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.14.1", cp(1), wk(1))
		if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.14.1"), reboot); client.StatusCode(err) != codes.Unimplemented {
			t.Errorf("mode reboot: %v", err)
		}
		before := l.view(wk(1)).BootID
		if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.14.1", "machine: {token: abcdef.0123456789abcdef}"), auto); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if l.view(wk(1)).BootID != before {
			t.Error("it rebooted")
		}
		boot, err := safe.StateGetByID[*runtimeres.BootID](within(time.Second), l.admin(wk(1)).COSI, runtimeres.BootIDID)
		if err != nil || boot.TypedSpec().BootID != before {
			t.Errorf("boot id %v, %v", boot, err)
		}
	})
}

// TestApplyThatReboots is up to v1.13 what AUTO may do, with a reason that
// holds secrets.
func TestApplyThatReboots(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), wk(1))
		before := l.view(wk(1)).BootID
		data := l.config(wk(1), "v1.13.9", "machine: {env: {A: b}}")
		if err := l.applyConfigured(wk(1), data, noReboot); client.StatusCode(err) != codes.InvalidArgument {
			t.Errorf("mode no-reboot: %v", err)
		}
		resp, err := l.admin(wk(1)).ApplyConfiguration(within(time.Second), &machineapi.ApplyConfigurationRequest{Data: data, Mode: auto})
		if err != nil {
			t.Fatal(err)
		}
		m := resp.GetMessages()[0]
		if m.GetMode() != reboot || !strings.Contains(m.GetModeDetails(), "with a reboot: this config change can't be applied in immediate mode\ndiff:\n") {
			t.Errorf("answer %v", m)
		}
		if err := l.applyConfigured(wk(1), data, auto); client.StatusCode(err) != codes.FailedPrecondition {
			t.Errorf("another apply while it reboots: %v", err)
		}
		time.Sleep(time.Minute)
		if l.view(wk(1)).BootID == before {
			t.Error("it did not reboot")
		}
		if got := l.activeConfig(wk(1)); !bytes.Contains(got, []byte("A: b")) {
			t.Error("the config is not active after the reboot")
		}
	})
}

// activeConfig reads a node's active config.
func (l *lab) activeConfig(n node) []byte {
	l.t.Helper()
	r, err := safe.StateGetByID[*configres.MachineConfig](within(time.Second), l.admin(n).COSI, configres.ActiveID)
	if err != nil {
		l.t.Fatal(err)
	}
	b, err := r.Provider().Bytes()
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

func TestStagedAndTried(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), wk(1))
		labelled := l.config(wk(1), "v1.13.9", "machine: {nodeLabels: {a: b}}")
		has := func() bool { return bytes.Contains(l.activeConfig(wk(1)), []byte("nodeLabels")) }

		if _, err := l.admin(wk(1)).ApplyConfiguration(within(time.Second), &machineapi.ApplyConfigurationRequest{Data: labelled, Mode: try, TryModeTimeout: durationpb.New(5 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		if !has() {
			t.Error("a tried config is not active")
		}
		if k, _ := l.kube.kubelet("w1"); k.Labels["a"] != "b" {
			t.Errorf("kubelet was told %v", k.Labels)
		}
		time.Sleep(2 * time.Second)
		if has() {
			t.Error("a tried config outlives its time")
		}

		// What is applied for good during a try is not reverted.
		if err := l.applyConfigured(wk(1), labelled, try); err != nil {
			t.Fatal(err)
		}
		if err := l.applyConfigured(wk(1), labelled, auto); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if !has() {
			t.Error("an applied config was reverted")
		}

		if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.13.9"), staged); err != nil {
			t.Fatal(err)
		}
		if !has() {
			t.Error("a staged config is active at once")
		}
		if err := l.admin(wk(1)).Reboot(within(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if has() {
			t.Error("a staged config is not active after a reboot")
		}
	})
}

// TestTryAtSpeed: a client has as long to look as in life, however fast the rest is.
func TestTryAtSpeed(t *testing.T) {
	inBubble(t, world.Config{Speed: 200}, func(l *lab) {
		l.bring("v1.13.9", cp(1), wk(1))
		labelled := l.config(wk(1), "v1.13.9", "machine: {nodeLabels: {a: b}}")
		has := func() bool { return bytes.Contains(l.activeConfig(wk(1)), []byte("nodeLabels")) }
		if err := l.applyConfigured(wk(1), labelled, try); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if !has() {
			t.Error("a tried config went back before its time")
		}
		time.Sleep(2 * time.Second)
		if has() {
			t.Error("a tried config outlives its time")
		}
	})
}

// TestTryInMaintenance: there is no config to go back to.
func TestTryInMaintenance(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(cp(1).guest("v1.13.9"))
		time.Sleep(time.Minute)
		if _, err := l.insecure(cp(1)).ApplyConfiguration(within(time.Second), &machineapi.ApplyConfigurationRequest{Data: l.config(cp(1), "v1.13.9"), Mode: try}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		l.wantStage(cp(1), booting)
		time.Sleep(2 * time.Minute)
		l.wantStage(cp(1), maintenance)
	})
}

// TestPartialConfig: a config without a machine section is taken, and changes
// nothing.
func TestPartialConfig(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(cp(1).guest("v1.13.9"))
		time.Sleep(time.Minute)
		l.apply(cp(1), []byte("apiVersion: v1alpha1\nkind: WatchdogTimerConfig\ndevice: /dev/watchdog0\n"))
		time.Sleep(time.Minute)
		l.wantStage(cp(1), maintenance)
	})
}

// TestKubeletWithoutAnImage: an image that no registry has is accepted. The kubelet is
// stopped before it is asked for, Talos gives up on it after a while, and it stays away until
// another config comes. The Node is Ready for a while more.
func TestKubeletWithoutAnImage(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1), wk(1))
		for _, step := range []struct{ tag, at, want string }{
			{"v1.36.1-nosuch", "0s", "Stopping false"}, {"v1.36.1-nosuch", "2m", "Preparing false"}, {"v1.36.1-nosuch", "1h", "Failed false"},
			{"v1.36.1", "10s", "Running true"},
		} {
			l.wantKubelet(step.tag, step.at, step.want)
			if step.tag == "v1.36.1-nosuch" {
				if ready := l.view(wk(1)).NodeReady; ready != (step.at == "0s") {
					t.Errorf("its Node is ready after %s: %v", step.at, ready)
				}
			}
		}
		time.Sleep(time.Minute)
		if v := l.view(wk(1)); !v.Ready || !v.NodeReady {
			t.Errorf("afterwards: %+v", v)
		}
	})
}

// TestKubeletOfAnotherVersion stops the present one, and has the image pulled that the machine
// does not have yet.
func TestKubeletOfAnotherVersion(t *testing.T) {
	inBubble(t, world.Config{Latency: world.Latencies{ImagePull: time.Minute, Boot: 1, Apply: 1}}, func(l *lab) {
		l.bring("v1.13.9", cp(1), wk(1))
		for _, step := range []struct{ tag, at, want string }{
			{"v1.36.1-slim", "10ms", "Stopping false"}, {"v1.36.1-slim", "50s", "Preparing false"}, {"v1.36.1-slim", "2m", "Running true"},
			{"v1.36.1", "1s", "Running true"},
		} {
			l.wantKubelet(step.tag, step.at, step.want)
		}
	})
}

// wantKubelet gives a worker a kubelet, unless it has that, and looks at it after a while.
func (l *lab) wantKubelet(tag, at, want string) {
	l.t.Helper()
	if err := l.applyConfigured(wk(1), l.config(wk(1), "v1.13.9", "machine: {kubelet: {image: \"ghcr.io/siderolabs/kubelet:"+tag+"\"}}"), noReboot); err != nil {
		l.t.Fatal(err)
	}
	d, err := time.ParseDuration(at)
	if err != nil {
		l.t.Fatal(err)
	}
	time.Sleep(d)
	info, err := l.admin(wk(1)).ServiceInfo(within(time.Second), "kubelet")
	if err != nil || len(info) != 1 {
		l.t.Fatalf("%v, %v", info, err)
	}
	if got := fmt.Sprintf("%s %v", info[0].Service.GetState(), info[0].Service.GetHealth().GetHealthy()); got != want {
		l.t.Errorf("%s after %s with %s, want %s", got, at, tag, want)
	}
}
