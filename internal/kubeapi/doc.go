// Package kubeapi holds what everybody needs who connects to a kube-apiserver as
// the cluster's administrator: connections that can be broken at once and notice
// a server that fell silent, and words for what went wrong.
//
// It is separate because nodes and addons are seen and changed by two rooms that
// do not know each other. It makes no request by itself, and does not know which
// server is worth asking.
package kubeapi
