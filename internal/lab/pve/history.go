package pve

import (
	"maps"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/history"
	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
)

// SetPressure has some of the work on a host wait in so much of the time.
func (s *Server) SetPressure(name string, p history.Pressure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.host(name).pressure = p
}

// readHistory answers GET rrddata of a VM: what it uses, since it runs.
func (c *call) readHistory() (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	v, err := c.s.vmAt(c.node, c.vmid())
	if err != nil {
		return nil, err
	}
	now, values := c.s.statusRow(v), row{"diskread": 0, "diskwrite": 0, "maxcpu": options.CountCores(v.conf.base)}
	for _, k := range []string{"cpu", "mem", "maxmem", "disk", "maxdisk", "netin", "netout"} {
		values[k] = now[k]
	}
	if c.s.flavour.nine {
		values["memhost"] = now["memhost"]
	}
	since := v.since
	if !v.running {
		since = time.Now().Add(statisticsEvery) // nothing of a VM that is off
	}
	return history.Points(c.str("timeframe"), since, values), nil
}

// readNodeHistory answers GET rrddata of a host.
func (c *call) readNodeHistory() (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	now := c.s.nodeStatistics(c.node)
	values := row{
		"cpu": now["cpu"], "maxcpu": now["maxcpu"], "iowait": 0, "loadavg": 0.1, "memused": now["mem"], "memtotal": now["maxmem"],
		"rootused": now["disk"], "roottotal": now["maxdisk"], "swapused": 0, "swaptotal": 0, "netin": 110, "netout": 0,
	}
	if c.s.flavour.nine {
		maps.Copy(values, c.node.pressure.Values())
	}
	points := history.Points(c.str("timeframe"), c.s.boot, values)
	// The step that has not ended yet has no values.
	points[len(points)-1] = row{"time": points[len(points)-1]["time"]}
	return points, nil
}
