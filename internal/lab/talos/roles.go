package talos

import (
	"context"
	"strings"

	"github.com/cosi-project/runtime/pkg/state"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
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

// changes are the methods that change something.
var changes = methodSet("/machine.MachineService/",
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

var errNotAuthorized = status.Error(codes.PermissionDenied, "not authorized")

type rolesKey struct{}

// rolesOf returns the roles of the caller.
func rolesOf(ctx context.Context) role.Set {
	roles, ok := ctx.Value(rolesKey{}).(role.Set)
	if !ok {
		return role.Zero
	}
	return roles
}

// callerRoles reads the roles from the client's certificate, which the
// handshake has verified.
func callerRoles(ctx context.Context) role.Set {
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

// authorizeCall refuses a call the caller has no role for.
func authorizeCall(roles role.Set, method string) error {
	switch {
	case roles.Includes(role.Admin),
		readersMay[method] && (roles.Includes(role.Reader) || roles.Includes(role.Operator)),
		operatorsMay[method] && roles.Includes(role.Operator),
		backupsMay[method] && roles.Includes(role.EtcdBackup),
		metasMay[method] && roles.Includes(role.MetaWriter):
		return nil
	}
	return errNotAuthorized
}

// resourceRule guards a machine's resources.
func (b *boot) resourceRule(ctx context.Context, access state.Access) error {
	if !access.Verb.Readonly() {
		return status.Error(codes.PermissionDenied, "write access is not allowed")
	}
	sensitive, known := b.f.kinds[access.ResourceType]
	switch {
	case !known, access.ResourceType == runtimeres.VersionType && b.m.minor() < 10:
		return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
	case sensitive && !rolesOf(ctx).Includes(role.Admin):
		return errNotAuthorized
	case !namespaces[access.ResourceNamespace]:
		return status.Errorf(codes.PermissionDenied, "namespace %q is not supported", access.ResourceNamespace)
	}
	return nil
}
