// Package rules is what the Kubernetes service of the lab demands of requests and
// objects where that needs no store: which pods a namespace allows, who owns its
// labels, which node may have a pod, what a disruption budget allows, when a controller
// tries again, how a body is read and an object shown in a table. It must not know
// who asks, nor where objects are kept.
package rules
