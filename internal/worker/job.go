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

// Job is what a worker does with one request. Do may ask the parent. An error of it is for
// people; what the parent is to decide on belongs into the result. Make one with Register.
type Job struct {
	Name string
	Do   func(request []byte, ask Ask) (result []byte, err error)
}

// Ask has the parent answer a question.
type Ask func(question []byte) (answer []byte, err error)

// argument is the first one of a worker; the name of the job follows.
const argument = "internal-worker"

// Register makes a job. In a worker that was begun for it, it is done at once and the
// process ends: packages register their jobs when they are initialized, so that every
// program that can begin a job, a test's too, can be its worker.
func Register(name string, do func(request []byte, ask Ask) ([]byte, error)) Job {
	job := Job{name, do}
	if slices.Equal(os.Args[1:], []string{argument, name}) {
		os.Exit(serveJob(job, os.Stdin, os.Stdout))
	}
	return job
}

// Runner has a job done and returns its result: Run, but in tests.
type Runner func(ctx context.Context, job Job, l Limits, request []byte, answer Answer) ([]byte, error)

// Answer answers what a job asks.
type Answer func(ctx context.Context, question []byte) ([]byte, error)

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
	result, err := job.Do(first.Request, ask)
	last := message{Result: result, Over: true}
	if err != nil {
		last.Err = fmt.Sprint(err)
	}
	if out.Encode(last) != nil {
		return exitPipes
	}
	return exitDone
}
