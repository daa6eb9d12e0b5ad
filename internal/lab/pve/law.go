package pve

import (
	"net/http"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// atAGlance is how many calls one step of the agent may take between the look
// that a change rests on and the change. The API has nothing better to offer:
// who takes a VM's place in between cannot be noticed.
const atAGlance = 20

// glimpse takes note of what the agent was shown: a VM of its own under a
// VMID, or nothing at all.
func (s *Server) glimpse(c *call, rt *route) {
	if c.who.id != s.agent || rt.method != http.MethodGet {
		return
	}
	id := c.vmid()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vms[id]
	switch rt.path {
	case "/nodes/{node}/qemu/{vmid}/config":
		if v != nil && v.maker == s.agent {
			s.glimpses[id] = time.Now()
		}
	case "/cluster/nextid":
		if id > 0 && v == nil {
			s.glimpses[id] = time.Now()
		}
	}
}

// holdAgainst tells the world when the agent does what it promised not to do,
// whether or not Proxmox VE lets it. The call itself goes on as in life.
func (s *Server) holdAgainst(c *call, rt *route) {
	if c.who.id != s.agent || rt.method == http.MethodGet || rt.harmless {
		return
	}
	sent := time.Now()
	if c.fault.Kind == world.Slow {
		sent = sent.Add(-s.world.Scale(c.fault.Delay))
	}
	id := c.vmid()
	s.mu.Lock()
	v := s.vms[id]
	var maker string
	if v != nil {
		maker = v.maker
	}
	looked := sent.Sub(s.glimpses[id]) <= s.world.Scale(atAGlance*s.world.Latency.Call)
	s.mu.Unlock()
	creates := rt.path == createPath
	switch {
	case v == nil, maker != s.agent && looked:
	case maker != s.agent && creates:
		s.world.Violate("ownership", "%s %s would create vm %d, which %s made", rt.method, rt.path, id, maker)
	case maker != s.agent:
		s.world.Violate("ownership", "%s %s touches vm %d, which %s made", rt.method, rt.path, id, maker)
	case creates:
		s.world.Violate("duplicate", "%s %s creates vm %d a second time", rt.method, rt.path, id)
	}
}
