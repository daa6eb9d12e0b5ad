// Package formats answers what a description of a cluster by another tool means in the terms
// of the inventory: each file here reads one of them into a draft, and lists what the
// inventory does not have, or has in another form, with what to do about it.
//
// It is pure: it is handed bytes, which nobody has checked, and opens nothing. It must not know
// whether the result is valid, which the loader of inventories finds out, nor where it is
// written. It copies no secret: what is one by its name is left, and named.
package formats
