// Package certpool decides whose certificates are trusted where the host's config
// adds authorities: those of the system, and those. A mirror's authority does not
// affect the forge that is on the internet.
//
// The package must not know who is asked. Servers that are known by one authority
// alone (Proxmox VE, a cluster's own) are none of its business.
package certpool

import "crypto/x509"

// Authorities are those of the system and those of a PEM, which may be empty. ok
// is false when it holds something, and no certificate.
func Authorities(pem []byte) (pool *x509.CertPool, ok bool) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // no certificates on this host; the given ones may do
	}
	return pool, len(pem) == 0 || pool.AppendCertsFromPEM(pem)
}
