package talos

import (
	"context"
	"fmt"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/lab/talos/rules"
)

// maintenanceService is the separate little server that Talos up to v1.12 runs
// in maintenance mode (from the source of v1.12.11). What it does not
// implement is Unimplemented, not PermissionDenied, and that includes Version.
type maintenanceService struct {
	machineapi.UnimplementedMachineServiceServer
	b *boot
}

var errMaintenance = status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")

func (s *maintenanceService) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return nil, errMaintenance
}

func (s *maintenanceService) Upgrade(context.Context, *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	return nil, errMaintenance
}

func (s *maintenanceService) Reset(context.Context, *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	return nil, errMaintenance
}

func (s *maintenanceService) MetaWrite(context.Context, *machineapi.MetaWriteRequest) (*machineapi.MetaWriteResponse, error) {
	return nil, errMaintenance
}

func (s *maintenanceService) MetaDelete(context.Context, *machineapi.MetaDeleteRequest) (*machineapi.MetaDeleteResponse, error) {
	return nil, errMaintenance
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
