package agent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/reconcile/bounds"
	"github.com/talos-agent/talos-agent/reconcile/helm"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources/git"
)

// examineWithin bounds an examination: the socket gives up on an answer after a
// minute. What did not answer by then is told so.
const (
	examineWithin = 50 * time.Second
	readWithin    = 30 * time.Second // of it, for the repository
)

// keepExamination is how long the result of an examination answers whoever may only
// read: they may ask as often as they like, and it asks a lot of others.
const keepExamination = 5 * time.Second

// examination is one that is under way, or its result.
type examination struct {
	done  chan struct{}
	exam  doctor.Examination
	err   error
	ended time.Time // zero: it is under way
}

// Examine implements api.Agent: what the agent sees of its host with its own
// credentials, judged. It asks, and changes nothing. One is under way at a time, and
// answers everybody who asks meanwhile; fresh wants one that begins now.
func (a *Agent) Examine(ctx context.Context, fresh bool) (doctor.Examination, error) {
	for {
		e, mine := a.joinExamination(fresh)
		if e == nil {
			return doctor.Examination{}, errors.New("the agent is stopping")
		}
		select {
		case <-e.done:
		case <-ctx.Done():
			return doctor.Examination{}, ctx.Err()
		}
		if mine || !fresh {
			return e.exam, e.err
		}
	}
}

// joinExamination returns the examination to wait for, and whether it begins now; nil
// when the agent stops.
func (a *Agent) joinExamination(fresh bool) (e *examination, mine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopping {
		return nil, false
	}
	if e := a.examined; e != nil && (e.ended.IsZero() || !fresh && e.err == nil && time.Since(e.ended) < keepExamination) {
		return e, false
	}
	e = &examination{done: make(chan struct{})}
	a.examined = e
	a.wg.Go(func() {
		defer close(e.done)
		defer func() {
			if v := recover(); v != nil {
				e.err = fault.Internal(v)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			e.ended = time.Now()
		}()
		e.exam, e.err = a.examine()
	})
	return e, true
}

// examine makes an examination.
func (a *Agent) examine() (doctor.Examination, error) {
	ctx, cancel := context.WithTimeout(a.ctx, examineWithin)
	defer cancel()
	x := &examiner{a: a, charts: a.c.Charts}
	x.charts.Dial, x.charts.WrapCharts = a.c.Dial, a.gate.HTTP("charts")
	x.see(ctx)
	return doctor.Examination{Wants: x.out.Wants, Checks: x.out.Judge()}, a.ctx.Err()
}

// examiner is one examination.
type examiner struct {
	a      *Agent
	charts helm.Config
	specs  []cluster.Spec
	out    doctor.Agent
}

func (x *examiner) see(ctx context.Context) {
	policy := x.a.c.Policy()
	x.out.Wants = doctor.Wants{Token: x.a.pve.TokenID(), Pool: policy.Pool, Images: cmp.Or(x.a.c.Sources.Inventory.ImageDatastore, "local"),
		Datastores: policy.Datastores, Bridges: policy.Bridges, Mappings: mappingPaths(policy), HA: policy.HA, Chosen: len(x.a.c.Clusters) > 0}
	if path, err := x.a.pve.CheckAccessLog(); path != "" {
		readable := doctor.Look(path, err)
		x.out.AccessLog, x.out.InPlace = &readable, x.a.c.InPlace
	}
	x.out.Doubt = policy.Problems.First()
	// Proxmox VE calls a host what stands before the first dot of its name.
	x.out.Machine, _, _ = strings.Cut(x.a.c.Host, ".")
	var wg sync.WaitGroup
	wg.Go(func() { x.door(ctx) })
	wg.Go(func() { x.repository(ctx) })
	wg.Wait()
	x.out.Now = time.Now()
	for _, s := range x.specs {
		x.out.Wants.Clusters = append(x.out.Wants.Clusters, doctor.ClusterOf(s))
	}
	if x.out.API.Door.Known {
		wg.Go(func() { x.proxmox(ctx) })
	} else {
		x.unreached()
	}
	wg.Go(func() { x.forge(ctx) })
	x.sources(ctx, &wg)
	wg.Wait()
}

// door knocks at the API.
func (x *examiner) door(ctx context.Context) {
	x.out.API.URL = x.a.c.Proxmox.URL
	d, err := x.a.pve.Knock(ctx)
	if err != nil {
		fault, names := proxmox.FaultOf(err)
		x.out.API.Door, x.out.API.Fault, x.out.API.Names = doctor.Unseen[doctor.Door](err), doctor.Fault(fault), names
		return
	}
	door := doctor.Door{Version: d.Version, NotAfter: d.NotAfter}
	if !d.Date.IsZero() {
		// The answer was dated somewhere between, and its date has whole seconds.
		took := d.Answered.Sub(d.Asked)
		door.Skew, door.Blur = d.Date.Add(500*time.Millisecond).Sub(d.Asked.Add(took/2)), took/2+time.Second
	}
	x.out.API.Door = doctor.Saw(door)
}

// repository reads what the clusters ask for. Where it cannot be read, what they
// asked for before counts.
func (x *examiner) repository(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	tree, err := x.a.repo.Fetch(ctx)
	if err != nil {
		x.out.Repository, x.out.Vacant = doctor.Unseen[string](err), errors.Is(err, git.ErrEmpty)
		for _, name := range x.a.Clusters() {
			if m, err := x.a.find(name); err == nil {
				if d, ok := m.Desired(); ok {
					x.specs = append(x.specs, d.Spec)
				}
			}
		}
		return
	}
	x.out.Repository = doctor.Saw(tree.Revision.Short())
	names, problems, err := x.a.repo.Clusters(ctx, tree)
	x.judged("", problems, err)
	for _, name := range names {
		snap, problems, err := x.a.repo.Snapshot(ctx, tree, name)
		if err == nil && !problems.HasErrors() {
			problems = append(append(problems, machineconfig.Check(snap)...), x.refused(snap.Spec)...)
			x.specs = append(x.specs, snap.Spec)
		}
		if !x.judged(name, problems, err) {
			x.out.Inventories = append(x.out.Inventories, doctor.Inventory{Cluster: name})
		}
	}
}

// refused is what a cluster asks for that the host's policy does not allow.
func (x *examiner) refused(s cluster.Spec) (out cluster.Problems) {
	for _, b := range bounds.OfSpec(s, x.a.c.Policy()) {
		out = append(out, cluster.Problem{Severity: cluster.Error, Message: b.Subject + ": " + b.Message, Hint: b.Hint})
	}
	if message, hint := bounds.MissingWindow(s, x.a.c.Policy()); message != "" {
		out = append(out, cluster.Problem{Severity: cluster.Error, Message: s.Name + ": " + message, Hint: hint})
	}
	return out
}

// judged notes what is wrong with a cluster, and reports whether anything is.
func (x *examiner) judged(name string, problems cluster.Problems, err error) bool {
	if err != nil {
		x.out.Inventories = append(x.out.Inventories, doctor.Inventory{Cluster: name, Problem: err.Error(), Hint: fault.HintOf(err)})
		return true
	}
	wrong := false
	for _, p := range problems {
		if p.Severity == cluster.Error {
			hint := p.Hint
			p.Hint = ""
			x.out.Inventories = append(x.out.Inventories, doctor.Inventory{Cluster: name, Problem: p.String(), Hint: hint})
			wrong = true
		}
	}
	return wrong
}

var errUnreached = errors.New("the API of Proxmox VE was not reached")

// unreached says of everything behind the API why it is not known.
func (x *examiner) unreached() {
	x.out.Granted = doctor.Unseen[map[string][]string](errUnreached)
	x.out.Pool, x.out.Quorum = doctor.Unseen[bool](errUnreached), doctor.Unseen[bool](errUnreached)
	x.out.VMs, x.out.HA, x.out.Backups = doctor.Unseen[map[int]string](errUnreached), doctor.Unseen[[]string](errUnreached), doctor.Unseen[[]doctor.Backup](errUnreached)
}

// proxmox asks the API for everything that matters, a few at a time: it has
// three workers.
func (x *examiner) proxmox(ctx context.Context) {
	pve := x.a.pve
	hosts, guests, err := pve.Inhabitants(ctx)
	x.out.VMs = doctor.Look(guests, err)
	x.out.Granted = doctor.Look(pve.Privileges(ctx, ""))
	x.out.Wants.Needs = needs(x.out.Wants, hosts)
	x.out.Held = map[string]doctor.Fact[[]string]{}
	for _, n := range x.out.Wants.Needs {
		may, err := pve.Privileges(ctx, n.Path)
		x.out.Held[n.Path] = doctor.Look(may[n.Path], err)
	}
	x.out.Pool = doctor.Look(pve.PoolExists(ctx, x.out.Wants.Pool))
	x.out.Quorum = doctor.Look(pve.Quorate(ctx))
	x.out.HA = doctor.Look(pve.HighlyAvailable(ctx))
	jobs, err := pve.BackupJobs(ctx)
	var backups []doctor.Backup
	for _, j := range jobs {
		backups = append(backups, doctor.Backup(j))
	}
	x.out.Backups = doctor.Look(backups, err)
	for _, host := range hosts {
		x.out.Hosts = append(x.out.Hosts, x.machine(ctx, host))
	}
}

// machine looks at one host, if it is asked for.
func (x *examiner) machine(ctx context.Context, host string) doctor.Machine {
	m := doctor.Machine{Name: host, Token: setup.Token(host)}
	asked := x.out.Wants.Places([]string{host})
	if !slices.ContainsFunc(asked, func(p doctor.Place) bool { return p.Host == host }) {
		return m
	}
	stores, err := x.a.pve.Storages(ctx, host)
	storages := map[string]doctor.Storage{}
	for name, s := range stores {
		storages[name] = doctor.Storage(s)
	}
	m.Storages = doctor.Look(storages, err)
	found, err := x.a.pve.Bridges(ctx, host)
	bridges := map[string]doctor.Bridge{}
	for name, b := range found {
		bridges[name] = doctor.Bridge{Active: b.Active, Address: b.Address, Ports: b.Ports, VLANAware: b.VLANAware, Vnet: b.Vnet}
	}
	m.Bridges = doctor.Look(bridges, err)
	return m
}

// needs are the privileges that what is asked for takes, one need a path.
func needs(w doctor.Wants, hosts []string) []doctor.Need {
	var out []doctor.Need
	add := func(g setup.Grant) {
		role := g.Needs()
		n := doctor.Need{Path: g.Path, Role: g.Role, Why: g.Why}
		for _, p := range role.Privileges {
			if g.Optional || p.Optional {
				n.Optional = append(n.Optional, p.Name)
			} else {
				n.Privileges = append(n.Privileges, p.Name)
			}
		}
		i := slices.IndexFunc(out, func(o doctor.Need) bool { return o.Path == g.Path })
		switch {
		case i < 0:
			out = append(out, n)
		case !strings.Contains(out[i].Role, g.Role):
			out[i].Role += "," + n.Role
			out[i].Why += "; " + n.Why
			out[i].Privileges = slices.Compact(slices.Sorted(slices.Values(append(out[i].Privileges, n.Privileges...))))
			out[i].Optional = slices.Compact(slices.Sorted(slices.Values(append(out[i].Optional, n.Optional...))))
		}
	}
	for _, p := range w.Places(hosts) {
		for _, images := range p.Images {
			for _, g := range setup.Grants(setup.Scope{Pool: w.Pool, Datastores: p.Datastores, Images: images, Bridges: p.Bridges, Mappings: p.Mappings, HA: w.HA, Hosts: hosts}) {
				add(g)
			}
		}
	}
	return out
}

// mappingPaths are the resource mappings that a policy allows, as the paths of privileges have them.
func mappingPaths(p cluster.Policy) []string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(p.Mappings)) {
		for _, name := range p.Mappings[kind] {
			out = append(out, device.Mapping{Kind: kind, Name: name}.Path())
		}
	}
	return out
}

func (x *examiner) forge(ctx context.Context) {
	if x.a.forge == nil {
		return
	}
	f := doctor.Look(x.a.c.Forge.Repository, x.a.forge.Look(ctx))
	x.out.Forge = &f
}

// nodesPullFrom are the registries of the images that every node needs: the
// kubelet and Talos' own, and those of Kubernetes.
var nodesPullFrom = []string{"ghcr.io", "registry.k8s.io"}

// sources begins to look at everything that images and charts come from.
func (x *examiner) sources(ctx context.Context, wg *sync.WaitGroup) {
	var mu sync.Mutex
	told := map[string]bool{}
	look := func(key string, see func(*doctor.Source)) {
		if told[key] {
			return
		}
		told[key] = true
		i := len(x.out.Sources)
		x.out.Sources = append(x.out.Sources, doctor.Source{})
		wg.Go(func() {
			var s doctor.Source
			see(&s)
			mu.Lock()
			defer mu.Unlock()
			x.out.Sources[i] = s
		})
	}
	answers := func(err error) doctor.Fact[string] { return doctor.Look("answers", err) }
	mu.Lock() // until the list has its length
	defer mu.Unlock()
	look("factory", func(s *doctor.Source) {
		host, err := x.a.images.factory.Look(ctx)
		*s = doctor.Source{What: "image factory", Address: host, Seen: answers(err)}
	})
	for _, spec := range x.specs {
		// Who may push must not choose whom the agent, or root, asks.
		if len(x.refused(spec)) > 0 {
			continue
		}
		for _, addon := range spec.Addons {
			if addon.Chart.Path != "" {
				continue
			}
			look("chart "+addon.Chart.Ref(), func(s *doctor.Source) {
				host, err := helm.Look(ctx, x.charts, addon.Chart)
				*s = doctor.Source{What: "chart " + addon.Chart.Name + " " + addon.Chart.Version, Address: host, Seen: answers(err)}
				if err == nil {
					s.Seen.Value = "is there"
				}
			})
		}
		for _, registry := range append([]string{spec.InstallerRegistry}, nodesPullFrom...) {
			at := cmp.Or(spec.Mirrors[registry], registry)
			look("registry "+at, func(s *doctor.Source) {
				*s = doctor.Source{What: "registry " + registry, Address: hostOf(at), Guests: true, Seen: answers(helm.LookRegistry(ctx, x.charts, at))}
			})
		}
	}
}

// hostOf is the host of an address that may be one.
func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return address
}
