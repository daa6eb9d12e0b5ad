// Package metrics shows a monitoring system in numbers the state of the
// clusters and what the agent does. It is given what happens anyway: the status
// after every pass, the passes and the actions as they end. Nothing is asked of
// anybody for it, so that a scrape costs no pass.
//
// Series are bounded: a name of a node, a message or a revision is never a
// label. Everything here may be read by whoever may scrape, so that nothing
// here is a secret.
//
// The package must not know where a number is shown, nor what it is good for.
package metrics
