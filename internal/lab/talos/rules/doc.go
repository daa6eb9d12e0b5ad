// Package rules is what a version of Talos demands of a machine config, where that needs no
// machine: which documents it knows, which versions of Kubernetes it runs, which
// arguments their parts start with, which changes it
// makes without a reboot.
//
// It must not know who sends a config, nor the machine that it is for.
package rules
