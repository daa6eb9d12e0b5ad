package rules

import (
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ApplyMode is how a config is applied.
type ApplyMode = machineapi.ApplyConfigurationRequest_Mode

// The modes.
const (
	//lint:ignore SA1019 versions up to v1.13 take it
	ModeReboot   = machineapi.ApplyConfigurationRequest_REBOOT
	ModeAuto     = machineapi.ApplyConfigurationRequest_AUTO
	ModeNoReboot = machineapi.ApplyConfigurationRequest_NO_REBOOT
	ModeStaged   = machineapi.ApplyConfigurationRequest_STAGED
	ModeTry      = machineapi.ApplyConfigurationRequest_TRY
)

// ChooseMode decides how Talos 1.minor applies a config when it is asked to in one mode; active is nil in maintenance
// mode. reason explains why an automatic apply reboots.
func ChooseMode(mode ApplyMode, active, cfg config.Provider, minor int) (as ApplyMode, reason string, err error) {
	maintenance, never := active == nil, minor >= 14
	if mode == ModeReboot && maintenance {
		mode = ModeNoReboot
	}
	if mode == ModeReboot && never {
		return 0, "", status.Error(codes.Unimplemented, "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead")
	}
	var now error
	if !maintenance && !never {
		now = RefuseChange(active.RawV1Alpha1(), cfg.RawV1Alpha1())
	}
	switch mode {
	case ModeAuto:
		if now != nil {
			return ModeReboot, ": " + now.Error(), nil
		}
		return ModeNoReboot, "", nil
	case ModeTry, ModeNoReboot:
		if now != nil {
			return 0, "", status.Error(codes.InvalidArgument, now.Error())
		}
		return mode, "", nil
	case ModeStaged, ModeReboot:
		return mode, "", nil
	}
	return 0, "", status.Errorf(codes.InvalidArgument, "incorrect mode '%s' specified for the apply config call", mode)
}
