// Package readiness is where a node stands on its way to a Ready member of its cluster, and
// what it lacks for that. The planner and the status both ask it, so that they cannot
// disagree.
//
// It is pure: what is not known is never taken for absent, nor for Ready.
package readiness
