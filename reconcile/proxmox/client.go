package proxmox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	api "github.com/luthermonson/go-proxmox"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/retry"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/accesslog"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pace"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/recent"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/turns"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/usage"
)

const (
	apiPath = "/api2/json"

	// readWithin bounds one attempt of a read, writeWithin a write: Proxmox VE
	// waits up to ten seconds for a VM's lock file before it answers.
	readWithin  = 10 * time.Second
	writeWithin = 60 * time.Second

	auditEvery = 10
)

// readAgain are the pauses before a read is tried again that got no answer:
// connections break while pveproxy restarts.
var readAgain = [...]time.Duration{100 * time.Millisecond, 400 * time.Millisecond}

// Config names the Proxmox VE to connect to, and the identity to use.
type Config struct {
	// URL is where the API is, "https://127.0.0.1:8006".
	URL string
	// Token is an API token, user@realm!name=secret.
	Token cluster.Secret
	// CA holds the authorities to trust, PEM; empty means the system's.
	CA []byte
	// Fingerprint is the SHA-256 of the server's certificate in hex, with or
	// without colons. It pins the certificate and takes the place of CA.
	Fingerprint string
	// Pool is the resource pool of nodes that name none; "" means that their
	// VMs are in no pool.
	Pool string
	// Dial opens connections; nil means the real network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Wrap puts something between the client and its connections; nil: nothing.
	Wrap func(http.RoundTripper) http.RoundTripper
	Log  *slog.Logger // nil: none
	// AccessLog is the path of pveproxy's access log on the host that this program runs
	// on, which Host is the name of; "": who sent a request that left no task is unknown.
	AccessLog, Host string
	// Copies is how many creations may copy onto a storage at once; nil: one.
	Copies func() int
	// AuditEvery is in how many passes every config of a quiet cluster is read
	// once; 0 means 10.
	AuditEvery int
}

// Client sees and changes the VMs of one Proxmox VE cluster. It may be used
// from many goroutines and for many clusters of nodes. Close it when done.
type Client struct {
	pool       string
	auditEvery int
	log        *slog.Logger
	token      cluster.TokenID
	pinned     bool // a fingerprint is what is trusted

	api       *api.Client
	http      *http.Client
	transport *http.Transport
	base      string         // https://host:port/api2/json
	header    cluster.Secret // Authorization

	turns  turns.Turns
	copies func() int  // at once onto a storage
	shown  certificate // of the API

	accessLog accesslog.Log

	recent   recent.Answers
	pressure usage.Lately
	pace     pace.Pace // of tasks, by kind and host
	followed pace.Followed

	mu     sync.Mutex
	memory memory
}

// New makes a Client. It asks nothing yet.
func New(c Config) (*Client, error) {
	base, err := url.Parse(c.URL)
	switch {
	case err != nil, base.Scheme != "https", base.Host == "", base.User != nil, base.RawQuery != "", strings.Trim(base.Path, "/") != "" && strings.Trim(base.Path, "/") != "api2/json":
		return nil, fault.Errorf("write it like https://127.0.0.1:8006", "proxmox url: %q is not the address of a Proxmox VE API", c.URL)
	}
	token, ok := cluster.ParseToken(c.Token)
	if !ok {
		return nil, fault.Errorf("write it like talos-agent@pve!pve1=12345678-90ab-cdef-1234-567890abcdef, as `pveum user token add` prints it",
			"proxmox token: it is not of the form user@realm!name=secret")
	}
	tlsc, err := tlsConfig(c)
	if err != nil {
		return nil, err
	}
	p := &Client{
		pool: c.Pool, auditEvery: c.AuditEvery, log: c.Log, token: token.ID, pinned: c.Fingerprint != "",
		base: "https://" + base.Host + apiPath, header: cluster.SecretString("PVEAPIToken=" + token.Line().RevealString()),
		memory: newMemory(),
	}
	if p.auditEvery <= 0 {
		p.auditEvery = auditEvery
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.copies = c.Copies; p.copies == nil {
		p.copies = func() int { return 1 }
	}
	p.accessLog.Path, p.accessLog.Host, p.accessLog.Report = c.AccessLog, c.Host, p.reportAccessLog
	p.shown.note(tlsc)
	p.transport = &http.Transport{
		DialContext: c.Dial, TLSClientConfig: tlsc, IdleConnTimeout: idleAfter, MaxIdleConnsPerHost: keptOpen,
		TLSHandshakeTimeout: readWithin,
	}
	var through http.RoundTripper = p.transport
	if c.Wrap != nil {
		through = c.Wrap(through)
	}
	p.http = &http.Client{
		Transport: &checker{next: through, token: token.ID, pool: c.Pool},
		// A redirect could carry the token elsewhere: it is a refusal.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	p.api = api.NewClient(p.base, api.WithHTTPClient(p.http), api.WithAPIToken(string(token.ID), token.Secret.RevealString()), api.WithUserAgent("talos-agent"), api.WithLogger(mute{}))
	return p, nil
}

// Certificate is the certificate that the API showed last, and false before any
// was seen and trusted.
func (c *Client) Certificate() (cluster.Certificate, bool) {
	seen := c.shown.Load()
	if seen == nil {
		return cluster.Certificate{}, false
	}
	return *seen, true
}

// Close closes the connections. Calls in flight end by their contexts.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// mute keeps go-proxmox from printing requests and answers.
type mute struct{}

func (mute) Debugf(string, ...any) {}
func (mute) Errorf(string, ...any) {}
func (mute) Infof(string, ...any)  {}
func (mute) Warnf(string, ...any)  {}

// params are the parameters of a request. They are all text: Proxmox VE takes
// numbers and booleans as such.
type params map[string]string

// get reads. A look may have an answer that was given lately.
func (c *Client) get(ctx context.Context, path string, query params, into any) error {
	return c.recent.Get(ctx, path, query, into, func(into any) error { return c.ask(ctx, path, query, into) })
}

// getQuery is get for those who know no params.
func (c *Client) getQuery(ctx context.Context, path string, query map[string]string, into any) error {
	return c.get(ctx, path, query, into)
}

// ask reads. It tries again, briefly, when there is no answer.
func (c *Client) ask(ctx context.Context, path string, query params, into any) error {
	for attempt := 0; ; attempt++ {
		err := c.once(ctx, readWithin, func(ctx context.Context) error {
			if query == nil {
				return c.api.Get(ctx, path, into)
			}
			return c.api.GetWithParams(ctx, path, query, into)
		})
		if err == nil || isAnswered(err) || isUntrusted(err) || attempt == len(readAgain) || ctx.Err() != nil {
			return nameRequest("GET", path, err)
		}
		if err := retry.Sleep(ctx, readAgain[attempt]); err != nil {
			return nameRequest("GET", path, err)
		}
	}
}

// post, put and delete change something. They are never tried again: an error
// that is not answered leaves open whether it was done.
func (c *Client) post(ctx context.Context, path string, in params, into any) error {
	var data any // go-proxmox sends no body for nil alone
	if in != nil {
		data = in
	}
	return c.write(ctx, "POST", path, func(ctx context.Context) error { return c.api.Post(ctx, path, data, into) })
}

func (c *Client) put(ctx context.Context, path string, in params, into any) error {
	return c.write(ctx, "PUT", path, func(ctx context.Context) error { return c.api.Put(ctx, path, in, into) })
}

func (c *Client) delete(ctx context.Context, path string, query params, into any) error {
	return c.write(ctx, "DELETE", path, func(ctx context.Context) error { return c.api.DeleteWithParams(ctx, path, query, into) })
}

func (c *Client) write(ctx context.Context, method, path string, ask func(context.Context) error) error {
	defer c.recent.Requested(method, path)
	return nameRequest(method, path, c.once(ctx, writeWithin, ask))
}

func (c *Client) once(ctx context.Context, within time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return ask(ctx)
}

// nameRequest names what was asked for, unless the error does.
func nameRequest(method, path string, err error) error {
	var e *Error
	var u *url.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.As(err, &u):
		err = u.Err // it names the whole address
	}
	return fmt.Errorf("%s %s: %w", method, path, text.Plain(err))
}

// sideBySide is how many questions of one look are under way at once: pveproxy
// has three workers, and every connection more costs a handshake at every look,
// because it closes them soon.
const sideBySide = 3

// keptOpen is how many connections wait for the next request: those of a look,
// and of the actions beside it.
const keptOpen = 8

// runEach calls f for 0 to n-1, several at a time, and returns when all are done.
func runEach(n int, f func(int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, sideBySide)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}
