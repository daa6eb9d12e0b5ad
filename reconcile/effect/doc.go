// Package effect knows what becomes of a cluster when an action succeeds, and what it
// does by itself afterwards. The planner runs itself forward over it to forecast, so
// what is wrong here is a wrong forecast, and never a wrong deed.
//
// The package is pure: no clock, no network, no log and no chance.
package effect
