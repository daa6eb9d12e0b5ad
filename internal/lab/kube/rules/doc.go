// Package rules is what the Kubernetes service of the lab demands of requests and
// objects where that needs no store: which pods a namespace allows, who owns its
// labels, when a controller tries again, how a body is read. It must not know who
// asks, nor where objects are kept.
package rules
