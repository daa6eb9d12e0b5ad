package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
)

// Version is the version of the socket's API.
const Version = "v1"

// Group is the group whose members may read over the socket.
const Group = "talos-agent"

// Daemon is what the socket serves: what outlives the agents that come and go
// when the config changes, and the one that runs.
type Daemon interface {
	About() About
	// Changed is closed when a status may have changed.
	Changed() <-chan struct{}
	// Events returns what has happened lately, oldest first. EventsChanged is
	// closed when there is more.
	Events(q cluster.EventQuery) []cluster.Event
	EventsChanged() <-chan struct{}
	// Inside is what the daemon knows of its own insides.
	Inside() Inside
	// Agent is the agent that runs; ErrStarting between two.
	Agent() (Agent, error)
}

// Agent reconciles the clusters of one repository on one host.
type Agent interface {
	// Examine looks at the host with the agent's own credentials: now, or, where it
	// need not be fresh, some seconds ago.
	Examine(ctx context.Context, fresh bool) (doctor.Examination, error)
	// Clusters names the clusters of this host, sorted.
	Clusters() []string
	// Status returns how a cluster stands, also one that cannot be managed.
	Status(name string) (cluster.Status, error)
	// History returns the runs of a cluster, newest first.
	History(name string) ([]cluster.Run, error)
	// Reconcile fetches the repository and looks at everything of a cluster now,
	// ReconcileAll of every cluster, and also when none is known.
	Reconcile(name string) error
	ReconcileAll()
	// Cluster is a cluster that is managed. For a name that the agent does not
	// have the error is ErrUnknownCluster.
	Cluster(name string) (Cluster, error)
}

// Cluster is what can be asked of one cluster that is managed, and what root may
// have done with it.
type Cluster interface {
	// Forecast returns what will happen for the pushed revision.
	Forecast(ctx context.Context) (cluster.Forecast, error)
	// Render returns what the cluster, or one node of it, would be given; its secrets are
	// hidden unless they are to be shown.
	Render(node string, showSecrets bool) (cluster.Rendering, error)
	// ForecastDir returns what would happen if these files were the repository.
	ForecastDir(ctx context.Context, files fs.FS) (cluster.Forecast, error)
	// ForecastDestroy returns what destroy would delete. Both take the numbers of
	// VMs that go although they are protected in Proxmox VE.
	ForecastDestroy(ctx context.Context, despite []int) (cluster.Forecast, error)
	// Diff returns how the cluster, or one node of it, differs from what it would be
	// given: looked at now, or, where it need not be fresh, some seconds ago.
	Diff(ctx context.Context, node string, fresh bool) (cluster.Difference, error)
	// Usage returns what of its hosts and VMs is in use, now or some seconds ago.
	Usage(ctx context.Context) (usage.Report, error)
	Suspend() error
	Resume() error
	Accept(revision cluster.Revision) error
	AcceptBootstrap() error
	// Approve lets the plan with this digest go, which waits for approval.
	Approve(digest string) error
	// Upgrade lets the upgrade of the revision in force do what is ordered.
	Upgrade(order cluster.UpgradeOrder) error
	// CancelUpgrade withdraws what was ordered of the upgrade, by the command of a user.
	CancelUpgrade(by string) error
	// RollBack has the machine of a node boot the Talos that it ran before, by the command of a user.
	RollBack(node, by string) error
	// CancelRollback withdraws that, where its machine was not asked yet.
	CancelRollback(node, by string) error
	// RequestSnapshot has a snapshot of etcd taken now; the status shows when it is there.
	RequestSnapshot() error
	// ForecastForget returns what it means to take the machine of a node for lost.
	ForecastForget(node string) (cluster.Forecast, error)
	// Forget takes the machine of a node for lost; unfenced as in the Forecast.
	Forget(node string, unfenced bool) error
	// Destroy begins to delete what was shown, by VMID; without any, what would be
	// shown now.
	Destroy(shown, despite []int) error
	// Console calls each with what a node's VM prints, as it comes, until ctx
	// ends.
	Console(ctx context.Context, node string, each func(text string) error) error
	// Kubeconfig and Talosconfig mint credentials for people.
	Kubeconfig() ([]byte, error)
	Talosconfig() ([]byte, error)
}

// About is what the daemon reports about itself.
type About struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Config  string    `json:"config"`
	// Problems is what is wrong and no cluster's: a changed config that could not
	// be loaded, where the old one is in force, or a repository of which no
	// cluster is known because it cannot be read.
	Problems []string `json:"trouble,omitempty"`
	// StandsBy is why this agent does nothing, where another one of several acts, or none does yet; "": that is not so.
	StandsBy string `json:"standsBy,omitempty"`
	// Clusters are those that are managed, sorted. There are none while
	// they are unknown.
	Clusters []string `json:"clusters,omitzero"`
}

// ErrUnknownCluster is returned by an Agent for a name it does not have.
var ErrUnknownCluster = errors.New("no such cluster")

// ErrUnmanaged is returned by an Agent for a cluster of which nothing can be asked but
// its status, because it cannot be managed.
var ErrUnmanaged = errors.New("the cluster is not managed")

// ErrUnknownNode is returned by a Cluster for a node that it does not have.
var ErrUnknownNode = errors.New("no such node")

// ErrNoVM is returned by a Cluster for a node that is to have a VM, and has none.
var ErrNoVM = errors.New("has no VM")

// ErrStarting is returned by a Daemon while no agent runs.
var ErrStarting = cluster.WithReason(cluster.Starting, fault.WithHint(errors.New("the daemon is starting"), "ask again in a moment"))

// access is who may use a route.
type access int

const (
	forReaders access = iota // whoever may open the socket
	forRoot
)

// route is one thing the socket can be asked.
type route struct {
	pattern string // of http.ServeMux
	access  access
	kind    string // of the answer
	does    string // for the reference page
	serve   func(*http.Request, Daemon) (any, error)
	// stream takes the place of serve where the answer goes on: a line for each
	// value.
	stream func(*http.Request, Daemon, sender) error
}

// AcceptRequest is the body of an accept.
type AcceptRequest struct {
	Revision  cluster.Revision `json:"revision,omitempty"`
	Bootstrap bool             `json:"bootstrap,omitempty"`
}

// ApproveRequest is the body of an approve.
type ApproveRequest struct {
	// Digest is that of the Forecast that was shown, or its first 12 characters at least.
	Digest string `json:"digest"`
}

// UpgradeRequest is the body of an upgrade: what is ordered, or that what was ordered is withdrawn.
type UpgradeRequest struct {
	cluster.UpgradeOrder
	Cancel bool `json:"cancel,omitempty"`
}

// RollbackRequest is the body of a rollback.
type RollbackRequest struct {
	By     string `json:"by,omitempty"` // the user who has asked for it, as the command names that
	Cancel bool   `json:"cancel,omitempty"`
}

// ForgetRequest is the body of a forget.
type ForgetRequest struct {
	Confirm string `json:"confirm"` // the node's name
	// Unfenced is that of the Forecast that was shown.
	Unfenced bool `json:"unfenced,omitempty"`
}

// DestroyRequest is the body of a destroy.
type DestroyRequest struct {
	Confirm string `json:"confirm"` // the cluster's name
	// DespiteProtection are VMs that go although they are protected in Proxmox VE.
	DespiteProtection []int `json:"despiteProtection,omitempty"`
	// VMs are the `vms` of the Forecast that was shown: no others are deleted. Without
	// them, those are that the daemon knows now.
	VMs []int `json:"vms,omitempty"`
}

// File is a file for a person, with secrets in it.
type File struct {
	Name    string `json:"name"`
	Content string `json:"content"`
}

// Inside is what a maintainer wants to know of a daemon that misbehaves. It
// holds no value of any variable.
type Inside struct {
	Goroutines string           `json:"goroutines"` // where they are
	Memory     map[string]int64 `json:"memory"`     // in bytes, and counts
	Metrics    string           `json:"metrics"`    // Prometheus' text; why there are none
}

// ConsoleText is a piece of what a VM printed, without anything that a terminal
// could obey.
type ConsoleText struct {
	Text string `json:"text"`
}

// routes is everything the socket can be asked, with the access of each beside
// it. docs/reference/api.md is made from it.
var routes = []route{
	{pattern: "GET /v1/about", access: forReaders, kind: kindAbout, does: "the daemon: version, start, the clusters it manages, and problems that are none of theirs", serve: func(_ *http.Request, d Daemon) (any, error) {
		return d.About(), nil
	}},
	{pattern: "GET /v1/doctor", access: forReaders, kind: "Examination", does: "what the agent sees of its host with its own credentials, check by check", serve: askAgent(func(r *http.Request, a Agent) (any, error) {
		return a.Examine(r.Context(), isFromRoot(r))
	})},
	{pattern: "GET /v1/status", access: forReaders, kind: "StatusList", does: "the status of every cluster", serve: func(_ *http.Request, d Daemon) (any, error) {
		all := []cluster.Status{}
		a, err := d.Agent()
		if err != nil {
			return all, nil // between two agents there are none
		}
		for _, name := range a.Clusters() {
			s, err := a.Status(name)
			if err != nil {
				return nil, err
			}
			all = append(all, s)
		}
		return all, nil
	}},
	{pattern: "GET /v1/watch", access: forReaders, kind: "Status", does: "a line for each cluster (`?cluster=NAME`: for one), and one more whenever its status changes; with `?about` an `About` too, and one more whenever the daemon's problems or its clusters change", stream: streamStatuses},
	{pattern: "GET /v1/events", access: forReaders, kind: "EventList", does: "the events of the log, oldest first; `?cluster=`, `node=`, `since=`, `after=` (a seq) and `last=` pick", serve: func(r *http.Request, d Daemon) (any, error) {
		q, err := eventQuery(r.URL.Query())
		if err != nil {
			return nil, err
		}
		return d.Events(q), nil
	}},
	{pattern: "GET /v1/events/stream", access: forReaders, kind: "Event", does: "the same, a line for each, and one more whenever there is a new one", stream: streamEvents},
	{pattern: "GET /v1/clusters/{name}/status", access: forReaders, kind: "Status", does: "the status of one cluster", serve: askAgent(func(r *http.Request, a Agent) (any, error) {
		return a.Status(r.PathValue("name"))
	})},
	{pattern: "GET /v1/clusters/{name}/plan", access: forReaders, kind: "Forecast", does: "everything that will happen for the pushed revision", serve: askCluster(func(r *http.Request, c Cluster) (any, error) {
		return c.Forecast(r.Context())
	})},
	{pattern: "GET /v1/clusters/{name}/render", access: forReaders, kind: "Rendering", does: "what the cluster would be given at the revision in force: VMs, machine configs and addons, with digests in place of secrets; `?node=NAME`: one node of it", serve: askCluster(func(r *http.Request, c Cluster) (any, error) {
		return c.Render(r.URL.Query().Get("node"), false)
	})},
	{pattern: "GET /v1/clusters/{name}/render/secrets", access: forRoot, kind: "Rendering", does: "the same, with its secrets as they are sent", serve: askCluster(func(r *http.Request, c Cluster) (any, error) {
		return c.Render(r.URL.Query().Get("node"), true)
	})},
	{pattern: "GET /v1/clusters/{name}/diff", access: forReaders, kind: "Difference", does: "how the cluster differs from that: fields of VMs and Node objects, unified diffs of machine configs and of the values of addons, with digests in place of secrets, and what cannot be compared; root has it looked at now, others see what was looked at in the last 10 seconds; `?node=NAME`: one node of it", serve: askCluster(func(r *http.Request, c Cluster) (any, error) {
		return c.Diff(r.Context(), r.URL.Query().Get("node"), isFromRoot(r))
	})},
	{pattern: "GET /v1/clusters/{name}/usage", access: forReaders, kind: "Usage", does: "what of the hosts and VMs of the cluster is in use, as Proxmox VE measures it: what is not known is absent", serve: askCluster(func(r *http.Request, c Cluster) (any, error) {
		return c.Usage(r.Context())
	})},
	{pattern: "GET /v1/clusters/{name}/runs", access: forReaders, kind: "RunList", does: "the history of the cluster: its runs, newest first", serve: askAgent(func(r *http.Request, a Agent) (any, error) {
		return a.History(r.PathValue("name"))
	})},
	{pattern: "GET /v1/clusters/{name}/runs/{number}", access: forReaders, kind: "Run", does: "one run", serve: askAgent(readRun)},
	{pattern: "GET /v1/clusters/{name}/destroy", access: forRoot, kind: "Forecast", does: "what destroy would delete, with every VM looked at now; `?despiteProtection=VMID`, once for each, as in the body of the POST", serve: askCluster(func(r *http.Request, c Cluster) (any, error) {
		var despite []int
		for _, text := range r.URL.Query()["despiteProtection"] {
			vmid, err := strconv.Atoi(text)
			if err != nil {
				return nil, &Error{Status: http.StatusBadRequest, Reason: cluster.RequestInvalid, Message: fmt.Sprintf("despiteProtection: %q is not a VMID", text)}
			}
			despite = append(despite, vmid)
		}
		return c.ForecastDestroy(r.Context(), despite)
	})},
	{pattern: "POST /v1/clusters/{name}/plan", access: forRoot, kind: "Forecast", does: "everything that would happen if the tar in the body were the repository", serve: func(r *http.Request, d Daemon) (any, error) {
		files, err := readTar(http.MaxBytesReader(nil, r.Body, maxTree))
		if err != nil {
			return nil, err
		}
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		return c.ForecastDir(r.Context(), files)
	}},
	{pattern: "POST /v1/reconcile", access: forRoot, kind: "Done", does: "fetch the repository and look at every cluster now; also while none is known", serve: askAgent(func(_ *http.Request, a Agent) (any, error) {
		a.ReconcileAll()
		return returnEmpty(nil)
	})},
	{pattern: "POST /v1/clusters/{name}/reconcile", access: forRoot, kind: "Done", does: "fetch the repository, look at everything of the cluster now, and try at once what has failed", serve: askAgent(func(r *http.Request, a Agent) (any, error) {
		return returnEmpty(a.Reconcile(r.PathValue("name")))
	})},
	{pattern: "POST /v1/clusters/{name}/suspend", access: forRoot, kind: "Done", does: "change nothing until resumed", serve: askCluster(func(_ *http.Request, c Cluster) (any, error) {
		return returnEmpty(c.Suspend())
	})},
	{pattern: "POST /v1/clusters/{name}/resume", access: forRoot, kind: "Done", does: "end a suspension", serve: askCluster(func(_ *http.Request, c Cluster) (any, error) {
		return returnEmpty(c.Resume())
	})},
	{pattern: "POST /v1/clusters/{name}/accept", access: forRoot, kind: "Done", does: "apply a revision that does not descend from the last one, or declare that bootstrap was never sent", serve: func(r *http.Request, d Daemon) (any, error) {
		var req AcceptRequest
		if err := decodeBody(r, &req); err != nil {
			return nil, err
		}
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		if req.Bootstrap {
			return returnEmpty(c.AcceptBootstrap())
		}
		return returnEmpty(c.Accept(req.Revision))
	}},
	{pattern: "POST /v1/clusters/{name}/approve", access: forRoot, kind: "Done", does: "let the plan with this digest go, which waits for approval", serve: func(r *http.Request, d Daemon) (any, error) {
		var req ApproveRequest
		if err := decodeBody(r, &req); err != nil {
			return nil, err
		}
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		return returnEmpty(c.Approve(req.Digest))
	}},
	{pattern: "POST /v1/clusters/{name}/upgrade", access: forRoot, kind: "Done", does: "let the upgrade of the revision in force go on now, outside of its window and without a soak, or despite nodes that are not Ready, or, with `cancel`, no longer; `order` of the status' `upgrade` shows it", serve: func(r *http.Request, d Daemon) (any, error) {
		var req UpgradeRequest
		if err := decodeBody(r, &req); err != nil {
			return nil, err
		}
		if req.IsZero() != req.Cancel {
			return nil, &Error{Status: http.StatusBadRequest, Reason: cluster.RequestInvalid, Message: "the body orders nothing, or to withdraw what it orders", Hint: "`now`, `despite`, or both; or `cancel`"}
		}
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		if req.Cancel {
			return returnEmpty(c.CancelUpgrade(req.By))
		}
		return returnEmpty(c.Upgrade(req.UpgradeOrder))
	}},
	{pattern: "POST /v1/clusters/{name}/snapshot", access: forRoot, kind: "Done", does: "take a snapshot of etcd now; `snapshots` of the status shows when it is there", serve: askCluster(func(_ *http.Request, c Cluster) (any, error) {
		return returnEmpty(c.RequestSnapshot())
	})},
	{pattern: "GET /v1/clusters/{name}/nodes/{node}/forget", access: forRoot, kind: "Forecast", does: "what would happen if the machine of a node were taken for lost, and what that means", serve: askCluster(func(r *http.Request, c Cluster) (any, error) {
		return c.ForecastForget(r.PathValue("node"))
	})},
	{pattern: "POST /v1/clusters/{name}/nodes/{node}/rollback", access: forRoot, kind: "Done", does: "have the machine of a node boot the Talos that it ran before, and stay there until another commit changes the files of the cluster; with `cancel`, withdraw that, where it was not asked yet", serve: func(r *http.Request, d Daemon) (any, error) {
		var req RollbackRequest
		if err := decodeBody(r, &req); err != nil {
			return nil, err
		}
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		if req.Cancel {
			return returnEmpty(c.CancelRollback(r.PathValue("node"), req.By))
		}
		return returnEmpty(c.RollBack(r.PathValue("node"), req.By))
	}},
	{pattern: "POST /v1/clusters/{name}/nodes/{node}/forget", access: forRoot, kind: "Done", does: "take the machine of a node for lost: it does not come back; the body names the node once more", serve: func(r *http.Request, d Daemon) (any, error) {
		var req ForgetRequest
		if err := decodeBody(r, &req); err != nil {
			return nil, err
		}
		if node := r.PathValue("node"); req.Confirm != node {
			return nil, &Error{Status: http.StatusBadRequest, Reason: cluster.NotConfirmed, Message: fmt.Sprintf("forget %s: not confirmed", node), Hint: "the body's `confirm` must be the node's name"}
		}
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		return returnEmpty(c.Forget(r.PathValue("node"), req.Unfenced))
	}},
	{pattern: "POST /v1/clusters/{name}/destroy", access: forRoot, kind: "Done", does: "suspend the cluster and delete everything of it that is ours; the body names it once more", serve: func(r *http.Request, d Daemon) (any, error) {
		var req DestroyRequest
		if err := decodeBody(r, &req); err != nil {
			return nil, err
		}
		if name := r.PathValue("name"); req.Confirm != name {
			return nil, &Error{Status: http.StatusBadRequest, Reason: cluster.NotConfirmed, Message: fmt.Sprintf("destroy %s: not confirmed", name), Hint: "the body's `confirm` must be the cluster's name"}
		}
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		return returnEmpty(c.Destroy(req.VMs, req.DespiteProtection))
	}},
	{pattern: "GET /v1/inside", access: forRoot, kind: "Inside", does: "what the daemon's goroutines do, its memory and its metrics, for debugging", serve: func(_ *http.Request, d Daemon) (any, error) {
		return d.Inside(), nil
	}},
	{pattern: "GET /v1/clusters/{name}/nodes/{node}/console", access: forRoot, kind: "Console", does: "what the node's VM prints on its serial port, in pieces, as it comes", stream: func(r *http.Request, d Daemon, send sender) error {
		c, err := findCluster(r, d)
		if err != nil {
			return err
		}
		return c.Console(r.Context(), r.PathValue("node"), func(text string) error {
			return send(ConsoleText{Text: text})
		})
	}},
	{pattern: "GET /v1/clusters/{name}/kubeconfig", access: forRoot, kind: "File", does: "a kubeconfig for people, freshly minted", serve: askCluster(func(_ *http.Request, c Cluster) (any, error) {
		b, err := c.Kubeconfig()
		return File{Name: "kubeconfig", Content: string(b)}, err
	})},
	{pattern: "GET /v1/clusters/{name}/talosconfig", access: forRoot, kind: "File", does: "a talosconfig for people, freshly minted", serve: askCluster(func(_ *http.Request, c Cluster) (any, error) {
		b, err := c.Talosconfig()
		return File{Name: "talosconfig", Content: string(b)}, err
	})},
}

// askAgent answers from the agent that runs.
func askAgent(ask func(*http.Request, Agent) (any, error)) func(*http.Request, Daemon) (any, error) {
	return func(r *http.Request, d Daemon) (any, error) {
		a, err := d.Agent()
		if err != nil {
			return nil, err
		}
		return ask(r, a)
	}
}

// askCluster answers from the cluster that the path names.
func askCluster(ask func(*http.Request, Cluster) (any, error)) func(*http.Request, Daemon) (any, error) {
	return func(r *http.Request, d Daemon) (any, error) {
		c, err := findCluster(r, d)
		if err != nil {
			return nil, err
		}
		return ask(r, c)
	}
}

// findCluster is the cluster that the path names.
func findCluster(r *http.Request, d Daemon) (Cluster, error) {
	a, err := d.Agent()
	if err != nil {
		return nil, err
	}
	return a.Cluster(r.PathValue("name"))
}

// readRun answers for one run.
func readRun(r *http.Request, a Agent) (any, error) {
	name, number := r.PathValue("name"), r.PathValue("number")
	runs, err := a.History(name)
	if err != nil {
		return nil, err
	}
	for _, run := range runs {
		if strconv.Itoa(run.Number) == number {
			return run, nil
		}
	}
	e := &Error{Status: http.StatusNotFound, Reason: cluster.RunUnknown, Message: fmt.Sprintf("%s has no run %s", name, number), Hint: "no run of it is known yet"}
	if n := len(runs); n > 0 {
		e.Hint = fmt.Sprintf("runs %d to %d are kept: `talos-agent history %s`", runs[n-1].Number, runs[0].Number, name)
	}
	return nil, e
}

func returnEmpty(err error) (any, error) { return struct{}{}, err }

// decodeBody reads a small JSON body strictly.
func decodeBody(r *http.Request, into any) error {
	dec := json.NewDecoder(io.LimitReader(r.Body, 64<<10))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return &Error{Status: http.StatusBadRequest, Reason: cluster.RequestInvalid, Message: "read the request's body: " + err.Error()}
	}
	return nil
}

// Error is an error as it crosses the socket.
type Error struct {
	Status  int            `json:"-"`
	Reason  cluster.Reason `json:"reason"`
	Message string         `json:"message"`
	Hint    string         `json:"hint,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Unwrap holds the hint.
func (e *Error) Unwrap() error { return &fault.Error{Op: e.Message, Hint: e.Hint} }
