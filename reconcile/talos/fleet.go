package talos

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/retry"
)

// Config wires a Fleet.
type Config struct {
	// Dial makes the connections; nil: the host's own network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Options are put onto every gRPC connection.
	Options []grpc.DialOption
	Log     *slog.Logger // nil: silent
	// Digest identifies what a machine config means. nil: the configs of
	// machines stay unread.
	Digest func(config []byte) (string, error)
	// Summarize returns what of a machine config is known without its text. nil: that stays unread.
	Summarize func(config []byte) (cluster.ConfigSummary, error)
	// MayDisconnect reports whether a config in the place of another may make a machine
	// unreachable. nil: none does.
	MayDisconnect func(have, want []byte) bool
	// TakeNetwork returns a config with what of another is about the network, nil when both have the
	// same of that. nil: they have.
	TakeNetwork func(have, want []byte) ([]byte, error)
	// OnChange is called, on a goroutine of its own and at most twenty times a
	// second, after anything changed that Observe would report, unless Observe has begun
	// since. nil: no call.
	OnChange func()
}

// Fleet is the Talos machines of one cluster. It implements the reconciler's
// Observer and Machines. Its methods may be called side by side.
type Fleet struct {
	dial      func(ctx context.Context, network, addr string) (net.Conn, error)
	options   []grpc.DialOption
	log       *slog.Logger
	digest    func(config []byte) (string, error)
	summarize func(config []byte) (cluster.ConfigSummary, error)
	// mayDisconnect and takeNetwork are as in Config.
	mayDisconnect func(have, want []byte) bool
	takeNetwork   func(have, want []byte) ([]byte, error)
	onChange      func()

	ctx     context.Context // ends at Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	changed chan struct{} // one slot: OnChange is due

	mu       sync.Mutex
	closed   bool
	keys     keys
	keysErr  error // why there are no keys although there are credentials
	watchers map[string]*watcher
	round    uint64 // counts the observations
	turn     uint64 // counts the changes seen on control planes
	members  ballot
}

// How long Observe waits for the first word of machines it has not looked at
// before.
const firstLook = 2 * time.Second

// The least time between two calls of OnChange.
const notifyPause = 50 * time.Millisecond

// New makes a fleet that watches nothing yet. Close it when done.
func New(c Config) *Fleet {
	f := &Fleet{
		dial: c.Dial, options: c.Options, log: c.Log, digest: c.Digest, summarize: c.Summarize, mayDisconnect: c.MayDisconnect, takeNetwork: c.TakeNetwork, onChange: c.OnChange,
		changed: make(chan struct{}, 1), watchers: map[string]*watcher{},
	}
	if f.dial == nil {
		f.dial = (&net.Dialer{}).DialContext
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if f.onChange != nil {
		f.running.Go(f.notifyChanges)
	}
	return f
}

// Close ends every watch, every connection and every call in flight, and
// returns when they have ended. What is observed afterwards is unknown.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	f.running.Wait()
}

// notifyChanges calls OnChange: at once, and then not again for a moment, so that a
// burst of changes is reported twice at most.
func (f *Fleet) notifyChanges() {
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.changed:
			f.onChange()
		}
		if retry.Sleep(f.ctx, notifyPause) != nil {
			return
		}
	}
}

// Observe fills o.Machines, for every node of the inventory and every one that is being
// removed, o.Members, o.MembersAgree, o.MembersAsked and o.Etcd.
// Nodes that are new are watched from now on, nodes that were removed no
// longer. It waits up to two seconds for the first answer of those that are
// new; all others cost no call. The members of etcd are asked for only while
// that can change, and every ten minutes. A machine that runs another config than the
// wanted one is asked once what that would do.
func (f *Fleet) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	fresh := f.tend(d)
	f.await(ctx, fresh)
	f.askChanges(ctx, d)
	o.Machines = f.machines(d, fresh)
	founder := ""
	if in, ok := o.Facts.Intent(cluster.IntendBootstrap); ok {
		founder = in.Node
	}
	f.observeMembers(ctx, d, founder).fill(o)
}

// tend takes the newest credentials and lets the watchers follow the
// inventory. It returns those that are new. What has changed by then is observed, and
// needs no other pass.
func (f *Fleet) tend(d cluster.Desired) (fresh []*watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	select {
	case <-f.changed:
	default:
	}
	if have, now := f.keys.from, d.Access.Talos; !equalSecrets(have.CA, now.CA) || !equalSecrets(have.Cert, now.Cert) || !equalSecrets(have.Key, now.Key) {
		opened := f.keys.none()
		f.keys, f.keysErr = parseKeys(now)
		if opened != f.keys.none() || !equalSecrets(have.CA, now.CA) {
			// What was proven by other keys is proven no longer.
			for name, w := range f.watchers {
				w.stop()
				delete(f.watchers, name)
			}
		}
	}
	f.round++
	nodes := d.AllNodes()
	for i := range nodes {
		n := &nodes[i]
		w := f.watchers[n.Name]
		if w == nil || !w.watches(n) {
			if w != nil {
				w.stop()
			}
			w = f.watch(*n)
			f.watchers[n.Name] = w
			fresh = append(fresh, w)
		}
		w.round = f.round
	}
	for name, w := range f.watchers {
		if w.round != f.round {
			w.stop()
			delete(f.watchers, name)
		}
	}
	return fresh
}

// await waits until every watcher has had its first word, but not for long.
func (f *Fleet) await(ctx context.Context, fresh []*watcher) {
	if len(fresh) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	for _, w := range fresh {
		select {
		case <-w.first:
		case <-ctx.Done():
			return
		case <-f.ctx.Done():
			return
		}
	}
}

// machines copies the last known state. Maps and slices in it are shared with
// others that only read.
func (f *Fleet) machines(d cluster.Desired, fresh []*watcher) map[string]cluster.Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range fresh {
		w.awaited = false // from here on its changes are news
	}
	nodes := d.AllNodes()
	out := make(map[string]cluster.Machine, len(nodes))
	for i := range nodes {
		name := nodes[i].Name
		if w := f.watchers[name]; w != nil && !f.closed {
			m := w.machine
			if m.Unpulled = w.lackedImages(d.Configs[name].AtEnd(), time.Now().Add(-pulledFor)); w.dryRun.found != nil {
				m.Change = w.changeOf(&d)
			}
			out[name] = m
		} else {
			out[name] = cluster.Machine{Why: errClosed.Error()}
		}
	}
	return out
}

// currentKeys are the newest keys, for a new connection.
func (f *Fleet) currentKeys() (keys, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keys, f.keysErr
}

var errClosed = errors.New("the agent is stopping")

// enter begins a change: its context ends with the fleet's too, and Close waits
// for leave.
func (f *Fleet) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, errClosed
	}
	f.running.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(f.ctx, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		f.running.Done()
	}, nil
}

// seen waits until a machine is seen in a way, or for noticeWithin.
// The watcher is asked to look again now and then, so that no plan is made from
// what was true before a change.
func (f *Fleet) seen(ctx context.Context, node string, ok func(cluster.Machine) bool) {
	ctx, cancel := context.WithTimeout(ctx, noticeWithin)
	defer cancel()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		f.mu.Lock()
		w := f.watchers[node]
		if w == nil || ok(w.machine) {
			f.mu.Unlock()
			return
		}
		moved := w.moved
		f.mu.Unlock()
		select {
		case <-moved:
		case <-again.C:
			w.poke()
			again.Reset(250 * time.Millisecond)
		case <-ctx.Done():
			return
		}
	}
}
