package talos

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/talos-agent/talos-agent/internal/lab/talos/access"
	"github.com/talos-agent/talos-agent/internal/lab/talos/etcddb"
	"github.com/talos-agent/talos-agent/internal/lab/talos/ingress"
	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// apiServer is the Talos API of a machine, open at one address.
type apiServer struct {
	listener *ingress.Listener
	server   *grpc.Server
	services map[string]any // implementation by gRPC service name
}

// reopenAPI opens the API as the machine's state asks, after closing it if it
// stood open in another way. It stays as it is when nothing changed.
func (b *boot) reopenAPI() {
	key, config := b.wantedTLS()
	if _, ok := b.f.world.Net.(darkener); b.m.dark && !ok {
		config = nil
	}
	if key == b.apiKey && b.api != nil || b.stopping {
		if b.api != nil {
			b.api.listener.SetShut(b.isShut())
		}
		return
	}
	b.closeAPI()
	if config == nil {
		return
	}
	addr := net.JoinHostPort(b.address.Addr().String(), fmt.Sprint(constants.ApidPort))
	l, err := b.f.world.Net.Listen(addr)
	if err != nil {
		// Two machines with one address: the second is silent.
		b.f.world.Report(b.hostname(), "cannot listen: %v", err)
		return
	}
	b.apiKey = key
	b.api = b.serveAPI(ingress.NewListener(l, b.isShut()), config)
}

// isShut reports whether a firewall of the machine drops new connections to its API.
func (b *boot) isShut() bool { return b.set != nil && b.set.shut }

// wantedTLS decides how the API is opened: the certificates to show and a key
// that changes when they must change. A nil config keeps it closed.
func (b *boot) wantedTLS() (key string, config *tls.Config) {
	if !b.address.IsValid() {
		return "", nil
	}
	ip := net.IP(b.address.Addr().AsSlice())
	if b.set == nil {
		return "maintenance " + b.address.String(), access.MaintenanceTLS(b.f.world.GuestNow, b.hostname(), ip)
	}
	ca, ok := b.f.authorities[b.set.machineCA]
	if !ok || !b.set.control && b.lacksEndpoint() {
		// A worker has its certificate signed by a control plane, which it finds
		// through the endpoint.
		return "", nil
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if !b.set.homeless {
		ips = append(ips, ip)
	}
	names := []string{b.hostname()}
	for _, san := range b.set.sans {
		if parsed := net.ParseIP(san); parsed != nil {
			ips = append(ips, parsed)
		} else {
			names = append(names, san)
		}
	}
	key = fmt.Sprint(b.set.machineCA, b.address, names, ips, len(b.set.acceptedCA))
	return key, access.NodeTLS(b.f.world.GuestNow, ca, b.hostname(), names, ips, b.set.acceptedCA)
}

// closeAPI cuts every connection at once and frees the address.
func (b *boot) closeAPI() {
	d := b.api
	if d == nil {
		return
	}
	b.api, b.apiKey = nil, ""
	d.listener.DropAll()
	b.f.serving.Go(d.server.Stop)
}

// serveAPI starts the server.
func (b *boot) serveAPI(l *ingress.Listener, config *tls.Config) *apiServer {
	subject := func(context.Context) string { return b.m.name() }
	worldUnary, worldStream := b.f.world.GRPC(subject, func(op string) bool { return access.Changes["/"+op] })
	gate := &access.Gate{Maintenance: b.set == nil, Minor: b.minor(), Router: b.router()}
	srv := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)),
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(worldUnary, gate.InterceptUnary),
		grpc.ChainStreamInterceptor(worldStream, gate.InterceptStream),
	)
	d := &apiServer{listener: l, server: srv}
	resources := cosiserver.NewState(state.Filter(b.state, b.resourceRule))
	if gate.Maintenance && b.minor() < 13 {
		d.services = map[string]any{
			machineapi.MachineService_ServiceDesc.ServiceName: &maintenanceService{b: b},
			storageapi.StorageService_ServiceDesc.ServiceName: &system.StorageService{Machine: inside{b}},
			cosi.State_ServiceDesc.ServiceName:                resources,
		}
	} else {
		d.services = map[string]any{
			machineapi.MachineService_ServiceDesc.ServiceName: &machineService{Service: system.Service{Machine: inside{b}}, UpgradeService: installer.UpgradeService{Machine: inside{b}},
				EtcdService: etcddb.EtcdService{Machine: inside{b}}, CredentialService: access.CredentialService{Machine: inside{b}}, b: b},
			storageapi.StorageService_ServiceDesc.ServiceName: &system.StorageService{Machine: inside{b}},
			timeapi.TimeService_ServiceDesc.ServiceName:       &system.TimeService{Machine: inside{b}},
			cosi.State_ServiceDesc.ServiceName:                resources,
		}
		if b.minor() >= 13 {
			d.services[machineapi.ImageService_ServiceDesc.ServiceName] = &system.ImageService{Machine: inside{b}}
			d.services[machineapi.LifecycleService_ServiceDesc.ServiceName] = &installer.LifecycleService{Machine: inside{b}, Busy: &b.installing}
		}
	}
	for i := range serviceDescs {
		if impl, ok := d.services[serviceDescs[i].ServiceName]; ok {
			srv.RegisterService(serviceDescs[i], impl)
		}
	}
	b.f.serving.Go(func() {
		// It ends when the listener is dropped, which is no error to report.
		_ = srv.Serve(l)
	})
	return d
}

// serviceDescs are the gRPC services a machine may serve.
var serviceDescs = []*grpc.ServiceDesc{
	&machineapi.MachineService_ServiceDesc,
	&machineapi.LifecycleService_ServiceDesc,
	&machineapi.ImageService_ServiceDesc,
	&storageapi.StorageService_ServiceDesc,
	&timeapi.TimeService_ServiceDesc,
	&cosi.State_ServiceDesc,
}
