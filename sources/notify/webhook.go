package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// SignatureHeader carries the HMAC-SHA256 of the body, as "sha256=" and hex: the
// header, and the form, that GitHub made common.
const SignatureHeader = "X-Hub-Signature-256"

// envelope is the shape of the body, the same as of every answer of the socket.
type envelope struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Data       Notice `json:"data"`
}

type webhook struct {
	url    string
	secret string
	http   *http.Client
}

func newWebhook(c Config) (*webhook, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, &fault.Error{Op: "it is not a web address", Hint: "write one like https://hooks.example.org/talos-agent; for a chat service write kind: chat"}
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return nil, &fault.Error{Op: "it is plain http, over which anybody between could read and write", Hint: "use https; plain http is for loopback addresses"}
	}
	transport, err := c.transport()
	if err != nil {
		return nil, err
	}
	return &webhook{url: c.URL, secret: c.Secret, http: &http.Client{
		Transport: transport(false),
		// A redirect would turn the POST into a GET, or carry it elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// Send implements Target.
func (w *webhook) Send(ctx context.Context, n Notice) error {
	body, err := json.Marshal(envelope{Kind: "Notice", APIVersion: "v1", Data: n})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return &fault.Error{Op: "it is not a web address"}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "talos-agent")
	if w.secret != "" {
		mac := hmac.New(sha256.New, []byte(w.secret))
		mac.Write(body)
		r.Header.Set(SignatureHeader, "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
	res, err := w.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return stopError(ctx)
		}
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // without the address
		}
		return &fault.Error{Op: "it cannot be reached", Err: err}
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, mostAnswer)) // its content does not matter
	_ = res.Body.Close()
	switch status := res.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status >= 300 && status < 400:
		return &fault.Error{Op: "it answers " + formatStatus(status), Hint: "it has moved; write the new address into url_file"}
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound:
		return &fault.Error{Op: "it answers " + formatStatus(status), Hint: "check the address in url_file, and the key in secret_file"}
	default:
		return &fault.Error{Op: "it answers " + formatStatus(status)}
	}
}

func formatStatus(status int) string { return strconv.Itoa(status) + " " + http.StatusText(status) }
