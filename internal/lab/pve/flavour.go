package pve

import (
	"fmt"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/roles"
)

// flavour is the version of Proxmox VE that is simulated. Where 9.2 and 8.4 were
// seen to differ, nine decides.
type flavour struct {
	name, version, qemu, machine string
	nine                         bool
}

func flavourOf(name string) (flavour, error) {
	switch name {
	case "", "9.2":
		return flavour{name: "9.2", version: "9.2.11", qemu: "10.0.13", machine: "pc-i440fx-10.0", nine: true}, nil
	case "8.4":
		return flavour{name: "8.4", version: "8.4.21", qemu: "7.2.22", machine: "pc-i440fx-7.2"}, nil
	}
	return flavour{}, fmt.Errorf("%q is neither 9.2 nor 8.4", name)
}

// role is a named set of privileges.
type role struct {
	privileges set
	special    bool // built in
}

// builtinRoles returns the roles a fresh host has.
func (f flavour) builtinRoles() map[string]*role {
	out := map[string]*role{}
	for name, privileges := range roles.Builtin(f.nine) {
		out[name] = &role{privileges: setOf(strings.Split(privileges, ",")...), special: true}
	}
	return out
}

// set is a set of texts.
type set map[string]bool

func setOf(words ...string) set {
	s := set{}
	for _, w := range words {
		if w != "" {
			s[w] = true
		}
	}
	return s
}

// agentPrivilege is what reading from the guest agent needs.
func (f flavour) agentPrivilege() string {
	if f.nine {
		return "VM.GuestAgent.Audit"
	}
	return "VM.Monitor"
}
