package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// child is a program that a test runs. It does not outlive the test, however
// that ends.
type child struct {
	cmd  *exec.Cmd
	log  string // file with what it says
	done chan struct{}
	err  error // of Wait, once done is closed
}

// startProcess starts a program that writes what it has to say to a file.
func startProcess(log string, program string, args ...string) (*child, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p := &child{cmd: exec.Command(program, args...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel ends the program with the thread that started it, so that
		// thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// kill ends the program at once and waits for its end.
func (p *child) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
}

// stop asks the program to end, and returns how it did.
func (p *child) stop(within time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(within):
		p.kill()
		return fmt.Errorf("it had to be killed after %v", within)
	}
}

// tail is the end of what the program said.
func (p *child) tail(lines int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// realProgram is the kube-apiserver, etcd and kubectl that .ci/e2e builds.
func realProgram(t *testing.T) string {
	t.Helper()
	program := os.Getenv("TALOS_AGENT_APISERVER")
	if program == "" {
		t.Skip("TALOS_AGENT_APISERVER does not name the program built from internal/lab/apiserver; .ci/e2e builds it")
	}
	return program
}

// untilReadyz waits until an API server says that it is ready, or has ended.
func untilReadyz(ctx context.Context, p *child, client *http.Client, server string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-p.done:
			return fmt.Errorf("the API server ended: %w\n%s", p.err, p.tail(20))
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w\n%s", err, p.tail(20))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// writeFiles writes files into a folder of secrets.
func writeFiles(dir string, files map[string][]byte) error {
	errs := []error{os.MkdirAll(dir, 0o700)}
	for name, content := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return errors.Join(errs...)
}
