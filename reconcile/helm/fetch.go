package helm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/certpool"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/helm/render"
)

// The deadlines of fetching.
const (
	connectWithin = 10 * time.Second
	fetchWithin   = 2 * time.Minute // one file, from the request to its last byte
)

// fetchClient makes the client that fetches charts.
func fetchClient(c Config) (*http.Client, error) {
	roots, ok := certpool.Authorities(c.CA)
	if !ok {
		return nil, newError("give a file with certificates in PEM", "the authority for chart mirrors holds no PEM certificate")
	}
	transport := &http.Transport{
		DialContext:           c.Dial,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   connectWithin,
		ResponseHeaderTimeout: fetchWithin,
		DisableKeepAlives:     true, // calls are rare
	}
	if c.Dial == nil {
		transport.DialContext = (&net.Dialer{Timeout: connectWithin}).DialContext
		transport.Proxy = http.ProxyFromEnvironment
	}
	var through http.RoundTripper = transport
	if c.WrapCharts != nil {
		through = c.WrapCharts(through)
	}
	return &http.Client{Transport: through, CheckRedirect: checkRedirect}, nil
}

// checkRedirect follows a server to its object storage, but never out of TLS.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return errors.New("it redirects from https to " + r.URL.Scheme)
	}
	if len(via) >= 5 {
		return errors.New("it redirects more than five times")
	}
	return nil
}

// doer sends requests: an http.Client, or one that can identify itself to a
// registry.
type doer interface {
	Do(*http.Request) (*http.Response, error)
}

// httpError is an answer that was not a success.
type httpError struct {
	host   string
	status int
	words  string
}

// Error implements error.
func (e *httpError) Error() string {
	return fmt.Sprintf("%s answers %d %s", e.host, e.status, e.words)
}

// Unwrap holds what to do about it.
func (e *httpError) Unwrap() error {
	f := &fault.Error{Op: e.Error()}
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		f.Hint = "charts are fetched without credentials: use a source that does not ask for them, or a mirror (mirrors.charts in the host config)"
	case http.StatusNotFound:
		f.Hint = "check the chart's source, name and version"
	}
	return f
}

// errTooLarge: more came than may come.
var errTooLarge = errors.New("it is larger than it may be")

// openURL begins to fetch a file. At most so many bytes are read of it.
func openURL(ctx context.Context, client doer, u *url.URL, accept string, most int64) (io.ReadCloser, error) {
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, newError("use an https URL", "%s is no URL to fetch from", sanitize(u.Redacted()))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %s", u.Host, describeError(err))
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	req.Header.Set("User-Agent", "talos-agent")
	resp, err := client.Do(req)
	if answered := (*httpError)(nil); errors.As(err, &answered) {
		return nil, answered
	}
	if err != nil {
		return nil, wrapUnreachable(u.Host, err)
	}
	if resp.StatusCode == http.StatusOK {
		return &limited{ReadCloser: resp.Body, left: most}, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, wrapUnreachable(u.Host, err)
	}
	words := sanitize(string(body))
	if words == "" || strings.HasPrefix(words, "<") {
		words = http.StatusText(resp.StatusCode)
	}
	return nil, &httpError{u.Host, resp.StatusCode, words}
}

// wrapUnreachable returns an error of the connection.
func wrapUnreachable(host string, err error) error {
	var unknown x509.UnknownAuthorityError
	hint := "check the way from this host to " + host + ", its name server and its proxy"
	if errors.As(err, &unknown) {
		hint = "if it is a mirror with an authority of its own, give the host that authority"
	}
	return &Error{message: "ask " + host + ": " + describeError(err), hint: hint, cause: err}
}

// fetchFile fetches a file whole.
func fetchFile(ctx context.Context, client doer, u *url.URL, accept string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	body, err := openURL(ctx, client, u, accept, most)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(body)
	switch err = errors.Join(err, body.Close()); {
	case errors.Is(err, errTooLarge):
		return nil, fmt.Errorf("what %s sends is larger than %d MiB", u.Host, most>>20)
	case err != nil:
		return nil, wrapUnreachable(u.Host, err)
	}
	return b, nil
}

// limited is a body that may not be endless.
type limited struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	// One byte more is asked for than may come, so that a body of just the
	// right size ends with EOF.
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left+1)])
	if l.left -= int64(n); l.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// mirrors replace the beginnings of URLs.
type mirrors map[string]string

// of returns the URL to ask instead of u: the longest beginning that has a
// mirror, up to the end of a part of its path, counts.
func (m mirrors) of(u string) string {
	best := ""
	for from := range m {
		if rest, ok := strings.CutPrefix(u, strings.TrimSuffix(from, "/")); ok && (rest == "" || rest[0] == '/') && len(from) > len(best) {
			best = from
		}
	}
	if best == "" {
		return u
	}
	return strings.TrimSuffix(m[best], "/") + strings.TrimPrefix(u, strings.TrimSuffix(best, "/"))
}

// fromRepository fetches the archive of a chart from an https repository.
func (r *Releaser) fromRepository(ctx context.Context, c cluster.Chart) ([]byte, error) {
	base, err := url.Parse(r.mirrors.of(c.Repository) + "/")
	if err != nil {
		return nil, newError("use an https URL", "%s is no URL", sanitize(c.Repository))
	}
	at, err := r.find(ctx, base, c)
	if err != nil {
		return nil, err
	}
	file, err := base.Parse(at.URLs[0])
	if err != nil {
		return nil, newError("the repository is broken; tell its owner", "the index of %s gives a URL that is none", base.Host)
	}
	// An index may name its own host, or that of the repository it mirrors.
	if file, err = url.Parse(r.mirrors.of(file.String())); err != nil {
		return nil, newError("correct mirrors.charts in the host config", "the mirror of %s is no URL", base.Host)
	}
	if base.Scheme == "https" && file.Scheme != "https" {
		return nil, newError("use a repository that serves its charts over https", "the index of %s leads from https to %s", base.Host, sanitize(file.Scheme))
	}
	b, err := fetchFile(ctx, r.client, file, "", maxArchive)
	if err != nil {
		return nil, err
	}
	if listed := hexOf(at.Digest); listed != "" && listed != digestOf(b) {
		return nil, newError("ask again later; if it stays so, the repository is broken", "what %s sends has sha256 %s, and its index has %s", file.Host, digestOf(b), listed)
	}
	return b, nil
}

// find looks a chart up in the index of a repository.
func (r *Releaser) find(ctx context.Context, base *url.URL, c cluster.Chart) (version, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	body, err := openURL(ctx, r.client, base.JoinPath("index.yaml"), "", maxIndex)
	if err != nil {
		return version{}, err
	}
	versions, err := versionsIn(body, c.Name)
	// What is not read any more is of no interest.
	_ = body.Close()
	switch {
	case errors.Is(err, errNoChart):
		return version{}, newError("check the chart's repository and name", "%s has no chart %s", base.Host, c.Name)
	case errors.Is(err, errTooLarge):
		return version{}, newError("use an OCI registry, or put the chart into the repository of the inventory", "the index of %s is larger than %d MiB", base.Host, maxIndex>>20)
	case ctx.Err() != nil:
		return version{}, wrapUnreachable(base.Host, ctx.Err())
	case err != nil:
		return version{}, fmt.Errorf("read the index of %s: %s", base.Host, describeError(err))
	}
	for _, same := range []func(string) bool{
		func(v string) bool { return v == c.Version },
		func(v string) bool { return render.SameVersion(v, c.Version) },
	} {
		if i := slices.IndexFunc(versions, func(v version) bool { return same(v.Version) }); i >= 0 && len(versions[i].URLs) > 0 {
			return versions[i], nil
		}
	}
	var some []string
	for _, v := range versions[:min(len(versions), 5)] {
		some = append(some, sanitize(v.Version))
	}
	return version{}, newError("choose a version it has: "+strings.Join(some, ", "), "%s has no version %s of chart %s", base.Host, c.Version, c.Name)
}
