// Package webhook receives from a forge that something was pushed. That is a hint
// and no more: that now is a good time to fetch. Nothing in a request is
// believed, passed on or kept, so that a stolen secret can at worst have the
// repository fetched a little more often.
//
// A request must prove that its sender knows the secret, in the way of its forge:
// a signature over the body (GitHub, Gitea, Forgejo, GitLab with a signing token)
// or the secret itself (GitLab with a secret token). Of those, only a push to the
// branch of the repository that is followed is a hint.
//
// The package must not know what follows from a hint.
package webhook
