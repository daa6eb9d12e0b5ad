// Package pvehost is a simulated Proxmox VE host on loopback with its files in a
// folder: ready for the agent, as its administrator would leave it, or bare, as
// the installer does.
//
// It writes the agent's config as text, as a person would. Like all rooms of the
// lab it must not know how the agent thinks.
package pvehost
