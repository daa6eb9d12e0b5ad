// Package kube sees a Kubernetes cluster: which of its kube-apiservers answer
// ready, each at its control plane's own address and never through the virtual
// IP, and which nodes are registered and Ready.
//
// It watches the nodes through one kube-apiserver and moves to another when
// that one dies, so that looking at a quiet cluster costs no call. What is not
// answered is unknown, with the reason in words; an API that is away never
// looks like a cluster without nodes.
//
// It takes a node out of service and puts it back: cordon, drain, uncordon, and
// the deletion of Node objects. It gives Node objects labels, taints and
// annotations, and takes them back. What it did stands in annotations of the Node, so that whoever is
// interrupted goes on, and what a person did is left alone.
//
// It speaks JSON, with the client certificate minted from the cluster's
// secrets, and takes its connections from outside. It must not know what is
// planned, who runs the machines or what addons are.
package kube
