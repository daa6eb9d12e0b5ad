package daemon

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/election"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/state"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
)

// standby is how the daemon takes part where one of several acts. The zero value is of a daemon that is the only one.
type standby struct {
	elector *election.Elector // nil: it is the only one
	terms   *poolTerms
	stop    context.CancelFunc
	ended   chan struct{} // closed when the elector has ended
	stuck   bool          // the agent did not stop when it had to
	own     ownState
	lease   *election.Lease          // while this one leads; only the goroutine of run sets it
	takes   atomic.Pointer[[]string] // clusters that are suspended until their loops have reported that themselves
}

// electionFile is the file of the state directory that has what this agent knows of itself.
const electionFile = "election"

// ownState is the content of electionFile.
type ownState struct {
	// State identifies the state directory.
	State string `json:"state"`
	// Led: the agent has led with it, once.
	Led bool `json:"led,omitempty"`
}

// prepareElection makes what takes part in the election, before anybody asks how that stands. Without one what an earlier election left is
// removed: what the agent remembers of the time without is then the newest.
func (d *Daemon) prepareElection(c config.Election) error {
	if c.Pool == "" {
		return d.files.Remove(electionFile)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("ask for this host's name: %w", err)
	}
	if d.standby.own, err = readOwnState(d.files); err != nil {
		return err
	}
	d.standby.terms = &poolTerms{pool: c.Pool}
	if err := d.standby.terms.use(d.settings.Proxmox); err != nil {
		return err
	}
	d.standby.elector = election.New(election.Config{Terms: d.standby.terms, Host: host, State: d.standby.own.State, Run: rand.Text(), Lease: c.Lease, Most: config.MostLease, Suspended: d.suspended, Log: d.log})
	return nil
}

// takePart begins to take part in the election.
func (d *Daemon) takePart(ctx context.Context) {
	ctx, d.standby.stop = context.WithCancel(ctx)
	d.standby.ended = make(chan struct{})
	go func() {
		defer close(d.standby.ended)
		d.standby.elector.Run(ctx)
	}()
}

// readOwnState reads what this agent knows of itself, or makes it.
func readOwnState(files state.Dir) (own ownState, err error) {
	raw, err := files.Read(electionFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		own.State = rand.Text()
		return own, writeOwnState(files, own)
	case err != nil:
		return own, fmt.Errorf("read %s of the state directory: %w", electionFile, err)
	}
	if err := json.Unmarshal(raw, &own); err != nil || own.State == "" {
		return own, fault.Errorf("remove it: the agent then takes what it remembers for old when it leads next", "%s of the state directory cannot be read", electionFile)
	}
	return own, nil
}

func writeOwnState(files state.Dir, own ownState) error {
	raw, err := json.Marshal(own)
	if err == nil {
		err = journal.Replace(files, electionFile, append(raw, '\n'))
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("write %s of the state directory: %w", electionFile, err), journal.RecordsHint(err))
	}
	return nil
}

// leases has a lease when this agent begins to lead; nil where it is the only one.
func (d *Daemon) leases() <-chan election.Lease {
	if d.standby.elector == nil {
		return nil
	}
	return d.standby.elector.Leases()
}

// leaseEnds is closed when this agent may not act any more; nil while it does not lead.
func (d *Daemon) leaseEnds() <-chan struct{} {
	if d.standby.lease == nil {
		return nil
	}
	return d.standby.lease.Done
}

// begin has this agent act, until acting ends.
func (d *Daemon) begin(acting context.Context, lease election.Lease) error {
	d.standby.lease = &lease
	if err := d.takeOver(lease); err != nil {
		return err
	}
	if err := lease.Take(); err != nil {
		d.log.Warn("this agent was to lead, and does not", logging.Err, err)
		return nil // its time ends
	}
	d.standby.own.Led = true
	if err := writeOwnState(d.files, d.standby.own); err != nil {
		return err
	}
	return d.startAgent(acting, d.setMissing)
}

// takeOver makes what this agent remembers fit what it leads after. Where another one led since, that is old: what it has of nodes
// that were replaced, taken down or changed since would be acted upon. It is set aside, and counts as lost; what was suspended stays so,
// by the agent that led last, and by this one where it is not known that another one has led since.
func (d *Daemon) takeOver(lease election.Lease) error {
	s := &d.standby
	isOld := lease.Led != s.own.State && (lease.Led != "" || s.own.Led)
	suspended := slices.DeleteFunc(slices.Clone(lease.Suspended), func(name string) bool { return name == "" || strings.ContainsAny(name, "/\x00") }) // no agent writes such
	if isOld {
		own, err := d.setAside()
		if err != nil {
			return err
		}
		if lease.Led == "" || !s.own.Led {
			suspended = append(suspended, own...)
		}
	}
	slices.Sort(suspended)
	suspended = slices.Compact(suspended)
	if lease.Led != s.own.State {
		if err := d.suspendAgain(suspended); err != nil {
			return err
		}
	}
	d.mu.Lock()
	d.states = map[string]cluster.Status{} // those of an earlier time
	d.mu.Unlock()
	s.takes.Store(&suspended)
	return nil
}

// setAside sets the journals aside, and returns of which clusters they have that nothing is to be changed, or all is to be deleted.
func (d *Daemon) setAside() (suspended []string, err error) {
	names, err := d.files.Journals()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		j, err := journal.Open(d.files, name, cluster.ClusterID(d.settings.Owner, name))
		if err != nil {
			return nil, err
		}
		if facts := j.Facts(); facts.Suspended() || facts.Destroying() {
			suspended = append(suspended, name)
		}
		file := journal.NameOf(name)
		if err := d.files.Rename(file, file+".old"); err != nil {
			return nil, fault.WithHint(fmt.Errorf("set the journal of %s aside: %w", name, err), journal.RecordsHint(err))
		}
		d.log.Info("another agent may have led since; what this one remembers of the cluster is set aside", logging.Cluster, name, logging.Detail, file+".old")
	}
	return suspended, nil
}

// suspendAgain notes of clusters that they are suspended, as the agent that led before had them.
func (d *Daemon) suspendAgain(names []string) error {
	for _, name := range names {
		j, err := journal.Open(d.files, name, cluster.ClusterID(d.settings.Owner, name))
		if err == nil {
			err = j.Update(func(f *cluster.Facts) {
				f.Intend(cluster.Intent{Kind: cluster.IntendSuspend, At: time.Now().UTC()})
			})
		}
		if err != nil {
			return fmt.Errorf("suspend %s, as it was: %w", name, err)
		}
	}
	return nil
}

// suspended are the clusters of which a next leader must change nothing before a person lets it.
func (d *Daemon) suspended() (out []string) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for name, s := range d.states {
		if s.Suspended || s.Destroying {
			out = append(out, name)
		}
	}
	if takes := d.standby.takes.Load(); takes != nil {
		for _, name := range *takes {
			if _, reported := d.states[name]; !reported {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// keepSuspended has what is suspended count until the loops of the next agent have reported.
func (d *Daemon) keepSuspended() {
	names := d.suspended()
	d.standby.takes.Store(&names)
}

// dropSuspended drops a cluster that is not managed any more from what was suspended.
func (d *Daemon) dropSuspended(name string) {
	if takes := d.standby.takes.Load(); takes != nil {
		rest := slices.DeleteFunc(slices.Clone(*takes), func(other string) bool { return other == name })
		d.standby.takes.Store(&rest)
	}
}

// errStuck is that the agent did not stop when it had to.
var errStuck = errors.New("another agent may lead now, and this one did not stop in time; its process ends")

// yield stops the agent, which may not act any more. It fails where that does not end in time: then the process has to.
func (d *Daemon) yield() error {
	if !d.quit() {
		d.standby.stuck = true
		return errStuck
	}
	d.standby.lease.End() // whose last note has what is suspended, by the last statuses
	d.standby.lease = nil
	return nil
}

// leave ends to take part, after the agent was stopped.
func (d *Daemon) leave(stopped bool) {
	if d.standby.elector == nil {
		return
	}
	if d.standby.stop == nil {
		return // it did not begin
	}
	d.standby.stop()
	if lease := d.standby.lease; lease != nil && (!stopped || d.standby.stuck) {
		return // that it has stopped must not be noted
	} else if lease != nil {
		lease.End()
	}
	<-d.standby.ended
	d.standby.terms.close()
}

// standsBy is the error of a daemon whose agent does not act because another one does, or none yet; nil: that is not why.
func (d *Daemon) standsBy() error {
	if d.standby.elector == nil {
		return nil
	}
	s := d.standby.elector.State()
	hint := "ask again in a moment"
	switch {
	case s.Leads: // it starts, or stops
		return api.ErrStarting
	case s.Leader != "" && s.Why == "":
		hint = "run the command on " + s.Leader
	}
	return cluster.WithReason(cluster.StandingBy, fault.WithHint(errors.New("this agent stands by: "+s.String()), hint))
}

// poolTerms are the terms of an election, as resource pools in a pool of Proxmox VE: to make one is atomic in its cluster, a token
// with the right to one pool may, and any host of the cluster that has quorum answers.
type poolTerms struct {
	pool   string
	client atomic.Pointer[proxmox.Client]
}

var _ election.Terms = (*poolTerms)(nil)

// use has requests go with another config, as one with another token.
func (t *poolTerms) use(c proxmox.Config) error {
	c.AccessLog = "" // of VMs
	client, err := proxmox.New(c)
	if err != nil {
		return err
	}
	if was := t.client.Swap(client); was != nil {
		was.Close()
	}
	return nil
}

func (t *poolTerms) close() { t.client.Load().Close() }

const termPrefix = "term-"

func (t *poolTerms) name(number int) string {
	return fmt.Sprintf("%s/%s%d", t.pool, termPrefix, number)
}

// List implements election.Terms.
func (t *poolTerms) List(ctx context.Context) ([]election.Term, error) {
	pools, err := t.client.Load().ListPools(ctx, t.pool)
	var out []election.Term
	for _, p := range pools {
		digits, ok := strings.CutPrefix(p.Name, t.pool+"/"+termPrefix)
		if number, err := strconv.Atoi(digits); ok && err == nil && number > 0 && strconv.Itoa(number) == digits {
			out = append(out, election.Term{Number: number, Note: election.DecodeNote(p.Comment)})
		}
	}
	return out, err
}

// Create implements election.Terms.
func (t *poolTerms) Create(ctx context.Context, term election.Term) error {
	err := t.client.Load().CreatePool(ctx, proxmox.Pool{Name: t.name(term.Number), Comment: term.Note.Encode()})
	if errors.Is(err, proxmox.ErrPoolExists) {
		return election.ErrTaken
	}
	return err
}

// Write implements election.Terms.
func (t *poolTerms) Write(ctx context.Context, term election.Term) error {
	err := t.client.Load().WritePool(ctx, proxmox.Pool{Name: t.name(term.Number), Comment: term.Note.Encode()})
	if errors.Is(err, proxmox.ErrNoPool) {
		return election.ErrRemoved
	}
	return err
}

// Remove implements election.Terms.
func (t *poolTerms) Remove(ctx context.Context, number int) error {
	return t.client.Load().RemovePool(ctx, t.name(number))
}
