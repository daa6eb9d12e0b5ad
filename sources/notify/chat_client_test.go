package notify

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
)

// ownServers are addresses of the services that people run themselves and that
// are reached with our client.
func ownServers(host string) []string {
	return []string{"ntfy://" + host + "/topic", "gotify://" + host + "/AzyoeNS.D4iJLVa", "mattermost://" + host + "/token", "rocketchat://" + host + "/tokenA/tokenB/general"}
}

// TestChatTrust: a server certified by an authority of the config is trusted, and
// no other, unless the address allows it.
func TestChatTrust(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshakes that fail
	s.StartTLS()
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "https://")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for _, address := range ownServers(host) {
		target, err := New(Config{Kind: Chat, URL: address, CA: ca})
		check(t, err)
		if err := target.Send(t.Context(), notice); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		target, err = New(Config{Kind: Chat, URL: address})
		check(t, err)
		if err := target.Send(t.Context(), notice); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: an unknown server is trusted: %v", address, err)
		}
	}
	for _, address := range []string{"ntfy://" + host + "/topic?disabletlsverification=yes", "gotify://" + host + "/AzyoeNS.D4iJLVa?insecureskipverify=yes"} {
		target, err := New(Config{Kind: Chat, URL: address})
		check(t, err)
		check(t, target.Send(t.Context(), notice))
	}
	if _, err := New(Config{Kind: Chat, URL: "ntfy://" + host + "/topic", CA: []byte("nonsense")}); err == nil || !strings.Contains(err.Error(), "no PEM") {
		t.Errorf("an authority that is none: %v", err)
	}
}

// TestChatGoesNowhereElse: a message is not carried to where a server sends it.
func TestChatGoesNowhereElse(t *testing.T) {
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s is carried elsewhere", r.Method, r.URL) }))
	defer elsewhere.Close()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	var ca []byte
	for _, s := range []*httptest.Server{s, elsewhere} {
		ca = append(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})...)
	}
	for _, address := range ownServers(strings.TrimPrefix(s.URL, "https://")) {
		target, err := New(Config{Kind: Chat, URL: address, CA: ca})
		check(t, err)
		if err := target.Send(t.Context(), notice); err == nil || !strings.Contains(err.Error(), "it has moved") || strings.Contains(err.Error(), elsewhere.URL) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestChatWithoutEnd: an answer without end is read for a while only.
func TestChatWithoutEnd(t *testing.T) {
	var taken atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = io.WriteString(w, strings.Repeat(" ", 1<<20))
			taken.Add(1 << 20)
		}
	}))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	for _, address := range []string{"ntfy://" + host + "/topic?scheme=http", "gotify://" + host + "/AzyoeNS.D4iJLVa?disabletls=yes"} {
		target, err := New(Config{Kind: Chat, URL: address})
		check(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := target.Send(ctx, notice); err == nil || ctx.Err() != nil {
			t.Errorf("%s: %v", address, err)
		}
		if n := taken.Swap(0); n > 64<<20 { // what lies in the buffers of the connection
			t.Errorf("%s: it takes %d bytes", address, n)
		}
	}
}

// TestApart: it is known of every service whether its connections are ours.
func TestApart(t *testing.T) {
	old := http.DefaultTransport
	defer func() { http.DefaultTransport = old }()
	http.DefaultTransport = quoting{down: true}
	for _, service := range (&router.ServiceRouter{}).ListServices() {
		address, ok := samples[service]
		if !ok {
			continue
		}
		asked := false
		c := Config{Kind: Chat, URL: address, Wrap: func(http.RoundTripper) http.RoundTripper { return roundTrip(func() { asked = true }) }}
		target, err := New(c)
		check(t, err)
		if err := target.Send(t.Context(), notice); err == nil {
			t.Errorf("%s: no server is there, and the message is taken", service)
		}
		if asked == c.Apart() {
			t.Errorf("%s: apart %v, and our transport was asked: %v", service, c.Apart(), asked)
		}
	}
	if (Config{Kind: Webhook, URL: "https://hooks.example.org/"}).Apart() {
		t.Error("a webhook is ours")
	}
	for address, want := range map[string]string{
		samples["smtp"]: "smtp", samples["matrix"]: "matrix", samples["generic"]: "generic", samples["zulip"]: "zulip", samples["bark"]: "bark", samples["signal"]: "signal",
		samples["ntfy"]: "", samples["gotify"]: "", samples["mattermost"]: "", samples["rocketchat"]: "", samples["slack"]: "", samples["discord"]: "", "nonsense": "",
	} {
		if got := (Config{Kind: Chat, URL: address, CA: []byte("an authority")}).BeyondCA(); got != want {
			t.Errorf("%s: %q is beyond the authorities, want %q", address, got, want)
		}
	}
	if got := (Config{Kind: Chat, URL: samples["smtp"]}).BeyondCA(); got != "" {
		t.Errorf("no authority, and %q is beyond it", got)
	}
}

type roundTrip func()

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	f()
	return quoting{down: true}.RoundTrip(r)
}
