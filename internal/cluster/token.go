package cluster

import (
	"regexp"
	"strings"
)

// TokenID names an API token of Proxmox VE, user@realm!name: whose it is, and
// which of the user's it is. It is no secret.
type TokenID string

// NewTokenID names a token of a user.
func NewTokenID(user, name string) TokenID { return TokenID(user + "!" + name) }

// User is the user a token belongs to, user@realm.
func (t TokenID) User() string {
	user, _, _ := strings.Cut(string(t), "!")
	return user
}

// Name is a token's name among those of its user.
func (t TokenID) Name() string {
	_, name, _ := strings.Cut(string(t), "!")
	return name
}

// Token is an API token of Proxmox VE.
type Token struct {
	ID     TokenID
	Secret Secret
}

// tokenForm is what pveum prints, and what the API takes.
var tokenForm = regexp.MustCompile(`^[^\s:/@!=]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]*=[!-~]+$`)

// ParseToken reads the line by which a token is stored and sent,
// user@realm!name=secret. It reports whether the line has that form.
func ParseToken(line Secret) (Token, bool) {
	if !tokenForm.Match(line.b) {
		return Token{}, false
	}
	id, secret, _ := strings.Cut(string(line.b), "=")
	return Token{ID: TokenID(id), Secret: SecretString(secret)}, true
}

// Line is the line that ParseToken reads.
func (t Token) Line() Secret { return SecretString(string(t.ID) + "=" + t.Secret.RevealString()) }
