// Package rehearsal answers what the agent would make of a repository: it runs
// the agent, as it is, on a simulated host that has what the inventory asks for,
// until the clusters are Ready or it is clear why they do not become so.
//
// Nothing real is touched and nothing is fetched: charts are stand-ins, and where
// the secrets cannot be opened they are throw-away ones. It must not know how the
// agent decides, nor how it is printed.
package rehearsal
