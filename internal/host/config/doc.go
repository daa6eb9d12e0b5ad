// Package config reads what the owner of the host has written for the agent:
// config.yaml, policy.yaml and every file they name. It answers which settings
// are in force, what is wrong with them and at which line, whether a file has
// changed since it was read, and what of the files may be shown to others.
//
// It asks nothing of any other machine and starts nothing. It must not know what
// the daemon does with the settings: turning them into running adapters is the
// daemon's wiring. The types in config.go and policy.go are the format itself;
// the schemas and the reference are generated from them.
package config
