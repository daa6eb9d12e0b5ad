package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// identity is which machine it is that answers.
type identity struct {
	uuid string
	macs []string // of its physical links, upper case, sorted
}

// identify reads the identity over the link that was vetted.
func (l *link) identify(ctx context.Context) (identity, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	id, err := l.readUUID(ctx)
	if err != nil {
		return identity{}, err
	}
	links, err := safe.StateListAll[*network.LinkStatus](ctx, l.cosi)
	if err != nil {
		return identity{}, fmt.Errorf("read its network cards: %w", err)
	}
	for link := range links.All() {
		spec := link.TypedSpec()
		if !spec.Physical() {
			continue
		}
		// A card that is part of a bond goes by the bond's address.
		mac := spec.PermanentAddr
		if len(mac) == 0 {
			mac = spec.HardwareAddr
		}
		id.macs = append(id.macs, strings.ToUpper(mac.String()))
	}
	slices.Sort(id.macs)
	return id, nil
}

// readUUID reads of the identity the UUID alone. A machine with the cluster's certificate is
// not recognized by its network cards: somebody may have replaced them.
func (l *link) readUUID(ctx context.Context) (identity, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	info, err := safe.StateGetByID[*hardware.SystemInformation](ctx, l.cosi, hardware.SystemInformationID)
	if err != nil {
		return identity{}, fmt.Errorf("read its SMBIOS UUID: %w", err)
	}
	id := identity{uuid: strings.ToLower(info.TypedSpec().UUID)}
	if id.uuid == "" {
		return identity{}, errors.New("read its SMBIOS UUID: it reports none")
	}
	return id, nil
}

// portray reads, side by side, what stays as it is while a machine runs; the
// connection does not outlive that.
func (l *link) portray(ctx context.Context, m *cluster.Machine) (id identity, err error) {
	var who, which, what, when error
	var reading sync.WaitGroup
	reading.Go(func() { id, who = l.identify(ctx) })
	reading.Go(func() { m.Talos, which = l.version(ctx) })
	reading.Go(func() { m.Schematic, what = l.schematic(ctx) })
	if l.standing == proven {
		reading.Go(func() { m.BootID, when = l.bootID(ctx) })
	}
	reading.Wait()
	m.UUID, m.MACs = id.uuid, id.macs
	return id, cmp.Or(who, which, what, when)
}

// bootIDFile holds the kernel's boot id. Talos has it as a resource since v1.14 only;
// the file can be read of every version, by administrators.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// bootID reads the id of the boot that the machine runs in, "" when it does not let us.
func (l *link) bootID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	stream, err := l.machine.Read(ctx, &machineapi.ReadRequest{Path: bootIDFile})
	var id []byte
	for err == nil && len(id) < 64 {
		var part *common.Data
		if part, err = stream.Recv(); err == nil {
			id = append(id, part.GetBytes()...)
		}
	}
	switch {
	case isMissing(err):
		return "", nil
	case err != nil && !errors.Is(err, io.EOF):
		return "", fmt.Errorf("read its boot id: %w", err)
	}
	return sanitize(string(id)), nil
}

// otherUUID explains why the machine is not a node's by its UUID, "" when it
// is.
func (id identity) otherUUID(n cluster.Node) string {
	if strings.EqualFold(id.uuid, n.UUID) || strings.EqualFold(swapUUID(id.uuid), n.UUID) {
		return ""
	}
	return fmt.Sprintf("its SMBIOS UUID is %s, expected %s", sanitize(id.uuid), n.UUID)
}

// nameMachine is the name of the node whose machine it is, as far as it is watched.
func (f *Fleet) nameMachine(id identity) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, w := range f.watchers {
		if id.otherUUID(w.node) == "" {
			return name
		}
	}
	return "another machine"
}

// other also compares the network cards.
func (id identity) other(n cluster.Node) string {
	if why := id.otherUUID(n); why != "" {
		return why
	}
	if slices.ContainsFunc(id.macs, func(mac string) bool { return strings.EqualFold(mac, n.MAC) }) {
		return ""
	}
	have := "none"
	if len(id.macs) > 0 {
		have = strings.Join(id.macs, ", ")
	}
	return fmt.Sprintf("it has no network card with MAC %s (it has %s)", n.MAC, have)
}

// swapUUID returns a UUID with its first three groups in the other byte order.
// SMBIOS before 2.6 did not define their order; Talos reads them as
// little-endian always (its source, siderolabs/go-smbios).
func swapUUID(uuid string) string {
	groups := strings.Split(uuid, "-")
	if len(groups) != 5 {
		return uuid
	}
	for i, g := range groups[:3] {
		var b strings.Builder
		for len(g) >= 2 {
			b.WriteString(g[len(g)-2:])
			g = g[:len(g)-2]
		}
		groups[i] = b.String() + g
	}
	return strings.Join(groups, "-")
}

// version reads the version of Talos that runs, "" when the machine does not
// report it. There are two ways, because up to v1.12 the call is Unimplemented
// in maintenance mode (from the source), and up to v1.9 there is no such
// resource.
func (l *link) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	r, err := safe.StateGetByID[*runtime.Version](ctx, l.cosi, runtime.NewVersion().Metadata().ID())
	if err == nil {
		return r.TypedSpec().Version, nil
	}
	if !isMissing(err) {
		return "", fmt.Errorf("read its version: %w", err)
	}
	resp, err := l.machine.Version(ctx, &emptypb.Empty{})
	switch {
	case isMissing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read its version: %w", err)
	case len(resp.GetMessages()) == 0:
		return "", nil
	}
	return resp.GetMessages()[0].GetVersion().GetTag(), nil
}

// schematic reads the id of the running image's schematic, "" when the machine
// reports none. The image factory adds it to every image as an extension of
// that name, whose version it is.
func (l *link) schematic(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	list, err := safe.StateListAll[*runtime.ExtensionStatus](ctx, l.cosi)
	switch {
	case isMissing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read its extensions: %w", err)
	}
	for e := range list.All() {
		if e.TypedSpec().Metadata.Name == "schematic" {
			return e.TypedSpec().Metadata.Version, nil
		}
	}
	return "", nil
}

// seeBoot returns how the machine has booted. It is asked once for each boot that is known: nothing changes that.
func (w *watcher) seeBoot(ctx context.Context, l *link, boot string) (secure string, err error) {
	// A firmware that has taken no keys takes none later: that asks for a new machine.
	if boot != "" && (boot == w.secured.boot || w.secured.boot != "" && w.secured.secure == cluster.OptionOff) {
		return w.secured.secure, nil
	}
	if secure, err = l.secureBoot(ctx); err == nil {
		w.secured = securedBoot{boot, secure}
	}
	return secure, err
}

// securedBoot is a boot of a machine, and whether its firmware has verified that.
type securedBoot struct{ boot, secure string }

// secureBoot reads whether the firmware has verified what the machine booted, "" when it does not report that. It
// is shown in maintenance mode, too (recorded of 1.13.9).
func (l *link) secureBoot(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	r, err := safe.StateGetByID[*runtime.SecurityState](ctx, l.cosi, runtime.SecurityStateID)
	switch {
	case isMissing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read how it has booted: %w", err)
	case r.TypedSpec().SecureBoot:
		return cluster.OptionOn, nil
	}
	return cluster.OptionOff, nil
}

// status reads the machine's own word of its stage and readiness.
func (l *link) status(ctx context.Context) (*runtime.MachineStatusSpec, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	r, err := safe.StateGetByID[*runtime.MachineStatus](ctx, l.cosi, runtime.MachineStatusID)
	if err != nil {
		return nil, fmt.Errorf("read its stage: %w", err)
	}
	return r.TypedSpec(), nil
}

// services asks what the machine's services do. The Service resource would not
// do: it is there only while a service runs, and knows no states (recorded).
func (l *link) services(ctx context.Context) (map[string]cluster.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	resp, err := l.machine.ServiceList(ctx, &emptypb.Empty{})
	if err != nil {
		return nil, fmt.Errorf("list its services: %w", err)
	}
	if len(resp.GetMessages()) == 0 {
		return nil, errors.New("list its services: the answer is empty")
	}
	out := map[string]cluster.Service{}
	for _, s := range resp.GetMessages()[0].GetServices() {
		seen := cluster.Service{State: s.GetState(), Healthy: s.GetHealth().GetHealthy() && !s.GetHealth().GetUnknown()}
		switch events := s.GetEvents().GetEvents(); {
		case seen.Healthy:
		case s.GetState() != "Running" && len(events) > 0:
			seen.Message = sanitize(events[len(events)-1].GetMsg())
		case s.GetHealth().GetUnknown():
			seen.Message = "its health is not known yet"
		default:
			seen.Message = sanitize(s.GetHealth().GetLastMessage())
		}
		out[s.GetId()] = seen
	}
	return out, nil
}

// isMissing reports whether an error means that a machine does not have what it
// was asked for: versions differ in what there is. Talos 1.13.9 answers
// NotFound for an unknown id and PermissionDenied for an unknown type.
func isMissing(err error) bool {
	if err == nil {
		return false
	}
	if state.IsNotFoundError(err) {
		return true
	}
	switch status.Code(err) {
	case codes.NotFound, codes.PermissionDenied, codes.Unimplemented:
		return true
	}
	return false
}
