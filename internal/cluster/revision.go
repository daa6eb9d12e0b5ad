package cluster

import "strings"

// Revision names one commit, or one state of a directory, in the notation
// Flux uses: "main@sha1:<40 hex>". A directory that is not a Git work tree is
// "dir@sha256:<64 hex>"; a work tree with changes ends in "+dirty".
type Revision string

// Commit returns the hex id of the commit, or "" when the revision names no
// commit that a forge could know: a plain directory or a changed work tree.
func (r Revision) Commit() string {
	_, rest, _ := strings.Cut(string(r), "@sha1:")
	if strings.HasSuffix(rest, "+dirty") {
		return ""
	}
	return rest
}

// Unique reports whether the revision names one content: a work tree with changes has
// the same name whatever the changes are.
func (r Revision) Unique() bool { return !strings.HasSuffix(string(r), "+dirty") }

// Ref returns the part before the "@": the branch, or "dir".
func (r Revision) Ref() string {
	ref, _, _ := strings.Cut(string(r), "@")
	return ref
}

// Short returns the revision with its hash cut to twelve digits, for people.
func (r Revision) Short() string {
	s := string(r)
	at := strings.LastIndexByte(s, ':')
	if at < 0 {
		return s
	}
	hash, dirty := strings.CutSuffix(s[at+1:], "+dirty")
	if len(hash) > 12 {
		hash = hash[:12]
	}
	if dirty {
		hash += "+dirty"
	}
	return s[:at+1] + hash
}
