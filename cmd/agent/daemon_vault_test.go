package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/armor"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/vault"
)

// wrapAgain has the data key of a secrets file opened by a key of a transit engine, and no
// longer by the age key of the keyring.
func (k *keyring) wrapAgain(s *vault.Server, key string) []byte {
	ids, err := age.ParseIdentities(bytes.NewReader(k.ageKey))
	must(err)
	before, wrapped, _ := bytes.Cut(k.encrypted, []byte(armor.Header))
	wrapped, after, _ := bytes.Cut(wrapped, []byte(armor.Footer))
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(armor.Header+strings.ReplaceAll(string(wrapped), " ", "")+armor.Footer)), ids...)
	must(err)
	dataKey, err := io.ReadAll(r)
	must(err)
	// The values stay as they are, in their order: that is authenticated.
	before = slices.Clone(before[:bytes.LastIndex(before, []byte("sops:"))])
	after = after[bytes.Index(after, []byte("lastmodified:")):]
	engine, name, _ := strings.Cut(key, "/")
	return fmt.Appendf(before, "sops:\n  hc_vault: [{vault_address: %q, engine_path: %s, key_name: %s, created_at: \"2026-01-02T03:04:05Z\", enc: %q}]\n  %s",
		s.URL(), engine, name, s.Encrypt(key, dataKey), after)
}

// TestSecretsOfVault: a cluster whose secrets a key of Vault opens. A server that is sealed
// keeps no other push from being applied while the agent runs, and a new agent waits for it.
func TestSecretsOfVault(t *testing.T) {
	r := newRig(t, lab.Config{})
	const token, key = "canary-token-of-vault", "transit/talos-agent"
	s, err := vault.New(vault.Config{Service: httpservice.Config{World: r.lab.World, Addr: r.base + "210:8200"}, Keys: []string{key},
		Tokens: map[string][]string{token: {key}}})
	must(err)
	t.Cleanup(func() { must(s.Close()) })
	files := r.inventory(0)
	files["inventory/dev/secrets.sops.yaml"] = r.keys.wrapAgain(s, key)
	commit := r.push(files)

	// The host's config does not name this key.
	r.start()
	r.untilStalled("is encrypted to no age key (and hc_vault keys, which are not used)")
	r.run(exitStalled, do("status"), "`vault.keys` of the host's config")

	// A token that does not do, then one that does: a file that changes is taken up.
	r.file("vault.token", "canary-token-that-ended")
	r.config["vault"] = map[string]any{"url": s.URL(), "token_file": "vault.token", "keys": []string{key}}
	r.write()
	r.until("the refusal is reported, with a hint", func() bool {
		a := r.try("status")
		return a.has("its data key cannot be opened by "+key+" of "+s.URL()+": it answers 403 Forbidden: permission denied") && a.has("the token may have expired")
	})
	if n := vault.CountDecrypts(r.lab.World, key); n > 20 {
		t.Errorf("asked %d times", n)
	}
	r.file("vault.token", token+"\n")
	r.untilReady(commit)

	// Sealed: what is pushed with the same secrets is applied.
	s.Seal(true)
	commit = r.push(with(files, "README.md", "another commit"))
	r.run(exitOK, do("reconcile"))
	r.untilReady(commit)

	// An agent that starts knows nothing of what is desired, and touches nothing.
	before := r.changes()
	r.stop()
	r.start()
	r.until("the seal is reported, with a hint", func() bool {
		a := r.try("status")
		return a.has("it answers 503 Service Unavailable: Vault is sealed") && a.has("`vault status` shows which")
	})
	s.Seal(false)
	r.untilReady(commit)
	if after := r.changes(); len(after) != len(before) {
		t.Errorf("changed: %v, before %v", after, before)
	}
	if strings.Contains(r.log.String(), "canary-token") {
		t.Error("the token is in the log")
	}
}
