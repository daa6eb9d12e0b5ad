// Package sandbox reads what somebody pushed in a worker before the daemon reads it. Parsing
// and rendering of the same bytes take the same time and memory everywhere, so what the
// worker has survived the daemon survives too. What the worker has not is one problem of the
// cluster that holds it, and the daemon never parses it.
//
// The worker gets no secret: the secrets file as it is encrypted, placeholders for what is in
// it, and keys of its own to render with. Of nodes with the same patches it renders one, and
// of all the heaviest. It must not know what is valid: whether an inventory is, the daemon
// finds out.
package sandbox
