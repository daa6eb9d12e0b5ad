package cluster

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseToken(t *testing.T) {
	const secret = "12345678-90ab-cdef-1234-567890abcdef"
	for line, want := range map[string]TokenID{
		"talos-agent@pve!pve1=" + secret:        "talos-agent@pve!pve1",
		"root@pam!t=" + secret + "=":            "root@pam!t",
		"":                                      "",
		secret:                                  "",
		"talos-agent@pve=" + secret:             "",
		"talos-agent!pve1=" + secret:            "",
		"talos-agent@pve!pve1=":                 "",
		"talos-agent@pve!pve1":                  "",
		"talos-agent@pve!pve1=" + secret + "\n": "",
		"PVEAPIToken=a@pve!b=" + secret:         "",
	} {
		token, ok := ParseToken(SecretString(line))
		if ok != (want != "") || token.ID != want {
			t.Errorf("%q: %v, %v", line, token.ID, ok)
		}
		if ok && token.Line().RevealString() != line {
			t.Errorf("%q becomes %q", line, token.Line().RevealString())
		}
		if strings.Contains(fmt.Sprintf("%v %+v %#v", token, token, token), secret) {
			t.Errorf("a token prints its secret: %v", token)
		}
	}
	if id := NewTokenID("talos-agent@pve", "pve1"); id != "talos-agent@pve!pve1" || id.User() != "talos-agent@pve" || id.Name() != "pve1" {
		t.Errorf("%s is %s of %s", id, id.Name(), id.User())
	}
	if id := TokenID(""); id.User() != "" || id.Name() != "" {
		t.Errorf("no token is %q of %q", id.Name(), id.User())
	}
}
