// Package contexts answers what else is in a kubeconfig or a talosconfig of
// somebody's, and puts the contexts of a cluster into it; the others stay as they
// are.
//
// The room is pure. It knows the form of the two files and nothing of who is let
// in by them: no value is checked, and none is shown. Of the authorities it knows
// only whether two are the same, by which two clusters of one name differ.
package contexts
