package talos_test

import (
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/lab/talos/installer"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// scenario is one recording, or a part of it, with the state it begins in.
type scenario struct {
	name, file string
	keep       func(exchange) bool
	latency    world.Latencies
	step       time.Duration // of services; 0: as in most recordings
	stop       time.Duration // of services; 0: as the lab does. Some recorded nodes were cut off, or all but that
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
		latency: world.Latencies{Call: 1, Boot: seconds(13.3275), Apply: 1, Etcd: 1}, step: seconds(0.575), stop: seconds(0.075),
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
		latency: world.Latencies{Call: 1, Boot: seconds(14.38), Apply: 1, Etcd: 1, Learn: 1}, step: seconds(0.01), stop: seconds(0.045),
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
	{
		name: "H1", file: "exchanges-H1-drift-apply.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(wk(1))
		},
	},
	{
		name: "H2", file: "exchanges-H2-drift-node-object.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1}, step: seconds(0.6), stop: seconds(1.3),
		prepare: func(r *replay) { r.secondCluster("v1.36.2") },
	},
	{
		name: "I1", file: "exchanges-I1-etcd-leave-rejoin.jsonl",
		keep:    func(x exchange) bool { return x.Seq <= 66 },
		latency: world.Latencies{Call: 1, Boot: seconds(2.9), Apply: 1, Etcd: 1, Learn: seconds(46)}, step: seconds(0.8896), stop: seconds(8),
		prepare: func(r *replay) {
			r.planes()
			r.configured(wk(1))
			r.lead(cp(2))
		},
		meanwhile: map[float64]func(*replay){
			77.55: func(r *replay) { r.reboot(cp(3)) },
		},
	},
	{
		name: "I1b", file: "exchanges-I1-etcd-leave-rejoin.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 67 && x.Seq <= 80 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, Learn: 1}, step: seconds(0.8896), stop: seconds(8.0064),
		prepare: func(r *replay) {
			r.planes()
			r.lead(cp(2))
		},
	},
	{
		name: "I1c", file: "exchanges-I1-etcd-leave-rejoin.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 81 },
		latency: world.Latencies{Call: 1, Boot: seconds(2.053), Apply: 1, Etcd: 1, Learn: seconds(1.5)}, step: seconds(0.6), stop: seconds(5.4),
		prepare: func(r *replay) {
			r.planes()
			r.seekPlanes(cp(3))
			if err := r.leave(cp(2), time.Minute); err != nil {
				r.t.Fatal(err)
			}
		},
		meanwhile: map[float64]func(*replay){
			161.867: func(r *replay) { r.reboot(cp(2)) },
		},
	},
	{
		name: "I2", file: "exchanges-I2-etcd-remove.jsonl",
		keep:    func(x exchange) bool { return x.Seq <= 47 },
		latency: world.Latencies{Call: 1, Boot: seconds(2.03), Apply: 1, Etcd: 1, Learn: 1}, step: seconds(0.568),
		prepare: func(r *replay) { r.planes() },
		meanwhile: map[float64]func(*replay){
			75.1457: func(r *replay) { r.reboot(cp(3)) },
		},
	},
	{
		name: "I2b", file: "exchanges-I2-etcd-remove.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 48 && x.Seq <= 64 },
		latency: world.Latencies{Call: 1, Boot: seconds(1.95), Apply: 1, Etcd: 1, Learn: seconds(45)}, step: seconds(0.75), stop: seconds(0.05),
		prepare: func(r *replay) {
			r.planes()
			r.seekPlanes(cp(2))
			if err := r.admin(cp(1)).EtcdRemoveMemberByID(within(time.Second), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: r.memberIDs(cp(1))["cp3"]}); err != nil {
				r.t.Fatal(err)
			}
			r.emptied(cp(3))
			time.Sleep(200 * time.Millisecond)
		},
	},
	{
		name: "I2c", file: "exchanges-I2-etcd-remove.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 65 },
		latency: world.Latencies{Call: 1, Boot: seconds(3.93), Apply: 1, Etcd: 1, Learn: seconds(45.6)}, step: seconds(0.25), stop: seconds(0.05),
		prepare: func(r *replay) {
			r.planes()
			r.emptied(cp(3))
			time.Sleep(200 * time.Millisecond)
		},
	},
	{
		name: "I3", file: "exchanges-I3-etcd-quorum.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(3), Apply: 1, Etcd: 1, Learn: 1},
		prepare: func(r *replay) { r.planes() },
		meanwhile: map[float64]func(*replay){
			0:      func(r *replay) { r.fleet.PowerOff(403) },
			41:     func(r *replay) { r.fleet.PowerOff(402) },
			71.9:   func(r *replay) { r.powerOn(cp(2)) },
			84.9:   func(r *replay) { r.fleet.PowerOff(402) },
			105:    func(r *replay) { r.powerOn(cp(2)) },
			111.09: func(r *replay) { r.powerOn(cp(3)) },
		},
	},
	{
		name: "J2", file: "exchanges-J2-lab-reset-worker.jsonl", keep: inStage("1 "),
		latency: world.Latencies{Call: 1, Boot: seconds(5.9), Apply: 1, Etcd: 1}, step: seconds(0.82),
		prepare: func(r *replay) { r.withoutKubelet(wk(2)) },
	},
	{
		name: "J2b", file: "exchanges-J2-lab-reset-worker.jsonl", keep: inStage("2 "),
		latency: world.Latencies{Call: 1, Boot: seconds(10.66), Apply: 1, Etcd: 1}, step: seconds(0.82),
		prepare: func(r *replay) { r.withoutKubelet(wk(2)) },
	},
	{
		name: "J2c", file: "exchanges-J2-lab-reset-worker.jsonl", keep: inStage("3 "),
		latency: world.Latencies{Call: 1, Boot: seconds(5.5), Apply: 1, Etcd: 1}, step: seconds(0.82),
		prepare: func(r *replay) { r.withoutKubelet(wk(2)) },
	},
	{
		name: "J2d", file: "exchanges-J2-lab-reset-worker.jsonl", keep: inStage("4 "),
		latency: world.Latencies{Call: 1, Boot: seconds(11.62), Apply: 1, Etcd: 1}, step: seconds(0.82),
		prepare: func(r *replay) { r.withoutKubelet(wk(2)) },
	},
	{
		name: "J2e", file: "exchanges-J2-lab-reset-worker.jsonl", keep: inStage("5 "),
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1}, step: seconds(0.82),
		prepare: func(r *replay) { r.withoutKubelet(wk(2)) },
	},
	{
		name: "J3", file: "exchanges-J3-lab-reset-controlplane.jsonl", keep: inStage("1 "),
		latency: world.Latencies{Call: 1, Boot: seconds(27.6), Apply: 1, Etcd: 1, Learn: seconds(120)}, step: seconds(0.82), stop: seconds(1.44),
		prepare: func(r *replay) {
			r.withoutKubelet(cp(2))
			r.joins(cp(3), seconds(1.5))
		},
	},
	{
		name: "J3b", file: "exchanges-J3-lab-reset-controlplane.jsonl", keep: inStage("2 "),
		latency: world.Latencies{Call: 1, Boot: seconds(18.2), Apply: 1, Etcd: 1, Learn: seconds(120)}, step: seconds(0.82), stop: seconds(1.75),
		prepare: func(r *replay) {
			r.withoutKubelet(cp(2))
			r.joins(cp(3), seconds(91.3))
		},
	},
	{
		name: "J3c", file: "exchanges-J3-lab-reset-controlplane.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 48 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, Learn: 1, ImagePull: seconds(0.09), Install: seconds(1.6)}, step: seconds(0.82),
		prepare: func(r *replay) {
			r.withoutKubelet(cp(2), cp(3))
			r.fleet.PowerOff(403)
			time.Sleep(3 * time.Minute) // in which Talos has given up on the image
		},
	},
	{
		name: "J4", file: "exchanges-J4-lab-reset-stuck-in-leave.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, Learn: 1}, step: seconds(0.82),
		prepare: func(r *replay) {
			r.withoutKubelet(cp(2), cp(3))
			r.fleet.PowerOff(403)
			time.Sleep(3 * time.Minute) // in which Talos has given up on the image
			if err := r.admin(cp(2)).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Graceful: true, Reboot: true}); err != nil {
				r.t.Error(err)
			}
			time.Sleep(seconds(300 - 148.24))
		},
		meanwhile: map[float64]func(*replay){
			// The recorded one hung then, where a virtual machine boots.
			156: func(r *replay) { r.fleet.PowerOff(402) },
		},
	},
	{
		name: "K2", file: "exchanges-K2-lab-upgrade.jsonl",
		keep:    func(x exchange) bool { return x.Seq <= 10 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, ImagePull: seconds(0.08), Install: seconds(1.6)},
		prepare: func(r *replay) {
			r.withoutKubelet(wk(2))
			r.fleet.SpoilImage("v1.13.12", installer.FailsInstall)
		},
	},
	{
		name: "K2b", file: "exchanges-K2-lab-upgrade.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 11 && x.Seq <= 19 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, ImagePull: seconds(0.1), Install: seconds(15.1)},
		prepare: func(r *replay) {
			r.withoutKubelet(wk(2))
			r.pull(wk(2), "ghcr.io/siderolabs/installer:v1.13.10")
		},
	},
	{
		name: "K2c", file: "exchanges-K2-lab-upgrade.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 20 && x.Seq <= 42 },
		latency: world.Latencies{Call: 1, Boot: seconds(10.55), Apply: 1, Etcd: 1, ImagePull: 1, Install: seconds(1.9)}, step: seconds(0.15), stop: seconds(1.54),
		prepare: func(r *replay) { r.withoutKubelet(wk(2)) },
	},
	{
		name: "K2d", file: "exchanges-K2-lab-upgrade.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 43 },
		latency: world.Latencies{Call: 1, Boot: seconds(10.45), Apply: 1, Etcd: 1, ImagePull: 1}, step: seconds(0.3), stop: seconds(1.2),
		prepare: func(r *replay) { r.withoutKubelet(wk(2)) },
	},
	{
		name: "L1", file: "exchanges-L1-kubelet-version.jsonl",
		keep:    func(x exchange) bool { return x.Seq < 21 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, ImagePull: seconds(2.1)}, step: seconds(0.55), stop: seconds(2.7),
		prepare: func(r *replay) { r.secondCluster("v1.36.2") },
	},
	{
		name: "L1b", file: "exchanges-L1-kubelet-version.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 21 && x.Seq < 39 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, ImagePull: seconds(2)}, step: seconds(0.65), stop: seconds(1.5),
		prepare: func(r *replay) { r.secondCluster("v1.36.3") },
		meanwhile: map[float64]func(*replay){
			75: func(r *replay) { r.kube.setReady("w1", true) },
		},
	},
	{
		name: "L1c", file: "exchanges-L1-kubelet-version.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 39 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, ImagePull: seconds(1.7)}, step: seconds(0.7), stop: seconds(1.7),
		prepare: func(r *replay) { r.secondCluster("v1.36.2") },
	},
	{
		name: "L2", file: "exchanges-L2-static-pods.jsonl",
		keep:    func(x exchange) bool { return x.Seq > 50 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, Manifest: seconds(3.5)}, step: seconds(0.55),
		prepare: func(r *replay) { r.secondCluster("v1.36.3") },
	},
	{
		name: "M1", file: "exchanges-M1-snapshot.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, Learn: seconds(60)},
		prepare: func(r *replay) {
			r.saved(cp(1))
			r.configured(wk(1))
			r.founded(cp(2))
			r.configured(cp(1))
			time.Sleep(r.world.Latency.Learn + 10*time.Second)
			r.lead(cp(1))
			r.given(cp(3))
			time.Sleep(time.Second)
		},
	},
	{
		name: "M2", file: "exchanges-M2-bad-snapshots.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(1.95), Apply: seconds(0.95), Etcd: 1}, step: seconds(0.3),
		prepare: func(r *replay) {
			r.saved(cp(1))
			r.booted(cp(1))
		},
		meanwhile: map[float64]func(*replay){
			2.84:  func(r *replay) { r.applyNow(cp(1)) },
			17.02: func(r *replay) { r.powerOn(cp(1)) },
		},
	},
	{
		name: "M3", file: "exchanges-M3-restore.jsonl", keep: inStage("a new node"),
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) { r.configured(cp(1)) },
	},
	{
		name: "M3b", file: "exchanges-M3-restore.jsonl", keep: inStage("19 bytes"),
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) { r.configured(cp(1)) },
	},
	{
		name: "M3c", file: "exchanges-M3-restore.jsonl", keep: func(x exchange) bool { return x.Stage == "snapshot without its trailer" },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) { r.renewed(cp(1)) },
	},
	{
		name: "M3d", file: "exchanges-M3-restore.jsonl", keep: inStage("snapshot without its trailer, "),
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: seconds(4.9)},
		prepare: func(r *replay) { r.renewed(cp(1)) },
	},
	{
		name: "M3e", file: "exchanges-M3-restore.jsonl", keep: inStage("the good snapshot"),
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: seconds(4.9)},
		prepare: func(r *replay) { r.renewed(cp(1)) },
	},
	{
		name: "N3", file: "exchanges-N3-lab-shutdown-with-budget.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(7.04), Apply: 1, Etcd: 1, Stop: seconds(1)}, step: seconds(0.44), stop: seconds(1.52),
		prepare: func(r *replay) { r.secondCluster("v1.36.3") },
		meanwhile: map[float64]func(*replay){
			48.66: func(r *replay) { r.powerOn(atSecond(wk(1))) },
		},
	},
	{
		name: "N1", file: "exchanges-N1-node-side.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(6.04), Apply: 1, Etcd: 1, Stop: seconds(1)}, step: seconds(0.44), stop: seconds(1.394),
		prepare: func(r *replay) { r.secondCluster("v1.36.3") },
		meanwhile: map[float64]func(*replay){
			89.83: func(r *replay) { r.powerOn(atSecond(wk(1))) },
			152.2: func(r *replay) { r.kube.setReady("w1", true) },
		},
	},
}

// inStage keeps the lines of one stage.
func inStage(prefix string) func(exchange) bool {
	return func(x exchange) bool { return strings.HasPrefix(x.Stage, prefix) }
}

// missing is the tag of a kubelet that no registry has.
const missing = "v1.36.1-missing"

// withoutKubelet brings up a cluster whose kubelets have no image.
func (r *replay) withoutKubelet(nodes ...node) {
	r.patches = []string{"machine: {kubelet: {image: \"ghcr.io/siderolabs/kubelet:" + missing + "\"}}"}
	r.founded(cp(1))
	for _, n := range nodes {
		r.configured(n)
		time.Sleep(r.world.Latency.Learn + 10*time.Second)
	}
	time.Sleep(10 * time.Second)
}

// joins brings a control plane to where it is made a voter after a while.
func (r *replay) joins(n node, voter time.Duration) {
	r.given(n)
	for range 1000 {
		if r.view(n).Etcd != "" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(r.world.Latency.Learn - voter)
}

// atSecond is a node in the second of the recorded clusters.
func atSecond(n node) node {
	n.ip = strings.Replace(strings.Replace(n.ip, ".11", ".31", 1), ".21", ".41", 1)
	return n
}

// secondCluster brings up the cluster that runs Kubernetes.
func (r *replay) secondCluster(kubelet string) {
	r.patches = []string{"cluster: {controlPlane: {endpoint: \"https://10.5.0.31:6443\"}}\nmachine: {kubelet: {image: \"ghcr.io/siderolabs/kubelet:" + kubelet + "\"}}"}
	r.founded(atSecond(cp(1)))
	r.configured(atSecond(wk(1)))
	r.kube.setReady("w1", true)
	time.Sleep(5 * time.Second)
}

// planes brings up a cluster of three control planes.
func (r *replay) planes() {
	r.founded(cp(1))
	for _, n := range []node{cp(2), cp(3)} {
		r.configured(n)
		time.Sleep(r.world.Latency.Learn + 10*time.Second)
		r.kube.setReady(n.name, true)
	}
	time.Sleep(5 * time.Second)
}

// lead makes a control plane lead etcd.
func (r *replay) lead(n node) {
	nodes := []node{cp(1), cp(2), cp(3)}
	for range 10 {
		resp, err := r.admin(n).EtcdStatus(within(time.Second))
		if err != nil {
			r.t.Fatal(err)
		}
		m := resp.GetMessages()[0].GetMemberStatus()
		if m.GetLeader() == m.GetMemberId() {
			return
		}
		for _, o := range nodes {
			if o != n {
				// It answers so where it does not lead.
				_, _ = r.admin(o).EtcdForfeitLeadership(within(time.Second), &machineapi.EtcdForfeitLeadershipRequest{})
			}
		}
	}
	r.t.Fatalf("%s does not come to lead", n.name)
}

// reboot restarts a machine.
func (r *replay) reboot(n node) {
	if err := r.fleet.Reboot(n.vmid); err != nil {
		r.t.Error(err)
	}
}

// pull has the containerd of a machine's system have an image.
func (r *replay) pull(n node, ref string) {
	if err := r.lab.pull(n, inmem, ref); err != nil {
		r.t.Error(err)
	}
}

// emptied restarts a machine with an empty etcd data directory, and its old member in the list.
func (r *replay) emptied(n node) {
	if err := r.admin(n).ResetGeneric(within(time.Second), &machineapi.ResetRequest{Reboot: true, SystemPartitionsToWipe: stateAndData[1:]}); err != nil {
		r.t.Error(err)
	}
}

// seekPlanes has a boot that does not know the control planes at once behind us: the next
// one does.
func (r *replay) seekPlanes(n node) {
	r.reboot(n)
	time.Sleep(r.world.Latency.Boot + 2*time.Second)
	if _, err := r.members(n, false); err == nil {
		r.t.Errorf("%s knows the control planes", n.name)
	}
	time.Sleep(time.Minute)
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
	{"the lab validates with the library of v1.14.1, which finds one more error", []string{"E/45", "E/46", "E/47", "E/48", "E/49", "H1/117", "H1/118"}},
	{"the recorded node spoke as a configured one for a moment before it asked for certificates; the lab's goes from one to the other", []string{"B/4", "B/5"}},
	{"the recorded proxy kept a connection and backed off; the lab's dials anew", []string{"F/30", "F/67"}},
	{"not possible in a container", []string{"G/36", "G/37", "K2c/20"}},
	{"a container has no disks; the lab's machines are virtual machines", []string{"A/18", "C/78"}},
	{"the network in memory refuses an address nobody has at once", []string{"G/58", "G/60", "H1/94"}},
	{"the lab's machines speak at the first of their addresses alone", []string{"H1/91", "H1/98"}},
	{"the recorded node did not answer once, where others did", []string{"I1/17"}},
	{"a call of the same millisecond", []string{"I1/29", "I1/33", "I1b/69", "I1b/70", "I1c/81", "I1c/83", "I2/4", "I2/5", "I2/28", "I2/30", "F/14", "F/50", "F6/200",
		"J2/7", "J2c/44", "J2c/46", "J2d/61", "J2e/82", "J2e/84", "J3/5", "J3b/28", "J3b/29", "J3c/53", "N1/20", "N3/13", "K2d/45", "K2d/47"}},
	{"who comes to lead is chance", []string{"I1b/79"}},
	{"the recorded node had joined the cluster, the lab's has founded it", []string{"I3/34", "I3/84"}},
	{"a health check, or a start of a service, came at another moment", []string{"I1c/87", "I1c/93", "I2/17", "I2/18", "I2/33", "I2b/58", "I2c/68", "I2c/75", "I3/42", "I3/66", "I3/68", "J3b/32", "L1/13", "M3b/6"}},
	{"an etcd that is started again and again runs for another time each time", []string{"I2/39", "I2/43", "I2/44", "I3/69", "I3/73"}},
	{"a learner answered, or was made a voter, at another moment", []string{"I1c/95", "I2b/61", "I2c/78", "J3/6"}},
	{"the recorded node had the old kind of cgroups, of which its service reports", []string{"I2/22", "I2/47", "I3/77"}},
	{"the recorded API outlived machined for a moment, the lab's ends with it", []string{"J2d/68", "J2d/69", "J3/12", "J3/13", "J3/15"}},
	{"whether the moment between two sequences was reported is chance", []string{"J2c/47"}},
	{"that moment, and a machine that loads its next kernel shows that it reboots", []string{"K2c/29"}},
	{"the recorded machine stopped before it had reported everything", []string{"J3b/33"}},
	{"the members that are left noticed the loss of the leader at another moment", []string{"J4/88"}},
	{"the digests of the lab's images are made up", []string{"J3c/48", "K2/4", "K2/6", "K2/9", "K2b/11"}},
	{"the recorded machine was a container without a bootloader: it came back with the version it had", []string{"K2c/40"}},
	{"Talos shows the Node as Kubernetes has it, the lab what the config wants of it", []string{"N1/48"}},
	{"the pods of the recorded control plane had not come back from what was done before", []string{"L1c/40", "L2/54", "L2/55"}},
	{"the recorded kubelet took longer to start the pod that was repaired, while its kube-apiserver restarted", []string{"L2/61", "L2/62", "L2/64", "L2/65"}},
	{"the recorded services report of the volumes and cgroups of a container, too", []string{"L1/20", "L1b/27", "L1b/38"}},
	{"the lab does not show what the kubelet is started with", []string{"L1/9", "L1/18"}},
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
