package machineconfig

import (
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
)

// A node keeps the config in its own words: with comments, perhaps, and as its
// own version of the library encodes it.
func TestDigestIsOfTheMeaning(t *testing.T) {
	for _, contract := range contracts {
		for name, c := range mustRender(t, snapshot(t, contract)) {
			p, err := configloader.NewFromBytes(c.Bytes.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			commented, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsAll))
			if err != nil {
				t.Fatal(err)
			}
			plain := c.Bytes.RevealString()
			for how, text := range map[string]string{
				"as it is":           plain,
				"with documentation": string(commented),
				"with a comment":     "# a remark\n" + plain,
				"in another order":   strings.Replace(strings.Replace(plain, "debug: false\n", "", 1), "persist: true\n", "persist: true\ndebug: false\n", 1),
			} {
				if how != "as it is" && text == plain {
					t.Fatalf("%s: the text is not another one", how)
				}
				if got, err := Digest([]byte(text)); err != nil || got != c.Digest {
					t.Errorf("%s at %s, %s: digest is %s, want %s (%v)", name, contract, how, got, c.Digest, err)
				}
			}
			if got, err := Digest([]byte(strings.Replace(plain, "10.10.0.1\n", "10.10.0.2\n", 1))); err != nil || got == c.Digest {
				t.Errorf("%s at %s: another config has the same digest (%v)", name, contract, err)
			}
		}
	}
}

func TestDigestRevealsNoSecrets(t *testing.T) {
	for _, text := range []string{
		"", "canary-canary", "machine: {tokn: canary-canary}", "machine: {install: {wipe: canary-canary}}", "machine: [canary-canary",
		"apiVersion: v1alpha1\nkind: Future\ntoken: canary-canary", "machine: {token: canary-canary}\n---\nmachine: {token: canary-canary}",
	} {
		if got, err := Digest([]byte(text)); err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func FuzzDigest(f *testing.F) {
	f.Add([]byte("version: v1alpha1\nmachine: {type: worker}\n"))
	f.Add([]byte("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		digest, err := Digest(text)
		if err != nil {
			return
		}
		p, err := configloader.NewFromBytes(text)
		if err != nil {
			t.Fatal(err)
		}
		again, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Digest(again); err != nil || got != digest {
			t.Errorf("encoded once more the digest is %s, was %s (%v)", got, digest, err)
		}
	})
}
