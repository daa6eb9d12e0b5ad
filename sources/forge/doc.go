// Package forge carries words back to where a commit came from: it posts a
// commit status to GitHub, GitLab or Gitea (and Forgejo, which speaks Gitea's
// API). It is one HTTP request per status, and keeps nothing: no connection, no
// queue, no memory of what it sent.
//
// The token is sent to the configured address only, never over plain HTTP to
// another machine, and is in no error. What a forge answers is text from
// outside: it is cut, stripped of control characters and never acted upon,
// with one exception that errors.go names.
//
// The package must not know what a status means or when one is due.
package forge
