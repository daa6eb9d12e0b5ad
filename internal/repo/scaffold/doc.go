// Package scaffold answers what the repository of a host begins with: an
// inventory of one cluster, who can read its secrets, a check for the forge's
// CI, and a page that describes how to go on.
//
// It is pure: it is given what is wanted and which VMIDs are free, and returns
// files. The secrets themselves are made elsewhere.
package scaffold
