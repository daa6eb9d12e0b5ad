package main

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestKillMinusNine kills the daemon in the middle of each kind of change, starts
// it again, and wants what it was at finished, not begun anew.
func TestKillMinusNine(t *testing.T) {
	r := newRig(t, lab.Config{Speed: 50})
	var mu sync.Mutex
	deaths := map[string]bool{"factory GET /image": false, "pve POST /nodes/{node}/qemu": false, "pve PUT /nodes/{node}/qemu/{vmid}/resize": false,
		"pve POST /nodes/{node}/qemu/{vmid}/status/start": false, "talos machine.MachineService/ApplyConfiguration": false, "talos machine.MachineService/Bootstrap": false}
	struck := make(chan string, len(deaths))
	r.lab.World.OnCall(func(c world.CallRecord) {
		mu.Lock()
		defer mu.Unlock()
		for call, done := range deaths {
			if !done && strings.HasPrefix(c.System+" "+c.Op, call) {
				deaths[call] = true
				struck <- call
			}
		}
	})
	commit := r.push(r.inventory(1))
	r.start()
	killed := 0
	for end := time.After(2 * daemonPatience); ; {
		select {
		case <-struck:
			r.kill()
			killed++
			r.launch()
			continue
		case <-end:
			t.Fatalf("not Ready: %s", r.try("status"))
		case <-time.After(100 * time.Millisecond):
		}
		if s := r.status(); s.Condition == cluster.Ready && s.Revision.Commit() == commit {
			break
		}
	}
	t.Logf("killed %d times", killed)
	mu.Lock()
	defer mu.Unlock()
	for call, done := range deaths {
		if !done {
			t.Errorf("%s was never seen", call)
		}
	}
	// A request that died with its sender on the way must be made again.
	once := r.calls(func(c world.CallRecord) bool {
		return !c.Lost && (c.System == "pve" && c.Op == "POST /nodes/{node}/qemu" || c.System == "talos" && strings.HasSuffix(c.Op, "/Bootstrap"))
	})
	if len(once) != 3 {
		t.Errorf("creations and bootstraps: %v", once)
	}
	for call, n := range once {
		if n != 1 {
			t.Errorf("%s: %d times", call, n)
		}
	}
	if n := len(r.vms()); n != 2 {
		t.Errorf("%d VMs", n)
	}
	// What each death interrupted, and what was done before it, is in the history.
	r.run(exitOK, do("history", "dev", "-o", "json"), `"result": "Interrupted"`, `"result": "interrupted"`, `"action": "download image"`, `"action": "create vm"`)
	// The image and the note of what it is; nothing of the download cut off.
	left, err := filepath.Glob(filepath.Join(r.dir, "cache", "images", "*"))
	must(err)
	hidden, err := filepath.Glob(filepath.Join(r.dir, "cache", "images", ".*"))
	must(err)
	if len(left) != 2 || len(hidden) != 0 {
		t.Errorf("in the cache: %v %v", left, hidden)
	}
	if code := r.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
