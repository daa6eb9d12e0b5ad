package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"
)

// Limits bound one worker.
type Limits struct {
	CPU    time.Duration // processor time, in whole seconds
	Wall   time.Duration // from its begin to its end, the parent's answers included
	Memory int64         // bytes, beside what a worker takes that has nothing to do
	Output int64         // bytes of all it sends, before they are encoded
	// First: all clusters wait for it, so that it waits for no worker that is not first.
	First bool
}

// What a worker can take too much of.
const (
	Memory = "memory"
	CPU    = "processor time"
	Time   = "time"
	Output = "output"
)

// Exceeded is the error of a worker that was ended at one of its limits.
type Exceeded struct {
	What  string // one of the above
	Limit string // with its unit
}

// Error implements error.
func (e *Exceeded) Error() string { return fmt.Sprintf("it takes more than %s of %s", e.Limit, e.What) }

// ErrCrashed is the error of a worker that ended by itself without a result. What it
// printed may quote the request and is not shown.
var ErrCrashed = errors.New("the worker that reads it crashed")

// busy and first hold a token for each worker: so many run at once, whatever asks for them,
// so that the host keeps its processors and its memory.
var (
	busy  = make(chan struct{}, 2)
	first = make(chan struct{}, 1)
)

// Run has a worker do a job and returns its result. answer is asked what the job
// asks, one question at a time; nil: the job must ask nothing. When ctx ends, so does the
// worker. Errors are *Exceeded, the job's own, or about the process.
func Run(ctx context.Context, job Job, l Limits, request []byte, answer Answer) ([]byte, error) {
	places := busy
	if l.First {
		places = first
	}
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	late := &Exceeded{Time, l.Wall.String()}
	ctx, cancel := context.WithTimeoutCause(ctx, l.Wall, late)
	defer cancel()
	p, err := startProcess(ctx, job)
	if ctx.Err() != nil && err != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("begin worker: %w", err)
	}
	result, err := p.converse(ctx, l, request, answer)
	ended := p.end(err != nil)
	switch {
	case ctx.Err() != nil && (err != nil || ended != nil):
		return nil, context.Cause(ctx)
	case errors.Is(err, errEnded):
		return nil, p.explain(l)
	case err != nil:
		return nil, err
	}
	return result, nil
}

// process is a worker that runs.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	errors bounded
}

// startProcess starts this program again as a worker.
func startProcess(ctx context.Context, job Job) (*process, error) {
	self, err := findProgram()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, argument, job.Name)}
	p.cmd.Dir = string(os.PathSeparator)
	p.cmd.Env = listEnvironment()
	p.cmd.Stderr = &p.errors
	p.cmd.WaitDelay = time.Second // for pipes that something else holds, once it has ended
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// errEnded: the worker ended before its result.
var errEnded = errors.New("the worker ended")

// converse sends the request, answers questions and returns the result.
func (p *process) converse(ctx context.Context, l Limits, request []byte, answer Answer) ([]byte, error) {
	const encoded = 3 // bytes at most for two, in base64 within base64
	left := &io.LimitedReader{R: p.out, N: l.Output*encoded/2 + 1<<10}
	in, out := json.NewEncoder(p.in), json.NewDecoder(left)
	m := message{Request: request, Limits: l}
	for {
		if in.Encode(m) != nil {
			return nil, errEnded
		}
		var got message
		switch err := out.Decode(&got); {
		case err != nil && left.N <= 0:
			return nil, &Exceeded{Output, formatBytes(l.Output)}
		case err != nil:
			return nil, errEnded
		case got.Over && got.Err != "":
			return nil, errors.New(got.Err)
		case got.Over:
			return got.Result, nil
		case answer == nil:
			return nil, errors.New("the worker asks what it must not")
		}
		m = message{}
		var err error
		if m.Answer, err = answer(ctx, got.Question); err != nil {
			m = message{Err: err.Error()}
		}
	}
}

// end closes the pipes and waits for the process; one that is of no use is killed.
func (p *process) end(kill bool) error {
	_ = p.in.Close() // it may have closed it itself
	if kill {
		// What takes long to die by itself, such as one that prints why.
		_ = p.cmd.Process.Kill()
	} else {
		_, _ = io.Copy(io.Discard, p.out)
	}
	return p.cmd.Wait()
}

// shortages are what the runtime prints when it gets no memory. Source: Go 1.26,
// runtime/malloc.go, mem_linux.go and stack.go; the last two with the race detector.
var shortages = []string{"out of memory", "cannot allocate memory", "stack exceeds", "failed to allocate", "too many address space collisions"}

// explain is why a worker ended without a result, as far as it shows.
func (p *process) explain(l Limits) error {
	s := p.cmd.ProcessState
	switch {
	case p.errors.mentions("SIGXCPU"), s.UserTime()+s.SystemTime() >= l.CPU:
		return &Exceeded{CPU, l.CPU.String()}
	case slices.ContainsFunc(shortages, p.errors.mentions):
		return &Exceeded{Memory, formatBytes(l.Memory)}
	case s.ExitCode() == exitUnconfined:
		return errors.New("the worker that reads it cannot be confined")
	}
	return ErrCrashed
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ kept []byte }

func (b *bounded) Write(p []byte) (int, error) {
	const most = 4 << 10
	b.kept = append(b.kept, p[:min(len(p), most-min(len(b.kept), most))]...)
	return len(p), nil
}

func (b *bounded) mentions(words string) bool { return bytes.Contains(b.kept, []byte(words)) }

func formatBytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
