// Package rendering shows what a cluster would be given, and how what its machines run
// differs from that, with secrets replaced by digests: what is secret is decided here, and
// nowhere else.
//
// It is pure, asks no system, and decides nothing that the planner does.
package rendering
