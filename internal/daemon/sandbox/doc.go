// Package sandbox reads what somebody pushed in a worker before the daemon reads it. Parsing
// and rendering of the same bytes take the same time and memory everywhere, so what the
// worker has survived the daemon survives too; what the worker has not is one problem of the
// cluster that holds it, and the daemon never parses it.
//
// The worker gets no secret, not even an encrypted value's text: it renders with keys of its
// own. It must not know what is valid: whether an inventory is, the daemon finds out.
package sandbox
