package talos_test

import (
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// scenario is one recording, or a part of it, with the state it begins in.
type scenario struct {
	name, file string
	keep       func(exchange) bool
	latency    world.Latencies
	step       time.Duration // of services; 0: as in most recordings
	prepare    func(*replay)
	// meanwhile lists what happens outside of the calls, by time.
	meanwhile map[float64]func(*replay)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

var scenarios = []scenario{
	{
		name: "A", file: "exchanges-A-maintenance.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(1.25), Apply: seconds(0.18)},
		prepare: func(r *replay) { r.fleet.PowerOn(cp(1).guest("v1.13.9")) },
	},
	{
		name: "B", file: "exchanges-B-after-apply.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(1.25), Apply: seconds(0.18)},
		prepare: func(r *replay) { r.fleet.PowerOn(cp(1).guest("v1.13.9")) },
	},
	{
		name: "C", file: "exchanges-C-bootstrap.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: seconds(0.15), Etcd: seconds(4.9)},
		prepare: func(r *replay) {
			r.configured(cp(1))
			r.booted(wk(1))
		},
		meanwhile: map[float64]func(*replay){
			98.66:  func(r *replay) { r.kube.setReady("cp1", false) },
			100.44: func(r *replay) { r.kube.setReady("w1", false) },
			107.22: func(r *replay) { r.kube.setReady("w1", true) },
			109.02: func(r *replay) { r.kube.setReady("cp1", true) },
		},
	},
	{
		name: "D", file: "exchanges-D-second-controlplane.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: seconds(0.2), Etcd: 1, Learn: seconds(22.9)},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.booted(cp(2))
		},
		meanwhile: map[float64]func(*replay){
			6.775: func(r *replay) { r.kube.setReady("cp2", false) },
			7.008: func(r *replay) { r.kube.setReady("cp2", true) },
		},
	},
	{
		name: "E", file: "exchanges-E-configured-apply.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(wk(1))
		},
	},
	{
		name: "F", file: "exchanges-F-lab-reboot-reset-upgrade.jsonl",
		keep:    func(x exchange) bool { return strings.HasPrefix(x.Stage, "1") || strings.HasPrefix(x.Stage, "2") },
		latency: world.Latencies{Call: 1, Boot: seconds(13.3275), Apply: 1, Etcd: 1}, step: seconds(0.575),
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(wk(1))
			r.kube.setReady("w1", true)
		},
		meanwhile: map[float64]func(*replay){
			14.6:  func(r *replay) { r.kube.setReady("w1", false) },
			16.15: func(r *replay) { r.kube.setReady("w1", true) },
			37.12: func(r *replay) { r.kube.setReady("w1", false) },
			38.5:  func(r *replay) { r.kube.setReady("w1", true) },
		},
	},
	{
		name: "F6", file: "exchanges-F-lab-reboot-reset-upgrade.jsonl",
		keep:    func(x exchange) bool { return strings.HasPrefix(x.Stage, "6") },
		latency: world.Latencies{Call: 1, Boot: seconds(14.38), Apply: 1, Etcd: 1, Learn: 1}, step: seconds(0.01),
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(cp(2))
			r.kube.setReady("cp2", true)
			time.Sleep(5 * time.Second)
		},
	},
	{
		name: "G", file: "exchanges-G-wrong-usage.jsonl",
		keep:    func(x exchange) bool { return x.Seq <= 68 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, Learn: 1},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(cp(2))
			r.configured(wk(1))
			time.Sleep(5 * time.Second)
			r.kube.setReady("w1", true)
			if _, err := r.admin(cp(1)).EtcdForfeitLeadership(within(time.Second), &machineapi.EtcdForfeitLeadershipRequest{}); err != nil {
				r.t.Fatal(err)
			}
			// A host without Talos at the gateway's address, and what listens
			// on other ports.
			for _, addr := range []string{"10.5.0.1:1"} {
				ln, err := r.world.Net.Listen(addr)
				if err != nil {
					r.t.Fatal(err)
				}
				r.t.Cleanup(func() { _ = ln.Close() })
			}
		},
	},
	{
		name: "G2", file: "exchanges-G-wrong-usage.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 69 && x.Seq <= 71 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) { r.founded(cp(1)) },
	},
	{
		name: "G3", file: "exchanges-G-wrong-usage.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 72 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: seconds(0.02), Etcd: seconds(2.8)},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.booted(cp(2))
		},
		meanwhile: map[float64]func(*replay){
			3.5: func(r *replay) { r.kube.setReady("cp2", false) },
			5.5: func(r *replay) { r.kube.setReady("cp2", true) },
		},
	},
}

// excuses are the lines whose answer differs, with the reason. They are looked
// at again when one of them agrees.
var excuses = []struct {
	why   string
	lines []string
}{
	{"a container has no SMBIOS; the lab's machines are virtual machines", []string{"A/8", "C/68"}},
	{"the recorded link was a veth pair's end, the lab's is a virtio network card", []string{"A/15", "C/75"}},
	{"the recorded link had come up a moment ago and its IPv6 address was tentative", []string{"A/14"}},
	{"the lab validates with the library of v1.14.1, which no longer asks for the endpoint in this place", []string{"A/57", "A/60", "E/57", "E/59"}},
	{"the lab validates with the library of v1.14.1, which finds one more error", []string{"E/45", "E/46", "E/47", "E/48", "E/49"}},
	{"the recorded node spoke as a configured one for a moment before it asked for certificates; the lab's goes from one to the other", []string{"B/4", "B/5"}},
	{"the recorded proxy kept a connection and backed off; the lab's dials anew", []string{"F/30", "F/67"}},
	{"not possible in a container, not played by the lab", []string{"G/36", "G/37"}},
	{"a container has no disks; the lab's machines are virtual machines", []string{"A/18", "C/78"}},
	{"the network in memory refuses an address nobody has at once", []string{"G/58", "G/60"}},
	{"another program on another port, which this face does not play", []string{"G/66", "G/67", "G/68"}},
}

// excused explains why a line differs, "" when it should not.
func excused(key string) string {
	for _, e := range excuses {
		if slices.Contains(e.lines, key) {
			return e.why
		}
	}
	return ""
}
