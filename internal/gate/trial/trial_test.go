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

// TestStatusUnknown: a condition that asks for a status that is not known is unknown, with the reason; whatever else is not.
func TestStatusUnknown(t *testing.T) {
	for _, c := range []struct {
		status, noStatus, condition, want string
	}{
		{"", "", `!has(status.nodes)`, "false: the status of the cluster is not known"},
		{"null", "", `!has(status.nodes)`, "false: the status of the cluster is not known"},
		{"", "it is too long", `status.size() == 0`, "false: the status of the cluster is not known: it is too long"},
		{"", "it is too long", `objects.size() == 0`, "true"},
		{"{}", "", `!has(status.nodes)`, "true"},
	} {
		holds, err := Evaluate(t.Context(), worker.Run, Request{Condition: c.condition, Status: []byte(c.status), NoStatus: c.noStatus})
		got := fmt.Sprint(holds)
		if err != nil {
			got += ": " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s of %q: %s, want %s", c.condition, c.status, got, c.want)
		}
	}
}

// TestTookTooMuch: a host that is busy lets an evaluation wait; that is no cost of its condition.
func TestTookTooMuch(t *testing.T) {
	for what, want := range map[string]bool{worker.Time: false, worker.CPU: true, worker.Memory: true, worker.Output: true} {
		if got := TookTooMuch(fmt.Errorf("evaluate it: %w", &worker.Exceeded{What: what})); got != want {
			t.Errorf("%s: %t", what, got)
		}
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
