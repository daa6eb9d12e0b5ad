// Package importing answers what becomes of another tool's description of a cluster: it reads
// the files that a command line names, has formats make an inventory out of them, has that
// checked as any other inventory is, and puts it into a repository, wholly or not at all.
//
// It opens no other file, asks no system, and replaces nothing that is there. What the
// descriptions mean is for formats to know.
package importing
