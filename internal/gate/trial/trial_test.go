package trial

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEvaluate: a worker finds what the condition asks of its objects, the status and the time.
func TestEvaluate(t *testing.T) {
	r := Request{Objects: [][]byte{[]byte(`{"metadata":{"name":"a"},"status":{"copies":3,"share":0.5,"parts":[{"size":9007199254740993}]}}`)},
		Status: []byte(`{"etcd":{"members":3}}`), Now: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)}
	for condition, want := range map[string]string{
		`objects.all(o, o.status.copies == 3 && o.status.share < 1.0)`: "true",
		`objects[0].status.parts[0].size == 9007199254740993`:          "true",
		`status.etcd.members > 3`:                                      "false",
		`now > timestamp("2026-11-28T11:00:00Z")`:                      "true",
		`objects[0].status.lacks == 1`:                                 "false: no such key: lacks",
	} {
		r.Condition = condition
		holds, err := Evaluate(t.Context(), worker.Run, r)
		got := fmt.Sprint(holds)
		if err != nil {
			got += ": " + err.Error()
		}
		if got != want || TookTooMuch(err) {
			t.Errorf("%s: %s, want %s", condition, got, want)
		}
	}
	if _, err := Evaluate(t.Context(), worker.Run, Request{Condition: "true", Objects: [][]byte{[]byte("[")}}); err == nil {
		t.Error("what is no object was read")
	}
}

// TestBounds: what takes memory or time without a bound, though CEL counts it as few steps, ends its worker, and nothing else.
func TestBounds(t *testing.T) {
	twice := "a40 == a40"
	for i := 40; i > 0; i-- {
		twice = fmt.Sprintf("[[a%d, a%[1]d]].exists(a%d, %s)", i-1, i, twice)
	}
	for name, condition := range map[string]string{
		"a text within itself": `["` + strings.Repeat("a", 1000) + `"].exists(a, [a.replace("a", a)].exists(b, b.replace("a", b).size() > 3))`,
		"the same value":       "[1].exists(a0, " + twice + ")",
	} {
		_, err := Evaluate(t.Context(), worker.Run, Request{Condition: condition})
		if exceeded := new(worker.Exceeded); !errors.As(err, &exceeded) && !errors.Is(err, worker.ErrCrashed) || !TookTooMuch(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
