package world

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// takers is set for the processes that TestPrefixesAreHeldAlone starts, to how many
// networks each takes at once.
const takers = "TALOS_AGENT_TEST_TAKERS"

// Many who take networks at once, in several processes, each get one of their own,
// and none is given again before it was released.
func TestPrefixesAreHeldAlone(t *testing.T) {
	if os.Getenv(takers) != "" {
		takePrefixes(t)
		return
	}
	const processes, each = 6, 20
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu       sync.Mutex
		owner    = map[netip.Prefix]int{}
		started  sync.WaitGroup
		finished sync.WaitGroup
		done     = make(chan struct{})
	)
	for process := range processes {
		// The deadline ends a process whose parent died.
		cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestPrefixesAreHeldAlone$", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", takers, each))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		started.Add(1)
		finished.Go(func() {
			lines := bufio.NewScanner(stdout)
			for range each {
				if !lines.Scan() {
					t.Errorf("process %d took too few networks: %v", process, lines.Err())
					break
				}
				p, err := netip.ParsePrefix(strings.TrimSpace(lines.Text()))
				if err != nil {
					t.Errorf("process %d: %v", process, err)
					continue
				}
				mu.Lock()
				if other, taken := owner[p]; taken {
					t.Errorf("%s was taken by process %d and by process %d", p, other, process)
				}
				owner[p] = process
				mu.Unlock()
			}
			started.Done()
			<-done
			_ = stdin.Close() // it holds its networks until then
			_, _ = io.Copy(io.Discard, stdout)
			if err := cmd.Wait(); err != nil {
				t.Errorf("process %d: %v", process, err)
			}
		})
	}
	started.Wait()
	if len(owner) != processes*each && !t.Failed() {
		t.Errorf("%d networks for %d takers", len(owner), processes*each)
	}
	for p := range owner {
		if p.String() == DefaultPrefix {
			t.Errorf("%s was given away", p)
		}
		release, err := HoldPrefix(p)
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), p.String()) {
			t.Errorf("hold %s, which another process holds: %v", p, err)
		}
		if err == nil {
			release()
		}
	}
	close(done)
	finished.Wait()
}

// takePrefixes takes networks in as many goroutines at once, prints them, and
// holds them until standard input ends.
func takePrefixes(t *testing.T) {
	var n int
	if _, err := fmt.Sscan(os.Getenv(takers), &n); err != nil {
		t.Fatal(err)
	}
	begin := make(chan struct{})
	var taken sync.WaitGroup
	for range n {
		taken.Go(func() {
			<-begin
			p, release, err := FreePrefix()
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(release)
			// In one write, so that lines do not mix.
			if _, err := fmt.Fprintln(os.Stdout, p); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	taken.Wait()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestHoldPrefix(t *testing.T) {
	large, release, err := FreeLargePrefix()
	if err != nil {
		t.Skip(err)
	}
	if large.Bits() != 20 || large.Addr().As4()[2] != 0 {
		t.Errorf("the large network is %s", large)
	}
	inside := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, large.Addr().As4()[1], 15, 7}), 24)
	if _, err := HoldPrefix(inside); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("hold %s inside of it: %v", inside, err)
	}
	release()
	// A program that another test starts may have a copy of the sockets until its
	// exec closes them.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		release, err = HoldPrefix(inside)
		if err == nil {
			release()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("hold %s after the release: %v", inside, err)
		}
	}
	for _, bad := range []string{"10.0.0.0/24", "127.0.0.0/8", "127.84.7.0/25", "::1/24"} {
		if _, err := HoldPrefix(netip.MustParsePrefix(bad)); err == nil || errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("hold %s: %v", bad, err)
		}
	}
}
