package transit

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/vault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const token = "canary-token-of-vault"

// dataKey has the size that sops' data keys have.
const dataKey = "0123456789abcdef0123456789abcdef"

// inLab runs a test beside a server that has the key transit/agent, in virtual time.
func inLab(t *testing.T, f func(t *testing.T, w *world.World, s *vault.Server, c Config)) {
	synctest.Test(t, func(t *testing.T) {
		w, err := world.New(world.Config{})
		check(t, err)
		defer w.Close()
		s, err := vault.New(vault.Config{Service: httpservice.Config{World: w, Addr: "10.0.0.9:8200"}, Namespace: "team-a",
			Keys: []string{"transit/agent", "transit/other"}, Tokens: map[string][]string{token: {"transit/agent", "transit/gone", "nowhere/agent"}}})
		check(t, err)
		defer func() { check(t, s.Close()) }()
		f(t, w, s, Config{URL: s.URL() + "/", Namespace: "team-a", Token: token, Keys: []Key{{"transit", "agent"}}, CA: w.PKI.PEM, Dial: w.Net.DialContext})
	})
}

// TestUnwrap: what a key has wrapped is opened, once: the server may be down afterwards.
func TestUnwrap(t *testing.T) {
	inLab(t, func(t *testing.T, w *world.World, s *vault.Server, config Config) {
		c, err := New(config)
		check(t, err)
		if !c.Has("transit", "agent") || c.Has("transit", "other") || c.Has("", "transit/agent") {
			t.Error("another key is asked than the config names")
		}
		wrapped := s.Encrypt("transit/agent", []byte(dataKey))
		for range 2 {
			if key, err := c.Unwrap(t.Context(), "transit", "agent", wrapped); err != nil || string(key) != dataKey {
				t.Fatalf("%q, %v", key, err)
			}
			s.Seal(true)
		}
		if n := vault.CountDecrypts(w, "transit/agent"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if shown := fmt.Sprintf("%v %+v %v %+v %#v", config, config, c, c, c); strings.Contains(shown, token) || strings.Contains(shown, dataKey) {
			t.Errorf("it is printed: %s", shown)
		}
	})
}

// TestSilence: one that does not answer is waited for once for all that is to be opened, and asked
// again a little later.
func TestSilence(t *testing.T) {
	inLab(t, func(t *testing.T, w *world.World, s *vault.Server, config Config) {
		c, err := New(config)
		check(t, err)
		w.Inject(world.Fault{System: "vault", Kind: world.Slow, Delay: time.Hour})
		began := time.Now()
		for i := range 100 {
			if _, err := c.Unwrap(t.Context(), "transit", "agent", s.Encrypt("transit/agent", []byte(dataKey))); !errors.Is(err, secrets.ErrUnavailable) || !strings.Contains(err.Error(), "in time") {
				t.Fatalf("no. %d: %v", i+1, err)
			}
		}
		if took := time.Since(began); took > within {
			t.Errorf("it was waited for for %v", took)
		}
		w.Heal()
		time.Sleep(silentFor + time.Second)
		if _, err := c.Unwrap(t.Context(), "transit", "agent", s.Encrypt("transit/agent", []byte(dataKey))); err != nil {
			t.Error(err)
		}
	})
}

// TestRefusals: an answer makes the file wrong only where it is about the ciphertext, and each has a
// hint.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		config func(*Config)
		server func(*vault.Server, *world.World)
		key    string // "": agent
		change func(wrapped string) string
		kind   error
		text   string
		hint   string
	}{
		"a token that is not known": {config: func(c *Config) { c.Token = "other" }, kind: secrets.ErrUnavailable, text: "it answers 403 Forbidden: permission denied", hint: `path "transit/decrypt/agent" { capabilities = ["update"] }`},
		"a token that ended":        {server: func(s *vault.Server, _ *world.World) { s.Revoke(token) }, kind: secrets.ErrUnavailable, text: "403", hint: "may have expired"},
		"another namespace":         {config: func(c *Config) { c.Namespace = "" }, kind: secrets.ErrUnavailable, text: "403"},
		"a seal":                    {server: func(s *vault.Server, _ *world.World) { s.Seal(true) }, kind: secrets.ErrUnavailable, text: "it answers 503 Service Unavailable: Vault is sealed", hint: "`vault status`"},
		"a key that it lacks":       {key: "gone", kind: secrets.ErrUnavailable, text: "it answers 400 Bad Request: encryption key not found", hint: "`vault list transit/keys`"},
		"another ciphertext":        {change: func(s string) string { return s[:len(s)-8] + "AAAAAAA=" }, kind: secrets.ErrTampered, text: "invalid ciphertext"},
		"no ciphertext":             {change: func(string) string { return "vault" }, kind: secrets.ErrTampered, text: "invalid ciphertext: no prefix"},
		"a version to come":         {change: func(s string) string { return strings.Replace(s, ":v1:", ":v7:", 1) }, kind: secrets.ErrUnavailable, text: "version is too new"},
		"a version that is retired": {server: func(s *vault.Server, _ *world.World) { s.Retire("transit/agent") }, kind: secrets.ErrUnavailable, text: "too old", hint: "min_decryption_version"},
		"a proxy that answers":      {server: answer(http.StatusOK), kind: secrets.ErrUnavailable, text: "it answers 200, but not as its API does", hint: "vault.url"},
		"one that stands by":        {server: answer(http.StatusTemporaryRedirect), kind: secrets.ErrUnavailable, text: "it answers 307 Temporary Redirect", hint: "the active node"},
		"too many requests":         {server: answer(http.StatusTooManyRequests), kind: secrets.ErrUnavailable, text: "it answers 429"},
		"a fault of its own":        {server: answer(http.StatusInternalServerError), kind: secrets.ErrUnavailable, text: "it answers 500"},
		"an authority":              {config: func(c *Config) { c.CA = nil }, kind: secrets.ErrUnavailable, text: "its certificate is signed by an authority that is not trusted here"},
		"no server":                 {config: func(c *Config) { c.URL = "https://10.0.0.9:1" }, kind: secrets.ErrUnavailable, text: "nothing listens there", hint: "whether it runs"},
		"a lost answer":             {server: fail(world.LoseReply), kind: secrets.ErrUnavailable, text: "the connection broke"},
		"no answer":                 {server: fail(world.Slow), kind: secrets.ErrUnavailable, text: "it does not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, func(t *testing.T, w *world.World, s *vault.Server, config Config) {
				if c.config != nil {
					c.config(&config)
				}
				client, err := New(config)
				check(t, err)
				wrapped := s.Encrypt("transit/agent", []byte(dataKey))
				if c.change != nil {
					wrapped = c.change(wrapped)
				}
				if c.server != nil {
					c.server(s, w)
				}
				key := "agent"
				if c.key != "" {
					key = c.key
				}
				got, err := client.Unwrap(t.Context(), "transit", key, wrapped)
				if got != nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) || !strings.Contains(fault.HintOf(err), c.hint) || c.kind == secrets.ErrUnavailable && fault.HintOf(err) == "" {
					t.Errorf("%q, %v (%s)", got, err, fault.HintOf(err))
				}
				if strings.Contains(err.Error()+fault.HintOf(err), token) {
					t.Errorf("the token is shown: %v (%s)", err, fault.HintOf(err))
				}
			})
		})
	}
}

func answer(status int) func(*vault.Server, *world.World) {
	return func(_ *vault.Server, w *world.World) {
		w.Inject(world.Fault{System: "vault", Kind: world.Answer, Status: status})
	}
}

func fail(kind world.FaultKind) func(*vault.Server, *world.World) {
	return func(_ *vault.Server, w *world.World) {
		w.Inject(world.Fault{System: "vault", Kind: kind, Delay: time.Hour})
	}
}

// TestFileOfSops: a file that sops has encrypted to a key of Vault alone is opened with it,
// and with none that the config does not name.
func TestFileOfSops(t *testing.T) {
	file, err := os.ReadFile("testdata/vault.sops.yaml")
	check(t, err)
	id, err := age.GenerateX25519Identity()
	check(t, err)
	ids, err := secrets.ParseIdentities([]byte(id.String()))
	check(t, err)
	inLab(t, func(t *testing.T, w *world.World, s *vault.Server, config Config) {
		mine := []byte(strings.ReplaceAll(string(file), "WRAPPED", s.Encrypt("transit/agent", []byte(dataKey))))
		c, err := New(config)
		check(t, err)
		plain, err := secrets.Decrypt(t.Context(), "s.yaml", mine, ids.With(c))
		if err != nil || !strings.Contains(string(plain), "authkey") {
			t.Errorf("%s, %v (%s)", plain, err, fault.HintOf(err))
		}
		after, err := secrets.SetValues(t.Context(), "s.yaml", mine, ids.With(c), map[string]string{"x": "y"})
		check(t, err)
		if plain, err = secrets.Decrypt(t.Context(), "s.yaml", after, ids.With(c)); err != nil || !strings.Contains(string(plain), `"y"`) {
			t.Errorf("edited: %s, %v", plain, err)
		}
		// The address in the file is not asked, whatever it is.
		elsewhere := []byte(strings.Replace(string(mine), "https://vault.example.org:8200", "https://10.0.0.66", 1))
		if _, err = secrets.Decrypt(t.Context(), "s.yaml", elsewhere, ids.With(c)); err != nil {
			t.Error(err)
		}
		damaged := []byte(strings.ReplaceAll(string(file), "WRAPPED", "vault:v1:AAAA"))
		if _, err = secrets.Decrypt(t.Context(), "s.yaml", damaged, ids.With(c)); !errors.Is(err, secrets.ErrTampered) || !strings.Contains(err.Error(), "was not made by transit/agent of "+s.URL()+" (the file names https://vault.example.org:8200)") {
			t.Errorf("damaged: %v", err)
		}
		// Another server may have a key of that name.
		entry := func(address, wrapped string) string {
			return "    - created_at: \"2026-11-30T00:00:00Z\"\n      enc: " + wrapped + "\n      engine_path: transit\n      key_name: agent\n      vault_address: " + address + "\n"
		}
		also := func(text []byte, entries string) []byte {
			return []byte(strings.Replace(string(text), "  hc_vault:\n", "  hc_vault:\n"+entries, 1))
		}
		asks := func() int { return vault.CountDecrypts(w, "transit/agent") }
		before := asks()
		two := also(file, entry("https://old.example.org", "vault:v1:AAAA")+entry(s.URL(), s.Encrypt("transit/agent", []byte(dataKey))))
		if _, err = secrets.Decrypt(t.Context(), "s.yaml", two, ids.With(c)); err != nil || asks() != before+1 {
			t.Errorf("two servers: %v, asked %d times", err, asks()-before)
		}
		if _, err = secrets.Decrypt(t.Context(), "s.yaml", also(mine, entry("https://old.example.org", "vault:v1:AAAA")), ids.With(c)); err != nil {
			t.Errorf("neither is ours by its address: %v", err)
		}
		// However many a file names, few are asked for.
		before = asks()
		if _, err = secrets.Decrypt(t.Context(), "s.yaml", also(file, strings.Repeat(entry(s.URL(), "vault:v7:AAAA"), 50)), ids.With(c)); !errors.Is(err, secrets.ErrUnsupported) || asks() != before+8 {
			t.Errorf("many: %v, asked %d times", err, asks()-before)
		}
		before = asks()
		head, rest, _ := strings.Cut(string(file), "  hc_vault:\n")
		group := "    - hc_vault:\n" + strings.ReplaceAll("    "+strings.TrimSuffix(entry(s.URL(), "vault:v7:AAAA"), "\n"), "\n", "\n    ") + "\n"
		split := []byte(head + "  shamir_threshold: 2\n  key_groups:\n" + strings.Repeat(group, 100) + rest[strings.Index(rest, "  lastmodified:"):])
		if _, err = secrets.Decrypt(t.Context(), "s.yaml", split, ids.With(c)); !errors.Is(err, secrets.ErrUnsupported) || asks() != before+8 {
			t.Errorf("split: %v, asked %d times", err, asks()-before)
		}
		s.Seal(true)
		fresh, err := New(config)
		check(t, err)
		if _, err = secrets.Decrypt(t.Context(), "s.yaml", mine, ids.With(fresh)); !errors.Is(err, secrets.ErrUnavailable) || !strings.Contains(fault.HintOf(err), "sealed") {
			t.Errorf("sealed: %v", err)
		}
		asked := vault.CountDecrypts(w, "transit/agent")
		config.Keys = []Key{{"transit", "other"}}
		other, err := New(config)
		check(t, err)
		for what, with := range map[string]*secrets.Identities{"no engine": ids, "another key": ids.With(other)} {
			if _, err = secrets.Decrypt(t.Context(), "s.yaml", mine, with); !errors.Is(err, secrets.ErrNoKey) || !strings.Contains(fault.HintOf(err), "vault.keys") {
				t.Errorf("%s: %v (%s)", what, err, fault.HintOf(err))
			}
		}
		if n := vault.CountDecrypts(w, "transit/agent"); n != asked {
			t.Error("a key was asked that the config does not name")
		}
	})
}
