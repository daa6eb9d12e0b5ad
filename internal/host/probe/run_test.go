package probe

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// TestRunProgram: a program that is killed for its time is reported with the limit
// and what to do, one that a person stops is not, and one that fails speaks for
// itself.
func TestRunProgram(t *testing.T) {
	_, err := runWithin(t.Context(), 10*time.Millisecond, "sleep", "600")
	if err == nil || !strings.Contains(err.Error(), "not done within 10ms") || strings.Contains(err.Error(), "killed") || !strings.Contains(fault.HintOf(err), "run it again") {
		t.Errorf("one that hangs: %v (%s)", err, fault.HintOf(err))
	}
	together, over := limitPrograms(t.Context(), 10*time.Millisecond)
	defer over()
	if _, err := RunProgram(together, "sleep", "600"); err == nil || !strings.Contains(err.Error(), "not done within 10ms") || !strings.Contains(fault.HintOf(err), "run it again") {
		t.Errorf("the last of several: %v (%s)", err, fault.HintOf(err))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := RunProgram(ctx, "sleep", "600"); !errors.Is(err, context.Canceled) || fault.HintOf(err) != "" {
		t.Errorf("one that is stopped: %v (%s)", err, fault.HintOf(err))
	}
	if _, err := RunProgram(t.Context(), "sh", "-c", "echo no such thing >&2; exit 2"); err == nil || err.Error() != "no such thing" {
		t.Errorf("one that fails: %v", err)
	}
}

// TestWatch: whoever waits is shown what for.
func TestWatch(t *testing.T) {
	var lines []string
	release, began := make(chan bool), make(chan bool)
	run := Watch(func(_ context.Context, name string, args ...string) ([]byte, error) {
		if args[1] == "/slow" {
			close(began)
			<-release
		}
		return []byte(name), nil
	}, func(line string) { lines = append(lines, line) })
	done := make(chan error)
	go func() {
		_, err := run(t.Context(), "/usr/bin/pvesh", "get", "/slow", "--output-format", "json")
		done <- err
	}()
	<-began
	if out, err := run(t.Context(), "/usr/bin/pvesh", "get", "/quick"); string(out) != "/usr/bin/pvesh" || err != nil {
		t.Errorf("%s, %v", out, err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	want := []string{"waiting for pvesh get /slow (0 done)", "waiting for pvesh get /slow and 1 more (0 done)", "waiting for pvesh get /slow (1 done)", ""}
	if !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
}
