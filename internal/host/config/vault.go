package config

import "github.com/talos-agent/talos-agent/sources/secrets/transit"

// loadVault fills in who is asked for the keys of secrets files that the agent's own key does not open.
func (l *loader) loadVault() {
	const field, tokenField = "vault", "vault.token_file"
	f := l.file.Vault
	if !l.Has(field) {
		return
	}
	token, ok := l.readSecret(tokenField, f.TokenFile, "vault.token")
	switch {
	case !ok && !hasError(l.Report, tokenField):
		l.Wrong(tokenField, "name the file of a token that may decrypt with the keys, such as one that the agent of Vault or OpenBao keeps", "is missing")
	case ok && token.RevealString() == "":
		l.Wrong(tokenField, "write the token into it", "%s is empty", l.nameFile(tokenField))
	}
	c := transit.Config{URL: f.URL, Namespace: f.Namespace, Token: token.RevealString(), CA: l.out.CA}
	for _, s := range f.Keys {
		c.Keys = append(c.Keys, transit.ParseKey(s))
	}
	l.out.Vault = &c
}
