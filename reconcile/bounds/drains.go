package bounds

import (
	"fmt"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// MaxUnavailable is how many workers of a cluster may be out of service at once, and by
// which rule of the host that is fewer than the cluster asks for; "" when it is not.
func MaxUnavailable(s cluster.Spec, p cluster.Policy) (most int, rule string) {
	most = max(1, s.MaxUnavailable)
	if p.MaxUnavailable > 0 && p.MaxUnavailable < most {
		return p.MaxUnavailable, fmt.Sprintf("the cluster asks for %d, and the host allows %d (host policy, %s: max_unavailable)", most, p.MaxUnavailable, p.Line("max_unavailable"))
	}
	return most, ""
}

// Drain is how nodes of a cluster are drained, and by which rule of the host that is
// otherwise than the cluster asks for; "" when it is not.
func Drain(s cluster.Spec, p cluster.Policy) (how cluster.Drain, rule string) {
	how = s.Drain
	if how.Delete && p.DrainStops {
		how.Delete = false
		rule = fmt.Sprintf("pods that may not leave are not deleted (host policy, %s: drain.on_timeout)", p.Line("drain.on_timeout"))
	}
	if p.DrainWithin > 0 && how.Patience() > p.DrainWithin {
		how.Timeout = p.DrainWithin
		if rule != "" {
			rule += "; "
		}
		rule += fmt.Sprintf("for %s at most (host policy, %s: drain.timeout)", text.Duration(p.DrainWithin), p.Line("drain.timeout"))
	}
	return how, rule
}
