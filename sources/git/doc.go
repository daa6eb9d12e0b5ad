// Package git answers two questions about the user's repository: which commit
// is the head of the branch, and what is in the files of that commit. It also
// reports whether one commit descends from another.
//
// A remote repository (ssh, https, http) is fetched into a bare store; a local
// repository is read where it lies; a plain directory has no commits and is
// named by its contents. In all three the files of one state are read through
// an fs.FS that never follows a link, never checks anything out and never
// runs a program, git least of all.
//
// Everything that arrives is foreign: packs, trees and files are measured
// before they are unpacked, and each limit has an error that names what broke
// it. Credentials travel only to the host they were given for. Nothing is read
// from the environment, the home directory, ~/.ssh/config, an ssh agent or
// git's own configuration.
//
// The package must not know what the files mean, what a cluster is, or who
// asks: it gives bytes and ids.
package git
