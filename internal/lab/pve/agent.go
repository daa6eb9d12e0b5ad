package pve

import (
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
)

// agentCall answers the calls that go to the QEMU guest agent.
func agentCall(c *call) (any, error) {
	s := c.s
	s.mu.Lock()
	v, err := s.vmAt(c.node, c.vmid())
	switch {
	case err != nil:
	case !options.HasAgent(v.conf.base):
		err = perlError("No QEMU guest agent configured")
	case !v.running:
		err = perlError("VM %d is not running", v.id)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	_, command, _ := strings.Cut(c.r.URL.Path, "/agent/")
	result, ok := s.askAgent(c.vmid(), strings.TrimSuffix(command, "/"))
	if !ok {
		if err := s.world.Sleep(c.r.Context(), agentPing); err != nil {
			return nil, err
		}
		return nil, perlError("QEMU guest agent is not running")
	}
	return row{"result": result}, nil
}

// askAgent asks whoever simulates the guests.
func (s *Server) askAgent(id int, command string) (any, bool) {
	if g, ok := s.guests.(GuestAgent); ok {
		return g.GuestAgent(id, command)
	}
	return nil, false
}
