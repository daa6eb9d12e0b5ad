// Package daemon is the running agent as a service: it loads the host's config,
// starts an agent with it and another when it changes, serves the socket, metrics
// and webhooks, and speaks to systemd.
//
// It is where sources and reconcile meet the files that configure them, and holds
// no rule about clusters: what should be, what is and what to do about it are the
// agent's. It prints nothing and knows no command line.
package daemon
