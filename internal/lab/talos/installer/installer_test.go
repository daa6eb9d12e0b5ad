package installer

import (
	"strings"
	"testing"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const schematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

func TestParseReference(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("ab", 32)
	for ref, want := range map[string]Reference{
		"ghcr.io/siderolabs/installer:v1.13.9":                                     {Version: "v1.13.9"},
		"mirror.example:5000/hub/siderolabs/installer:v1.13.9" + digest:            {Version: "v1.13.9"},
		"factory.talos.dev/installer/" + schematic + ":v1.12.7":                    {Version: "v1.12.7", Schematic: schematic},
		"factory.talos.dev/metal-installer/" + schematic + ":v1.14.0-rc.1":         {Version: "v1.14.0-rc.1", Schematic: schematic},
		"factory.talos.dev/nocloud-installer-secureboot/" + schematic + ":v1.13.9": {Version: "v1.13.9", Schematic: schematic, Signed: true},
		"10.0.0.1:5000/cache/factory/nocloud-installer/" + schematic + ":v1.13.9":  {Version: "v1.13.9", Schematic: schematic},
		"factory.talos.dev/metal-installer/" + schematic + digest:                  {}, // of which version is not known
		"factory.talos.dev/metal-installer/376567:v1.13.9":                         {},
		"ghcr.io/siderolabs/kubelet:v1.36.1":                                       {},
		"ghcr.io/siderolabs/installer:latest":                                      {},
		"installer:v1.13.9":                                                        {},
		"":                                                                         {},
	} {
		got, ok := ParseReference(ref)
		if got != want || ok != (want.Version != "") {
			t.Errorf("%s: %+v, %v, want %+v", ref, got, ok, want)
		}
	}
}

// TestPlan: whether one version can follow another is the rule of the one that is installed, and so
// is the code of its refusal.
func TestPlan(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		flaw     Flaw
		exit     int32
		want     string
	}{
		{"v1.12.7", "v1.13.9", Sound, 0, "installation of v1.13.9 complete"},
		{"v1.12.7", "v1.14.1", Sound, 0, "installation of v1.14.1 complete"},
		{"v1.14.1", "v1.13.9", Sound, 0, "installation of v1.13.9 complete"},
		{"v1.11.6", "v1.14.1", Sound, 4, "pre-flight checks failed: host version 1.11.6 is too old to upgrade to Talos 1.14.1"},
		{"v1.10.9", "v1.13.9", Sound, 1, "pre-flight checks failed: host version 1.10.9 is too old to upgrade to Talos 1.13.9"},
		{"v1.13.9", "v1.14.1", FailsInstall, 7, "no space left on device"},
		{"v1.13.9", "v1.13.10", FailsInstall, 1, "no space left on device"},
		{"v1.13.9", "v1.14.1", LacksDependency, 5, "i/o timeout"},
		{"v1.13.9", "v1.13.10", CrashesOnBoot, 0, "installation of v1.13.10 complete"},
	} {
		run := Plan(tc.from, world.Image{Version: tc.to}, tc.flaw)
		if last := run.Lines[len(run.Lines)-1]; run.ExitCode != tc.exit || !strings.HasSuffix(last, tc.want) {
			t.Errorf("%s to %s: exit %d, %s, want %d, %s", tc.from, tc.to, run.ExitCode, last, tc.exit, tc.want)
		}
	}
}

func TestSkipsEtcd(t *testing.T) {
	for _, tc := range []struct {
		version         string
		force, preserve bool
		want            bool
	}{
		{"v1.10.9", true, false, true},
		{"v1.10.9", false, true, false},
		{"v1.12.8", false, true, false},
		{"v1.12.9", false, true, true},
		{"v1.13.9", false, true, true},
		{"v1.13.9", false, false, false},
	} {
		in := &machineapi.UpgradeRequest{Force: tc.force, Preserve: tc.preserve}
		if got := skipsEtcd(in, tc.version); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// TestSlots holds the slots against what has to hold of them, whatever is done in which order:
// something boots always; what was written last boots until something goes back; and only what was not
// confirmed is left by a fatal error.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		made := world.Image{Platform: "nocloud", Version: "v1.13.0"}
		var s Slots
		before, n := s.Next(made), 0
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				n++
				image := world.Image{Version: "v1.13.9", Schematic: strings.Repeat("a", n)}
				s.Clear()
				if s.Next(made).Schematic != before.Schematic {
					t.Fatal("an installer that has not ended changes what boots")
				}
				s.Write(image)
				if now := s.Next(made); now.Schematic != image.Schematic || now.Platform != "nocloud" {
					t.Fatalf("boots %+v after %+v was written", now, image)
				}
				copied := s
				if !copied.Fall() || copied.Next(made).Schematic != before.Schematic {
					t.Fatal("a fatal error does not go back to what was there")
				}
			},
			"interrupt": func(t *rapid.T) {
				s.Clear()
				if copied := s; copied.Revert() {
					t.Fatal("goes back to what was being written")
				}
			},
			"confirm": func(t *rapid.T) {
				s.Confirm()
				if copied := s; copied.Fall() {
					t.Fatal("goes back from what was confirmed")
				}
			},
			"revert": func(t *rapid.T) { s.Revert() },
			"fall":   func(t *rapid.T) { s.Fall() },
			"": func(t *rapid.T) {
				before = s.Next(made)
				if before.Version == "" {
					t.Fatal("nothing boots")
				}
			},
		})
	})
}
