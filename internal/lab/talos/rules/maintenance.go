package rules

import (
	"fmt"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ApplyFirst judges the first config as the server of the maintenance mode does in versions up to v1.12, and has it taken.
// The answer names no mode and no details, and a dry run compares nothing.
func ApplyFirst(in *machineapi.ApplyConfigurationRequest, version string, load func([]byte) (config.Provider, error), take func(config.Provider) error) (*machineapi.ApplyConfigurationResponse, error) {
	switch mode := in.GetMode(); mode {
	case ModeAuto, ModeReboot, ModeTry:
	default:
		return nil, status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported in maintenance mode",
			strings.ReplaceAll(strings.ToLower(mode.String()), "_", "-"))
	}
	cfg, err := load(in.GetData())
	if err != nil {
		return nil, fmt.Errorf("failed to parse config: %w", err)
	}
	warnings, err := Validate(cfg, version)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "configuration validation failed: %s", err)
	}
	answer := &machineapi.ApplyConfiguration{Warnings: warnings}
	if in.GetDryRun() {
		answer.ModeDetails = "Dry run summary:\nNode is running in maintenance mode and does not have a config yet."
	} else if err := take(cfg); err != nil {
		return nil, err
	}
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{answer}}, nil
}
