package worker

import (
	"bytes"
	"context"
	"encoding/gob"
)

// Typed is a job whose request and result are values, which gob encodes.
type Typed[Q, A any] struct{ Job Job }

// RegisterTyped makes a job as Register does.
func RegisterTyped[Q, A any](name string, do func(request Q, ask Ask) (A, error)) Typed[Q, A] {
	return Typed[Q, A]{Register(name, func(b []byte, ask Ask) ([]byte, error) {
		var request Q
		if err := decodeGob(b, &request); err != nil {
			return nil, err
		}
		result, err := do(request, ask)
		if err != nil {
			return nil, err
		}
		return encodeGob(result)
	})}
}

// Run has a worker do the job, begun by a runner. Errors are as those of Run.
func (t Typed[Q, A]) Run(ctx context.Context, on Runner, l Limits, request Q, answer Answer) (A, error) {
	var result A
	b, err := encodeGob(request)
	if err != nil {
		return result, err
	}
	got, err := on(ctx, t.Job, l, b, answer)
	if err != nil {
		return result, err
	}
	return result, decodeGob(got, &result)
}

// AskFor asks the parent a question that AnswerTo answers.
func AskFor[A any](ask Ask, question any) (A, error) {
	var answer A
	b, err := encodeGob(question)
	if err != nil {
		return answer, err
	}
	got, err := ask(b)
	if err != nil {
		return answer, err
	}
	return answer, decodeGob(got, &answer)
}

// AnswerTo answers questions of AskFor.
func AnswerTo[Q, A any](answer func(ctx context.Context, question Q) (A, error)) Answer {
	return func(ctx context.Context, b []byte) ([]byte, error) {
		var question Q
		if err := decodeGob(b, &question); err != nil {
			return nil, err
		}
		got, err := answer(ctx, question)
		if err != nil {
			return nil, err
		}
		return encodeGob(got)
	}
}

func encodeGob(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func decodeGob(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }
