package cluster

// Reasons is the table of all reasons, in the order of the reference.
// docs/reference/reasons.md is made from it.
func Reasons() []ReasonInfo {
	var all []ReasonInfo
	for _, part := range [][]ReasonInfo{conditionReasons, clusterReasons, hostReasons, nodeReasons, addonReasons, apiReasons} {
		all = append(all, part...)
	}
	return all
}

// Find returns the row of a reason.
func (r Reason) Find() (ReasonInfo, bool) {
	for _, info := range Reasons() {
		if info.Reason == r {
			return info, true
		}
	}
	return ReasonInfo{}, false
}

var conditionReasons = []ReasonInfo{
	{Converged, Everyone, HoldsNothing, "The cluster matches its inventory.", "Nothing."},
	{Progressing, Everyone, HoldsNothing, "Actions are under way, or something is waited for that takes its time.", "Nothing; `talos-agent status` shows what."},
	{SuspendedByAdmin, Everyone, HoldsNothing, "An administrator suspended the cluster; nothing is changed.", "`talos-agent resume CLUSTER`."},
	{Destroying, Everyone, HoldsNothing, "An administrator asked for the cluster to be destroyed.", "Nothing; `talos-agent resume CLUSTER` stops it."},
	{Starting, Everyone, HoldsNothing, "The agent has just started and has not looked yet.", "Nothing."},
	{StandingBy, Everyone, HoldsNothing, "This agent is one of several, of which another one acts, or none does yet.", "Run the command on the host that is named; `talos-agent status` shows which."},
	{RepositoryUnavailable, Everyone, HoldsNothing, "The repository cannot be fetched, and no inventory was read since the agent started.", "The message shows why; `talos-agent doctor` tries it again."},
	{InternalError, Everyone, HoldsNothing, "A programming error of the agent.", "Report it with the agent's log."},
}

var clusterReasons = []ReasonInfo{
	{ClusterUnmanaged, Everyone, HoldsNothing, "The agent cannot begin to manage the cluster: its state cannot be read, or belongs to another agent.", "The message shows why."},
	{ClusterRemoved, Everyone, HoldsNothing, "The cluster is no longer in the repository, and something of it is left: VMs, or the record that it was founded.", "Bring its folder back, or `talos-agent destroy CLUSTER`."},
	{InventoryInvalid, Everyone, HoldsUpgrade, "The newest revision of the inventory has errors; the last valid one stays in force.", "`talos-agent validate` in a clone lists all problems; fix them and push."},
	{HistoryRewritten, Everyone, HoldsNothing, "The branch does not contain the revision that was applied last.", "`talos-agent accept CLUSTER` if that was meant; otherwise restore the branch."},
	{HistoryUnknown, Everyone, HoldsNothing, "Whether the branch contains the revision that was applied last cannot be read.", "The message shows why."},
	{JournalUnwritable, Everyone, HoldsNothing, "The agent cannot write its state; nothing is changed meanwhile.", "Make room on the file system of `state_dir`, or correct its permissions."},
	{JournalLost, Everyone, HoldsNothing, "The agent's own state is lost, and whether etcd was founded before is not known.", "`talos-agent accept CLUSTER --bootstrap` if the cluster never came up; otherwise wait for its control planes."},
	{PolicyUnknown, Everyone, HoldsNothing, "The host's policy is missing, unreadable or wrong; nothing is changed meanwhile.", "Fix policy.yaml on the host."},
	{PolicyViolation, Everyone, HoldsNothing, "The repository asks for more than the host's policy allows, or a VM that would be deleted lies where the policy allows nothing.", "Ask for less, or have an administrator of the host change the policy, for such a VM until it is deleted."},
	{SecretsMissing, Everyone, HoldsNothing, "The inventory has no secrets.sops.yaml.", "`talos-agent secrets new` in a clone, then commit and push; for a cluster that runs, restore the file from the history of the repository: new keys would be others."},
	{SecretsChanged, Everyone, HoldsNothing, "secrets.sops.yaml holds other keys than those the cluster was built with, or another certificate authority than a node has, which somebody rotated.", "Restore the file from the history of the repository, or bring the new authority into it."},
	{ContractChanged, Everyone, HoldsNothing, "`config_contract` is not the one that the cluster was made with; it keeps that.", "Write the cluster's own, which the message names."},
	{VMsUnknown, Everyone, HoldsNothing, "Which VMs of the cluster there are is not known.", "See whether Proxmox VE answers: `talos-agent doctor`."},
	{NodeDead, Everyone, HoldsNothing, "A node that worked does not answer any more, and gets a new machine, or would if something else did not speak against it.", "Look at its console; `locked: true` on the node leaves it alone."},
	{WaitingForWindow, Everyone, HoldsOrder, "A node is taken out of service when the `window` of the cluster or of the host's policy opens.", "Nothing; or push another window; `talos-agent upgrade CLUSTER --now` has an upgrade not wait for it."},
	{WaitingForTurn, Everyone, HoldsUpgrade, "Something that the action needs for itself is in use: a storage, a node, etcd.", "Nothing."},
	{WaitingForBudget, Everyone, HoldsUpgrade, "As many nodes of the role are unavailable as may be at once.", "See why those that are unavailable are."},
	{WaitingForQuorum, Everyone, HoldsUpgrade, "With this control plane down etcd would lose its quorum, or it is not known that it would not.", "The hint names the members that are down: see what those control planes wait for."},
	{WaitingForEndpoint, Everyone, HoldsNothing, "A control plane is to be removed or replaced, and nodes that stay still reach the Kubernetes API at its address: they get their new machine config first; or the endpoint becomes a control plane that has not joined etcd yet, or a VIP that none serves yet.", "Nothing; see the nodes that the message names when it takes long."},
	{ActionFailed, Everyone, HoldsUpgrade, "An action failed and is tried again later.", "The message shows what failed; the hint what to do."},
	{ActionOverdue, Everyone, HoldsUpgrade, "An action of the agent takes longer than actions of its kind should.", "The message shows what it waits for."},
	{TaskOverdue, Everyone, HoldsUpgrade, "A task of Proxmox VE that the agent began takes longer than it should.", "See its log, and whether its storage hangs: `pvesm status`; the hint shows how to end it."},
	{WaitingForImage, Everyone, HoldsNothing, "The Talos image is not on the storage yet; the machine of a node that is replaced is kept until it can be had.", "Nothing."},
	{WaitingForCapacity, Everyone, HoldsNothing, "Not all nodes of a new cluster fit on their hosts, and no part of it is made before they do.", "Do what is shown for the nodes that do not fit."},
	{WaitingForFactory, Everyone, HoldsNothing, "The image factory has not named the image yet.", "See whether the factory answers: `talos-agent doctor`."},
	{ImageCacheUnknown, Everyone, HoldsNothing, "The agent's image cache cannot be read.", "See `cache_dir` in config.yaml."},
	{ImageMismatch, Everyone, HoldsNothing, "An image on a storage is not the one that was verified.", "Delete it from the storage; it is downloaded and verified again."},
	{WaitingForAPI, Everyone, HoldsNothing, "No kube-apiserver of the cluster answers yet.", "See the consoles of the control planes when it takes long."},
	{VIPNotServed, Everyone, HoldsNothing, "A kube-apiserver answers on a control plane's own address, and none at the VIP: kubectl, new nodes and restarted ones that go through it cannot reach the API.", "The message shows who holds the address; see the hint."},
	{NodesUnknown, Everyone, HoldsNothing, "The Node objects of Kubernetes cannot be read.", "See whether the kube-apiserver answers."},
	{SystemPodsUnknown, Everyone, HoldsNothing, "The pods of kube-system cannot be read.", "See whether the kube-apiserver answers."},
	{PodsUnschedulable, Everyone, HoldsNothing, "No node takes any pod of a workload of kube-system.", "`kubectl -n kube-system describe pod POD`; the message has what the scheduler finds."},
	{ClusterDNSNotReady, Everyone, HoldsNothing, "CoreDNS, which Talos deploys, is not ready; waited for until the cluster is Ready for the first time.", "`kubectl -n kube-system describe pod -l k8s-app=kube-dns`."},
	{EtcdUnreachable, Everyone, HoldsNothing, "The cluster has an etcd, and none of its members answers.", "See what the control planes do: `talos-agent status`."},
	{EtcdLost, Everyone, HoldsNothing, "The cluster had an etcd, and no control plane has its data any more.", "Restore a snapshot, or destroy the cluster."},
	{WaitingForSnapshot, Everyone, HoldsUpgrade, "A cluster is upgraded, and a control plane that works is removed, when there is a verified snapshot of etcd that is younger than an hour.", "Nothing; see why none can be taken when it takes long: `talos-agent status`."},
	{SnapshotsUnknown, Everyone, HoldsUpgrade, "The snapshots of etcd that this host keeps cannot be read; or the newest are read to their end, which the agent does after each start.", "See `snapshots` in config.yaml, and whether its directory can be read."},
	{ManifestsUnknown, Everyone, HoldsUpgrade, "Whether what Talos deploys once, kube-proxy and the cluster's DNS for example, is as its control planes render it now is not known; until it is, no hop of an upgrade begins.", "The message names what cannot be read; where control planes render it differently, see the patches of their machine configs."},
	{ManifestsOutdated, Everyone, HoldsUpgrade, "What Talos deploys once is not as its control planes render it now, and is changed before the next hop of an upgrade begins.", "Nothing; the message names the objects."},
	{ManifestsRolling, Everyone, HoldsUpgrade, "The pods of what Talos deploys once are not all of what was applied yet; until they are, no hop of an upgrade begins, and none has ended.", "`kubectl -n kube-system rollout status` of the workload that the message names, and `kubectl -n kube-system describe pod`, show what its pods lack when it takes long."},
	{BootstrapUncertain, Everyone, HoldsNothing, "Whether etcd was founded is not known: the node that was asked to is deleted, or another one may have.", "The hint shows what is safe."},
}

var hostReasons = []ReasonInfo{
	{HostUnknown, Everyone, HoldsNothing, "A host cannot be seen.", "See whether Proxmox VE answers there."},
	{HostMaintained, Everyone, HoldsUpgrade, "A host is in the maintenance mode of Proxmox VE's HA manager: nothing is made or changed on it.", "`ha-manager crm-command node-maintenance disable HOST` ends it."},
	{HostNoQuorum, Everyone, HoldsNothing, "The Proxmox VE cluster has no quorum, so that nothing can be changed.", "Bring the other hosts back; `pvecm status` shows which are missing."},
	{HostTooSmall, Everyone, HoldsNothing, "A node asks for more than its host has.", "Ask for less."},
	{HostUnsuitable, Everyone, HoldsNothing, "A host does not have what the VM of a node is to have, such as a device, so that the VM would not start; it is not made, or stays as it is.", "The message shows what; the hint what to do."},
	{HostMemoryShort, Everyone, HoldsNothing, "The memory of a host is promised to other VMs, so that the VM of a node is not made.", "Give it less `ram`, or another host."},
	{StorageShort, Everyone, HoldsNothing, "A storage has no room for the disks of a node, so that its VM is not made.", "Give it smaller disks, or make room."},
	{StorageUnknown, Everyone, HoldsNothing, "The storages of a host, or what is on them, cannot be seen.", "See the privileges of the agent's token: `talos-agent doctor`."},
	{StorageMissing, Everyone, HoldsNothing, "The host shows no storage of that name.", "Correct the name, or give the token rights on the storage."},
	{StorageInactive, Everyone, HoldsNothing, "A storage is not active.", "See `pvesm status` on the host."},
	{StorageContent, Everyone, HoldsNothing, "A storage does not allow the type of content that is needed.", "`pvesm set STORAGE --content ...` on the host."},
}

var nodeReasons = []ReasonInfo{
	{NodeUnknown, Everyone, HoldsNothing, "The VM or the machine of a node cannot be seen.", "See whether Proxmox VE and the node's address answer."},
	{NodeLocked, Everyone, HoldsUpgrade, "The inventory has `locked: true`, and the node is not Ready, or differs from the inventory, or others wait for what it is not given.", "Remove `locked: true`."},
	{NodeProtected, Everyone, HoldsNothing, "The inventory has `protect: true` or `locked: true`, so that the VM is not deleted.", "Remove it, push, and destroy again."},
	{VMProtected, Everyone, HoldsNothing, "Proxmox VE's Protection is on for a VM that is to be deleted. The agent never sets it.", "Take it off, or name the VM: `talos-agent destroy CLUSTER --despite-protection VMID`."},
	{VMNotShown, Everyone, HoldsNothing, "A VM of the cluster was not among what `destroy` showed when it was confirmed: it came later, as from a backup. It is kept.", "Look at what it is; if it may go, `talos-agent destroy CLUSTER` shows and deletes it."},
	{ControlPlaneUnproven, Everyone, HoldsNothing, "A VM has the VMID of a control plane, and is proven neither to be the node's nor to be another's: it is outside the pool, or has no SMBIOS UUID. It may hold etcd, so that the cluster does not count as destroyed.", "Give the VM back its pool and its UUID, or remove it, and destroy again. If no etcd of the cluster is left: `talos-agent accept CLUSTER --bootstrap`."},
	{VMManaged, Everyone, HoldsNothing, "Proxmox VE's HA manager manages a VM that is to be deleted, taken down or started.", "Take it out of HA: `ha-manager remove vm:VMID`; or, to have it started, `ha-manager set vm:VMID --state started`."},
	{HAUnknown, Everyone, HoldsNothing, "The inventory has `ha`, and what Proxmox VE's HA manager holds cannot be seen.", "Give the role of the agent's token Sys.Audit and Sys.Console on /."},
	{HANotHeld, Everyone, HoldsNothing, "The inventory has `ha`, and Proxmox VE's HA manager does not keep a VM running, or control planes apart: it has given the VM up, its disks are not on shared storage, or the rule is disabled or in conflict with another.", "The hint names it; `ha-manager status` and `ha-manager rules list` on the host show both."},
	{HADisarmed, Everyone, HoldsUpgrade, "Somebody has disarmed Proxmox VE's HA manager, and something is to be asked of it: to keep a VM running, to ignore one that is taken down or deleted, to start one. It does none of that meanwhile.", "`ha-manager crm-command arm-ha` on a host, when the work for which it was disarmed is done; `ha-manager status` shows its state."},
	{ForeignVolumes, Everyone, HoldsNothing, "Volumes that are not the agent's would be deleted with a VM.", "Move them to another VM, or remove them."},
	{NodeUnreachable, Everyone, HoldsNothing, "The VM of a node runs, and nothing answers at its address.", "See its console: `qm terminal VMID`."},
	{NodeIdentityChanged, Everyone, HoldsNothing, "The inventory gives a node another VMID or name than its VM has; or the VM was restored from before its replacement.", "Undo the change; the hint names what leads there."},
	{AddressInUse, Everyone, HoldsNothing, "Another machine answers at the address of a node that has no VM.", "Give the node another address, or switch the machine off."},
	{ForeignVM, Everyone, HoldsNothing, "The VMID of a node belongs to a VM that is not ours.", "Give the node another VMID."},
	{UnexpectedMachine, Everyone, HoldsNothing, "Another machine than the node's own answers at its address.", "Find the machine that uses the address."},
	{RemovalUnapproved, Everyone, HoldsNothing, "Nodes left the inventory, more of them at once than the host lets be removed without approval, or `apply: approve` has each wait.", "Put the nodes back, or `talos-agent plan CLUSTER` and `talos-agent approve CLUSTER DIGEST`."},
	{EvenControlPlanes, Everyone, HoldsNothing, "A control plane left the inventory, and an even number of them is left.", "Put it back, or take another one out; `allow_even: true` in cluster.yaml has it removed all the same."},
	{OnlyControlPlane, Everyone, HoldsNothing, "The only control plane is to be replaced, with which etcd and all that Kubernetes knows would be lost.", "Undo `replace`, or add two control planes first."},
	{EndpointIsNode, Everyone, HoldsNothing, "A control plane needs a new machine, and the endpoint of the cluster is its own address, so that the new one would not find etcd.", "Write `network.vip`, or a `network.endpoint` that leads to all control planes, in cluster.yaml."},
	{OrphanEtcdMember, Everyone, HoldsNothing, "etcd has a member that is no control plane of the inventory, or several for one; each counts for the quorum.", "Put the node back, or remove the member: the hint has its id."},
	{OrphanNodeObject, Everyone, HoldsNothing, "Kubernetes has a Node object that the inventory does not name, or that of a machine which somebody destroyed is Ready still.", "Put the node back, or `kubectl delete node NODE`."},
	{DuplicateVM, Everyone, HoldsNothing, "A second VM carries the same node.", "Decide which one is right; the hint shows how."},
	{VMConfigUnknown, Everyone, HoldsNothing, "The config of a VM cannot be read.", "See whether Proxmox VE answers."},
	{VMCreating, Everyone, HoldsNothing, "A task of Proxmox VE creates the VM.", "Nothing."},
	{VMLocked, Everyone, HoldsUpgrade, "Proxmox VE holds a lock on the VM (a backup, a migration, a snapshot), runs a task on it, or its HA manager has a request for it, as a migration or the end of a failure.", "Wait for it to end. `ha-manager status` shows requests; one that has failed, or finds no host, is settled there."},
	{VMLockOrphaned, Everyone, HoldsNothing, "A VM is locked by a task that ended without releasing the lock.", "`qm unlock VMID` on the host; one that was being created has to be destroyed there, too: the hint shows how."},
	{VMPaused, Everyone, HoldsNothing, "A VM is paused, and the agent does not resume it: a full storage has halted it, or HA manages it.", "`qm resume VMID` on the host, after seeing why."},
	{SystemDiskMissing, Everyone, HoldsNothing, "The VM of a node has no disk that is known for its system disk: it was detached, or attached again without its serial.", "Attach it as it was: the hint has the command."},
	{DeletionUnfinished, Everyone, HoldsNothing, "The deletion of a VM was begun and not finished.", "Remove the mark from the VM's description, or give the node another `replace`; or destroy the cluster again."},
	{DestroyExpired, Everyone, HoldsNothing, "The command to destroy the cluster is older than a day; what it has not deleted by then is kept.", "Run `talos-agent destroy` again, if it still holds."},
	{WaitingForAddress, Everyone, HoldsNothing, "Which address a DHCP server gave a node without `ip` is not known, or another machine answers there.", "The message has where the agent looked; see the console of its VM, and `dhcp.leases` in config.yaml."},
	{WaitingForBoot, Everyone, HoldsNothing, "A VM was started, and Talos does not answer yet.", "See its console when it takes long."},
	{WaitingForTalos, Everyone, HoldsNothing, "Talos is installing, booting or starting its services.", "See its console when it takes long."},
	{TalosNotReady, Everyone, HoldsNothing, "Talos reports conditions of its own that are not met.", "The message names them."},
	{WaitingForEtcd, Everyone, HoldsNothing, "etcd has not started on a control plane.", "`talosctl -n IP service etcd`."},
	{WaitingForMembership, Everyone, HoldsNothing, "A control plane has not joined etcd, or is a learner still; or it waits until another one has joined, for 20 minutes at most; or its etcd has left the others, and its machine is restarted after ten minutes.", "Nothing; it may take minutes."},
	{EtcdMembersUnknown, Everyone, HoldsUpgrade, "The members of etcd cannot be read.", "See what the control planes do."},
	{EtcdMemberLost, Everyone, HoldsNothing, "A member of etcd has lost its data or its VM, or a control plane has lost its member, which somebody may have removed while it runs.", "Remove the member: `talosctl etcd remove-member`; or replace the node: the hint shows which."},
	{EtcdMemberStuck, Everyone, HoldsNothing, "A control plane is a learner of etcd that Talos does not make a voter any longer, and no other one can join meanwhile.", "Give the node another `replace` in nodes.yaml, which removes its member and gives it a new machine."},
	{EtcdUnhealthy, Everyone, HoldsNothing, "etcd on a control plane is not healthy.", "`talosctl -n IP service etcd`."},
	{EtcdAlarm, Everyone, HoldsOrder, "etcd has an alarm: its database is full (`NOSPACE`), or a member has other data than the others (`CORRUPT`). No node is upgraded meanwhile, nor while it is not known.", "`talosctl etcd alarm list`; make room with `talosctl etcd defrag`, or replace the member; then `talosctl etcd alarm disarm`."},
	{EtcdTooOld, Everyone, HoldsUpgrade, "etcd is older than 3.5.26 and would get to 3.6, which has members that were removed from such an etcd for members again.", "Bring every control plane to etcd 3.5.26 first, which Talos 1.10.9 comes with unless `cluster.etcd.image` names another."},
	{APIServerNotReady, Everyone, HoldsNothing, "The kube-apiserver of a control plane is not ready.", "The message names which check fails."},
	{StaticPodOutdated, Everyone, HoldsNothing, "A control plane does not run a static pod (kube-apiserver, kube-controller-manager, kube-scheduler) as its machine config has it yet, by what Kubernetes shows; its kubelet takes up to two minutes to restart one and to show it.", "Nothing, unless it lasts: then see the log of its kubelet, `talosctl logs kubelet`."},
	{StaticPodNotReady, Everyone, HoldsNothing, "A static pod of a control plane runs, and is not ready.", "The message names why, where Kubernetes knows it; `kubectl -n kube-system logs` shows more."},
	{WaitingToRegister, Everyone, HoldsNothing, "A node has not registered with Kubernetes.", "`talosctl -n IP service kubelet`."},
	{NodeNotReady, Everyone, HoldsNothing, "Kubernetes reports the node as NotReady.", "`kubectl describe node NODE`; the message names the pods of kube-system that fail on it."},
	{NodePressure, Everyone, HoldsNothing, "Kubernetes reports that a node is short of disk, memory or processes, or has no network.", "`kubectl describe node NODE`; give the VM more of what it lacks."},
	{PoolDrift, Everyone, HoldsNothing, "The VM of a node is in another pool than in the inventory, so that the agent may not touch it; where it does not see that VM either, its own machine answers.", "Undo the change, or move the VM into the pool; the hint shows how."},
	{HardwareDrift, Everyone, HoldsNothing, "A VM has other hardware than in the inventory, and the agent does not correct it.", "The hint shows how to bring the two together."},
	{HealingOff, Everyone, HoldsNothing, "A node is not as the inventory has it because somebody has changed or stopped it, an addon was uninstalled, or an object of it deleted or edited, or its namespace differs, and `heal: observe` has that reported only.", "Correct it by hand, or set `heal: heal` in cluster.yaml, or in the host's policy where that has it."},
	{ChangeUnapproved, Everyone, HoldsUpgrade, "The inventory has changed what a node has, and `apply: approve` has that wait for an administrator, or `upgrade: approve` where that is an upgrade; or what Talos deploys once differs after a hop, which is approved on its own.", "`talos-agent plan CLUSTER` and `talos-agent approve CLUSTER DIGEST`, or undo the change."},
	{ApplyingOff, Everyone, HoldsUpgrade, "The inventory has changed what a node should be, no longer has an addon that would be uninstalled, or a namespace of an addon differs, and `apply: off` has that reported only; or it asks for an upgrade, or what Talos deploys once differs, and `upgrade: off` has that reported only.", "Set `apply: auto`, for an upgrade `upgrade: auto`, in cluster.yaml, or in the host's policy where that has it; or undo the change."},
	{FixedConfigChanged, Everyone, HoldsNothing, "The inventory has another name, DNS domain, pod network, service network or `cni` than the cluster was made with, so that the revision does not come into force, or no node gets its config; or it has a node in another role, which keeps the one it has.", "Undo the change; another network needs another cluster, and another role another node."},
	{ConfigRefused, Everyone, HoldsNothing, "A node does not take the machine config that the inventory gives.", "Correct what the message names in the inventory or in a patch."},
	{WaitingForCanary, Everyone, HoldsUpgrade, "One node got a new machine config first; the others wait until it is Ready with it, or, where no kube-apiserver answers, for ten minutes.", "Nothing; see that node when it takes long."},
	{WaitingForReady, Everyone, HoldsNothing, "What has to change takes the node down, which waits until it is Ready.", "See why the node is not Ready."},
	{NodeCordoned, Everyone, HoldsNothing, "Somebody cordoned the node, so that the agent does not take it down.", "`kubectl uncordon NODE` when it may."},
	{ChangeNotTaken, Everyone, HoldsNothing, "The agent took a node down for a change, and the node does not have it since. No other node is taken down.", "The message names what differs; a commit that changes the cluster's files, or the change made by hand, has it tried again."},
	{UpgradeFailed, Everyone, HoldsUpgrade, "The installer of another Talos ended with an error on a node, which runs on as it was. It is not tried again for this commit, and no other node is upgraded.", "The message has the end of what it printed; a commit that changes the cluster's files, or `talos-agent upgrade CLUSTER --now`, has it tried again."},
	{UpgradeFellBack, Everyone, HoldsUpgrade, "A node booted to run another Talos, and runs the one from before. It is not tried again for this commit, and no other node is upgraded.", "Status shows what the boot that failed printed; a commit that changes the cluster's files, or `talos-agent upgrade CLUSTER --now`, has it tried again, and talos_version set back ends it."},
	{RolledBack, Everyone, HoldsUpgrade, "An administrator has had a node boot the Talos that it ran before, or is having it. It does not get the other one again for this commit, and no other node is upgraded.", "A commit that changes the cluster's files has it upgraded again, and talos_version set back has the others follow it, unless all control planes have a newer etcd than that Talos."},
	{RollbackNotTaken, Everyone, HoldsUpgrade, "An administrator has had a node boot the Talos that it ran before, and it runs the same as before that command. It is not asked again, and no other node is upgraded for this commit.", "Status shows what it printed meanwhile; `talosctl rollback` may be tried by hand; talos_version set back and pushed installs the older one."},
	{UpgradeStuck, Everyone, HoldsUpgrade, "A node was rebooted to run another Talos, and its machine does not answer. Its VM was reset once, and is not again for this commit, or is not because `apply` or `upgrade` is `off`; no other node is upgraded.", "Status shows what it printed, or see its console (`qm terminal VMID`); a commit that changes the cluster's files has its VM reset once more; a node that is lost gets another `replace` in nodes.yaml."},
	{InstallerMissing, Everyone, HoldsUpgrade, "The image factory has no installer of a version on the way to that of the inventory, with its extensions, so that the first hop is not begun. It is asked again each ten minutes.", "The message names the image and what the factory answers: change talos.schematic.extensions, or set talos_version back."},
	{WaitingForPull, Everyone, HoldsUpgrade, "A hop of Kubernetes begins when all nodes have pulled its images, so that a registry which does not answer stops it before any node is changed.", "Where a pull fails the hint of that has what to do."},
	{WaitingForInstaller, Everyone, HoldsUpgrade, "The image factory is asked for the installers of all hops before the first one is begun, and all nodes that are to be upgraded have the installer before the first one is taken down; or it is not known how an installation ended.", "See what the message names when it takes long."},
	{WaitingForHop, Everyone, HoldsUpgrade, "Another version comes before this one, or all nodes have to be Ready before it.", "See what the message names."},
	{WaitingForGate, Everyone, HoldsOrder, "A gate of cluster.yaml (`gates`) does not hold, or it is not known whether it does: a condition is false, or a Job has not succeeded yet. So the next node is not upgraded.", "See what the message names; a `git revert` to the versions from before goes on all the same."},
	{WaitingForSoak, Everyone, HoldsOrder, "A node was upgraded, and has to be Ready for a while (`soak`) before the next one is.", "Nothing; `talos-agent upgrade CLUSTER --now` has it not waited for."},
	{TalosVersionDrift, Everyone, HoldsUpgrade, "A node runs another version of Talos than in the inventory, and no upgrade leads to that.", "Set talos_version back; the message names why."},
	{SchematicDrift, Everyone, HoldsUpgrade, "A node runs an image with other extensions or kernel arguments than in the inventory.", "Undo the change of talos.schematic, or upgrade."},
	{SecureBootDrift, Everyone, HoldsUpgrade, "A node runs with Secure Boot and the inventory has it without, or the other way round, so that what is signed for the one does not boot, or is not verified, on the other: it gets no config and no other Talos.", "Undo the change of talos.secureboot, or give the node another `replace`: it gets a new machine."},
	{KubernetesDrift, Everyone, HoldsUpgrade, "A node runs another version of Kubernetes than in the inventory, and no upgrade leads to that.", "The hint names what to write as kubernetes_version, or how the node gets the kubelet of the others."},
	{RunningConfigUnknown, Everyone, HoldsUpgrade, "Which versions and config the nodes of the cluster run is not known, so that no node is added.", "Undo the change that the nodes do not have, or apply it to them with talosctl."},
	{ConfigDrift, Everyone, HoldsNothing, "The machine config of a node is not the one that the inventory gives.", "Undo the change in the repository, or apply it with talosctl."},
}

var addonReasons = []ReasonInfo{
	{ReleasesUnknown, Everyone, HoldsNothing, "The Helm releases of the cluster cannot be read.", "See whether the kube-apiserver answers."},
	{ReleaseForeign, Everyone, HoldsNothing, "A release of that name is installed, and not by the agent.", "`ownership: bootstrap-only` leaves it alone; or uninstall it."},
	{ReleaseUninstalling, Everyone, HoldsNothing, "A release is being uninstalled.", "Wait for it to end."},
	{ReleaseRolledBack, Everyone, HoldsNothing, "An upgrade of an addon did not become ready in time, and was rolled back.", "Correct its chart or its values, and push; `on_failure: stop` has the same tried again."},
	{WaitingForAddon, Everyone, HoldsNothing, "An addon depends on another one that is not ready.", "Nothing."},
	{WaitingForChart, Everyone, HoldsNothing, "The chart of an addon is not in the cache yet.", "The message shows why."},
	{AddonNotReady, Everyone, HoldsNothing, "The workloads of an addon are not ready.", "`kubectl -n NAMESPACE get pods,events`."},
	{AddonPodsRefused, Everyone, HoldsNothing, "Pod Security does not allow the pods of an addon in its namespace.", "`namespace_labels: {pod-security.kubernetes.io/enforce: privileged}` in the file of the addon."},
}

var apiReasons = []ReasonInfo{
	{AccessDenied, Callers, HoldsNothing, "The route is for root.", "Run the command with sudo."},
	{RequestInvalid, Callers, HoldsNothing, "The request is malformed, or larger than is accepted.", "The message shows what is wrong."},
	{RouteUnknown, Callers, HoldsNothing, "The daemon has no such route.", "Restart the daemon if the client is newer."},
	{ClusterUnknown, Callers, HoldsNothing, "The daemon manages no cluster of that name.", "`talos-agent status` lists them."},
	{RunUnknown, Callers, HoldsNothing, "The history has no such run.", "`talos-agent history CLUSTER` lists those that are kept."},
	{NotConfirmed, Callers, HoldsNothing, "A destructive command was not confirmed.", "Confirm it with the cluster's name."},
	{NoSnapshots, Callers, HoldsNothing, "No snapshot of etcd is taken: the host takes none, or the cluster is suspended.", "See `snapshots` in config.yaml; or `talos-agent resume CLUSTER`."},
	{NothingToAccept, Callers, HoldsNothing, "No revision was refused, or not for its history.", "`talos-agent status` shows what stands in the way."},
	{NothingToDo, Callers, HoldsNothing, "What was ordered has nothing to do: no upgrade is under way, the node has no Talos from before to go back to, or there is no order to withdraw.", "The message has which; `talos-agent status CLUSTER` shows what the nodes run."},
	{InventoryUnread, Callers, HoldsNothing, "No inventory of the cluster was read since the agent started.", "`talos-agent status` shows why."},
	{TooManyStreams, Callers, HoldsNothing, "As many clients watch or follow as may at once.", "End one of them."},
	{CommandFailed, Callers, HoldsNothing, "What was asked for failed.", "The message shows why."},
}
