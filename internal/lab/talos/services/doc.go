// Package services is what a service of a simulated Talos machine reports: its states, its health and its
// events, whatever starts and stops it.
//
// It must not know the machine, which starts services in the order of its version and its config.
package services
