package talos

import (
	"context"
	"fmt"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ApplyConfiguration implements machine.MachineService for configured machines
// and, from v1.13 on, for machines in maintenance mode. Answers and their
// order are those of v1.13.9, with what v1.14 changed.
func (s *machineService) ApplyConfiguration(ctx context.Context, in *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	b := s.b
	maintenance := b.inMaintenance()
	if !maintenance && !access.RolesOf(ctx).Includes(role.Admin) {
		return nil, access.ErrNotAuthorized
	}
	if b.isRebooting() {
		return nil, status.Error(codes.FailedPrecondition,
			"configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot")
	}
	cfg, err := b.loadConfig(in.GetData())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !maintenance && cfg.RawV1Alpha1() == nil {
		return nil, status.Error(codes.InvalidArgument,
			"the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?")
	}
	warnings, err := rules.Validate(cfg, b.image.Version)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !in.GetDryRun() {
		b.showConfig(in, cfg)
	}
	var answer *machineapi.ApplyConfiguration
	err = b.alterFleet(func() (err error) {
		answer, err = b.carryOutApply(in, cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !in.GetDryRun() {
		answer.Warnings = warnings
	}
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{answer}}, nil
}

// showConfig has whoever watches the world see a config that the machine is about to take.
func (b *boot) showConfig(in *machineapi.ApplyConfigurationRequest, cfg config.Provider) {
	c := world.GivenConfig{VMID: b.m.guest.VMID, Node: b.m.guest.Name, Config: in.GetData()}
	if b.readFleet(func() error {
		mode, _, err := b.applyAs(in.GetMode(), cfg)
		c.First, c.Reboots = b.set == nil, err == nil && mode == rules.ModeReboot
		return nil
	}) == nil {
		b.f.world.ShowConfig(c)
	}
}

func (b *boot) inMaintenance() bool {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	return b.set == nil
}

func (b *boot) isRebooting() bool {
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	return b.rebooting
}

// loadConfig parses a config as this version of Talos does, and watches the
// rules: a config with secrets must not reach another machine than the one it
// names.
func (b *boot) loadConfig(data []byte) (config.Provider, error) {
	cfg, err := configloader.NewFromBytes(data)
	if err != nil {
		return nil, err
	}
	if h := cfg.NetworkHostnameConfig(); h != nil && h.Hostname() != "" && b.m.guest.Name != "" && h.Hostname() != b.m.guest.Name {
		b.f.world.Violate("secrets", "the machine config of %s was sent to %s (VM %d)", h.Hostname(), b.m.guest.Name, b.m.guest.VMID)
	}
	return cfg, rules.RefuseDocuments(cfg, data, b.minor())
}

// carryOutApply carries out an apply whose config is in order.
func (b *boot) carryOutApply(in *machineapi.ApplyConfigurationRequest, cfg config.Provider) (*machineapi.ApplyConfiguration, error) {
	mode, reason, err := b.applyAs(in.GetMode(), cfg)
	if err != nil {
		return nil, err
	}
	details := map[rules.ApplyMode]string{
		rules.ModeReboot:   "Applied configuration with a reboot",
		rules.ModeNoReboot: "Applied configuration without a reboot",
		rules.ModeTry:      "Applied configuration without a reboot",
		rules.ModeStaged:   "Staged configuration to be applied after the next reboot",
	}[mode]
	if in.GetDryRun() {
		diff, err := b.diffConfig(cfg)
		if err != nil {
			return nil, err
		}
		return &machineapi.ApplyConfiguration{
			Mode:        mode,
			ModeDetails: fmt.Sprintf("Dry run summary:\n%s (skipped in dry-run).\nConfig diff:\n\n%s", details, diff),
		}, nil
	}
	data, err := cfg.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode machine config: %w", err)
	}
	if mode != rules.ModeTry && b.revert != nil {
		b.revert()
		b.revert = nil
	}
	switch mode {
	case rules.ModeTry:
		timeout := constants.ConfigTryTimeout
		if in.GetTryModeTimeout() != nil {
			timeout = in.GetTryModeTimeout().AsDuration()
		}
		details += fmt.Sprintf("\nThe config is applied in 'try' mode and will be automatically reverted back in %s", timeout)
		b.tryConfig(cfg, timeout)
	case rules.ModeNoReboot:
		if !cfg.CompleteForBoot() {
			break // a part of a config: the machine stays in maintenance mode
		}
		b.saveConfig(cfg, data)
		b.activateConfig(cfg)
	case rules.ModeStaged:
		b.saveConfig(cfg, data)
	case rules.ModeReboot:
		b.saveConfig(cfg, data)
		b.rebooting = true
		b.rebootMachine()
	}
	return &machineapi.ApplyConfiguration{Mode: mode, ModeDetails: details + reason}, nil
}

// applyAs decides how a config is applied when it is asked for in one mode.
func (b *boot) applyAs(mode rules.ApplyMode, cfg config.Provider) (as rules.ApplyMode, reason string, err error) {
	var active config.Provider
	if b.set != nil {
		active = b.set.provider
	}
	return rules.ChooseMode(mode, active, cfg, b.minor())
}

// diffConfig compares a config with the active one; a staged one does not count
// (recorded).
func (b *boot) diffConfig(cfg config.Provider) (string, error) {
	var active config.Container
	if b.set != nil {
		active = b.set.provider
	}
	diff, err := rules.Diff(active, cfg)
	if err != nil {
		return "", err
	}
	if diff == "" {
		diff = "No changes."
	}
	return diff, nil
}

// saveConfig writes a config to the disk, or keeps it until there is one.
func (b *boot) saveConfig(cfg config.Provider, data []byte) {
	if b.held = data; !b.bare {
		b.m.disk().config = data
	}
	b.writePersistent(cfg)
}

// activateConfig makes a config the active one: after a moment for a machine in
// maintenance mode, which then speaks with the certificates of its cluster, at
// once for one that is configured.
func (b *boot) activateConfig(cfg config.Provider) {
	if b.set != nil {
		set, err := b.m.readSettings(cfg)
		if err != nil {
			b.f.world.Report(b.hostname(), "machine config is not usable: %v", err)
			return
		}
		b.adoptSettings(set)
		if b.awaitsInstall {
			if !b.installs {
				b.installUnattended(installRetry)
			}
			return
		}
		b.startExtensions()
		return
	}
	d := b.f.world.Latency.Apply
	if !b.applying {
		b.f.world.Spend("apply", b.m.subject(), d, "boot/"+b.m.subject())
		b.f.world.Report(b.m.name(), "takes its machine config")
	}
	b.applying = true
	b.runAfter(d, func() {
		switch {
		case b.set != nil || b.stopping:
		case b.bare:
			b.beginInstall(cfg)
		default:
			b.configureMachine(cfg)
		}
	})
}

// tryConfig makes a config the active one for a while. What a machine goes back to
// is the config it had; one that had none reboots. Whoever tries a config must look whether
// it works before that, at a speed of its own.
func (b *boot) tryConfig(cfg config.Provider, timeout time.Duration) {
	if b.revert != nil {
		b.revert()
	}
	var before config.Provider
	if b.set != nil {
		before = b.set.provider
	}
	b.activateConfig(cfg)
	b.revert = b.runAfterReal(timeout, func() {
		b.revert = nil
		if before == nil {
			b.rebootMachine()
			return
		}
		b.activateConfig(before)
	})
}

// maintenanceService is the separate little server that Talos up to v1.12 runs in maintenance
// mode.
type maintenanceService struct {
	system.MaintenanceService
	b *boot
}

// ApplyConfiguration takes the first config.
func (s *maintenanceService) ApplyConfiguration(_ context.Context, in *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	b := s.b
	return rules.ApplyFirst(in, b.image.Version, b.loadConfig, func(cfg config.Provider) error {
		return b.alterFleet(func() error {
			_, err := b.carryOutApply(&machineapi.ApplyConfigurationRequest{Data: in.GetData(), Mode: rules.ModeAuto}, cfg)
			return err
		})
	})
}
