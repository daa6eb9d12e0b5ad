package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// A job over values that asks, and its question.
type (
	sentence struct{ Words []string }
	lookup   struct{ Word string }
)

var spelling = RegisterTyped("test-spell", func(s sentence, ask Ask) (sentence, error) {
	for i, word := range s.Words {
		spelled, err := AskFor[string](ask, lookup{word})
		if err != nil {
			return sentence{}, err
		}
		s.Words[i] = spelled
	}
	return s, nil
})

// TestTyped: values go to a worker and back, and so do the errors of both sides.
func TestTyped(t *testing.T) {
	answer := AnswerTo(func(_ context.Context, q lookup) (string, error) {
		if q.Word == "" {
			return "", errors.New("no word")
		}
		return strings.ToUpper(q.Word), nil
	})
	got, err := spelling.Run(t.Context(), Run, moderate, sentence{[]string{"a", "b"}}, answer)
	if err != nil || strings.Join(got.Words, " ") != "A B" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := spelling.Run(t.Context(), Run, moderate, sentence{[]string{""}}, answer); err == nil || err.Error() != "no word" {
		t.Errorf("%v", err)
	}
	if _, err := Run(t.Context(), spelling.Job, moderate, []byte("nonsense"), answer); err == nil {
		t.Error("nonsense was a request")
	}
}
