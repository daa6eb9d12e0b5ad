package kube

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/talos-agent/talos-agent/internal/lab/kube/registry"
	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// keptEvents is how many events of one resource a watch can be resumed over;
// older ones answer 410, as a compacted etcd does.
const keptEvents = 4096

var (
	errRaced   = errors.New("the object has been modified")
	errExpired = errors.New("too old resource version")
)

// store is one etcd and the registry of resources over it.
type store struct {
	seed   string // makes uids differ between stores
	wake   func() // reports that changes wait to be looked at
	serial atomic.Uint64
	// services is where addresses of services come from. It is set before
	// anything is served.
	services netip.Prefix
	security rules.PodSecurity

	mu      sync.Mutex
	rv      uint64
	tables  map[schema.GroupResource]*table
	order   []*resource // as discovery lists them
	changes []change
}

// table holds the objects of one resource.
type table struct {
	res     *resource
	objects map[string]*object
	keys    []string // sorted, as etcd sorts them
	log     []event
	dropped uint64        // version of the newest event no longer in log
	moved   chan struct{} // closed at the next event
}

// object is one version of a stored object. It never changes, so readers need
// no copy and its JSON is made once.
type object struct {
	rv   uint64
	body map[string]any

	once sync.Once
	json []byte // without kind and apiVersion
	err  error
}

// event is one change as watchers see it.
type event struct {
	rv       uint64
	old, new *object // nil: was not, or is no longer, there
}

// change is an event as the controllers see it.
type change struct {
	event
	res *resource
	key string
	// orphan keeps what the object owned when it goes.
	orphan bool
}

func newStore(seed string, wake func()) *store {
	s := &store{seed: seed, wake: wake, security: rules.NewPodSecurity(), tables: map[schema.GroupResource]*table{}}
	for _, r := range builtins {
		s.serveResource(r)
	}
	return s
}

// objectKey is the name of an object within its table. Cluster-wide objects
// have namespace "".
func objectKey(namespace, name string) string { return namespace + "/" + name }

func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

// content is the object as JSON without its kind and apiVersion: what lists of
// built-in objects hold, and the same in all versions.
func (o *object) content() ([]byte, error) {
	o.once.Do(func() {
		rest := maps.Clone(o.body)
		delete(rest, "kind")
		delete(rest, "apiVersion")
		o.json, o.err = json.Marshal(rest)
	})
	return o.json, o.err
}

// encodeTyped is the object as JSON.
func (o *object) encodeTyped(kind, apiVersion string) ([]byte, error) {
	rest, err := o.content()
	if err != nil {
		return nil, err
	}
	head := fmt.Appendf(make([]byte, 0, len(rest)+len(kind)+len(apiVersion)+32), `{"kind":%q,"apiVersion":%q,`, kind, apiVersion)
	return append(head, rest[1:]...), nil
}

// copyBody is a copy of the object that may be changed.
func (o *object) copyBody() map[string]any { return runtime.DeepCopyJSON(o.body) }

// copyStatus is a copy of the object whose status alone may be changed.
func (o *object) copyStatus() map[string]any {
	body := maps.Clone(o.body)
	body["metadata"] = maps.Clone(rules.MapAt(body, "metadata"))
	if status := rules.MapAt(body, "status"); status != nil {
		body["status"] = runtime.DeepCopyJSON(status)
	}
	return body
}

// serveResource adds a resource, or replaces how it is served.
func (s *store) serveResource(r *resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[r.gr()]; t != nil {
		i := slices.Index(s.order, t.res)
		t.res = r
		s.order[i] = r
		return
	}
	s.addTable(r)
}

func (s *store) addTable(r *resource) {
	s.tables[r.gr()] = &table{res: r, objects: map[string]*object{}, dropped: s.rv, moved: make(chan struct{})}
	s.order = append(s.order, r)
}

// unserveResource removes a resource; its watches end.
func (s *store) unserveResource(gr schema.GroupResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[gr]
	if t == nil {
		return
	}
	delete(s.tables, gr)
	s.order = slices.DeleteFunc(s.order, func(r *resource) bool { return r == t.res })
	close(t.moved)
}

// findResource finds a served resource, nil if there is none.
func (s *store) findResource(gr schema.GroupResource) *resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[gr]; t != nil {
		return t.res
	}
	return nil
}

// listResources returns all served resources.
func (s *store) listResources() []*resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

func (s *store) getObject(res *resource, key string) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[res.gr()]; t != nil {
		return t.objects[key]
	}
	return nil
}

// listObjects returns the objects of a namespace ("": of all) in the order of their
// keys, and the version of the store they are true for.
func (s *store) listObjects(res *resource, namespace string) ([]*object, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[res.gr()]
	if t == nil {
		return nil, s.rv
	}
	keys := t.keys
	if namespace != "" {
		from := sort.SearchStrings(keys, namespace+"/")
		to := sort.SearchStrings(keys, namespace+"0") // '0' follows '/'
		keys = keys[from:to]
	}
	out := make([]*object, len(keys))
	for i, k := range keys {
		out[i] = t.objects[k]
	}
	return out, s.rv
}

// commitObject stores next under key (nil: removes what is there) if have is still
// what is stored (nil: nothing), else it returns errRaced. next belongs to the
// store from then on.
func (s *store) commitObject(res *resource, key string, have *object, next map[string]any) (*object, error) {
	return s.writeObject(change{res: res, key: key, event: event{old: have}}, next)
}

func (s *store) writeObject(c change, next map[string]any) (*object, error) {
	s.mu.Lock()
	t := s.tables[c.res.gr()]
	if t == nil || t.objects[c.key] != c.old {
		s.mu.Unlock()
		return nil, errRaced
	}
	s.rv++
	c.rv = s.rv
	body := next
	if next == nil {
		// A deletion is a version of its own: the last state, stamped with it.
		body = maps.Clone(c.old.body)
		body["metadata"] = maps.Clone(rules.MapAt(body, "metadata"))
	}
	rules.MapAt(body, "metadata")["resourceVersion"] = strconv.FormatUint(s.rv, 10)
	stored := &object{rv: s.rv, body: body}
	switch {
	case next == nil:
		delete(t.objects, c.key)
		i, _ := slices.BinarySearch(t.keys, c.key)
		t.keys = slices.Delete(t.keys, i, i+1)
		c.old = stored
	case c.old == nil:
		i, _ := slices.BinarySearch(t.keys, c.key)
		t.keys = slices.Insert(t.keys, i, c.key)
		fallthrough
	default:
		t.objects[c.key] = stored
		c.new = stored
	}
	t.recordEvent(c.event)
	s.changes = append(s.changes, c)
	s.mu.Unlock()
	s.wake()
	return stored, nil
}

// recordEvent appends an event and lets watchers know.
func (t *table) recordEvent(e event) {
	if len(t.log) >= 2*keptEvents {
		t.dropped = t.log[len(t.log)-keptEvents-1].rv
		t.log = slices.Clone(t.log[len(t.log)-keptEvents:])
	}
	t.log = append(t.log, e)
	close(t.moved)
	t.moved = make(chan struct{})
}

// eventsSince returns the events of a resource after version rv, the version they
// lead up to, and a channel that is closed when there are more. errExpired means
// that events after rv are forgotten. (A version the store has not reached is
// waited for, as a real server does.)
func (s *store) eventsSince(res *resource, rv uint64) ([]event, uint64, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[res.gr()]
	if t == nil || rv < t.dropped {
		return nil, s.rv, nil, errExpired
	}
	i := sort.Search(len(t.log), func(i int) bool { return t.log[i].rv > rv })
	return t.log[i:len(t.log):len(t.log)], max(rv, s.rv), t.moved, nil
}

// readRegistry returns everything that is stored, as an etcd has it. A deletion is there while it is
// the last change of its resource.
func (s *store) readRegistry() (r world.Registry, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Revision = max(s.rv, 1)
	for _, res := range s.order {
		t, prefix := s.tables[res.gr()], registry.Prefix(res.group, res.name, res.typ == nil)
		for _, key := range t.keys {
			ns, name := splitKey(key)
			value, err := registry.Encode(t.objects[key].body, res.apiVersion(), res.kind)
			if err != nil {
				return r, fmt.Errorf("encode %s %s: %w", res.name, key, err)
			}
			r.Keys = append(r.Keys, world.RegistryKey{Key: registry.Key(prefix, ns, name), Value: value, Revision: t.objects[key].rv})
		}
		if n := len(t.log); n > 0 && t.log[n-1].new == nil {
			meta := rules.MapAt(t.log[n-1].old.body, "metadata")
			r.Keys = append(r.Keys, world.RegistryKey{Key: registry.Key(prefix, rules.TextAt(meta, "namespace"), rules.TextAt(meta, "name")), Revision: t.log[n-1].rv})
		}
	}
	return r, nil
}

// fillRegistry puts what an etcd held into a store that is empty. No watch can be resumed from before.
// It returns why it leaves out what it cannot read.
func (s *store) fillRegistry(r world.Registry) (unread []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rv = r.Revision
	for _, t := range s.tables {
		t.dropped = s.rv
	}
	fill := func(t *table) {
		prefix := registry.Prefix(t.res.group, t.res.name, t.res.typ == nil)
		for _, k := range r.Keys {
			ns, name, ok := registry.Split(prefix, k.Key, t.res.namespaced)
			if !ok {
				continue
			}
			body, err := registry.Decode(k.Value)
			if err != nil {
				unread = append(unread, fmt.Errorf("%s: %w", k.Key, err))
				continue
			}
			rules.MapAt(body, "metadata")["resourceVersion"] = strconv.FormatUint(k.Revision, 10)
			c := change{res: t.res, key: objectKey(ns, name), event: event{rv: k.Revision, new: &object{rv: k.Revision, body: body}}}
			t.objects[c.key] = c.new
			s.changes = append(s.changes, c)
		}
		t.keys = slices.Sorted(maps.Keys(t.objects))
	}
	for _, t := range s.tables {
		fill(t)
	}
	for _, o := range s.tables[resCRDs.gr()].objects {
		res := customResource(o)
		s.addTable(res)
		fill(s.tables[res.gr()])
	}
	slices.SortFunc(s.changes, func(a, b change) int { return cmp.Compare(a.rv, b.rv) })
	return unread
}

// takeChanges hands over what changed since it was last called.
func (s *store) takeChanges() []change {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.changes
	s.changes = nil
	return c
}

// createObject stores a new object of the simulation's own; it leaves one that is
// there already.
func (s *store) createObject(res *resource, body map[string]any) {
	meta := rules.MapAt(body, "metadata")
	body["apiVersion"], body["kind"] = res.apiVersion(), res.kind
	s.stampObject(res, meta)
	rules.SetDefaults(res.gr(), body)
	key := objectKey(rules.TextAt(meta, "namespace"), rules.TextAt(meta, "name"))
	if s.getObject(res, key) != nil {
		return
	}
	// errRaced: somebody made it in between, which is as good.
	_, _ = s.commitObject(res, key, nil, body)
}

// updateObject lets edit change a copy of an object and stores it, however often
// somebody is faster. edit returns false to leave the object alone.
func (s *store) updateObject(res *resource, key string, edit func(obj map[string]any) bool) {
	s.editObject(res, key, (*object).copyBody, edit)
}

// updateStatus is updateObject for an edit that changes nothing but the status: all
// else is not copied.
func (s *store) updateStatus(res *resource, key string, edit func(obj map[string]any) bool) {
	s.editObject(res, key, (*object).copyStatus, edit)
}

func (s *store) editObject(res *resource, key string, copyOf func(*object) map[string]any, edit func(obj map[string]any) bool) {
	for {
		have := s.getObject(res, key)
		if have == nil {
			return
		}
		next := copyOf(have)
		if !edit(next) {
			return
		}
		if _, err := s.commitObject(res, key, have, next); err == nil {
			return
		}
	}
}

// removeObject deletes an object whatever holds it.
func (s *store) removeObject(res *resource, key string) {
	for {
		have := s.getObject(res, key)
		if have == nil {
			return
		}
		if _, err := s.commitObject(res, key, have, nil); err == nil {
			return
		}
	}
}

// stampObject gives a new object what the server gives it.
func (s *store) stampObject(res *resource, meta map[string]any) {
	id := s.nextUnique()
	meta["uid"] = id[:8] + "-" + id[8:12] + "-4" + id[13:16] + "-8" + id[17:20] + "-" + id[20:32]
	meta["creationTimestamp"] = rules.FormatNow()
	if res.countsGenerations() {
		meta["generation"] = int64(1)
	}
	if rules.TextAt(meta, "name") == "" {
		meta["name"] = rules.TextAt(meta, "generateName") + rules.MakeSuffix(s.nextUnique())
	}
}

// countsGenerations reports whether the server counts the generations of such
// objects. (Of attachments it does not: recorded of Kubernetes 1.36.3.)
func (r *resource) countsGenerations() bool {
	return r != resAttachments && r.group != "" && (r.status || r.typ == nil) || r == resPods
}

// nextUnique returns 64 hex digits that no other call returns. They follow from
// the store's seed and the number of calls, not from chance.
func (s *store) nextUnique() string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%d", s.seed, s.serial.Add(1)))
	return hex.EncodeToString(h[:])
}
