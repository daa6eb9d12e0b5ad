// Package validation answers whether a repository in a directory is valid, down
// to the machine config of every node, without a network and without a daemon.
//
// It reads as the agent does and holds the clusters against a host's policy with
// the agent's own planner, so that it cannot know better than the agent. It must
// not know the host: whose policy and which owner it is given.
package validation
