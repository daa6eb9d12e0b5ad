package containers

import (
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// TestLogOptions reads a log of two containers, one of which ended a minute after it began.
func TestLogOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := map[string]any{
			"metadata": map[string]any{"name": "p"},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "a", "image": "a:1"}}},
		}
		Start(pod, "10.0.0.1", "10.244.0.2")
		time.Sleep(time.Minute)
		End(pod, true)
		log, ended, err := ReadLog(pod, "a", false)
		if err != nil || !ended || len(log) != 3 {
			t.Fatalf("%v, %v, %v", log, ended, err)
		}
		if state := rules.MapsAt(pod, "status", "containerStatuses")[0]; rules.TextAt(state, "state", "terminated", "startedAt") != "2000-01-01T00:00:00Z" {
			t.Errorf("the state is %v", state)
		}
		for query, want := range map[string]string{
			"":                                "container \"a\" of image \"a:1\" on the lab|no program runs in it: its start and its end are all that it logs|container \"a\" was killed at the end of its grace|",
			"tailLines=0":                     "",
			"tailLines=9&limitBytes=5":        "conta",
			"sinceSeconds=30&timestamps=true": "2000-01-01T00:01:00.000000000Z container \"a\" was killed at the end of its grace|",
			"sinceTime=2000-01-01T00:00:30Z&tailLines=2&limitBytes=11": "container \"",
		} {
			q, err := url.ParseQuery(query)
			if err != nil {
				t.Fatal(err)
			}
			o, err := ReadLogOptions("p", q)
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := o.Print(o.Cut(log)); strings.ReplaceAll(text, "\n", "|") != want {
				t.Errorf("%q: %q, want %q", query, text, want)
			}
		}
	})
}

func TestBadLogOptions(t *testing.T) {
	for query, want := range map[string]string{
		"tailLines=-1":   `PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0`,
		"limitBytes=0":   "limitBytes: Invalid value: 0: must be greater than 0",
		"sinceSeconds=0": "sinceSeconds: Invalid value: 0: must be greater than 0",
		"sinceSeconds=5&sinceTime=2000-01-01T00:00:30Z": "at most one of `sinceTime` or `sinceSeconds` may be specified",
		"tailLines=x":         "invalid syntax",
		"sinceTime=yesterday": "cannot parse",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadLogOptions("p", q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", query, err, want)
		}
	}
}
