package pve

import (
	"maps"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
)

// history is what the rings of statistics hold for a time frame: their step in
// seconds and how many steps are shown. From the source of Proxmox VE 8 (PVE/RRD.pm);
// 9 keeps finer steps of the long frames, and a decade besides.
var history = map[string]struct{ step, count int64 }{
	"hour": {60, 70}, "day": {1800, 70}, "week": {10800, 70}, "month": {43200, 70}, "year": {604800, 70}, "decade": {604800, 570},
}

// points answers with a ring's steps: with values from a time on, and with nothing
// but their own time before it.
func (c *call) points(since time.Time, values row) []row {
	frame := history[c.str("timeframe")]
	last := time.Now().Unix() / frame.step * frame.step
	out := []row{}
	for at := last - (frame.count-1)*frame.step; at <= last; at += frame.step {
		r := row{"time": at}
		if at >= since.Unix() {
			for k, v := range values {
				r[k] = v
			}
		}
		out = append(out, r)
	}
	return out
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
	return c.points(since, values), nil
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
	if c.s.flavour.nine { // in percent (pve-manager 9: pvestatd)
		maps.Copy(values, row{"pressurecpusome": 0.31, "pressureiosome": 2.5, "pressureiofull": 1.25, "pressurememorysome": 0, "pressurememoryfull": 0})
	}
	points := c.points(c.s.boot, values)
	// The step that has not ended yet has no values.
	points[len(points)-1] = row{"time": points[len(points)-1]["time"]}
	return points, nil
}
