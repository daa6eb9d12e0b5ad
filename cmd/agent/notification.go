package main

import (
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// notification is a target of the config.
type notification struct {
	name     string
	to       notify.Config
	clusters []string // empty: all
	on       []cluster.Condition
}
