// Package sealed makes the secrets that a cluster begins with: a bundle of
// authorities, keys and tokens, and values for patches and addons, encrypted to
// those whom the repository's .sops.yaml names. In clear they are in memory only.
//
// It must not know the host or the daemon: the secrets are made wherever the
// repository is.
package sealed
