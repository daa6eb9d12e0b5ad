package rules

import (
	"testing"
	"time"
)

func TestStopTime(t *testing.T) {
	container := func(image string, preStop map[string]any) map[string]any {
		c := map[string]any{"image": image}
		if preStop != nil {
			c["lifecycle"] = map[string]any{"preStop": preStop}
		}
		return c
	}
	command := func(words ...any) map[string]any {
		return map[string]any{"exec": map[string]any{"command": words}}
	}
	sleep := func(s int64) map[string]any { return map[string]any{"sleep": map[string]any{"seconds": s}} }
	for name, c := range map[string]struct {
		grace      time.Duration
		containers []any
		took       time.Duration
		killed     bool
	}{
		"ends when asked":        {30 * time.Second, []any{container("web:1", nil)}, 500 * time.Millisecond, false},
		"stubborn":               {5 * time.Second, []any{container("reg.stubborn.test:5000/db:1", nil)}, 5 * time.Second, true},
		"the slower of two":      {9 * time.Second, []any{container("web:1", nil), container("stubborn.test/db:1", nil)}, 9 * time.Second, true},
		"only the name of it":    {30 * time.Second, []any{container("quay.io/stubborn.test/db:1", nil)}, 500 * time.Millisecond, false},
		"sleeps":                 {30 * time.Second, []any{container("web:1", sleep(10))}, 10500 * time.Millisecond, false},
		"sleeps by command":      {30 * time.Second, []any{container("web:1", command("/bin/sh", "-c", "nginx -s quit; sleep 12; true"))}, 12500 * time.Millisecond, false},
		"sleeps by itself":       {30 * time.Second, []any{container("web:1", command("/bin/sleep", "5"))}, 5500 * time.Millisecond, false},
		"sleeps for too long":    {30 * time.Second, []any{container("web:1", sleep(300))}, 30500 * time.Millisecond, false},
		"stubborn after a sleep": {30 * time.Second, []any{container("stubborn.test/db:1", sleep(300))}, 32 * time.Second, true},
	} {
		took, killed := StopTime(map[string]any{"spec": map[string]any{"containers": c.containers}}, c.grace)
		if took != c.took || killed != c.killed {
			t.Errorf("%s: %v, killed %v; want %v, %v", name, took, killed, c.took, c.killed)
		}
	}
}
