package world

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Call is one request that reached a service, named so that the same request of
// another run has the same name: what it asked, of whom, and the how-manieth
// of that kind it was.
type Call struct {
	System  string // pve, talos, kube, factory, charts, git, forge
	Op      string // "POST /nodes/{node}/qemu", "machine.MachineService/Bootstrap"
	Subject string // a VMID, a node's name, an object's name
}

// CallRecord is a call that happened.
type CallRecord struct {
	Call
	N        int // the how-manieth of this Call, from 1
	Mutating bool
	At       time.Duration
	// Fault is what strikes it; "": nothing does.
	Fault FaultKind
	// Lost: whoever asked had hung up before the call was carried out.
	Lost bool
}

// FaultKind is how a call fails.
type FaultKind string

// The faults. The first group works on any call; the second means something to
// one service only, which finds it in its Verdict.
const (
	LoseRequest FaultKind = "lose-request" // the connection breaks before the call is carried out
	LoseReply   FaultKind = "lose-reply"   // it is carried out, the answer never arrives
	Answer      FaultKind = "answer"       // refused with Status and Text, not carried out
	Slow        FaultKind = "slow"         // carried out after Delay
	CrashBefore FaultKind = "crash-before" // the agent dies as the call reaches the wire
	CrashAfter  FaultKind = "crash-after"  // the agent dies when the call was carried out, before it learns so

	EmptyList FaultKind = "empty-list" // a list answers 200 with nothing in it
	FailTask  FaultKind = "fail-task"  // the task the call starts fails with Text
	HangTask  FaultKind = "hang-task"  // the task takes Delay longer
	NeverUp   FaultKind = "never-up"   // the guest that is started never answers

	// What becomes of the data that a call streams, at the byte Bytes of it.
	BreakStream FaultKind = "break-stream" // the connection breaks there: the machine dies
	EndStream   FaultKind = "end-stream"   // it ends there as if that were all
	FlipBit     FaultKind = "flip-bit"     // that byte has another lowest bit
)

// Fault is a fault as data. Empty match fields match anything; Op may be a
// path.Match pattern.
type Fault struct {
	System, Op, Subject string
	Nth                 int // strike the Nth matching call only; 0: every one
	Times               int // strike so often, then stop; 0: no limit (with Nth: once)
	Kind                FaultKind
	Status              int
	Text                string
	Delay               time.Duration
	Bytes               int // from the end: negative

	seen, struck int
}

func (f *Fault) matchesCall(c Call) bool {
	if f.System != "" && f.System != c.System || f.Subject != "" && f.Subject != c.Subject {
		return false
	}
	if f.Op == "" || f.Op == c.Op {
		return true
	}
	ok, err := path.Match(f.Op, c.Op)
	return err == nil && ok
}

// Inject adds faults. Later ones strike only where no earlier one does.
func (w *World) Inject(faults ...Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range faults {
		w.faults = append(w.faults, &f)
	}
}

// Struck returns how often a fault has struck so far.
func (w *World) Struck() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.struck
}

// Heal removes every fault.
func (w *World) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = nil
}

// HealOnly removes the faults of one system: those of the others strike on.
func (w *World) HealOnly(system string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = slices.DeleteFunc(w.faults, func(f *Fault) bool { return f.System == system })
}

// OnCrash sets what is done when a crash fault strikes: cut the agent's link.
func (w *World) OnCrash(f func(Call)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onCrash = f
}

// OnCall sets a watcher of every call, for schedules that depend on them.
func (w *World) OnCall(f func(CallRecord)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onCall = f
}

// GivenConfig is a machine config that a machine is about to take; one that it was only asked
// about is none.
type GivenConfig struct {
	VMID    int
	Node    string // name of its VM
	Config  []byte
	First   bool // the machine has none yet
	Reboots bool // and reboots now, to take it
}

// OnConfig sets a watcher of every machine config that is given.
func (w *World) OnConfig(f func(GivenConfig)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onConfig = f
}

// ShowConfig has the watcher see a config before it is taken.
func (w *World) ShowConfig(c GivenConfig) {
	w.mu.Lock()
	watch := w.onConfig
	w.mu.Unlock()
	if watch != nil {
		watch(c)
	}
}

// Verdict is what the world decided about one call.
type Verdict struct {
	N     int
	Fault Fault // Kind "" : nothing fails
}

// Begin counts a call and decides whether and how it fails.
func (w *World) Begin(c Call, mutating bool) Verdict {
	w.mu.Lock()
	w.calls[c]++
	v := Verdict{N: w.calls[c]}
	if f := w.strike(c, false); f != nil {
		v.Fault = *f
	}
	rec := CallRecord{Call: c, N: v.N, Mutating: mutating, At: w.sinceStart(), Fault: v.Fault.Kind}
	w.history = append(w.history, rec)
	crash, watch := w.onCrash, w.onCall
	w.mu.Unlock()
	if watch != nil {
		watch(rec)
	}
	if v.Fault.Kind == CrashBefore && crash != nil {
		crash(c)
	}
	return v
}

// delayCall lets a call that has begun take its time on the way; an error means
// that whoever asked hung up, and the call with them.
func (w *World) delayCall(ctx context.Context, c Call, v Verdict, delay time.Duration) error {
	err := w.Sleep(ctx, delay)
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.history {
		if r := &w.history[i]; r.Call == c && r.N == v.N {
			r.Lost = true
		}
	}
	return err
}

// End is called when a call was carried out, before its answer leaves.
func (w *World) End(c Call, v Verdict) {
	if v.Fault.Kind != CrashAfter {
		return
	}
	w.mu.Lock()
	crash := w.onCrash
	w.mu.Unlock()
	if crash != nil {
		crash(c)
	}
}

// Calls returns every call so far, in order.
func (w *World) Calls() []CallRecord {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.history)
}

// CountCalls counts the calls for which keep is true.
func (w *World) CountCalls(keep func(CallRecord) bool) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.history {
		if keep(r) {
			n++
		}
	}
	return n
}

// ForgetCalls drops the record of calls, not their counts, so that a phase can
// be measured by itself and long runs stay small.
func (w *World) ForgetCalls() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = nil
}

type verdictKey struct{}

// VerdictOf returns the verdict about the call a handler is carrying out, for
// faults that only the service itself can bring about.
func VerdictOf(ctx context.Context) Verdict {
	v, _ := ctx.Value(verdictKey{}).(Verdict)
	return v
}

// HTTP puts the world's latency and faults in front of an HTTP service. name
// names each request; refuse writes a refusal as the service does.
func (w *World) HTTP(name func(*http.Request) (c Call, mutating bool), refuse func(http.ResponseWriter, int, string), next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, mutating := name(r)
		v := w.Begin(c, mutating)
		delay := w.Latency.Call
		switch v.Fault.Kind {
		case LoseRequest, CrashBefore:
			panic(http.ErrAbortHandler)
		case Answer:
			refuse(rw, v.Fault.Status, v.Fault.Text)
			return
		case Slow:
			delay += v.Fault.Delay
		}
		if w.delayCall(r.Context(), c, v, delay) != nil {
			panic(http.ErrAbortHandler)
		}
		r = r.WithContext(context.WithValue(r.Context(), verdictKey{}, v))
		if v.Fault.Kind == LoseReply || v.Fault.Kind == CrashAfter {
			next.ServeHTTP(newDiscard(), r)
			w.End(c, v)
			panic(http.ErrAbortHandler)
		}
		if strings.HasPrefix(c.Op, "WATCH ") {
			rw = &eventWriter{rw, w, c}
		}
		next.ServeHTTP(rw, r)
	})
}

// discard is a ResponseWriter whose answer nobody will see.
type discard struct{ header http.Header }

func newDiscard() *discard                     { return &discard{header: http.Header{}} }
func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// ErrBroken is what a gRPC client sees when a connection breaks.
var ErrBroken = status.Error(codes.Unavailable, "error reading from server: EOF")

// GRPC returns interceptors that put the world's latency and faults in front
// of a gRPC service. subject names the machine; mutating reports whether methods
// change something.
func (w *World) GRPC(subject func(context.Context) string, mutating func(method string) bool) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	enter := func(ctx context.Context, method string) (Call, Verdict, error) {
		c := Call{System: "talos", Op: method[1:], Subject: subject(ctx)}
		v := w.Begin(c, mutating(c.Op))
		delay := w.Latency.Call
		switch v.Fault.Kind {
		case LoseRequest, CrashBefore:
			return c, v, ErrBroken
		case Answer:
			return c, v, status.Error(codes.Code(v.Fault.Status), v.Fault.Text)
		case Slow:
			delay += v.Fault.Delay
		}
		return c, v, w.delayCall(ctx, c, v, delay)
	}
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		c, v, err := enter(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		resp, err := handler(context.WithValue(ctx, verdictKey{}, v), req)
		w.End(c, v)
		if v.Fault.Kind == LoseReply || v.Fault.Kind == CrashAfter {
			return nil, ErrBroken
		}
		return resp, err
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		c, v, err := enter(ss.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		if v.Fault.Kind == LoseReply || v.Fault.Kind == CrashAfter {
			if mutating(c.Op) { // it has an end, and is carried out up to that
				_ = handler(srv, unheardStream{ss})
			}
			w.End(c, v)
			return ErrBroken
		}
		out := &eventStream{ServerStream: ss, w: w, c: c}
		if err = handler(srv, &judgedStream{out, v}); out.broken {
			return ErrBroken
		}
		return err
	}
	return unary, stream
}

// unheardStream is a stream whose answers do not arrive.
type unheardStream struct{ grpc.ServerStream }

func (unheardStream) SendMsg(any) error { return nil }

// judgedStream is a stream whose handler can ask for the verdict about it.
type judgedStream struct {
	grpc.ServerStream
	verdict Verdict
}

func (s *judgedStream) Context() context.Context {
	return context.WithValue(s.ServerStream.Context(), verdictKey{}, s.verdict)
}
