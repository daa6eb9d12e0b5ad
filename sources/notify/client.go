package notify

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/services/chat/mattermost"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/chat/rocketchat"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/incident/pagerduty"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/push/gotify"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/push/ntfy"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/push/pushover"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"github.com/talos-agent/talos-agent/internal/certpool"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// mostAnswer is how many bytes of an answer are read.
const mostAnswer = 64 << 10

// transport makes what reaches a server that the system's authorities or c.CA vouch
// for; unchecked: any server.
func (c Config) transport() (func(unchecked bool) http.RoundTripper, error) {
	pool, ok := certpool.Authorities(c.CA)
	if !ok {
		return nil, &fault.Error{Op: "ca_file holds no PEM certificate"}
	}
	return func(unchecked bool) http.RoundTripper {
		dial := c.Dial
		if dial == nil {
			dial = new(net.Dialer).DialContext
		}
		var t http.RoundTripper = &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			DialContext:       dial,
			TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, InsecureSkipVerify: unchecked},
			DisableKeepAlives: true, // notices are far apart
		}
		if c.Wrap != nil {
			t = c.Wrap(t)
		}
		return t
	}, nil
}

// clientOf are the services of the library that take a client from outside, or
// show theirs, and how they get ours. Read in v0.13.2; all others make their own
// connections, most of them with Go's default client.
var clientOf = map[string]func(s types.Service, ours func(unchecked bool) *http.Client){
	"ntfy": func(s types.Service, ours func(bool) *http.Client) {
		n := s.(*ntfy.Service)
		n.SetHTTPClient(ours(n.Config.DisableTLSVerification))
	},
	"gotify": func(s types.Service, ours func(bool) *http.Client) {
		g := s.(*gotify.Service)
		*g.GetHTTPClient() = *ours(g.Config.InsecureSkipVerify)
	},
	"mattermost": func(s types.Service, ours func(bool) *http.Client) {
		*s.(*mattermost.Service).GetHTTPClient() = *ours(false)
	},
	"rocketchat": func(s types.Service, ours func(bool) *http.Client) { s.(*rocketchat.Service).Client = ours(false) },
	"pagerduty":  func(s types.Service, ours func(bool) *http.Client) { s.(*pagerduty.Service).SetHTTPClient(ours(false)) },
	"pushover":   func(s types.Service, ours func(bool) *http.Client) { s.(*pushover.Service).Client = ours(false) },
}

// Apart reports whether c's messages go over connections that the library makes
// for itself: they know nothing of CA, Dial and Wrap.
func (c Config) Apart() bool { return c.Kind == Chat && clientOf[serviceOf(c.URL)] == nil }

// BeyondCA names the chat service of c when it has a server that may be one's own,
// and that c.CA, where there is one, does not vouch for. The other services are
// their makers', whom the system's authorities vouch for.
func (c Config) BeyondCA() string {
	service := serviceOf(c.URL)
	if len(c.CA) == 0 || !c.Apart() || service != "generic" && !slices.Contains(hosted, service) {
		return ""
	}
	return service
}

// serviceOf is the service that an address names, "" when it names none.
func serviceOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Scheme)
}

// chatWithin bounds one request to a chat service, as the library does.
const chatWithin = 10 * time.Second

var errMoved = errors.New("it has moved: it answers with a redirect, which is not followed")

// client is a client for a service: it stays with the server of the address, and
// reads no answer that is not worth it.
func (c *chat) client(unchecked bool) *http.Client {
	return &http.Client{
		Transport:     brief{c.transport(unchecked)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errMoved },
		Timeout:       chatWithin,
	}
}

// brief is a transport whose answers end after mostAnswer bytes.
type brief struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b brief) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, mostAnswer), res.Body}
	}
	return res, err
}
