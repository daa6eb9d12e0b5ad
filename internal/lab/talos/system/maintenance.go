package system

import (
	"context"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// MaintenanceService is what the separate little server that Talos up to v1.12 runs in maintenance
// mode refuses (from the source of v1.12.11). What it does not implement is Unimplemented, not
// PermissionDenied, and that includes Version.
type MaintenanceService struct {
	machineapi.UnimplementedMachineServiceServer
}

var errMaintenance = status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")

// Version is refused.
func (MaintenanceService) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return nil, errMaintenance
}

// Upgrade is refused.
func (MaintenanceService) Upgrade(context.Context, *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	return nil, errMaintenance
}

// Rollback is refused.
func (MaintenanceService) Rollback(context.Context, *machineapi.RollbackRequest) (*machineapi.RollbackResponse, error) {
	return nil, errMaintenance
}

// Reset is refused.
func (MaintenanceService) Reset(context.Context, *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	return nil, errMaintenance
}

// MetaWrite is refused.
func (MaintenanceService) MetaWrite(context.Context, *machineapi.MetaWriteRequest) (*machineapi.MetaWriteResponse, error) {
	return nil, errMaintenance
}

// MetaDelete is refused.
func (MaintenanceService) MetaDelete(context.Context, *machineapi.MetaDeleteRequest) (*machineapi.MetaDeleteResponse, error) {
	return nil, errMaintenance
}
