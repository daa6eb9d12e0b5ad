package talos

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	configpb "github.com/siderolabs/talos/pkg/machinery/api/resource/config"
	"github.com/siderolabs/talos/pkg/machinery/proto"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
)

// settleWithin bounds what a machine may take from the handshake until it has
// answered everything that is asked of it first.
const settleWithin = 10 * time.Second

// lookAgain is after how long all that a machine shows is read once more: of an event that was lost nothing else would be seen.
const lookAgain = 30 * time.Minute

// The pace at which services are listed: soon after a change, but not once per
// change of a burst; and again and again while etcd of a control plane does not
// run, because on its way there (Waiting, Preparing) no event reports it.
const (
	listPause = 100 * time.Millisecond
	listSoon  = 250 * time.Millisecond
	listLate  = 2 * time.Second
	listTries = 3
)

// limitStart bounds the beginning of a visit: the context ends when the machine does
// not get to the point, unless settled is called before.
func limitStart(ctx context.Context) (_ context.Context, settled, leave func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := time.AfterFunc(settleWithin, func() { cancel(fmt.Errorf("get all answers within %v", settleWithin)) })
	return ctx, func() { t.Stop() }, func() { t.Stop(); cancel(nil) }
}

// preferCause prefers the reason why a context ended over what followed from it.
func preferCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// idle stays with a machine in maintenance mode until that ends. When it is not
// known to be one of ours, it returns what is to be reported instead.
func (w *watcher) idle(ctx context.Context, l *link) (m cluster.Machine, ok bool) {
	const what = "it shows the certificate of the maintenance mode"
	ctx, settled, leave := limitStart(ctx)
	defer leave()
	statuses := make(chan state.Event)
	if err := l.cosi.Watch(ctx, runtime.NewMachineStatus().Metadata(), statuses); err != nil {
		return unknownMachine(what, fmt.Errorf("watch its stage: %w", preferCause(ctx, err))), false
	}
	id, err := l.portray(ctx, &m)
	if err != nil {
		return unknownMachine(what, preferCause(ctx, err)), false
	}
	if why := id.other(w.node); why != "" {
		return cluster.Machine{Reach: cluster.Unexpected, Why: why, UUID: m.UUID, MACs: m.MACs}, false
	}
	if m.SecureBoot, err = w.seeBoot(ctx, l, ""); err != nil {
		return unknownMachine(what, preferCause(ctx, err)), false
	}
	m.Reach = cluster.Maintenance
	published := false
	var look <-chan struct{} // nil until there is something to look at again
	for {
		select {
		case <-ctx.Done():
			return unknownMachine(what, preferCause(ctx, nil)), published
		case <-look:
			w.poke() // and at once
			return m, published
		case e := <-statuses:
			if e.Type == state.Errored {
				return unknownMachine(what, fmt.Errorf("watch its stage: %w", preferCause(ctx, e.Error))), published
			}
			readStatus(e, &m)
			if m.Stage != runtime.MachineStageMaintenance.String() {
				m.Reach, m.Why = cluster.ReachUnknown, fmt.Sprintf("%s, but says that it is %s", what, cmp.Or(m.Stage, "nowhere yet"))
				return m, false
			}
			w.publish(m)
			settled()
			published, look = true, w.look
		}
	}
}

// attend stays with a configured machine until the connection ends. When it
// does not get so far that the machine is known, it returns what is to be
// reported instead.
func (w *watcher) attend(visit context.Context, l *link) (m cluster.Machine, ok bool) {
	const what = "it answers with this cluster's certificates"
	ctx, settled, leave := limitStart(visit)
	defer func() { leave() }()
	id, err := l.portray(ctx, &m)
	if err != nil {
		return unknownMachine(what, preferCause(ctx, err)), false
	}
	if why := id.otherUUID(w.node); why != "" {
		return cluster.Machine{Reach: cluster.Unexpected, Why: fmt.Sprintf("it is %s of this cluster: %s", w.f.nameMachine(id), why), UUID: m.UUID, MACs: m.MACs}, false
	}
	if m.SecureBoot, err = w.seeBoot(ctx, l, m.BootID); err != nil {
		return unknownMachine(what, preferCause(ctx, err)), false
	}
	m.Reach = cluster.Configured
	v := &view{w: w, l: l}
	if err = v.open(ctx, &m); err != nil {
		return unknownMachine(what, preferCause(ctx, err)), false
	}
	defer func() { v.list.Stop() }()
	defer w.hold(nil)
	for published := false; ; {
		switch err = v.next(ctx, &m); {
		case errors.Is(err, errAgain):
			leave()
			v = &view{w: w, l: l, staged: v.staged}
			ctx, settled, leave = limitStart(visit)
			if err = v.open(ctx, &m); err != nil {
				return unknownMachine(what, preferCause(ctx, err)), published
			}
		case err != nil:
			return unknownMachine(what, preferCause(ctx, err)), published
		case v.complete():
			settled()
			if !published {
				w.hold(l)
				published = true
			}
			w.publish(m)
		}
	}
}

// errAgain ends a conversation after lookAgain, for the next one.
var errAgain = errors.New("all is to be read once more")

// view is the running conversation with a configured machine.
type view struct {
	w *watcher
	l *link

	statuses, services, configs, pods chan state.Event
	list                              *time.Timer // the services are to be listed
	again                             <-chan time.Time
	pace                              time.Duration
	failed                            int // listings that failed in a row
	active, saved                     savedConfig
	staged                            [sha256.Size]byte // of the text of the last one that was seen to wait

	sawStatus, sawServices, sawConfig, sawPods, booted bool
}

// open starts the watches, of a machine of which nothing is known by others.
func (v *view) open(ctx context.Context, m *cluster.Machine) error {
	v.pace, v.statuses, v.services, v.configs, v.pods = listSoon, make(chan state.Event), make(chan state.Event), make(chan state.Event), make(chan state.Event)
	v.list, v.again, m.StaticPods = time.NewTimer(0), time.After(lookAgain), nil
	if err := v.l.cosi.Watch(ctx, runtime.NewMachineStatus().Metadata(), v.statuses); err != nil {
		return fmt.Errorf("watch its stage: %w", err)
	}
	kind := resource.NewMetadata(v1alpha1.NamespaceName, v1alpha1.ServiceType, "", resource.VersionUndefined)
	if err := v.l.cosi.WatchKind(ctx, kind, v.services, state.WithBootstrapContents(true)); err != nil {
		return fmt.Errorf("watch its services: %w", err)
	}
	if v.w.f.digest == nil {
		v.sawConfig = true
	} else if err := v.openConfig(ctx); err != nil {
		return err
	}
	return v.openPods(ctx)
}

// openConfig watches the configs: the active one and, once one was saved since it has
// started, the one on its disk. They are read as bytes: one that this program's library
// does not understand must not end the conversation.
func (v *view) openConfig(ctx context.Context) error {
	kind := resource.NewMetadata(config.NamespaceName, config.MachineConfigType, "", resource.VersionUndefined)
	err := v.l.cosi.WatchKind(ctx, kind, v.configs, state.WithBootstrapContents(true), state.WithWatchKindUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	switch {
	case isMissing(err), status.Code(err) == codes.ResourceExhausted:
		v.sawConfig = true // it does not let us read it, or it is larger than anybody's config
	case err != nil:
		return fmt.Errorf("watch its config: %w", err)
	}
	return nil
}

// openPods watches the static pods of a control plane, as its config has them.
func (v *view) openPods(ctx context.Context) error {
	if v.w.node.Role != cluster.ControlPlane {
		v.sawPods = true
		return nil
	}
	kind := resource.NewMetadata(k8s.NamespaceName, k8s.StaticPodType, "", resource.VersionUndefined)
	err := v.l.cosi.WatchKind(ctx, kind, v.pods, state.WithBootstrapContents(true))
	switch {
	case isMissing(err):
		v.sawPods = true
	case err != nil:
		return fmt.Errorf("watch its static pods: %w", err)
	}
	return nil
}

func (v *view) complete() bool { return v.sawStatus && v.sawServices && v.sawConfig && v.sawPods }

// next takes in the next message of the machine. An error ends the connection.
func (v *view) next(ctx context.Context, m *cluster.Machine) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-v.again:
		return errAgain
	case e := <-v.statuses:
		if e.Type == state.Errored {
			return fmt.Errorf("watch its stage: %w", e.Error)
		}
		readStatus(e, m)
		v.sawStatus = true
	case e := <-v.services:
		switch {
		case e.Type == state.Errored:
			return fmt.Errorf("watch its services: %w", e.Error)
		case e.Type == state.Bootstrapped:
			v.booted = true
		case v.booted:
			v.pace = listSoon
			v.list.Reset(listPause)
		}
	case e := <-v.configs:
		switch {
		case e.Type == state.Errored && status.Code(e.Error) == codes.ResourceExhausted:
			v.active, v.saved, v.sawConfig = savedConfig{}, savedConfig{}, true
		case e.Type == state.Errored:
			return fmt.Errorf("watch its config: %w", e.Error)
		case e.Type == state.Bootstrapped:
			v.sawConfig = true
		default:
			v.readConfig(e)
		}
		v.compareConfigs(m)
	case e := <-v.pods:
		switch {
		case e.Type == state.Errored && status.Code(e.Error) == codes.ResourceExhausted:
			m.StaticPods, v.sawPods = nil, true
		case e.Type == state.Errored:
			return fmt.Errorf("watch its static pods: %w", e.Error)
		case e.Type == state.Bootstrapped:
			v.sawPods = true
		default:
			readStaticPod(e, m)
		}
	case <-v.w.look:
		v.pace = listSoon
		v.list.Reset(0)
	case <-v.list.C:
		return v.listServices(ctx, m)
	}
	return nil
}

// listServices lists the services, and arranges for the next time.
func (v *view) listServices(ctx context.Context, m *cluster.Machine) error {
	services, err := v.l.services(ctx)
	if err != nil {
		if v.failed++; v.failed >= listTries || ctx.Err() != nil {
			return err
		}
		v.list.Reset(listLate)
		return nil
	}
	v.failed = 0
	m.Services, v.sawServices = services, true
	if v.w.node.Role == cluster.ControlPlane && services["etcd"].State != "Running" {
		v.list.Reset(v.pace)
		v.pace = min(2*v.pace, listLate)
	}
	return nil
}

// savedConfig is one config of a machine, without its text, which is full of keys. The zero
// value is one that is not there, or that cannot be read.
type savedConfig struct {
	sum     [sha256.Size]byte // of its text
	digest  string
	summary cluster.ConfigSummary
	of      *resource.Metadata
}

// readConfig takes in one of the configs.
func (v *view) readConfig(e state.Event) {
	if e.Resource == nil {
		return // an event without one is about none
	}
	switch e.Resource.Metadata().ID() {
	case config.ActiveID:
		v.active = v.digest(e, v.saved)
	case config.PersistentID:
		v.saved = v.digest(e, v.active)
	}
}

// compareConfigs finds what runs, and what waits for the next boot.
func (v *view) compareConfigs(m *cluster.Machine) {
	m.ConfigDigest, m.ConfigSince, m.Summary = v.active.digest, time.Time{}, v.active.summary
	if v.active.of != nil {
		m.ConfigSince = notedTime(v.active.of)
		v.w.noteBooted(m.BootID, v.active)
	}
	m.Staged, m.StagedSince, m.StagedAuthorities = "", time.Time{}, cluster.Authorities{}
	if v.saved.digest == "" || v.active.digest == "" || v.saved.digest == v.active.digest {
		return
	}
	// A trial that ends gives what ran before once more, and leaves what waits (recorded: 1.13.9).
	if v.saved.sum == v.staged || isStaged(v.active.of, v.saved.of) {
		v.staged = v.saved.sum
		m.Staged, m.StagedSince, m.StagedAuthorities = v.saved.digest, notedTime(v.saved.of), v.saved.summary.Authorities
	}
}

// notedTime is when a machine has noted that a resource changed; zero where that is no time that
// can be shown: it is the machine's to name.
func notedTime(of *resource.Metadata) time.Time {
	if t := of.Updated(); t.Year() > 0 && t.Year() < 10000 {
		return t
	}
	return time.Time{}
}

// isStaged reports whether a config was saved after another one was given to the machine to
// run, and waits for the next boot; one on trial was given after the saved one. The first
// version of what runs is of the boot itself, however the clock of the machine was set since.
func isStaged(running, saved *resource.Metadata) bool {
	return running.Version().Value() == 1 || saved.Updated().After(running.Updated())
}

// digest reads a config. Mostly its text is that of another one, which was read before.
// Neither the text nor an error about it is kept.
func (v *view) digest(e state.Event, other savedConfig) savedConfig {
	r, ok := e.Resource.(*protobuf.Resource)
	if !ok || e.Type == state.Destroyed {
		return savedConfig{}
	}
	bytes, err := configBytes(r)
	if err != nil {
		v.w.f.log.Debug("cannot read the config a machine has", logging.Node, v.w.node.Name)
		return savedConfig{}
	}
	c := savedConfig{sum: sha256.Sum256(bytes), of: r.Metadata()}
	if c.sum == other.sum && other.digest != "" {
		c.digest, c.summary = other.digest, other.summary
		return c
	}
	if c.digest, err = v.w.f.digest(bytes); err != nil {
		v.w.f.log.Debug("cannot parse the config a machine has", logging.Node, v.w.node.Name)
		return savedConfig{}
	}
	if v.w.f.summarize != nil {
		if c.summary, err = v.w.f.summarize(bytes); err != nil {
			v.w.f.log.Debug("cannot read what is fixed in the config a machine has", logging.Node, v.w.node.Name)
		}
	}
	return c
}

// configBytes takes the config out of its resource.
func configBytes(r *protobuf.Resource) ([]byte, error) {
	marshaled, err := r.Marshal()
	if err != nil {
		return nil, err
	}
	var spec configpb.MachineConfigSpec
	if err := proto.Unmarshal(marshaled.GetSpec().GetProtoSpec(), &spec); err != nil {
		return nil, err
	}
	if len(spec.GetYamlMarshalled()) == 0 {
		return nil, errors.New("there is no config in it")
	}
	return spec.GetYamlMarshalled(), nil
}

// readStatus takes in the machine's own word of its stage and readiness.
func readStatus(e state.Event, m *cluster.Machine) {
	m.Stage, m.Ready, m.Unmet = "", false, nil
	r, ok := e.Resource.(*runtime.MachineStatus)
	if !ok || e.Type == state.Destroyed {
		return
	}
	spec := r.TypedSpec()
	m.Stage, m.Ready = spec.Stage.String(), spec.Status.Ready
	for _, c := range spec.Status.UnmetConditions {
		m.Unmet = append(m.Unmet, sanitize(c.Name+": "+c.Reason))
	}
}
