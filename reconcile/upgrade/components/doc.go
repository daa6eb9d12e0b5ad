// Package components finds what of Kubernetes each node of a cluster is to run now, on the way to
// a newer version: one kube-apiserver after the other, then the controller managers, the
// schedulers, and the kubelets, of the control planes first.
//
// Revert finds the way back, which is another order.
//
// It is pure, and no progress is kept: what is to come next follows from what the nodes have and
// run, so that an agent that was interrupted, or a node that somebody upgraded by hand, needs
// nothing of its own. What cannot be seen stays as it is.
//
// The order is that of Kubernetes' version skew policy (kubernetes.io/releases/version-skew-policy):
// no kubelet, controller manager or scheduler is newer than any kube-apiserver that it may meet, and
// no kube-apiserver is more than a minor version ahead of another one, nor more than three ahead of a
// kubelet.
package components
