package git

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/talos-agent/talos-agent/internal/text"
)

const (
	refsPath  = "/info/refs"
	packPath  = "/git-upload-pack"
	refsType  = "application/x-git-upload-pack-advertisement"
	packType  = "application/x-git-upload-pack-result"
	queryType = "application/x-git-upload-pack-request"
)

// httpRemote is a repository behind git's smart HTTP protocol.
type httpRemote struct {
	base   *url.URL // of the repository, without user
	user   string
	token  string
	client *http.Client
}

func newHTTPRemote(l location, c Config, cred credentials) (*httpRemote, error) {
	base, err := url.Parse(location{scheme: l.scheme, host: l.host, port: l.port, path: l.path}.String())
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	var h1 http.Protocols
	h1.SetHTTP1(true)
	return &httpRemote{
		base: base, user: cmp.Or(l.user, "x-access-token"), token: c.Token,
		client: &http.Client{
			// No proxy from the environment, no HTTP/2: two requests per change
			// of the branch need neither.
			Transport: &http.Transport{
				DialContext:           c.Dial,
				TLSClientConfig:       &tls.Config{RootCAs: cred.pool, MinVersion: tls.VersionTLS12},
				TLSHandshakeTimeout:   patience,
				ResponseHeaderTimeout: answerWithin,
				IdleConnTimeout:       90 * time.Second,
				MaxIdleConnsPerHost:   1,
				Protocols:             &h1,
			},
			CheckRedirect: sameRepository,
		},
	}, nil
}

// sameRepository follows a redirect of the reference list within one host, as
// forges answer for a renamed repository. Anywhere else the token would go to
// an unknown host and the branch come from one.
func sameRepository(next *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) > 5:
		return errors.New("too many redirects")
	case first.Method != http.MethodGet:
		return errMoved(next.URL)
	case next.URL.Hostname() != first.URL.Hostname(),
		next.URL.Scheme == first.URL.Scheme && next.URL.Port() != first.URL.Port(),
		next.URL.Scheme != first.URL.Scheme && next.URL.Scheme != "https",
		!strings.HasSuffix(next.URL.Path, refsPath):
		return errMoved(next.URL)
	}
	return nil
}

func errMoved(to *url.URL) error {
	shown := *to
	shown.User, shown.RawQuery, shown.Fragment = nil, "", ""
	return newError(ErrNotFound, "if you trust that place, put its address into url; a sign-in page means that a token is needed", nil,
		"the server sends us to %s", cleanRemark(strings.TrimSuffix(shown.String(), refsPath)))
}

func (r *httpRemote) close() { r.client.CloseIdleConnections() }

func (r *httpRemote) open(context.Context) (session, error) {
	return &httpSession{remote: r, base: r.base}, nil
}

// httpSession keeps where a redirect led, for the second request.
type httpSession struct {
	remote *httpRemote
	base   *url.URL
}

func (s *httpSession) close() {}

func (s *httpSession) refs(ctx context.Context) (*packp.AdvRefs, error) {
	u := s.base.JoinPath(refsPath)
	u.RawQuery = "service=git-upload-pack"
	res, err := s.do(ctx, http.MethodGet, u, nil, refsType)
	if err != nil {
		return nil, err
	}
	final := *res.Request.URL
	final.RawQuery = ""
	final.Path, final.RawPath = strings.TrimSuffix(final.Path, refsPath), strings.TrimSuffix(final.RawPath, refsPath)
	s.base = &final

	body := &capped{r: res.Body, left: maxRefs, what: "the list of references"}
	refs, err := decodeRefs(body)
	if err == nil {
		// To the end, or the connection could not be used again.
		_, err = io.Copy(io.Discard, body)
	}
	if cerr := res.Body.Close(); err == nil {
		err = cerr
	}
	return refs, asUnreachable(err, "read the list of references")
}

func (s *httpSession) pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	body, err := encodeRequest(req, false)
	if err != nil {
		return nil, err
	}
	res, err := s.do(ctx, http.MethodPost, s.base.JoinPath(packPath), body, packType)
	if err != nil {
		return nil, err
	}
	return decodePack(req, res.Body)
}

// do sends one request and refuses every answer but a 200 of the wanted type.
func (s *httpSession) do(ctx context.Context, method string, u *url.URL, body []byte, want string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "git/talos-agent")
	req.Header.Set("Accept", want)
	if body != nil {
		req.Header.Set("Content-Type", queryType)
	}
	// Sent at once, not after a challenge; newHTTPRemote has no token for http.
	if s.remote.token != "" {
		req.SetBasicAuth(s.remote.user, s.remote.token)
	}
	res, err := s.remote.client.Do(req)
	if err != nil {
		return nil, s.connectError(ctx, err)
	}
	res.Body = lossy{res.Body}
	if res.StatusCode != http.StatusOK {
		return nil, errors.Join(s.statusError(res), res.Body.Close())
	}
	if got, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || got != want {
		return nil, errors.Join(newError(ErrUnsupported, "check url: it must be the address git clone takes", nil,
			"the server does not speak git's smart HTTP protocol there (content type %q)", cleanRemark(res.Header.Get("Content-Type"))), res.Body.Close())
	}
	return res, nil
}

// lossy names the failure of a connection in the middle of an answer, before
// the decoders make something else of it.
type lossy struct{ io.ReadCloser }

func (l lossy) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = asUnreachable(err, "read the answer")
	}
	return n, err
}

// connectError sorts what went wrong before there was an answer.
func (s *httpSession) connectError(ctx context.Context, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // without the method and the URL, which the caller names
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return newError(ErrUnreachable, "", nil, "%s accepts connections and has not answered within %s", s.base.Host, answerWithin)
	}
	if isKnown(err) {
		return err
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return newError(ErrUnreachable, "if the server's certificate comes from an authority of your own, give its certificate as ca_file", text.Plain(cert.Err), "the server's certificate is not trusted")
	}
	var record tls.RecordHeaderError
	if errors.As(err, &record) {
		return newError(ErrUnreachable, "the port seems to speak http; check url", err, "no TLS there")
	}
	return asUnreachable(text.Plain(err), "ask "+s.base.Host)
}

// statusError sorts an answer that is not 200.
func (s *httpSession) statusError(res *http.Response) error {
	answer := strings.TrimSpace(strconv.Itoa(res.StatusCode) + " " + http.StatusText(res.StatusCode))
	if t, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && t == "text/plain" {
		// A text that cannot be read leaves the status, which is enough.
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		if words := cleanRemark(string(text)); words != "" {
			answer += ": " + words
		}
	}
	if s.remote.token != "" {
		answer = strings.ReplaceAll(answer, s.remote.token, "[redacted]")
	}
	switch {
	case res.StatusCode == http.StatusUnauthorized && s.remote.token == "":
		return newError(ErrAuth, "give a token with read access as token_file, or a deploy key with an ssh:// URL", nil, "the server asks for credentials (%s)", answer)
	case res.StatusCode == http.StatusUnauthorized:
		return newError(ErrAuth, "the token may have expired or been revoked, and a new one takes `systemctl restart talos-agent`; it needs read access to the repository's contents", nil, "the server refuses the token (%s)", answer)
	case res.StatusCode == http.StatusForbidden:
		return newError(ErrAuth, "the token needs read access to the repository's contents (GitHub: Contents read; GitLab: read_repository; Gitea: read:repository)", nil, "the server forbids it (%s)", answer)
	case res.StatusCode == http.StatusNotFound:
		return newError(ErrNotFound, hiddenHint, nil, "the server answers %s", answer)
	}
	return newError(ErrUnreachable, "", nil, "the server answers %s", answer)
}
