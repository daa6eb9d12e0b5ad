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
	var all []*takerProcess
	owner := map[string]int{}
	for range processes {
		all = append(all, startTaker(t, each))
	}
	for i, p := range all {
		for range each {
			text := p.next(t)
			if other, taken := owner[text]; taken {
				t.Errorf("%s was taken by process %d and by process %d", text, other, i)
			}
			owner[text] = i
		}
	}
	for text := range owner {
		if text == DefaultPrefix {
			t.Errorf("%s was given away", text)
		}
		release, err := HoldPrefix(netip.MustParsePrefix(text))
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), text) {
			t.Errorf("hold %s, which another process holds: %v", text, err)
		}
		if err == nil {
			release()
		}
	}
	for _, p := range all {
		p.stop(t)
	}
}

// takerProcess is a process that takes networks and holds them.
type takerProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

// startTaker starts a process that takes n networks at once. The deadline ends one
// whose parent died.
func startTaker(t *testing.T, n int) *takerProcess {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestPrefixesAreHeldAlone$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", takers, n))
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
	return &takerProcess{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}
}

// next waits for the next network that the process took.
func (p *takerProcess) next(t *testing.T) string {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("a process took too few networks: %v", p.lines.Err())
	}
	prefix, err := netip.ParsePrefix(p.lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	return prefix.String()
}

// stop ends the process, which holds its networks until then.
func (p *takerProcess) stop(t *testing.T) {
	t.Helper()
	_ = p.stdin.Close()
	for p.lines.Scan() {
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
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
