// Package sources answers "what should be": it asks the user's repository for
// its newest state, decrypts each cluster's secrets in memory, and hands out
// checked snapshots. It also watches directories.
//
// It only joins the rooms below it (git, secrets, inventory): what a file
// means, how it is decrypted and where it comes from is known there. It must
// not know what is done with a snapshot, nor what the world looks like.
package sources
