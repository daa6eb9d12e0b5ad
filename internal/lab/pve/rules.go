package pve

import (
	"net/http"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/ha"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// callsOfAStep is how many calls one step of the agent may take between the look
// that a change rests on and the change. The API has nothing better to offer:
// who takes a VM's place in between cannot be noticed.
const callsOfAStep = 20

// isAgent reports whether a token is an agent's: in a cluster of Proxmox VE each
// host has one, with a token of its own of the one user.
func (s *Server) isAgent(id string) bool {
	user, _, _ := strings.Cut(s.agent, "!")
	return strings.HasPrefix(id, user+"!")
}

// readKey is who looked, and at which VMID.
type readKey struct {
	who  string
	vmid int
}

// noteRead takes note of what the agent was shown: a VM of its own under a
// VMID, or nothing at all.
func (s *Server) noteRead(c *call, rt *route) {
	if !s.isAgent(c.who.id) || rt.method != http.MethodGet {
		return
	}
	id := c.vmid()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vms[id]
	switch rt.path {
	case "/nodes/{node}/qemu/{vmid}/config":
		if v != nil && v.maker == c.who.id {
			s.reads[readKey{c.who.id, id}] = time.Now()
		}
	case "/cluster/nextid":
		if id > 0 && v == nil {
			s.reads[readKey{c.who.id, id}] = time.Now()
		}
	}
}

// checkRules reports to the world when the agent does what it promised not to do,
// whether or not Proxmox VE lets it. The call itself goes on as in life.
func (s *Server) checkRules(c *call, rt *route) {
	if !s.isAgent(c.who.id) || rt.method == http.MethodGet || rt.harmless {
		return
	}
	sent := time.Now()
	if c.fault.Kind == world.Slow {
		sent = sent.Add(-s.world.Scale(c.fault.Delay))
	}
	id := max(c.vmid(), ha.VMIDOf(c.str("sid")))
	s.mu.Lock()
	v := s.vms[id]
	var maker string
	if v != nil {
		maker = v.maker
	}
	looked := sent.Sub(s.reads[readKey{c.who.id, id}]) <= s.world.Scale(callsOfAStep*s.world.Latency.Call)
	s.mu.Unlock()
	creates := rt.path == createPath
	switch {
	case v == nil, maker != c.who.id && looked:
	case maker != c.who.id && creates:
		s.world.Violate("ownership", "%s %s would create vm %d, which %s made", rt.method, rt.path, id, maker)
	case maker != c.who.id:
		s.world.Violate("ownership", "%s %s touches vm %d, which %s made", rt.method, rt.path, id, maker)
	case creates:
		s.world.Violate("duplicate", "%s %s creates vm %d a second time", rt.method, rt.path, id)
	}
}
