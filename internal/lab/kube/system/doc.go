// Package system is what Talos and Kubernetes themselves write into a cluster of the
// lab: the objects of a new cluster, the pods that stand for static pods, and what
// becomes of a Node while its kubelet starts, runs and falls silent. It must not know
// where objects are kept, nor when any of that happens.
package system
