// Package secrets opens and makes SOPS-encrypted YAML documents, in memory and
// with age keys that the caller holds. It is the only importer of sops.
//
// No content of a document makes it do more than that. sops would try every
// kind of key a file names, with the network, programs, the environment and the
// home directory; here the data key is opened with the given age identities, or by the
// transit engine that the caller hands in, and only the cipher, the tree walk and the YAML form of sops
// are used. A document must be encrypted whole: a value in clear is refused,
// for the authentication code of a document proves only that its writer knew
// the public key.
//
// Errors name the document, keys and recipients, all of which are public. They
// never quote a value, not even one that sops quotes: an edited type tag makes
// it print the plain text it could not convert.
//
// The package must not know what the secrets are for. (Linking sops has one
// effect it cannot undo: at start, sops reads root's /etc/sops/audit.yaml if
// there is one, and reports each use to the database named there.)
package secrets
