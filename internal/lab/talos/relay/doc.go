// Package relay puts together what several simulated Talos machines answer to one call: the
// messages of each are marked with the machine, and so is the error of one that failed.
//
// It must not know the machines: it is handed what asks one of them.
package relay
