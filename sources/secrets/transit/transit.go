package transit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/certpool"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// Key names a key of a transit engine.
type Key struct{ Engine, Name string }

// String is the key as the host's config has it: transit/talos-agent.
func (k Key) String() string { return k.Engine + "/" + k.Name }

// ParseKey reads the path of an engine with the name of a key behind it.
func ParseKey(s string) Key {
	i := strings.LastIndexByte(s, '/')
	return Key{s[:max(i, 0)], s[i+1:]}
}

// Config is a server and what may be asked of it. URL, Token and Keys are required.
type Config struct {
	// URL is the address of Vault or OpenBao, without a path.
	URL string
	// Namespace is sent with each request; "" is the root's.
	Namespace string
	Token     string
	Keys      []Key
	// CA holds PEM certificates to trust besides the system's.
	CA []byte
	// Dial opens connections; nil means the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Format implements fmt.Formatter, so that no verb prints the token.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "{%s %v}", c.URL, c.Keys) }

// LogValue implements slog.LogValuer.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// Client opens what the keys of its config have wrapped, and remembers it while it lives:
// a file that was opened once is opened again while the server is down. It may be used
// from several goroutines.
type Client struct {
	c    Config
	http *http.Client

	mu     sync.Mutex
	opened map[[sha256.Size]byte][]byte // data keys, by what they were opened from
	silent error                        // why there was no answer
	until  time.Time                    // to which silent is the answer
}

// mostOpened bounds how many data keys are remembered: more than a host has clusters, and
// each change of recipients makes a new one.
const mostOpened = 1000

// within bounds one request, whatever becomes of it.
const within = 10 * time.Second

// silentFor is how long a server that has not answered is not asked again: the files of many
// clusters would wait for it one after the other.
const silentFor = 5 * time.Second

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 64 << 10

// New makes a client; it sends nothing. An error is about the certificates.
func New(c Config) (*Client, error) {
	pool, ok := certpool.Authorities(c.CA)
	if !ok {
		return nil, &fault.Error{Op: "ca_file holds no PEM certificate"}
	}
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	c.URL = strings.TrimSuffix(c.URL, "/")
	var h1 http.Protocols
	h1.SetHTTP1(true)
	return &Client{c: c, opened: map[[sha256.Size]byte][]byte{}, http: &http.Client{
		Timeout: within,
		Transport: &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			DialContext:       dial,
			TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true, // files are opened once in a while
			Protocols:         &h1,
		},
		// A redirect would take the token along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Format implements fmt.Formatter, so that no verb prints the token or a data key.
func (c *Client) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, c.c) }

// Has implements secrets.Transit.
func (c *Client) Has(engine, name string) bool {
	return slices.Contains(c.c.Keys, Key{engine, name})
}

// URL implements secrets.Transit.
func (c *Client) URL() string { return c.c.URL }

// Unwrap implements secrets.Transit: it asks for POST ENGINE/decrypt/NAME (Vault 1.19 and
// OpenBao 2.2: HTTP API of the transit engine).
func (c *Client) Unwrap(ctx context.Context, engine, name, wrapped string) ([]byte, error) {
	from := sha256.Sum256([]byte(Key{engine, name}.String() + "\x00" + wrapped))
	c.mu.Lock()
	key, ok := c.opened[from]
	silent := c.silent
	if time.Now().After(c.until) {
		silent = nil
	}
	c.mu.Unlock()
	switch {
	case ok:
		return slices.Clone(key), nil
	case silent != nil:
		return nil, silent
	}
	key, err := c.ask(ctx, Key{engine, name}, wrapped)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.opened) >= mostOpened {
		clear(c.opened)
	}
	c.opened[from] = slices.Clone(key)
	return key, nil
}

func (c *Client) ask(ctx context.Context, k Key, wrapped string) ([]byte, error) {
	body, err := json.Marshal(map[string]string{"ciphertext": wrapped})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.c.URL+"/v1/"+k.Engine+"/decrypt/"+k.Name, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Vault-Token", c.c.Token)
	req.Header.Set("X-Vault-Request", "true") // what a listener may demand, against forged requests
	if c.c.Namespace != "" {
		req.Header.Set("X-Vault-Namespace", c.c.Namespace)
	}
	var answer []byte
	res, err := c.http.Do(req)
	if err == nil {
		defer func() { _ = res.Body.Close() }()
		answer, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	}
	if err != nil {
		err = unavailable("see whether it runs and is reached from this host", text.Reason(err, longestReason))
		if ctx.Err() == nil { // else it is who asked that does not wait any longer
			c.mu.Lock()
			defer c.mu.Unlock()
			c.silent, c.until = err, time.Now().Add(silentFor)
		}
		return nil, err
	}
	return c.judge(k, res, answer)
}

// judge returns the key that an answer holds.
func (c *Client) judge(k Key, res *http.Response, body []byte) ([]byte, error) {
	var answer struct {
		Data   struct{ Plaintext *string }
		Errors []string
	}
	wrong := json.Unmarshal(body, &answer)
	what := "it answers " + res.Status
	if len(answer.Errors) > 0 {
		what += ": " + text.Sanitize(strings.ReplaceAll(strings.Join(answer.Errors, "; "), c.c.Token, "[redacted]"), longestReason)
	}
	switch {
	case res.StatusCode == http.StatusOK && (wrong != nil || answer.Data.Plaintext == nil):
		return nil, unavailable("vault.url must be that of the API, and a proxy on the way must not answer in its place", "it answers 200, but not as its API does")
	case res.StatusCode == http.StatusOK:
		key, err := base64.StdEncoding.DecodeString(*answer.Data.Plaintext)
		if err != nil {
			return nil, &failure{secrets.ErrTampered, "what it has opened is no data key of sops"}
		}
		return key, nil
	case res.StatusCode == http.StatusBadRequest && slices.ContainsFunc(answer.Errors, isInvalid):
		return nil, &failure{secrets.ErrTampered, what}
	case res.StatusCode == http.StatusBadRequest && slices.ContainsFunc(answer.Errors, isTooOld):
		return nil, unavailable(fmt.Sprintf("a version of %s that is not allowed any more has encrypted it: lower the key's min_decryption_version, then run: sops rotate --in-place FILE", k), what)
	// The engine answers with 400 for a key that it does not have.
	case res.StatusCode == http.StatusBadRequest, res.StatusCode == http.StatusNotFound:
		return nil, unavailable(fmt.Sprintf("see whether it has the key %s: vault.keys and vault.namespace of the host's config, and `vault list %s/keys`", k, k.Engine), what)
	case res.StatusCode == http.StatusForbidden:
		return nil, unavailable(fmt.Sprintf("the token may have expired; it needs a policy with: path %q { capabilities = [\"update\"] }", k.Engine+"/decrypt/"+k.Name), what)
	case res.StatusCode == http.StatusServiceUnavailable:
		return nil, unavailable("it is sealed, or without an active node: `vault status` shows which", what)
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return nil, unavailable("name the address of the active node, or of what leads there, in vault.url of the host's config", what+", and names another address, which is not followed")
	}
	return nil, unavailable("it is tried again; the log of the server has the reason", what)
}

// isInvalid reports whether the engine's words are about a ciphertext that it has not made
// (Vault 1.19: keysutil, Policy.Decrypt and Policy.SymmetricDecryptRaw).
func isInvalid(reason string) bool {
	return strings.HasPrefix(reason, "invalid ciphertext") && !strings.Contains(reason, "version is too new") || strings.Contains(reason, "message authentication failed")
}

// isTooOld reports whether they are about a version of the key that is not used any more.
func isTooOld(reason string) bool { return strings.Contains(reason, "disallowed by policy") }

// longestReason bounds what is shown of the server's own words, in characters.
const longestReason = 200

// unavailable is an error that is not about what was to be opened.
func unavailable(hint, why string) error {
	return fault.WithHint(&failure{secrets.ErrUnavailable, why}, hint)
}

// failure is an error of a kind, in words of its own.
type failure struct {
	kind error
	text string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.kind }
