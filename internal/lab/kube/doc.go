// Package kube is the Kubernetes service of the lab: simulated control planes
// that real clients (client-go, Helm, kubectl) take for real ones, and the
// kubelets, controllers and scheduler behind them, by the world's clock.
//
// It answers what a cluster would, and when: one object store per etcd,
// served by every kube-apiserver of that etcd over TLS with the cluster's own
// CA; nodes that register, stay NotReady until they have a network and become
// Ready; workloads whose pods are placed and become ready. It must not know who
// asks or why: it knows nothing of machine configs, of Helm, of the agent.
//
// # What is simulated
//
// The answers are those of kube-apiserver v1.35 to the same requests, as far as
// testdata holds recordings of it; a test lists where they differ. Beyond that:
//
//   - Answers are JSON only; a client that accepts nothing but protobuf gets
//     406. What it writes may be protobuf.
//   - OpenAPI states that the server checks fields itself, and nothing else.
//   - Who set which field is noted of what clients write, by the library of
//     kube-apiserver, and not of what the controllers write. Lists of custom
//     resources and of their definitions have no keys. Nobody takes the notes off an
//     object, and a scale is not applied.
//   - Pods are held to the Pod Security that Talos configures, by the server's own
//     rules: enforce baseline, warn of restricted, kube-system is exempt, and
//     namespaces can have labels. Nothing is audited.
//   - Custom resources are neither checked nor pruned, webhooks never called,
//     lists never cut into pages.
//   - Evictions ask disruption budgets, whose status is counted as the disruption
//     controller counts. Of controllers of other kinds than Deployment, ReplicaSet
//     and StatefulSet it knows no scale.
//   - Who is in system:masters may do everything, others nothing. /readyz,
//     /livez, /healthz and /version are open to all.
//   - Deployments replace all pods at once and never exceed their deadline.
//   - The scheduler fits what pods ask of processor, memory and number of pods. No
//     pod makes room for another, but those of DaemonSets that are critical are there
//     as if it did. A kubelet fails a pod that names its node and does not fit. What containers use beyond
//     what they ask for is nothing. What is on no node is tried again every five minutes.
//   - No program runs in a container: its log has its start and its end, and a command is
//     not found. Commands come over a WebSocket, as kubectl sends them; over SPDY, for
//     attach and for port-forward, no kubelet listens.
//   - Of the reviews of access there are those about oneself.
//   - Events show what the scheduler, kubelets, controllers and volumes do, in the words of
//     v1.35, in the group core alone, for an hour; a watch shows the end of one no earlier
//     than the next. None is of memory and disks, probes, budgets or claims. Kubelets before
//     v1.37 report of their Node without its uid: "kubectl describe node" does not show that.
//   - An image whose registry lies in the domain ".invalid" can never be pulled:
//     that makes a workload that never becomes ready. CloseRegistry and OpenRegistry
//     are for others. What static pods can pull is decided by their machines.
//   - A pod that is deleted ends as its containers do: half a second after SIGTERM,
//     after the sleep of a preStop hook, or, where the image's registry lies in the
//     domain ".stubborn.test", by SIGKILL at the end of the grace. Half a second
//     later it is removed, by the kubelet; where none runs it stays Terminating
//     until it is forced away, its Node object is deleted for 50 s, or that is not
//     Ready and has the taint of nodes out of service.
//   - Containers survive a kubelet that is started again; another boot id of their
//     machine starts them again. A machine that shuts down ends no pods in order.
//   - A cordon brings its taint; taints that execute delete pods, after what their
//     tolerations allow. A node is lost 40 s after its kubelet fell silent, and has
//     both of its taints at once; a real one takes a few seconds between them.
//   - Nodes have the processors and the memory of their machines, and can give pods
//     somewhat less. The times of heartbeats, in leases and conditions, are written
//     when somebody reads them; a watch alone shows none.
//   - Claims get volumes of a CSI driver at once. A volume is attached to the node of
//     a pod in two seconds, once no other node has it, and detached three seconds
//     after the last pod there has ended; six minutes where no kubelet runs to
//     report that and no taint has the node out of service. One that was attached to a
//     virtual machine that was destroyed is not attached to the next one of its node.
//     VolumeAttachments of other drivers are only kept.
//   - A service that selects pods has one EndpointSlice, whatever its length, and Endpoints;
//     the service kubernetes has both for the APIs that answer, and for 15 s after one
//     stopped. Endpoints that somebody writes get no slice.
//   - Labels of a machine config are put on a Node, and taken off it, by Talos, which
//     leaves those of others; what somebody edits stays until the config changes or
//     the machine boots. The taints of a worker are those it was registered with.
//   - A node under pressure (SetPressure) takes no new pods, and evicts none.
//
// # Spans
//
// The times the service spends, for World.LongestChain. Subjects are node names
// unless noted otherwise; <first> is the node whose API of that etcd was ready
// first.
//
//	pull/<node>         ImagePull  after etcd/<node> and learn/<node>: the control plane's images
//	api/<node>          API        after pull/<node>: until /readyz answers ok
//	kubelet/<node>      ImagePull  after node/<node>: the kubelet's image
//	addon/cilium        0          after api/<first>: the DaemonSet appeared (no CNI of Talos' own)
//	cni/<node>          CNIPull    after kubelet/<node>, node/<node>, api/<first>, addon/cilium
//	ready/<node>        Ready      after cni/<node>
//	pods/<ns>/<name>    Pods       after ready/<node> of every node with a pod of this workload, or
//	                               after kubelet/<node> and api/<first> where pods use the host's network;
//	                               0 after cni/<node> for the DaemonSet that is the network
//
// What a node pulled it keeps, so that a reboot does not pull again (nor does a
// machine re-created with the same name and VMID: nobody distinguishes them here).
//
// # Calls
//
// Calls are named by method and path with the names taken out, for example
// "PATCH /apis/apps/v1/namespaces/{namespace}/deployments/{name}"; a watch is
// "WATCH /api/v1/nodes". Their subject is "namespace/name", or the name of an
// object without a namespace, or the namespace of a list; for what is no object
// (/readyz, discovery) the node whose API was asked.
package kube
