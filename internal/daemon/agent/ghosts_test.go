package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/agent"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ghosts are folders of clusters that make nothing, each for another cause.
func ghosts(wave, n int) map[string][]byte {
	files := map[string][]byte{}
	for i := range n {
		name := fmt.Sprintf("w%d-%d", wave, i)
		valid := func(vmid int, change ...string) {
			text := strings.NewReplacer(append(change, "cluster_name: dev", "cluster_name: "+name, "dev-cp-1", name+"-cp-1",
				"ip: 10.10.0.11", fmt.Sprintf("vmid: %d, ip: 10.10.%d.%d", vmid, 8+wave, 1+i), "controlplane: 400-499, ", "", "cni: cilium", "cni: none", "addons: [addons/cilium.yaml]\n", "")...)
			for _, file := range []string{"cluster.yaml", "nodes.yaml"} {
				files["inventory/"+name+"/"+file] = []byte(text.Replace(string(size{ControlPlanes: 1}.Files()["inventory/dev/"+file])))
			}
		}
		switch i % 7 {
		case 0: // invalid
			files["inventory/"+name+"/cluster.yaml"] = []byte("cluster_name: " + name + "\n")
		case 1: // clashes with dev
			valid(411)
		case 2: // without secrets
			valid(2000 + i)
		case 3: // on a host that there is not
			valid(2000+i, "node: pve1", "node: pve9")
		case 4: // beyond the policy
			valid(7000 + i)
		case 5: // whose VMID is somebody's
			valid(900)
		case 6: // in a pool of somebody else
			valid(2000+i, "bridge: vmbr1", "bridge: vmbr1\n  pool: other")
		}
	}
	return files
}

// removal removes what files added.
func removal(files map[string][]byte) map[string][]byte {
	gone := map[string][]byte{}
	for name := range files {
		gone[name] = nil
	}
	return gone
}

// TestGhosts: folders that were pushed and removed leave nothing behind when nothing was made
// of them: neither in the status nor at the forge nor on the disk, in this life or the next. A
// cluster that has VMs stays.
func TestGhosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
		defer s.Close()
		must(s.Lab.PVE.CreateForeign(900, pve.Foreign{Host: "pve1"}))
		var mu sync.Mutex
		reported, forgotten := map[string]bool{}, map[string]bool{}
		all := func(c *agent.Config) {
			c.Clusters = nil
			c.OnStatus = func(st cluster.Status) {
				mu.Lock()
				defer mu.Unlock()
				reported[st.Cluster] = true
			}
			c.OnForgotten = func(name string) {
				mu.Lock()
				defer mu.Unlock()
				forgotten[name] = true
			}
		}
		s.Boot(all)
		s.UntilReady(20 * time.Minute)
		onlyDev := func(when string) {
			t.Helper()
			for range 600 {
				if slices.Equal(s.Agent.Clusters(), []string{"dev"}) {
					break
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if got := s.Agent.Clusters(); !slices.Equal(got, []string{"dev"}) {
				for _, name := range got {
					st, err := s.Agent.Status(name)
					t.Log(name, st.Condition, st.Message, err)
				}
				t.Fatalf("%s: clusters %v", when, got)
			}
			if got := s.Disk.Names(); !slices.Equal(got, []string{"dev.json"}) {
				t.Errorf("%s: the state directory has %v", when, got)
			}
			if got := s.Agent.Remembered(); !slices.Equal(got, []string{"dev"}) {
				t.Errorf("%s: %v are remembered", when, got)
			}
			mu.Lock()
			defer mu.Unlock()
			for name := range reported {
				if name != "dev" && !forgotten[name] {
					t.Errorf("%s: %s is not reported to be forgotten", when, name)
				}
			}
		}
		for wave := range 2 {
			files := ghosts(wave, 60)
			s.Push(files, "many")
			for range 600 {
				mu.Lock()
				n := len(reported)
				mu.Unlock()
				if n == 1+60*(wave+1) {
					break
				}
				time.Sleep(time.Second)
			}
			if got := len(s.Agent.Clusters()); got != 61 {
				t.Fatalf("%d clusters: %v", got, s.Agent.Clusters())
			}
			s.Push(removal(files), "none")
			if wave == 1 { // they leave while nobody looks
				s.Halt()
				clear(reported)
				s.Boot(all)
			}
			onlyDev(fmt.Sprintf("wave %d", wave+1))
		}
		s.Push(map[string][]byte{"README.md": []byte("text\n")}, "a later commit")
		s.Until(10*time.Minute, "applied", func(st cluster.Status) bool {
			return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head()
		})
		time.Sleep(10 * time.Minute)
		for _, st := range s.Lab.Forge.Statuses() {
			if st.Commit == s.Head() && st.Context != "talos-agent/dev" {
				t.Errorf("a commit status of %s at a later commit", st.Context)
			}
		}

		// One that has something stays.
		gone := removal(size{ControlPlanes: 1}.Files())
		gone["inventory/none/README.md"] = []byte("the folder of clusters stays\n")
		s.Push(gone, "remove dev")
		s.Until(10*time.Minute, "left", func(st cluster.Status) bool { return st.Reason == cluster.ClusterRemoved })
		s.Halt()
		s.Boot(all)
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if st := s.Status(); st.Reason != cluster.ClusterRemoved || forgotten["dev"] {
			t.Errorf("%s: %s", st.Condition, st.Message)
		}
		s.Halt()
	})
}

// TestGhostThatMayHaveVMs: while Proxmox VE does not answer it is not known whether a cluster
// that left the repository has VMs: it stays until it is. One whose pool the policy refuses has
// none.
func TestGhostThatMayHaveVMs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
		defer s.Close()
		all := func(c *agent.Config) { c.Clusters = nil }
		s.Boot(all)
		s.UntilReady(20 * time.Minute)
		s.Lab.World.Inject(world.Fault{System: "pve", Kind: world.Answer, Status: 503, Text: "down"})
		files := ghosts(0, 7)
		s.Push(files, "many")
		time.Sleep(5 * time.Minute)
		s.Push(removal(files), "none")
		time.Sleep(20 * time.Minute)
		if got, want := s.Agent.Clusters(), []string{"dev", "w0-2", "w0-3", "w0-4", "w0-5"}; !slices.Equal(got, want) {
			t.Errorf("clusters %v, want %v", got, want)
		}
		s.Lab.World.Heal()
		time.Sleep(20 * time.Minute)
		if got := s.Agent.Clusters(); !slices.Equal(got, []string{"dev"}) {
			t.Errorf("afterwards: %v", got)
		}
		s.Halt()
	})
}
