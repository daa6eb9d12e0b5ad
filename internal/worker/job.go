package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Job is what a worker does with one request. It may ask its parent. An error is for
// people; what the parent is to decide on belongs into the result.
type Job func(request []byte, ask Ask) (result []byte, err error)

// Ask has the parent answer a question.
type Ask func(question []byte) (answer []byte, err error)

// argument is the first one of a worker; the name of the job follows.
const argument = "internal-worker"

// Register names a job. In a worker that was begun for it, the job runs at once and the
// process ends: packages register their jobs when they are initialized, so that every
// program that can begin a job, a test's too, can be its worker.
func Register(name string, job Job) string {
	if slices.Equal(os.Args[1:], []string{argument, name}) {
		os.Exit(serveJob(job, os.Stdin, os.Stdout))
	}
	jobs[name] = job
	return name
}

// jobs are the registered ones.
var jobs = map[string]Job{}

// Runner has a registered job done and returns its result: Run or RunHere.
type Runner func(ctx context.Context, job string, l Limits, request []byte, answer Answer) ([]byte, error)

// Answer answers what a job asks.
type Answer func(ctx context.Context, question []byte) ([]byte, error)

// RunHere is Run in this process, without any bound: for simulations that begin thousands of
// jobs whose requests they made themselves.
func RunHere(ctx context.Context, job string, _ Limits, request []byte, answer Answer) ([]byte, error) {
	return jobs[job](request, func(question []byte) ([]byte, error) { return answer(ctx, question) })
}

// message is what goes over the pipes, each as one line of JSON.
type message struct {
	Request  []byte `json:"request,omitempty"`  // first, to the worker
	Limits   Limits `json:"limits,omitzero"`    // with the request
	Question []byte `json:"question,omitempty"` // to the parent
	Answer   []byte `json:"answer,omitempty"`   // to the worker
	Result   []byte `json:"result,omitempty"`   // last, to the parent
	Err      string `json:"error,omitempty"`    // of the answer or the result
	Over     bool   `json:"over,omitempty"`     // the result
}

// The ends of a worker that has no result.
const (
	exitDone       = 0
	exitUnconfined = 3 // what confines it failed
	exitPipes      = 4 // its parent is not there any longer
)

// serveJob runs a job over the pipes, and returns the exit code of its process.
func serveJob(job Job, stdin io.Reader, stdout io.Writer) int {
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var first message
	// The bounds come with the request, and hold before a byte of it is looked at by what
	// could stumble over it: JSON of the parent's own making.
	if in.Decode(&first) != nil {
		return exitPipes
	}
	if err := confineProcess(first.Limits); err != nil {
		return exitUnconfined
	}
	ask := func(question []byte) ([]byte, error) {
		var m message
		if err := out.Encode(message{Question: question}); err != nil {
			return nil, err
		}
		if err := in.Decode(&m); err != nil {
			return nil, err
		}
		if m.Err != "" {
			return nil, errors.New(m.Err)
		}
		return m.Answer, nil
	}
	result, err := job(first.Request, ask)
	last := message{Result: result, Over: true}
	if err != nil {
		last.Err = fmt.Sprint(err)
	}
	if out.Encode(last) != nil {
		return exitPipes
	}
	return exitDone
}
