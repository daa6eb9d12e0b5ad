// Package plan decides. Make answers, for what should be and what was seen,
// what may be done now, what is waited for and what is refused; Forecast runs
// the same planner forward, over the expected effects of its own actions (effect), to
// list everything that will happen.
//
// A plan holds only what may be done now; its actions are independent of each
// other and of everything still under way, and may run side by side.
// Everything later is a Wait with a reason, or a Block with a hint. After
// acting, the world is looked at again, so that nothing here remembers
// anything: a crash at any instant is an ordinary next pass.
//
// The package is pure. It knows no clock (now is a field of Observed), no
// network, no log and no chance, and iterates over no map into its output:
// the same input gives the same bytes.
package plan
