// Package access is who may call the Talos API of a simulated machine: the certificates that
// machines and their callers show each other, and what the roles in them allow.
//
// It must not know what a call does, nor the machine that is called.
package access
