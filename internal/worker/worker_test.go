package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestFirst: what is first waits for no worker that is not.
func TestFirst(t *testing.T) {
	for range cap(busy) {
		busy <- struct{}{}
	}
	defer func() {
		for range cap(busy) {
			<-busy
		}
	}()
	l := moderate
	l.First = true
	if got, err := Run(t.Context(), doubling, l, []byte("a"), nil); err != nil || string(got) != "aa" {
		t.Errorf("%s, %v", got, err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over"))
	if _, err := Run(ended, doubling, moderate, nil, nil); err == nil || err.Error() != "over" {
		t.Errorf("while all places are taken: %v", err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The jobs of these tests.
var (
	doubling = Register("test-double", func(request []byte, _ Ask) ([]byte, error) { return append(request, request...), nil })
	refusing = Register("test-refuse", func(request []byte, _ Ask) ([]byte, error) { return nil, fmt.Errorf("no %s today", request) })
	asking   = Register("test-ask", func(request []byte, ask Ask) ([]byte, error) {
		var all []byte
		for _, word := range bytes.Fields(request) {
			answer, err := ask(word)
			if err != nil {
				answer = []byte("(" + err.Error() + ")")
			}
			all = append(all, answer...)
		}
		return all, nil
	})
	hungry = Register("test-hungry", func([]byte, Ask) ([]byte, error) {
		var all [][]byte
		for len(all) < 1<<20 {
			all = append(all, bytes.Repeat([]byte("x"), 1<<20))
		}
		return nil, nil
	})
	greedy = Register("test-greedy", func([]byte, Ask) ([]byte, error) { return bytes.Repeat([]byte("x"), 2_000_000_000), nil })
	nested = Register("test-nested", func([]byte, Ask) ([]byte, error) {
		var deeper func([64]int) int
		deeper = func(a [64]int) int { a[0]++; return deeper(a) + a[1] }
		return fmt.Append(nil, deeper([64]int{})), nil
	})
	endless = Register("test-endless", func([]byte, Ask) ([]byte, error) {
		for i := 0; ; i++ {
			if i < 0 {
				return nil, nil
			}
		}
	})
	// Without cgo the runtime ends a process in which nothing can ever go on.
	sleeping  = Register("test-sleep", func([]byte, Ask) ([]byte, error) { time.Sleep(time.Hour); return nil, nil })
	talkative = Register("test-talk", func([]byte, Ask) ([]byte, error) { return make([]byte, 3<<20), nil })
	chatty    = Register("test-chat", func(_ []byte, ask Ask) ([]byte, error) {
		for {
			if _, err := ask(make([]byte, 1<<10)); err != nil {
				return nil, err
			}
		}
	})
	panicking = Register("test-panic", func(request []byte, _ Ask) ([]byte, error) { panic(string(request)) })
	quitting  = Register("test-quit", func([]byte, Ask) ([]byte, error) { os.Exit(0); return nil, nil })
	printing  = Register("test-print", func(request []byte, _ Ask) ([]byte, error) {
		for range 10_000 {
			fmt.Fprintln(os.Stderr, "a library that logs")
		}
		return request, nil
	})
	escaping = Register("test-escape", func(request []byte, _ Ask) ([]byte, error) {
		var done []string
		if conn, err := net.Dial("tcp", string(request)); err == nil {
			done = append(done, "dial", conn.RemoteAddr().String())
		}
		if p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{}); err == nil {
			done = append(done, "run", fmt.Sprint(p.Pid))
		}
		if b, err := os.ReadFile("/etc/passwd"); err == nil {
			done = append(done, "read", fmt.Sprint(len(b)))
		}
		name := fmt.Sprintf("%s/escaped-%d", os.TempDir(), os.Getpid())
		if err := os.WriteFile(name, []byte("x"), 0o600); err == nil {
			done = append(done, "write", name)
		}
		if _, err := time.LoadLocation("Europe/Berlin"); err != nil {
			done = append(done, "no time zones")
		}
		return []byte(strings.Join(append(done, os.Environ()...), " ")), nil
	})
)

// moderate are limits that nothing small runs into.
var moderate = Limits{CPU: 20 * time.Second, Wall: time.Minute, Memory: 128 << 20, Output: 1 << 20}

func TestRun(t *testing.T) {
	long := strings.Repeat("0123456789", 40_000)
	for _, c := range []struct {
		job                Job
		request, want, err string
	}{
		{doubling, "ab", "abab", ""},
		{doubling, "", "", ""},
		{doubling, long, long + long, ""},
		{refusing, "bread", "", "no bread today"},
		{asking, "a bb fail c", "AABBBB(none of that)CC", ""},
		{printing, "result", "result", ""},
		{panicking, "a secret", "", "the worker that reads it crashed"},
		{quitting, "", "", "the worker that reads it crashed"},
		{talkative, "", "", "it takes more than 1 MiB of output"},
		{chatty, "", "", "it takes more than 1 MiB of output"},
	} {
		answer := func(_ context.Context, question []byte) ([]byte, error) {
			if string(question) == "fail" {
				return nil, errors.New("none of that")
			}
			return bytes.ToUpper(append(question, question...)), nil
		}
		got, err := Run(t.Context(), c.job, moderate, []byte(c.request), answer)
		if text := fmt.Sprint(err); string(got) != c.want || err != nil && text != c.err || err == nil && c.err != "" {
			t.Errorf("%s: %d bytes and %v, want %d and %q", c.job.Name, len(got), err, len(c.want), c.err)
		}
	}
	if _, err := Run(t.Context(), asking, moderate, []byte("a"), nil); err == nil {
		t.Error("a job asks a parent that answers nothing")
	}
}

// TestLimits: whatever a job takes too much of ends it, and names what.
func TestLimits(t *testing.T) {
	brief := moderate
	brief.CPU, brief.Wall = 2*time.Second, 30*time.Second
	short := moderate
	short.Wall = time.Second
	for _, c := range []struct {
		job    Job
		limits Limits
		want   Exceeded
	}{
		{hungry, moderate, Exceeded{"memory", "128 MiB"}},
		{greedy, moderate, Exceeded{"memory", "128 MiB"}},
		{nested, moderate, Exceeded{"memory", "128 MiB"}},
		{endless, brief, Exceeded{"processor time", "2s"}},
		{sleeping, short, Exceeded{"time", "1s"}},
	} {
		_, err := Run(t.Context(), c.job, c.limits, nil, nil)
		if exceeded := (*Exceeded)(nil); !errors.As(err, &exceeded) || *exceeded != c.want {
			t.Errorf("%s: %v, want %v", c.job.Name, err, &c.want)
		}
	}
}

// TestEnded: with its context a worker ends, and says why that did.
func TestEnded(t *testing.T) {
	stopped := errors.New("the agent stops")
	for what, begin := range map[string]func(end func()) error{
		"before it begins": func(end func()) error {
			end()
			return nil
		},
		"while it runs": func(end func()) error { time.AfterFunc(100*time.Millisecond, end); return nil },
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if err := begin(func() { cancel(stopped) }); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(ctx, sleeping, moderate, nil, nil); !errors.Is(err, stopped) {
			t.Errorf("%s: %v", what, err)
		}
		cancel(nil)
	}
}
