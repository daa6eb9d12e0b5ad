// Package demo shows the main job from end to end: a simulated host, talos-agent
// as its daemon, a push, a Ready cluster, a worker more, and the end of it all.
//
// It sees the agent as people do, over its socket, and must not know how it works.
package demo
