package demo

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// findTurns lists the nodes that were down, in the order in which their machines went off. A node
// is down until Kubernetes has its Node Ready again. It fails where two were down at once, or one
// did not come back.
func findTurns(events []world.Event) (order []string, err error) {
	down := ""
	for _, e := range events {
		rest, off := strings.CutSuffix(e.Text, ") is off")
		switch node := rest[strings.LastIndexByte(rest, '(')+1:]; {
		case off && down != "":
			return order, fmt.Errorf("%s went down while %s was", node, down)
		case off:
			down = node
			order = append(order, node)
		case e.Text == "is Ready" && e.Subject == down:
			down = ""
		}
	}
	if down != "" {
		return order, fmt.Errorf("%s went down and is not Ready", down)
	}
	return order, nil
}

// eventsSoFar is how many events the lab has had.
func (d *demo) eventsSoFar() int { return len(d.host.World.Events()) }

// wantTurns wants these nodes to have been down one after the other, in this order, since the lab
// had so many events.
func (d *demo) wantTurns(since int, want ...string) error {
	order, err := findTurns(d.host.World.Events()[since:])
	if err != nil {
		return err
	}
	if !slices.Equal(order, want) {
		return fmt.Errorf("down one after the other: %v, want %v", order, want)
	}
	d.print("down, one at a time: %s", strings.Join(order, ", "))
	return nil
}
