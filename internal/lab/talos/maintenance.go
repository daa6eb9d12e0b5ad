package talos

import (
	"context"
	"fmt"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// maintenanceService is the separate little server that Talos up to v1.12 runs in maintenance
// mode.
type maintenanceService struct {
	system.MaintenanceService
	b *boot
}

// ApplyConfiguration takes the first config. Its answer names no mode and no
// details, and a dry run compares nothing.
func (s *maintenanceService) ApplyConfiguration(_ context.Context, in *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	switch mode := in.GetMode(); mode {
	case modeAuto, modeReboot, modeTry:
	default:
		return nil, status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported in maintenance mode",
			strings.ReplaceAll(strings.ToLower(mode.String()), "_", "-"))
	}
	b := s.b
	cfg, err := b.loadConfig(in.GetData())
	if err != nil {
		return nil, fmt.Errorf("failed to parse config: %w", err)
	}
	warnings, err := rules.Validate(cfg, b.m.image().Version)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "configuration validation failed: %s", err)
	}
	answer := &machineapi.ApplyConfiguration{Warnings: warnings}
	if in.GetDryRun() {
		answer.ModeDetails = "Dry run summary:\nNode is running in maintenance mode and does not have a config yet."
	} else {
		err := b.alterFleet(func() error {
			_, err := b.carryOutApply(&machineapi.ApplyConfigurationRequest{Data: in.GetData(), Mode: modeAuto}, cfg)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{answer}}, nil
}
