package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Runner runs a program and returns what it prints. Arguments are never secret;
// what it prints may be.
type Runner func(ctx context.Context, name string, args ...string) ([]byte, error)

// runTimeout is how long a program may take: pvesh loads the whole API, which takes
// seconds, and on a busy host many of them.
const runTimeout = 2 * time.Minute

// RunProgram is the runner that runs programs.
func RunProgram(ctx context.Context, name string, args ...string) ([]byte, error) {
	return runWithin(ctx, runTimeout, name, args...)
}

// limitPrograms bounds the time of several programs together.
func limitPrograms(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(parent, limit, lateError(limit))
}

func lateError(limit time.Duration) error {
	return fault.WithHint(fmt.Errorf("not done within %v: %w", limit, context.DeadlineExceeded),
		"the host is busy (`uptime`), or something there hangs (`pvesm status`, `pvecm status`): run it again when it answers")
}

func runWithin(parent context.Context, limit time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C") // Proxmox VE answers in the language of the environment
	// What it has started may hold its output open when it is killed.
	cmd.WaitDelay = time.Second
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	switch words := text.OneLine(stderr.String()); {
	case err == nil:
		return out.Bytes(), nil
	case errors.Is(parent.Err(), context.DeadlineExceeded):
		return nil, context.Cause(parent) // that of limitPrograms has a hint
	case parent.Err() != nil:
		return nil, parent.Err()
	case ctx.Err() != nil:
		return nil, lateError(limit)
	case words != "":
		return nil, errors.New(words)
	}
	return nil, err
}

// Watch is a runner that shows what it waits for, each time a program begins or ends:
// a line for people, "" when nothing runs.
func Watch(run Runner, show func(line string)) Runner {
	var mu sync.Mutex
	var running []string
	done := 0
	report := func() {
		line := ""
		if len(running) > 0 {
			line = fmt.Sprintf("waiting for %s", running[0])
			if more := len(running) - 1; more > 0 {
				line += fmt.Sprintf(" and %d more", more)
			}
			line += fmt.Sprintf(" (%d done)", done)
		}
		show(line)
	}
	return func(ctx context.Context, name string, args ...string) ([]byte, error) {
		what := strings.Join(append([]string{filepath.Base(name)}, args[:min(2, len(args))]...), " ")
		mu.Lock()
		running = append(running, what)
		report()
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			i := slices.Index(running, what)
			running = slices.Delete(running, i, i+1)
			done++
			report()
		}()
		return run(ctx, name, args...)
	}
}
