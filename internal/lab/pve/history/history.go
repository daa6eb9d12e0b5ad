// Package history is what the rings of statistics of a simulated Proxmox VE answer: one point for each step of a time frame,
// and how much work on a host waits.
package history

import (
	"maps"
	"time"
)

// frames are what the rings hold for a time frame: their step in seconds and how many
// steps are shown. From the source of Proxmox VE 8 (PVE/RRD.pm); 9 keeps finer steps of
// the long frames, and a decade besides.
var frames = map[string]struct{ step, count int64 }{
	"hour": {60, 70}, "day": {1800, 70}, "week": {10800, 70}, "month": {43200, 70}, "year": {604800, 70}, "decade": {604800, 570},
}

// Points answers with a ring's steps: with values from a time on, and with nothing but
// their own time before it.
func Points(frame string, since time.Time, values map[string]any) []map[string]any {
	of := frames[frame]
	last := time.Now().Unix() / of.step * of.step
	out := []map[string]any{}
	for at := last - (of.count-1)*of.step; at <= last; at += of.step {
		r := map[string]any{"time": at}
		if at >= since.Unix() {
			maps.Copy(r, values)
		}
		out = append(out, r)
	}
	return out
}

// Pressure is in how much of a minute some of the work on a host waits, in percent.
type Pressure struct{ CPU, IO, Memory float64 }

// Usual is the pressure on a host that has enough of everything.
var Usual = Pressure{CPU: 0.31, IO: 2.5}

// Values are those of a point, as Proxmox VE 9 has them (pve-manager 9: pvestatd). Half of what waits for I/O, and all
// that waits for memory, is all of the work at once.
func (p Pressure) Values() map[string]any {
	return map[string]any{"pressurecpusome": p.CPU, "pressureiosome": p.IO, "pressureiofull": p.IO / 2, "pressurememorysome": p.Memory, "pressurememoryfull": p.Memory}
}
