// Package reconcile makes the world match: it fetches what should be, looks at
// what is, lets the planner decide, carries out what may be done now and reports
// how things stand; once is a pass, for ever is the loop.
//
// A pass never waits for its actions. They run beside the loop, count as
// observed while they do, and wake the loop when they end. One goroutine owns
// the Reconciler's state; everybody else gets immutable copies.
//
// The package knows no Proxmox VE, no Talos, no Kubernetes and no Git: it
// speaks to them through the interfaces it declares here, in the nouns of
// internal/cluster.
package reconcile
