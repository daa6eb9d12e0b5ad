package factory

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/certpool"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/platform"
)

// Config names the factory that is asked and where images are kept.
type Config struct {
	// URL of the factory, for example https://factory.talos.dev.
	URL string
	// CacheDir is an absolute path. The directory is made if it is missing and
	// belongs to one Factory at a time.
	CacheDir string
	// CA are certificates in PEM that are trusted beside the system's.
	CA []byte
	// Dial replaces the real dialer and, with it, the proxy of the environment.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Wrap puts something between the client and its connections; nil: nothing.
	Wrap func(http.RoundTripper) http.RoundTripper
	Log  *slog.Logger // nil: none
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// What is wrong with it may be a password, so it is not repeated.
		return newError("write it like https://factory.talos.dev, without user, query or fragment", "factory: URL is not one of a factory")
	}
	if !filepath.IsAbs(c.CacheDir) {
		return newError("set cache_dir to an absolute path", "factory: CacheDir %q is not an absolute path", c.CacheDir)
	}
	if len(c.CA) > 0 && !x509.NewCertPool().AppendCertsFromPEM(c.CA) {
		return newError("put certificates in PEM into the file", "factory: CA holds no certificate")
	}
	return nil
}

// Factory asks an Image Factory and keeps its images. It may be used by
// several goroutines. It holds no connections and no files open between calls,
// so there is nothing to close.
type Factory struct {
	url    *url.URL
	dir    string
	client *http.Client
	log    *slog.Logger
	free   func(dir string) (bytes int64, err error)

	mu   sync.Mutex
	ids  map[string]string        // schematic ids by Schematic.Digest
	busy map[string]chan struct{} // images being downloaded, by name
	seen map[string]note          // what was found out about images, by name
	// installers are those that were looked for, by reference.
	installers map[string]cluster.InstallerSeen
}

// How long the other side may be silent. Building an image at its first
// request takes the public factory minutes, in which it sends nothing.
const (
	connectWithin = 30 * time.Second
	answerWithin  = time.Minute
	buildWithin   = 15 * time.Minute
	stallAfter    = time.Minute
)

// New makes a Factory, its cache directory included, and removes what an
// interrupted download left there. It makes no request yet.
func New(c Config) (*Factory, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	u, err := url.Parse(strings.TrimSuffix(c.URL, "/"))
	if err != nil {
		return nil, fmt.Errorf("read factory's URL: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(c.CacheDir, 0o700); err != nil {
		return nil, fmt.Errorf("make image cache: %w", err)
	}
	roots, _ := certpool.Authorities(c.CA) // they were checked
	transport := &http.Transport{
		DialContext:         c.Dial,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectWithin,
		DisableCompression:  true, // the length must be the file's
		DisableKeepAlives:   true, // calls are rare
	}
	if c.Dial == nil {
		transport.DialContext = (&net.Dialer{Timeout: connectWithin}).DialContext
		transport.Proxy = http.ProxyFromEnvironment
	}
	var through http.RoundTripper = transport
	if c.Wrap != nil {
		through = c.Wrap(through)
	}
	f := &Factory{
		url:    u,
		dir:    c.CacheDir,
		client: &http.Client{Transport: through, CheckRedirect: checkRedirect},
		log:    c.Log,
		free:   platform.FreeSpace,
		ids:    map[string]string{},
		busy:   map[string]chan struct{}{},
		seen:   map[string]note{},

		installers: map[string]cluster.InstallerSeen{},
	}
	return f, f.removeLeftovers()
}

// checkRedirect follows the factory to its object storage, but never out of
// TLS.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return errors.New("it redirects from https to " + r.URL.Scheme)
	}
	if len(via) >= 5 {
		return errors.New("it redirects more than five times")
	}
	return nil
}

var schematicID = pattern.New(`^[0-9a-f]{64}$`)

// vanilla is the id of the schematic that asks for nothing. Source: the Image
// Factory's API documentation; every factory knows it.
const vanilla = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// Schematic registers what an image should contain and returns the factory's
// id for it. The order of the extensions does not matter. The same question is
// asked only once, unless the factory turns out to have forgotten. While the
// factory cannot be reached, only the schematic that asks for nothing has an
// id, so that a host without internet can work with images put into its cache
// by hand.
//
// A schematic the factory refuses is an Error that is not transient.
func (f *Factory) Schematic(ctx context.Context, s cluster.Schematic) (id string, err error) {
	key := s.Digest()
	f.mu.Lock()
	id, ok := f.ids[key]
	f.mu.Unlock()
	if ok {
		return id, nil
	}
	id, err = f.register(ctx, s)
	if e := (*Error)(nil); errors.As(err, &e) && e.Transient() && len(s.Extensions)+len(s.ExtraKernelArgs) == 0 && ctx.Err() == nil {
		f.log.Debug("the factory cannot be asked; the plain schematic's id is known", logging.Err, err)
		id, err = vanilla, nil
	}
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	f.ids[key] = id
	f.mu.Unlock()
	return id, nil
}

// Known returns the id of a schematic that Schematic was given before. It makes
// no request.
func (f *Factory) Known(s cluster.Schematic) (id string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, ok = f.ids[s.Digest()]
	return id, ok
}

func (f *Factory) register(ctx context.Context, s cluster.Schematic) (string, error) {
	const what = "register schematic"
	// The id is a hash of the document, in which the order of extensions
	// counts.
	extensions := slices.Sorted(slices.Values(s.Extensions))
	type system struct {
		Official []string `json:"officialExtensions,omitempty"`
	}
	type customization struct {
		Args   []string `json:"extraKernelArgs,omitempty"`
		System system   `json:"systemExtensions,omitzero"`
	}
	// The factory takes YAML, and this JSON is YAML.
	body, err := json.Marshal(map[string]customization{"customization": {s.ExtraKernelArgs, system{extensions}}})
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url.JoinPath("schematics").String(), bytes.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	req.Header.Set("Content-Type", "application/yaml")
	resp, err := f.client.Do(req)
	if err != nil {
		return "", f.unreachable(what, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", f.unreachable(what, err)
	}
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK {
		return "", readRefusal(what, resp.StatusCode, answer)
	}
	var got struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(answer, &got) != nil || !schematicID.MatchString(got.ID) {
		return "", newTransient(nil, f.inTheWay(), "%s: the answer of %s is not that of an image factory", what, f.url.Host)
	}
	return got.ID, nil
}

// unreachable is an error of the transport.
func (f *Factory) unreachable(what string, err error) *Error {
	return newTransient(err, "check the way from this host to "+f.url.Host+", its name server and its proxy", "%s: ask %s: %s", what, f.url.Host, describeError(err))
}

func (f *Factory) inTheWay() string {
	return "something answers in the factory's place, a proxy or a login page: look at what `curl " + f.url.String() + "/versions` shows on this host"
}
