package helm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// listWithin is how long Observe waits for the first list of releases.
const listWithin = 5 * time.Second

// Config wires a Releaser.
type Config struct {
	CacheDir string // required: where fetched charts are kept
	// Mirrors maps the beginning of a chart's URL (https://... of a
	// repository, oci://... of a registry) to that of a mirror. They may also
	// be the beginning of URLs an index names.
	Mirrors map[string]string
	// CA holds authorities, in PEM, that sources of charts are trusted by
	// besides those of the host.
	CA []byte
	// Dial makes connections; nil: the operating system's, and the proxy of the
	// environment for charts.
	Dial kubeapi.Dial
	// WrapCharts and WrapAPI put something between the client of chart sources,
	// or of Kubernetes, and its connections; nil: nothing.
	WrapCharts, WrapAPI func(http.RoundTripper) http.RoundTripper
	// Worker reads and renders charts; nil: worker.Run.
	Worker worker.Runner
	Log    *slog.Logger
	// API returns the base URL of a kube-apiserver that is ready; required.
	API func() (server string, ok bool)
	// OnChange is called when a release or a workload of one changed: it is worth
	// looking again. It must not block; nil: no call.
	OnChange func()
}

// Releaser sees and changes the Helm releases of one cluster. Close it when
// done.
type Releaser struct {
	api     func() (string, bool)
	dial    kubeapi.Dial
	wrap    kubeapi.Wrap
	log     *slog.Logger
	change  func()
	mirrors mirrors
	client  *http.Client // for charts
	worker  worker.Runner
	cache   *archives

	ctx    context.Context // of everything that goes on
	cancel context.CancelFunc
	wg     sync.WaitGroup

	observing chan struct{} // holds a token while Observe runs

	mu     sync.Mutex
	closed bool
	conn   *connection // nil: none yet
	view   *view       // nil: none
	parsed map[types.UID]content
	others map[types.UID]other // by revision, what it was made of otherwise than the inventory has
	// searches are for the objects of a revision.
	searches searches
	pins     map[string]string      // Chart.Ref -> digest
	busy     map[name]chan struct{} // closed when the action on a release ends

	excesses worker.Excesses // of charts
}

// New makes a Releaser over a folder of charts. It makes no request yet.
func New(c Config) (*Releaser, error) {
	switch {
	case c.CacheDir == "":
		return nil, errors.New("helm: config field CacheDir is not set")
	case c.API == nil:
		return nil, errors.New("helm: config field API is not set")
	}
	cache, err := openArchives(c.CacheDir)
	if err != nil {
		return nil, err
	}
	client, err := fetchClient(c)
	if err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Worker == nil {
		c.Worker = worker.Run
	}
	if c.OnChange == nil {
		c.OnChange = func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Releaser{
		api: c.API, dial: c.Dial, wrap: c.WrapAPI, log: c.Log, change: c.OnChange, worker: c.Worker, mirrors: c.Mirrors, client: client, cache: cache,
		ctx: ctx, cancel: cancel, observing: make(chan struct{}, 1),
		parsed: map[types.UID]content{}, others: map[types.UID]other{}, searches: searches{found: map[types.UID]search{}}, pins: map[string]string{}, busy: map[name]chan struct{}{},
	}, nil
}

// Close interrupts what is under way and waits for it. When it returns nothing
// of the Releaser runs any more.
func (r *Releaser) Close() {
	r.mu.Lock()
	r.closed = true
	conn := r.conn
	r.mu.Unlock()
	r.cancel()
	if conn != nil {
		conn.Close()
	}
	r.wg.Wait()
	r.client.CloseIdleConnections()
}

// errStopping is the error of everything after Close.
var errStopping = errors.New("the agent stops")

// begin counts an action in; end must follow. Its context ends with ctx and
// with Close.
func (r *Releaser) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, errStopping
	}
	r.wg.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(r.ctx, func() { cancel(errStopping) })
	return ctx, func() {
		unhook()
		cancel(nil)
		r.wg.Done()
	}, nil
}

// connection returns the connection to a server; a change that matters ends
// what went through the one before.
func (r *Releaser) connection(server string, c cluster.Credentials) (*connection, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, errStopping
	case c.Cert.IsZero():
		return nil, errors.New("the cluster has no secrets yet")
	case r.conn != nil && r.conn.serves(server, c, time.Now()):
		return r.conn, nil
	}
	conn, err := connectServer(server, c, r.dial, r.wrap)
	if err != nil {
		return nil, err
	}
	if r.conn != nil {
		r.conn.Close()
	}
	if r.view != nil {
		r.view.cancel()
	}
	r.conn, r.view = conn, nil
	return conn, nil
}

// Observe fills in o.Charts, for every addon, and o.Releases. Both need no call
// while nothing changes: charts lie in the cache, releases and workloads are
// watched.
func (r *Releaser) Observe(ctx context.Context, d cluster.Desired, o *cluster.Observed) {
	o.Charts = r.charts(d, o.Facts)
	select {
	case r.observing <- struct{}{}:
		defer func() { <-r.observing }()
	case <-ctx.Done():
		o.Releases = cluster.Unseen[map[string]cluster.Release]("another look is under way")
		return
	}
	seen, err := r.releases(ctx, d, o.Facts, o.Charts)
	if err != nil {
		o.Releases = cluster.Unseen[map[string]cluster.Release](kubeapi.Reason(err))
		return
	}
	o.Releases, o.Left, o.Namespaces = cluster.Saw(seen.releases), seen.left, seen.namespaces
}

// charts is CachedCharts, and has the charts known for Install.
func (r *Releaser) charts(d cluster.Desired, facts cluster.Facts) map[string]cluster.Seen[cluster.Fetched] {
	seen := r.CachedCharts(d, facts)
	for _, a := range d.Spec.Addons {
		if s := seen[a.Name]; s.Known {
			r.remember(a.Chart, s.Value.Digest)
		}
	}
	return seen
}

// CachedCharts reports which charts are in the cache, under the pins of the inventory or else
// those of the journal.
func (r *Releaser) CachedCharts(d cluster.Desired, facts cluster.Facts) map[string]cluster.Seen[cluster.Fetched] {
	seen := make(map[string]cluster.Seen[cluster.Fetched], len(d.Spec.Addons))
	for _, a := range d.Spec.Addons {
		pin := a.Chart.Digest
		if pin == "" {
			pin = facts.Charts[a.Chart.Ref()]
		}
		if a.Chart.Path != "" {
			pin = digestOfFiles(a.Chart.Files)
		}
		if pin == "" || !r.cached(a.Chart, pin) {
			seen[a.Name] = cluster.Unseen[cluster.Fetched]("")
			continue
		}
		seen[a.Name] = cluster.Saw(cluster.Fetched{Digest: pin, Release: digestOfRelease(a, pin)})
	}
	return seen
}

// remember keeps the digest a chart is known by, for Install.
func (r *Releaser) remember(c cluster.Chart, digest string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pins[c.Ref()] = digest
}

// format is the version of how a release is made from chart and values. When
// that changes, so that releases must be made again, it is raised.
const format = 1

// digestOfRelease is what a release of an addon carries that needs nothing
// done.
func digestOfRelease(a cluster.Addon, chart string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d\n%s\n%s\n%s\n", format, chart, a.Namespace, a.Name)
	h.Write(a.Values.Reveal())
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// digestOfFiles is the digest of a chart that lies in the inventory.
func digestOfFiles(files map[string][]byte) string {
	h := sha256.New()
	for _, name := range sortedNames(files) {
		fmt.Fprintf(h, "%q %d\n", name, len(files[name]))
		h.Write(files[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// observation is what a look at the releases shows.
type observation struct {
	releases   map[string]cluster.Release       // by addon
	left       []cluster.LeftRelease            // of ours that no addon has
	namespaces map[string]cluster.NamespaceMeta // of addons, and what of theirs is ours
}

// releases reports the state of the releases of the addons, and which of ours no addon
// has. A cluster that has no addons and never had one is not asked.
func (r *Releaser) releases(ctx context.Context, d cluster.Desired, facts cluster.Facts, charts map[string]cluster.Seen[cluster.Fetched]) (observation, error) {
	seen := observation{releases: map[string]cluster.Release{}, namespaces: map[string]cluster.NamespaceMeta{}}
	if len(d.Spec.Addons) == 0 && len(facts.Charts) == 0 && !r.watches() {
		return seen, nil
	}
	server, ok := r.api()
	if !ok {
		return observation{}, errors.New("no kube-apiserver is ready")
	}
	conn, err := r.connection(server, d.Access.Kube)
	if err != nil {
		return observation{}, err
	}
	v, err := r.viewThrough(conn)
	if err != nil {
		return observation{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	newest, left := map[string]revision{}, []revision(nil)
	tried, back := map[string]int64{}, map[string]int{}
	err = v.wait(ctx, func() bool {
		clear(newest)
		clear(seen.namespaces)
		left = v.left(d.Spec.Addons)
		for _, a := range d.Spec.Addons {
			if rev, ok := v.newest(name{a.Namespace, a.Name}); ok {
				newest[a.Name] = rev
				if a.RollBack {
					tried[a.Name], back[a.Name] = v.past(rev)
				}
			}
			if mark, ok := v.namespaces.items[a.Namespace]; ok {
				seen.namespaces[a.Namespace] = mark.meta()
			}
		}
		return true
	})
	if err != nil {
		return observation{}, err
	}
	for _, a := range d.Spec.Addons {
		rev, ok := newest[a.Name]
		if !ok {
			continue
		}
		rel := cluster.Release{Namespace: rev.name.namespace, Status: rev.status, Revision: rev.number, Digest: rev.digestFor(a.Ownership)}
		rel.Managed, rel.Kept = rev.manager == d.Spec.ID, r.keeps(ctx, conn, rev, d.Spec.ID)
		why, found := r.waits(ctx, conn, v, rev)
		rel.Why, rel.Missing = why, listObjects(found.missing)
		rel.Altered, rel.AlteredAgain = splitAltered(found.altered, rev.putBack, time.Unix(rev.made, 0))
		rel.Changed, rel.Tried, rel.Back = time.Unix(rev.changed, 0), time.Unix(tried[a.Name], 0), back[a.Name]
		rel.Edited, rel.Good = rel.Digest == changed, rev.good && rev.mine
		if rev.mine {
			rel.RolledBack = rev.rolledBack
		}
		r.describeOther(ctx, conn, rev, a, charts[a.Name].Value, &rel)
		rel.Ready, rel.Refused = rel.Why == "", isSecurity(rel.Why)
		seen.releases[a.Name] = rel
	}
	for _, rev := range left {
		n := cluster.ReleaseName{Namespace: rev.name.namespace, Name: rev.name.release}
		seen.left = append(seen.left, cluster.LeftRelease{ReleaseName: n, Status: rev.status, Kept: r.keeps(ctx, conn, rev, d.Spec.ID)})
	}
	r.forgetManifests(slices.AppendSeq(left, maps.Values(newest)))
	return seen, nil
}

// watches reports whether the releases are watched.
func (r *Releaser) watches() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view != nil
}

// changed stands for the digest of a release of ours that somebody else has
// upgraded or rolled back since: no digest of ours is like it.
const changed = "changed"

// digestFor is the digest a release is known by. A newer revision that somebody
// else made of a release of ours carries our labels on; who manages the release
// decides what that means: we, then it is to be changed back; or somebody else,
// then it is theirs.
func (r revision) digestFor(o cluster.Ownership) string {
	switch {
	case r.digest == "" || r.mine:
		return r.digest
	case o == cluster.BootstrapOnly:
		return ""
	default:
		return changed
	}
}

// viewThrough returns the view, begun again if it was lost.
func (r *Releaser) viewThrough(conn *connection) (*view, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errStopping
	}
	if r.view != nil && !r.view.over() {
		return r.view, nil
	}
	v, run, err := newView(r.ctx, conn, r.change)
	if err != nil {
		return nil, err
	}
	r.log.Debug("watch the releases", logging.Server, conn.server)
	r.view = v
	r.wg.Go(run)
	return v, nil
}

// forgetManifests forgets what was read of revisions that are not the newest
// any more.
func (r *Releaser) forgetManifests(newest []revision) {
	keep := map[types.UID]bool{}
	for _, rev := range newest {
		keep[rev.uid] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.searches.forget(keep)
	maps.DeleteFunc(r.parsed, func(uid types.UID, _ content) bool { return !keep[uid] })
	maps.DeleteFunc(r.others, func(uid types.UID, _ other) bool { return !keep[uid] })
}

// FetchChart brings a chart into the cache and returns its digest, in the
// notation of cluster.Chart.Digest. With a pin, the chart must be the one that
// was pinned, and one that lies in the cache is not fetched again. Without one,
// whatever the source sends is taken; it is for the caller to pin it.
//
// The error and its Hint name what is wrong with the source or the chart.
func (r *Releaser) FetchChart(ctx context.Context, a cluster.Addon, pin string) (digest string, err error) {
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return "", wrapError("fetch chart "+a.Chart.Ref(), err)
	}
	defer end()
	digest, err = r.fetchChart(ctx, a, pin)
	if err != nil {
		return "", wrapError("fetch chart "+a.Chart.Ref(), err)
	}
	r.remember(a.Chart, digest)
	return digest, nil
}

// Install makes the release of an addon what chart and values ask for: it
// installs it, upgrades it, or takes up what was interrupted. It returns when
// the objects are written. digest is that of chart and values together, as
// Observe reported it; a release that carries it already is left as it is.
//
// When ctx ends, no further call is made, and Install returns as soon as the
// one under way has ended.
func (r *Releaser) Install(ctx context.Context, d cluster.Desired, a cluster.Addon, digest string) error {
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return wrapError("install addon "+a.Name, err)
	}
	defer end()
	release, err := r.reserve(ctx, name{a.Namespace, a.Name})
	if err != nil {
		return wrapError("install addon "+a.Name, err)
	}
	defer release()
	if err := r.install(ctx, d, a, digest); err != nil {
		return wrapError("install addon "+a.Name, err)
	}
	return nil
}

// reserve waits until no other action is under way on a release.
func (r *Releaser) reserve(ctx context.Context, n name) (release func(), err error) {
	for {
		r.mu.Lock()
		other, taken := r.busy[n]
		if !taken {
			mine := make(chan struct{})
			r.busy[n] = mine
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				delete(r.busy, n)
				r.mu.Unlock()
				close(mine)
			}, nil
		}
		r.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
