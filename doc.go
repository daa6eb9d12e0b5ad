// Package talosagent is only the root of the module; the program is
// cmd/agent. The law that says which folder may import which stands in
// rooms_test.go.
package talosagent
