package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Classify tells where a node stands. The planner and `status` both ask it, so
// that they cannot disagree.
func Classify(n cluster.Node, o cluster.Observed) cluster.Phase {
	vm := o.VMs[n.Name]
	for _, r := range o.Running {
		if r.Subject == n.Name && r.Action == (CreateVM{}).Kind() {
			return cluster.PhaseCreating
		}
		if r.Subject == n.Name && r.Action == (DeleteVM{}).Kind() {
			return cluster.PhaseLeaving
		}
	}
	switch {
	case vm.Presence == cluster.PresenceUnknown:
		return cluster.PhaseUnknown
	case vm.Task != nil && vm.Task.Type == "qmcreate":
		return cluster.PhaseCreating
	case vm.Presence == cluster.Absent:
		return cluster.PhaseAbsent
	case vm.Owner == cluster.Foreign:
		return cluster.PhaseForeign
	case vm.Owner == cluster.OwnerUnknown:
		return cluster.PhaseUnknown
	case vm.Deleting:
		return cluster.PhaseLeaving
	case vm.Power == cluster.Stopped && vm.Lock != "", vm.Power == cluster.Paused:
		return cluster.PhaseLocked
	case vm.Power == cluster.Stopped:
		return cluster.PhaseStopped
	case vm.Power == cluster.PowerUnknown:
		return cluster.PhaseUnknown
	}
	m := o.Machines[n.Name]
	switch m.Reach {
	case cluster.Stranger:
		return cluster.PhaseForeign
	case cluster.Maintenance:
		return cluster.PhaseMaintenance
	case cluster.Configured:
		switch what, unseen := lacking(n, o); {
		case what == "":
			return cluster.PhaseReady
		case unseen && m.Ready:
			// Talos itself says that all is well with it, its Kubernetes node
			// included: it has joined, and only cannot be asked about.
			return cluster.PhaseUnknown
		}
		return cluster.PhaseJoining
	case cluster.Silent:
		if vm.Uptime > bootWithin {
			return cluster.PhaseUnreachable
		}
		return cluster.PhaseBooting
	default:
		return cluster.PhaseUnknown
	}
}

// joined says what a configured machine still lacks to be a Ready node, ""
// when nothing.
func joined(n cluster.Node, o cluster.Observed) string {
	what, _ := lacking(n, o)
	return what
}

// lacking is joined, and whether that is unknown rather than missing.
func lacking(n cluster.Node, o cluster.Observed) (what string, unseen bool) {
	m := o.Machines[n.Name]
	if m.Stage != "running" {
		return "Talos is " + orElse(m.Stage, "starting"), false
	}
	if n.Role == cluster.ControlPlane {
		if !o.Members.Known {
			return "the members of etcd are not known: " + o.Members.Why, true
		}
		i := slices.IndexFunc(o.Members.Value, func(mem cluster.Member) bool {
			return mem.Name == n.Name || mem.Address == n.IP.String()
		})
		switch {
		case i < 0:
			return "it has not joined etcd yet", false
		case o.Members.Value[i].Learner:
			return "it is still a learner of etcd", false
		}
		if etcd := m.Services["etcd"]; !etcd.Healthy {
			return "its etcd is not healthy" + colon(etcd.Message), false
		}
		if api := o.APIs[n.Name]; !api.Known || !api.Value {
			return "its kube-apiserver is not ready" + colon(api.Why), !api.Known
		}
	}
	if !o.Nodes.Known {
		return "cannot see the nodes in Kubernetes" + colon(o.Nodes.Why), true
	}
	kn, ok := o.Nodes.Value[n.Name]
	switch {
	case !ok:
		return "it has not registered with Kubernetes yet", false
	case !kn.Ready:
		return "Kubernetes says NotReady" + colon(kn.Why), false
	case !m.Ready:
		return "Talos says it is not ready" + colon(strings.Join(m.Unmet, ", ")), false
	}
	return "", false
}

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// node plans for one node: the one switch over its phase.
func (m *planner) node(n cluster.Node) {
	vm, mach := m.o.VMs[n.Name], m.o.Machines[n.Name]
	phase := m.plan.Phases[n.Name]
	if n.Locked && phase != cluster.PhaseReady {
		m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("it is %s and locked in the inventory, so it is left alone", phase),
			Hint: "remove `locked: true` from nodes.yaml"})
		return
	}
	switch phase {
	case cluster.PhaseUnknown:
		if what := joined(n, m.o); mach.Reach == cluster.Configured && vm.Power == cluster.PowerRunning && what != "" {
			m.wait(cluster.Wait{Subject: n.Name, Reason: what, Within: apiWithin})
			m.differences(n, vm, mach)
			return
		}
		m.wait(cluster.Wait{Subject: n.Name, Reason: "cannot see it: " + whyUnseen(vm, mach), Within: seeWithin})
	case cluster.PhaseAbsent:
		m.absent(n)
	case cluster.PhaseForeign:
		m.foreign(n, vm, mach)
	case cluster.PhaseLocked:
		m.locked(n, vm)
	case cluster.PhaseCreating:
		if !m.isRunning(CreateVM{}.Kind(), n.Name) {
			m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("its vm %d is being created by a task that runs in Proxmox VE", n.VMID), Within: taskWithin})
		}
	case cluster.PhaseStopped:
		m.stopped(n, vm)
	case cluster.PhaseBooting:
		if !m.isRunning(StartVM{}.Kind(), n.Name) {
			m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("boots: nothing answers at %s:50000 yet", n.IP), Within: bootWithin, Hint: consoleHint(n, vm)})
		}
	case cluster.PhaseUnreachable:
		m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("its vm runs but nothing answers at %s:50000", n.IP), Within: seeWithin, Hint: consoleHint(n, vm)})
	case cluster.PhaseMaintenance:
		m.maintenance(n)
	case cluster.PhaseLeaving:
		if !m.isRunning(DeleteVM{}.Kind(), n.Name) {
			m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("a deletion of vm %d has begun and was not finished", n.VMID),
				Hint: fmt.Sprintf("finish it with `talos-agent destroy %s`, or take the word \"deleting\" out of the VM's description to keep it", m.d.Spec.Name)})
		}
	case cluster.PhaseJoining:
		if !m.isRunning(ApplyConfig{}.Kind(), n.Name) {
			m.wait(cluster.Wait{Subject: n.Name, Reason: joined(n, m.o), Within: joinWithin})
		}
		m.differences(n, vm, mach)
	case cluster.PhaseReady:
		m.differences(n, vm, mach)
	}
}

func consoleHint(n cluster.Node, vm cluster.VM) string {
	return fmt.Sprintf("look at its console: `qm terminal %d` on %s; has it booted the nocloud image, and is it on bridge %s?", n.VMID, carrier(n, vm), n.Bridge)
}

func whyUnseen(vm cluster.VM, mach cluster.Machine) string {
	switch {
	case vm.Why != "":
		return vm.Why
	case mach.Why != "":
		return mach.Why
	default:
		return "nobody has answered yet"
	}
}

// absent plans the making of a VM.
func (m *planner) absent(n cluster.Node) {
	if twin, ok := m.twin(n); ok {
		m.block(cluster.Block{Subject: n.Name,
			Reason: fmt.Sprintf("it is vm %d, and the inventory now says vm %d; giving a node another vmid or ip is not built yet", twin.VMID, n.VMID),
			Hint:   fmt.Sprintf("undo the change in nodes.yaml; its vmid follows from its ip where none is written (vmid: %d)", twin.VMID)})
		return
	}
	mach := m.o.Machines[n.Name]
	if mach.Reach == cluster.Maintenance || mach.Reach == cluster.Configured || mach.Reach == cluster.Stranger {
		// A VM that was deleted a moment ago is believed to answer until its
		// connection is known to be lost.
		m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("its vm does not exist, but a Talos machine already answers at %s", n.IP), Within: seeWithin,
			Hint: "give the node another ip, or switch off the machine that has this one"})
		return
	}
	if n.Role == cluster.ControlPlane && !m.mayJoin(n) || !m.mayAdd(n) {
		return
	}
	h := m.o.Hosts[n.Host]
	if !m.hostUsable(n.Name, h, n.Host) || !m.storageUsable(n, h) {
		return
	}
	if n.Cores > h.Cores && h.Cores > 0 {
		m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("it wants %d cores, and %s has %d; Proxmox VE would not start it", n.Cores, n.Host, h.Cores),
			Hint: fmt.Sprintf("set cpu to %d or less", h.Cores)})
		return
	}
	if m.d.Schematic == "" {
		m.wait(cluster.Wait{Subject: n.Name, Reason: "waits for the image factory to name the image"})
		return
	}
	if !h.Images.Known {
		m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("cannot see the images on %s: %s", n.ImageDatastore, h.Images.Why), Within: seeWithin})
		return
	}
	size, ok := h.Images.Value[m.d.Image.Name]
	if !ok {
		if !m.o.ImageCached.Known && m.o.ImageCached.Why != "" {
			m.wait(cluster.Wait{Subject: n.Name, Reason: "cannot see the image cache: " + m.o.ImageCached.Why, Within: seeWithin})
			return
		}
		m.wait(cluster.Wait{Subject: n.Name, Reason: "waits for image " + m.d.Image.Name})
		return
	}
	if m.isRunning(UploadImage{}.Kind(), UploadImage{Image: m.d.Image, Host: n.Host, Datastore: n.ImageDatastore}.Subject()) {
		m.wait(cluster.Wait{Subject: n.Name, Reason: "waits for image " + m.d.Image.Name})
		return
	}
	if pin, ok := m.o.Facts.Images[m.d.Image.Name]; ok && pin.Bytes != size {
		m.block(cluster.Block{Subject: n.Name,
			Reason: fmt.Sprintf("image %s on %s has %d bytes, and had %d when it was verified", m.d.Image.Name, n.ImageDatastore, size, pin.Bytes),
			Hint:   fmt.Sprintf("delete %s:import/%s; it is downloaded and verified again", n.ImageDatastore, m.d.Image.Name)})
		return
	}
	m.do(CreateVM{Node: n, Image: m.d.Image})
}

// mayJoin reports whether a control plane without a VM may be made: once etcd
// was founded, one that is still a member has to leave first, or its successor
// could never join.
func (m *planner) mayJoin(n cluster.Node) bool {
	if m.lostMember(n) {
		m.block(cluster.Block{Subject: n.Name, Reason: "its vm is gone, and it was a member of etcd; replacing a control plane is not built yet", Hint: lostHint})
		return false
	}
	if m.o.Facts.Bootstrap != nil && !m.o.Members.Known {
		m.wait(cluster.Wait{Subject: n.Name, Reason: "waits until the members of etcd are known, to see that it is not one of them" + colon(m.o.Members.Why), Within: etcdWithin})
		return false
	}
	return true
}

// twin is the VM that carries a node under a VMID that the inventory does not
// give it: one made beside it would be a second machine for one node.
func (m *planner) twin(n cluster.Node) (cluster.VM, bool) {
	i := slices.IndexFunc(m.o.Strays.Value, func(vm cluster.VM) bool { return vm.Node == n.Name })
	if i < 0 {
		return cluster.VM{}, false
	}
	return m.o.Strays.Value[i], true
}

// mayAdd reports whether enough is seen of what there is for one VM more.
func (m *planner) mayAdd(n cluster.Node) bool {
	switch {
	case m.o.Facts.Lost && !SeesAllVMs(m.o):
		// Later a VM that is made now would look as if it had been there
		// before the records were lost.
		m.wait(cluster.Wait{Subject: n.Name, Within: seeWithin, Reason: blindStart})
		return false
	case !m.o.Strays.Known:
		// One of them may be this node, and they count against the limits.
		m.wait(cluster.Wait{Subject: n.Name, Within: seeWithin, Reason: "cannot see which other VMs belong to the cluster" + colon(m.o.Strays.Why)})
		return false
	}
	return true
}

// blindStart is why an agent without records does not begin yet.
const blindStart = "cannot see yet whether VMs of this cluster are there already"

const lostHint = "remove its member with `talosctl etcd remove-member` on another control plane; never bring an old copy of it back"

// lostMember reports whether a control plane that has no data (any more) counts
// as a member of etcd: etcd says so, or it is the one that founded it and no
// other member could tell.
func (m *planner) lostMember(n cluster.Node) bool {
	others := false
	for _, mem := range m.o.Members.Value {
		if mem.Name == n.Name || mem.Address == n.IP.String() {
			return true
		}
		others = true
	}
	in := m.o.Facts.Bootstrap
	return in != nil && in.Node == n.Name && !(m.o.Members.Known && others)
}

// hostUsable reports whether a host can be acted on, and says why not.
func (m *planner) hostUsable(subject string, h cluster.Host, name string) bool {
	switch {
	case !h.Known:
		m.wait(cluster.Wait{Subject: subject, Reason: fmt.Sprintf("cannot see host %s: %s", name, orElse(h.Why, "it has not answered yet")), Within: seeWithin})
		return false
	case h.Quorate.Known && !h.Quorate.Value:
		m.wait(cluster.Wait{Subject: subject, Reason: fmt.Sprintf("the Proxmox VE cluster of %s has no quorum, so nothing can be changed", name), Within: seeWithin,
			Hint: "bring the other hosts back; `pvecm status` shows who is missing"})
		return false
	}
	return true
}

// storageUsable checks the three storages a VM needs, as far as they are seen.
func (m *planner) storageUsable(n cluster.Node, h cluster.Host) bool {
	if !h.Storages.Known {
		m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("cannot see the storages of %s: %s", n.Host, h.Storages.Why), Within: seeWithin})
		return false
	}
	type need struct{ name, content, field string }
	needs := []need{{n.Datastore, "images", "proxmox.datastore"}, {n.CloudInitDatastore, "images", "proxmox.cloudinit_datastore"}, {n.ImageDatastore, "import", "proxmox.image_datastore"}}
	for _, d := range n.Disks {
		needs = append(needs, need{d.Datastore, "images", "datastore of disk " + d.Name})
	}
	ok := true
	for _, w := range needs {
		st, found := h.Storages.Value[w.name]
		switch {
		case w.name == "" || found && st.Active && slices.Contains(st.Content, w.content):
		case !found:
			ok = false
			m.block(cluster.Block{Subject: m.d.Spec.Name, Reason: fmt.Sprintf("%s: host %s shows no storage %q", w.field, n.Host, w.name),
				Hint: "correct the name, or give the agent's token Datastore.Audit and Datastore.AllocateSpace on it"})
		case !st.Active:
			ok = false
			m.wait(cluster.Wait{Subject: m.d.Spec.Name, Reason: fmt.Sprintf("storage %s on %s is not active", w.name, n.Host), Within: seeWithin})
		default:
			ok = false
			m.block(cluster.Block{Subject: m.d.Spec.Name, Reason: fmt.Sprintf("storage %s on %s does not allow content type %q", w.name, n.Host, w.content),
				Hint: fmt.Sprintf("as root on %s: `pvesm set %s --content %s`", n.Host, w.name, strings.Join(append(slices.Clone(st.Content), w.content), ","))})
		}
	}
	return ok
}

func (m *planner) foreign(n cluster.Node, vm cluster.VM, mach cluster.Machine) {
	if vm.Owner == cluster.Foreign {
		m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("vmid %d carries a vm that is not ours%s", n.VMID, colon(vm.Why)),
			Hint: "give the node another vmid in nodes.yaml, or move the other vm away; where another host's agent made it, `clusters` in config.yaml leaves the cluster to that one"})
		return
	}
	m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("who answers at %s is not the machine this node's vm carries%s", n.IP, colon(mach.Why)),
		Hint: fmt.Sprintf("find the other machine that uses %s; nothing secret was sent to it", n.IP)})
}

func (m *planner) locked(n cluster.Node, vm cluster.VM) {
	switch {
	case vm.Power == cluster.Paused:
		m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("vm %d is paused", n.VMID),
			Hint: fmt.Sprintf("`qm resume %d` on %s, after looking why: a full storage pauses VMs too", n.VMID, carrier(n, vm))})
	case vm.Lock == "create" || vm.Lock == "clone":
		m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("vm %d was left locked (%s) by a task that died", n.VMID, vm.Lock),
			Hint: fmt.Sprintf("as root on %s: `qm unlock %d` and `qm destroy %d`; it is made again then", carrier(n, vm), n.VMID, n.VMID)})
	default:
		m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("vm %d is locked by Proxmox VE (%s)", n.VMID, vm.Lock), Within: lockWithin})
	}
}

// stopped finishes a VM that was cut off while it was made, then starts it.
func (m *planner) stopped(n cluster.Node, vm cluster.VM) {
	if host := carrier(n, vm); !m.hostUsable(n.Name, m.o.Hosts[host], host) {
		return
	}
	if !vm.Hardware.Known {
		m.wait(cluster.Wait{Subject: n.Name, Reason: fmt.Sprintf("cannot see the config of vm %d: %s", n.VMID, vm.Hardware.Why), Within: seeWithin})
		return
	}
	if Unfinished(vm) {
		m.do(CreateVM{Node: n, Image: m.d.Image, Finish: true})
		return
	}
	m.differences(n, vm, cluster.Machine{})
	m.do(StartVM{Node: n})
}

// Unfinished reports whether a VM of ours was cut off before it could be
// started for the first time: its disk has not been grown, or its tag is not
// there.
func Unfinished(vm cluster.VM) bool {
	hw := vm.Hardware
	return hw.Known && vm.Power == cluster.Stopped &&
		(hw.Value.System.Bytes < unfinishedAt || !slices.Contains(vm.Tags, cluster.OwnTag))
}

func (m *planner) maintenance(n cluster.Node) {
	cfg, ok := m.d.Configs[n.Name]
	if !ok {
		m.wait(cluster.Wait{Subject: n.Name, Reason: "waits for the image factory, whose schematic id its config names"})
		return
	}
	if n.Role == cluster.ControlPlane && m.lostMember(n) {
		m.block(cluster.Block{Subject: n.Name, Reason: "it was a member of etcd and has lost its config and data; replacing a control plane is not built yet", Hint: lostHint})
		return
	}
	m.do(ApplyConfig{Node: n, Config: cfg})
}

// differences reports where a node that is there differs from the inventory.
// Changing what is there is not built yet, so each is a block.
func (m *planner) differences(n cluster.Node, vm cluster.VM, mach cluster.Machine) {
	if vm.Hardware.Known {
		for _, d := range Differences(WantedHardware(m.d.Spec, n), vm.Hardware.Value) {
			m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("vm %d has %s, and the inventory says %s; changing a vm is not built yet", n.VMID, d.have(), d.want()),
				Hint: "undo the change in the repository, or change the vm by hand to match"})
		}
	}
	if mach.Reach != cluster.Configured {
		return
	}
	if mach.Talos != "" && mach.Talos != m.d.Spec.Versions.Talos {
		m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("it runs Talos %s, and the inventory says %s; upgrading is not built yet", mach.Talos, m.d.Spec.Versions.Talos),
			Hint: "set talos_version back, or upgrade with talosctl"})
		return
	}
	if kn, ok := m.o.Nodes.Value[n.Name]; m.o.Nodes.Known && ok && kn.Kubelet != "" && kn.Kubelet != m.d.Spec.Versions.Kubernetes {
		m.block(cluster.Block{Subject: n.Name, Reason: fmt.Sprintf("it runs Kubernetes %s, and the inventory says %s; upgrading is not built yet", kn.Kubelet, m.d.Spec.Versions.Kubernetes),
			Hint: "set kubernetes_version back, or upgrade with talosctl upgrade-k8s"})
		return
	}
	if cfg, ok := m.d.Configs[n.Name]; ok && mach.ConfigDigest != "" && mach.ConfigDigest != cfg.Digest {
		m.block(cluster.Block{Subject: n.Name, Reason: "its machine config differs from the repository's; changing the config of a running node is not built yet",
			Hint: "undo the change in the repository, or apply it with talosctl"})
	}
}
