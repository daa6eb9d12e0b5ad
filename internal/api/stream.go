package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// maxStreams bounds the answers that go on for ever, readers' and root's each:
// they must not keep the short ones from being served.
const maxStreams = 16

// lineWithin is how long one line of a stream may take to be taken.
const lineWithin = 30 * time.Second

// sampled is how often the progress of running actions is looked at for those
// who watch: nothing reports it by itself.
const sampled = time.Second

// sender writes one line of a stream: of the route's kind, or an envelope as it
// is. Its error ends the stream.
type sender func(data any) error

// errTooMany refuses one stream more.
var errTooMany = &Error{Status: http.StatusServiceUnavailable, Reason: cluster.TooManyStreams, Message: fmt.Sprintf("%d others watch or follow already", maxStreams), Hint: "end one of them, or ask without --watch and --follow"}

// streams serves a route whose answer goes on until the client leaves or the
// daemon stops: one envelope on each line.
func (s *streams) serve(w http.ResponseWriter, r *http.Request, rt route, d Daemon) {
	slots := s.readers
	if p, _ := r.Context().Value(peerKey{}).(peer); p.isRoot() {
		slots = s.root
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		writeError(w, errTooMany)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	out := http.NewResponseController(w)
	began := false
	// The first line, or the first moment without one, reports that the question
	// was understood.
	begin := func() error {
		began = true
		w.Header().Set("Content-Type", "application/jsonl")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(http.StatusOK)
		return out.Flush()
	}
	send := func(data any) error {
		if !began {
			if err := begin(); err != nil {
				return err
			}
		}
		if data == nil {
			return nil
		}
		env, ok := data.(envelope)
		if !ok {
			env = envelope{Kind: rt.kind, APIVersion: Version, Data: data}
		}
		b, err := json.Marshal(env)
		if err != nil {
			return err
		}
		// Whoever stops reading is not waited for; a server that is no real one
		// has no deadlines.
		if err := out.SetWriteDeadline(time.Now().Add(lineWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if _, err := w.Write(append(b, '\n')); err != nil {
			return err
		}
		return out.Flush()
	}
	err := rt.stream(r.WithContext(ctx), d, send)
	if err != nil && !began && !errors.Is(err, context.Canceled) {
		writeError(w, err)
	}
}

// streams bounds and ends the streams of a server.
type streams struct {
	ctx           context.Context // ends with the server
	readers, root chan struct{}
}

func newStreams(ctx context.Context) *streams {
	return &streams{ctx: ctx, readers: make(chan struct{}, maxStreams), root: make(chan struct{}, maxStreams)}
}

// kindAbout is the kind of what the daemon reports about itself.
const kindAbout = "About"

// streamStatuses sends the status of each cluster, or of one, and again whenever it has
// changed; and where that is asked for, what the daemon reports about itself, and
// again whenever its problems or its clusters have changed.
func streamStatuses(r *http.Request, d Daemon, send sender) error {
	only := r.URL.Query().Get("cluster")
	about := r.URL.Query().Has("about")
	shown := map[string]string{}
	var was About
	for first := true; ; first = false {
		changed := d.Changed()
		now := d.About()
		names := now.Clusters
		if only != "" {
			names = []string{only}
		}
		maps.DeleteFunc(shown, func(name, _ string) bool { return !slices.Contains(names, name) }) // one that comes back is news
		busy := false
		for _, name := range names {
			s, err := statusOf(d, name)
			if first && only != "" && err != nil {
				return err
			}
			if err != nil {
				continue // the agent is being exchanged
			}
			busy = busy || len(s.Running) > 0
			if n := newsOf(s); n != shown[name] {
				shown[name] = n
				if err := send(s); err != nil {
					return err
				}
			}
		}
		if about && (first || !slices.Equal(now.Problems, was.Problems) || !slices.Equal(now.Clusters, was.Clusters)) {
			was = now
			if err := send(envelope{Kind: kindAbout, APIVersion: Version, Data: now}); err != nil {
				return err
			}
		}
		if first && len(shown) == 0 {
			if err := send(nil); err != nil {
				return err
			}
		}
		if err := awaitChange(r.Context(), changed, busy); err != nil {
			return err
		}
	}
}

// statusOf is how a cluster stands with the agent that runs.
func statusOf(d Daemon, name string) (cluster.Status, error) {
	a, err := d.Agent()
	if err != nil {
		return cluster.Status{}, err
	}
	return a.Status(name)
}

// awaitChange waits for a change; while something runs, for a moment at most.
func awaitChange(ctx context.Context, changed <-chan struct{}, busy bool) error {
	var sample <-chan time.Time
	if busy {
		t := time.NewTimer(sampled)
		defer t.Stop()
		sample = t.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-sample:
	}
	return nil
}

// newsOf is what is new in a status when it differs: not when the agent looks
// next, and not a pass in which nothing happened.
func newsOf(s cluster.Status) string {
	s.NextPass, s.Fetched = time.Time{}, time.Time{}
	var passes []cluster.PassStatus
	for _, p := range s.Passes {
		if len(p.Started)+len(p.Failed) > 0 || p.Error != "" {
			passes = append(passes, p)
		}
	}
	s.Passes = passes
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// streamEvents sends the events that a query picks, and those that come.
func streamEvents(r *http.Request, d Daemon, send sender) error {
	q, err := eventQuery(r.URL.Query())
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		changed := d.EventsChanged()
		events := d.Events(q)
		for _, e := range events {
			q.After = e.Seq
			if err := send(e); err != nil {
				return err
			}
		}
		if first && len(events) == 0 {
			if err := send(nil); err != nil {
				return err
			}
		}
		q.Last = 0 // of what was there at first
		if err := awaitChange(r.Context(), changed, false); err != nil {
			return err
		}
	}
}

// eventQuery reads the parameters of a question for events.
func eventQuery(v url.Values) (cluster.EventQuery, error) {
	q := cluster.EventQuery{Cluster: v.Get("cluster"), Node: v.Get("node")}
	wrong := func(name, want string) error {
		return &Error{Status: http.StatusBadRequest, Reason: cluster.RequestInvalid, Message: fmt.Sprintf("parameter %s: %q is not %s", name, v.Get(name), want)}
	}
	var err error
	if s := v.Get("after"); s != "" {
		if q.After, err = strconv.ParseUint(s, 10, 64); err != nil {
			return q, wrong("after", "the seq of an event")
		}
	}
	if s := v.Get("since"); s != "" {
		if q.Since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return q, wrong("since", "a time in RFC 3339")
		}
	}
	if s := v.Get("last"); s != "" {
		if q.Last, err = strconv.Atoi(s); err != nil || q.Last < 0 {
			return q, wrong("last", "a number")
		}
	}
	return q, nil
}

// encodeQuery writes a query as parameters.
func encodeQuery(q cluster.EventQuery) string {
	v := url.Values{}
	for name, s := range map[string]string{"cluster": q.Cluster, "node": q.Node} {
		if s != "" {
			v.Set(name, s)
		}
	}
	if q.After > 0 {
		v.Set("after", strconv.FormatUint(q.After, 10))
	}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.Format(time.RFC3339Nano))
	}
	if q.Last > 0 {
		v.Set("last", strconv.Itoa(q.Last))
	}
	return v.Encode()
}

// maxLine bounds one line of a stream: the status of a thousand nodes has half
// a megabyte.
const maxLine = 64 << 20

// ErrEnded means that a stream has ended because the daemon did.
var ErrEnded = errors.New("the daemon has stopped")

// taker takes a line of a stream.
type taker func(kind string, data json.RawMessage) error

// takeEach makes a taker of all lines of one type.
func takeEach[T any](each func(T) error) taker {
	return func(_ string, data json.RawMessage) error {
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("read the daemon's answer: %w", err)
		}
		return each(v)
	}
}

// stream asks a route whose answer goes on, and calls each with every line. It
// ends with ctx, with an error of each, or with ErrEnded. asked is called when
// the daemon has taken the question.
func (c *Client) stream(ctx context.Context, path string, asked func(), each taker) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://talos-agent"+path, nil)
	if err != nil {
		return err
	}
	patient := &http.Client{Transport: c.http.Transport}
	resp, err := patient.Do(req)
	if err != nil {
		return c.failed(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return c.answer(resp, nil)
	}
	asked()
	lines := bufio.NewReader(io.LimitReader(resp.Body, 1<<40))
	for {
		line, err := readLine(lines)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errLong):
			return err
		case err != nil:
			return ErrEnded
		}
		var env struct {
			Kind string          `json:"kind"`
			Data json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(line, &env); err != nil {
			return fmt.Errorf("read the daemon's answer: %w", err)
		}
		if err := each(env.Kind, env.Data); err != nil {
			return err
		}
	}
}

var errLong = fmt.Errorf("read the daemon's answer: a line has more than %d MiB", maxLine>>20)

// readLine reads a whole line, of a bounded length.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, errLong
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, err
		default:
			return bytes.TrimSpace(line), nil
		}
	}
}

// Watch calls each with the status of every cluster, or of one, and again
// whenever it has changed; and about, unless it is nil, with what the daemon reports
// of itself, and again whenever its problems or its clusters have changed. It
// returns when ctx ends, when one of them fails, or ErrEnded. asked is called once the daemon
// listens.
func (c *Client) Watch(ctx context.Context, name string, asked func(), each func(cluster.Status) error, about func(About) error) error {
	query, lines := url.Values{}, takeEach(each)
	if name != "" {
		query.Set("cluster", name)
	}
	if about != nil {
		query.Set("about", "")
		statuses, abouts := lines, takeEach(about)
		lines = func(kind string, data json.RawMessage) error {
			if kind == kindAbout {
				return abouts(kind, data)
			}
			return statuses(kind, data)
		}
	}
	return c.stream(ctx, "/v1/watch?"+query.Encode(), asked, lines)
}

// Follow calls each with the events that a query picks, then with those that
// come, and returns as Watch does.
func (c *Client) Follow(ctx context.Context, q cluster.EventQuery, asked func(), each func(cluster.Event) error) error {
	return c.stream(ctx, "/v1/events/stream?"+encodeQuery(q), asked, takeEach(each))
}

// Console calls each with what a node's VM prints, and returns as Watch does.
func (c *Client) Console(ctx context.Context, name, node string, asked func(), each func(string) error) error {
	return c.stream(ctx, clusterPath(name, "nodes/")+url.PathEscape(node)+"/console", asked, takeEach(func(t ConsoleText) error { return each(t.Text) }))
}

// Events asks for the events that a query picks, oldest first.
func (c *Client) Events(ctx context.Context, q cluster.EventQuery) ([]cluster.Event, error) {
	return requestJSON[[]cluster.Event](ctx, c, "GET", "/v1/events?"+encodeQuery(q), nil)
}

// History asks for the runs of a cluster, newest first.
func (c *Client) History(ctx context.Context, name string) ([]cluster.Run, error) {
	return requestJSON[[]cluster.Run](ctx, c, "GET", clusterPath(name, "runs"), nil)
}

// Run asks for one run of a cluster.
func (c *Client) Run(ctx context.Context, name string, number int) (cluster.Run, error) {
	return requestJSON[cluster.Run](ctx, c, "GET", clusterPath(name, "runs/")+strconv.Itoa(number), nil)
}
