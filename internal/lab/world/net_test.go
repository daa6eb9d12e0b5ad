package world

import (
	"net/netip"
	"os/exec"
	"testing"
)

// A program started by this process holds a copy of every open socket until
// its exec closes them. A machine that reboots in that instant must get its
// address back all the same.
func TestListenAgainBesideStartingPrograms(t *testing.T) {
	program, err := exec.LookPath("true")
	if err != nil {
		t.Skip("needs the program true")
	}
	prefix, release, err := FreePrefix()
	if err != nil {
		t.Skip(err)
	}
	defer release()
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := exec.Command(program).Run(); err != nil {
				stopped <- err
				<-stop
				return
			}
		}
	}()
	addr := netip.AddrPortFrom(prefix.Addr().Next(), 50000).String()
	for i := range 5_000 {
		l, err := Loopback{}.Listen(addr)
		if err != nil {
			t.Errorf("listen for the %dth time: %v", i+1, err)
			break
		}
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
			break
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
