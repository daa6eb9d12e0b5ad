// Package drift compares a node with the inventory: what of its VM, machine and Node object is
// not as it should be, and what it takes to correct that. It decides nothing: which of it
// is done, and when, is the planner's.
//
// It is pure, and knows no actions.
package drift
