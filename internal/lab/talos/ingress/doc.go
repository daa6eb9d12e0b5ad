// Package ingress is how connections reach the API of a simulated Talos machine: what its
// firewall lets through, and what happens to those that are open when the machine falls
// silent.
//
// It must not know the machine: it is handed a listener and what a config has.
package ingress
