package access

import (
	"context"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Who may call what, from the source of v1.13.9. Administrators may call
// everything, and what is not listed is theirs alone. ApplyConfiguration and
// BlockDeviceWipe are open to readers for the maintenance mode's sake and look
// again themselves.
var (
	readersMay = methodSet("/machine.MachineService/",
		"ApplyConfiguration", "CPUInfo", "CPUFreqStats", "Containers", "DiskStats", "DiskUsage", "Dmesg", "EtcdAlarmList",
		"EtcdMemberList", "EtcdStatus", "Events", "Hostname", "ImageList", "List", "LoadAvg", "Logs", "LogsContainers", "Memory",
		"Mounts", "NetworkDeviceStats", "Netstat", "Processes", "ServiceList", "Stats", "SystemStat", "Version",
		"/storage.StorageService/Disks", "/storage.StorageService/BlockDeviceWipe",
		"/time.TimeService/Time", "/time.TimeService/TimeCheck", "/machine.ImageService/List", "/machine.ImageService/Verify",
		"/cosi.resource.State/Get", "/cosi.resource.State/List", "/cosi.resource.State/Watch")
	operatorsMay = methodSet("/machine.MachineService/",
		"EtcdAlarmDisarm", "EtcdDefragment", "EtcdSnapshot", "ImagePull", "PacketCapture", "Reboot", "Restart",
		"ServiceRestart", "ServiceStart", "ServiceStop", "Shutdown", "/machine.ImageService/Pull")
	backupsMay = methodSet("/machine.MachineService/", "EtcdAlarmList", "EtcdMemberList", "EtcdSnapshot", "EtcdStatus")
	metasMay   = methodSet("/machine.MachineService/", "MetaWrite", "MetaDelete")
)

// Changes are the methods that change something.
var Changes = methodSet("/machine.MachineService/",
	"ApplyConfiguration", "Bootstrap", "EtcdAlarmDisarm", "EtcdDefragment", "EtcdForfeitLeadership", "EtcdLeaveCluster",
	"EtcdRecover", "EtcdRemoveMemberByID", "ImagePull", "MetaDelete", "MetaWrite", "Reboot", "Reset", "Restart", "Rollback",
	"ServiceRestart", "ServiceStart", "ServiceStop", "Shutdown", "Upgrade",
	"/machine.ImageService/Pull", "/machine.LifecycleService/Install", "/machine.LifecycleService/Upgrade", "/storage.StorageService/BlockDeviceWipe")

func methodSet(service string, names ...string) map[string]bool {
	set := map[string]bool{}
	for _, n := range names {
		if !strings.HasPrefix(n, "/") {
			n = service + n
		}
		set[n] = true
	}
	return set
}

// ErrNotAuthorized is the answer to whoever has no role for a call.
var ErrNotAuthorized = status.Error(codes.PermissionDenied, "not authorized")

type rolesKey struct{}

// WithRoles notes the roles of the caller.
func WithRoles(ctx context.Context, roles role.Set) context.Context {
	return context.WithValue(ctx, rolesKey{}, roles)
}

// RolesOf returns the roles of the caller.
func RolesOf(ctx context.Context) role.Set {
	roles, ok := ctx.Value(rolesKey{}).(role.Set)
	if !ok {
		return role.Zero
	}
	return roles
}

// CallerRoles reads the roles from the client's certificate, which the
// handshake has verified.
func CallerRoles(ctx context.Context) role.Set {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return role.Zero
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return role.Zero
	}
	roles, _ := role.Parse(info.State.PeerCertificates[0].Subject.Organization)
	return roles
}

// Authorize refuses a call the caller has no role for.
func Authorize(roles role.Set, method string) error {
	switch {
	case roles.Includes(role.Admin),
		readersMay[method] && (roles.Includes(role.Reader) || roles.Includes(role.Operator)),
		operatorsMay[method] && roles.Includes(role.Operator),
		backupsMay[method] && roles.Includes(role.EtcdBackup),
		metasMay[method] && roles.Includes(role.MetaWriter):
		return nil
	}
	return ErrNotAuthorized
}
