package proxmox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

const secretPart = "c0ffee00-dead-beef-0000-5ec4e75ec4e7"

var testToken = cluster.SecretString("u@pve!t=" + secretPart)

// serve makes a TLS server and a client that trusts it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	sum := sha256.Sum256(s.Certificate().Raw)
	c, err := New(Config{URL: s.URL, Token: testToken, Fingerprint: hex.EncodeToString(sum[:]), Pool: "p"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestNewNamesTheField(t *testing.T) {
	good := Config{URL: "https://127.0.0.1:8006", Token: testToken}
	for _, tc := range []struct {
		field  string
		change func(*Config)
	}{
		{"", func(c *Config) {}},
		{"", func(c *Config) { c.URL += "/" }},
		{"", func(c *Config) { c.URL += "/api2/json" }},
		{"", func(c *Config) { c.Fingerprint = strings.Repeat("AB:", 31) + "AB" }},
		{"url", func(c *Config) { c.URL = "" }},
		{"url", func(c *Config) { c.URL = "http://127.0.0.1:8006" }},
		{"url", func(c *Config) { c.URL = "https://" }},
		{"url", func(c *Config) { c.URL = "https://u:p@h:8006" }},
		{"url", func(c *Config) { c.URL = "https://h:8006/other" }},
		{"url", func(c *Config) { c.URL = "https://h:8006?x=y" }},
		{"token", func(c *Config) { c.Token = cluster.Secret{} }},
		{"token", func(c *Config) { c.Token = cluster.SecretString("u@pve!t") }},
		{"token", func(c *Config) { c.Token = cluster.SecretString("PVEAPIToken=" + c.Token.RevealString()) }},
		{"token", func(c *Config) { c.Token = cluster.SecretString(c.Token.RevealString() + "\n") }},
		{"fingerprint", func(c *Config) { c.Fingerprint = "AB:CD" }},
		{"ca_file", func(c *Config) { c.CA = []byte("nothing") }},
	} {
		c := good
		tc.change(&c)
		p, err := New(c)
		if err == nil {
			p.Close()
		}
		if tc.field == "" && err != nil || tc.field != "" && (err == nil || !strings.HasPrefix(err.Error(), "proxmox "+tc.field+":") || fault.HintOf(err) == "") {
			t.Errorf("%s: %+v: got %v [%s]", tc.field, c, err, fault.HintOf(err))
		}
		if strings.Contains(fmt.Sprintf("%v %s", err, fault.HintOf(err)), secretPart) {
			t.Errorf("the error holds the secret: %v", err)
		}
	}
}

func TestTrust(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":{"version":"9"}}`)) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of clients that do not trust it
	s.StartTLS()
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	sum := sha256.Sum256(s.Certificate().Raw)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for _, tc := range []struct {
		name string
		c    Config
		hint string // "" : trusted
	}{
		{"authority", Config{URL: s.URL, CA: ca}, ""},
		{"fingerprint", Config{URL: s.URL, Fingerprint: strings.ToUpper(hex.EncodeToString(sum[:]))}, ""},
		{"fingerprint outranks the authority", Config{URL: s.URL, CA: ca, Fingerprint: strings.Repeat("00", 32)}, "fingerprint"},
		{"the system's authorities", Config{URL: s.URL}, "ca_file"},
		{"other fingerprint", Config{URL: s.URL, Fingerprint: strings.Repeat("ab", 32)}, "openssl x509"},
		{"other name", Config{URL: "https://localhost:" + port, CA: ca}, "a name in url that the certificate has"},
		{"no TLS", Config{URL: strings.Replace(plain.URL, "http:", "https:", 1)}, "https on port 8006"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.c.Token = testToken
			tries := 0
			tc.c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				tries++
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			c, err := New(tc.c)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var v struct{ Version pveconf.Scalar }
			err = c.get(t.Context(), "/version", nil, &v)
			// Only a certificate that is trusted is reported.
			seen, ok := c.Certificate()
			if ok != (tc.hint == "") || ok && !seen.NotAfter.Equal(s.Certificate().NotAfter) {
				t.Errorf("certificate %v, %v", seen, ok)
			}
			if tc.hint == "" {
				if err != nil || v.Version != "9" {
					t.Errorf("got %v, %v", v, err)
				}
				return
			}
			if err == nil || !strings.Contains(fault.HintOf(err), tc.hint) || strings.Contains(err.Error(), secretPart) {
				t.Errorf("got %v [%s]", err, fault.HintOf(err))
			}
			if tries != 1 {
				t.Errorf("asked %d times", tries)
			}
		})
	}
}

// TestReadsAreTriedAgainWritesNever counts what reaches the host.
func TestReadsAreTriedAgainWritesNever(t *testing.T) {
	for _, tc := range []struct {
		fault       world.Fault
		reads, asks int // how often a read and a write arrive
		readWorks   bool
	}{
		{world.Fault{Kind: world.LoseRequest, Times: 2}, 3, 1, true},
		{world.Fault{Kind: world.LoseReply, Times: 2}, 3, 1, true},
		{world.Fault{Kind: world.LoseReply}, 4, 1, false}, // net/http tries once more by itself when a connection it reused breaks
		{world.Fault{Kind: world.Answer, Status: 595, Text: "Connection refused", Times: 2}, 3, 1, true},
		{world.Fault{Kind: world.Answer, Status: 503, Text: "Service Unavailable", Times: 2}, 3, 1, true},
		{world.Fault{Kind: world.Answer, Status: 500, Text: "it did not work", Times: 2}, 1, 1, false},
		{world.Fault{Kind: world.Answer, Status: 404, Text: "Not Found", Times: 2}, 1, 1, false},
		{world.Fault{Kind: world.Answer, Status: 302, Text: "Found", Times: 2}, 1, 1, false},
	} {
		t.Run(fmt.Sprintf("%s-%d", tc.fault.Kind, tc.fault.Status), func(t *testing.T) {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
				onStand(t, "9.2", func(t *testing.T, s *stand) {
					c, ctx := s.client(), context.Background()
					defer c.Close()
					var v any
					s.must(c.get(ctx, "/version", nil, &v)) // a connection that is reused
					s.world.ForgetCalls()
					s.world.Inject(tc.fault)
					var err error
					want := tc.asks
					switch method {
					case "GET":
						want, err = tc.reads, c.get(ctx, "/version", nil, &v)
						if (err == nil) != tc.readWorks {
							t.Errorf("the read: %v", err)
						}
					case "POST":
						err = c.post(ctx, "/nodes/pve1/qemu/100/status/start", nil, &v)
					case "PUT":
						err = c.put(ctx, "/nodes/pve1/qemu/100/config", params{"name": "x"}, &v)
					case "DELETE":
						err = c.delete(ctx, "/nodes/pve1/qemu/100", params{"purge": "1"}, &v)
					}
					if method != "GET" && err == nil {
						t.Errorf("%s succeeded", method)
					}
					if n := len(s.world.Calls()); n != want {
						t.Errorf("%s arrived %d times, want %d: %v", method, n, want, s.calls())
					}
				})
			}
		})
	}
}

// TestEveryAnswerButSuccessIsAnError: go-proxmox takes some for success.
func TestEveryAnswerButSuccessIsAnError(t *testing.T) {
	for _, status := range []int{301, 400, 401, 403, 404, 418, 429, 500, 501, 502, 503, 504, 506, 595, 596, 599} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "https://example.org/")
			w.WriteHeader(status)
		})
		err := c.put(t.Context(), "/x", params{}, nil)
		var e *Error
		if !errors.As(err, &e) || e.Status != status || e.Path != "/x" || e.Method != "PUT" {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestAnswersOfAProxyAreNone: what pveproxy, or a proxy before it, answers in the place of
// the host does not show whether the host did what was asked for.
func TestAnswersOfAProxyAreNone(t *testing.T) {
	for status, answered := range map[int]bool{400: true, 401: true, 403: true, 404: true, 500: true, 501: true, 502: false, 503: false, 504: false, 595: false, 596: false, 597: false, 599: false} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if err := c.put(t.Context(), "/x", params{}, nil); err == nil || isAnswered(err) != answered {
			t.Errorf("%d: answered is %v, want %v: %v", status, isAnswered(err), answered, err)
		}
	}
}

// TestAnswersInWords: what stands in the place of Proxmox VE is named.
func TestAnswersInWords(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		"GET /x: 595 pveproxy cannot connect to the host that was asked for": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(595) },
		"the answer is a web page, and not that of Proxmox VE's API": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("<html>Sign in</html>"))
		},
		"GET /x: its answer is not JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("<"))
		},
	} {
		var v pveconf.Scalar
		if err := serve(t, answer).get(t.Context(), "/x", nil, &v); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "status code") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for _, body := range []string{"", "{", "<html>", `{"data":{"version":}}`, strings.Repeat(" ", 1000)} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
		var v struct{ Version pveconf.Scalar }
		if err := c.get(t.Context(), "/version", nil, &v); err == nil || isAnswered(err) {
			t.Errorf("%.20q: %v", body, err)
		}
	}
	for _, data := range []string{"null", `""`, `"nonsense"`, `{"x":1}`} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":` + data + `}`)) })
		err := c.start(t.Context(), defaultProgress(nil), func(name *pveconf.Scalar) error { return c.post(t.Context(), "/x", nil, name) })
		if err == nil || !strings.Contains(err.Error(), "is none of Proxmox VE") {
			t.Errorf("%s: %v", data, err)
		}
	}
}

// TestTokenGoesNowhereElse: neither a redirect nor an error carries it away.
func TestTokenGoesNowhereElse(t *testing.T) {
	other := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the redirect was followed, with %q", r.Header.Get("Authorization"))
	}))
	defer other.Close()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "PVEAPIToken=u@pve!t="+secretPart {
			t.Errorf("authorization %q", got)
		}
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	err := c.get(t.Context(), "/version", nil, nil)
	if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secretPart) {
		t.Errorf("got %v", err)
	}
}

// TestUnderHA: the agent refuses to fight with the HA manager.
func TestUnderHA(t *testing.T) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	for _, status := range []string{"running", "stopped"} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, "/config"):
				t.Errorf("%s %s", r.Method, r.URL.Path)
			case strings.HasSuffix(r.URL.Path, "/resources"):
				_, _ = fmt.Fprintf(w, `{"data":[{"type":"qemu","vmid":411,"node":"pve1","pool":"talos-dev","status":"%s","hastate":"started"}]}`, status)
			case strings.HasSuffix(r.URL.Path, "/config"):
				_, _ = fmt.Fprintf(w, `{"data":{"smbios1":"uuid=%s","digest":"d","description":%q}}`, n.UUID, cluster.Mark{Version: 1, Cluster: d.Spec.ID, Node: n.Name, Deleting: true}.String())
			case strings.HasSuffix(r.URL.Path, "/current"):
				_, _ = fmt.Fprintf(w, `{"data":{"status":"%s","qmpstatus":"%[1]s","ha":{"managed":1}}}`, status)
			}
		})
		for what, err := range map[string]error{"start": c.Start(t.Context(), d, n, nil), "delete": c.Delete(t.Context(), d, vmOf(d), nil)} {
			if what == "start" && status == "running" {
				if err != nil {
					t.Error(err)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), "managed by Proxmox VE's HA") || fault.HintOf(err) != "take it out of HA: `ha-manager remove vm:411`" {
				t.Errorf("%s of a %s vm: %v [%s]", what, status, err, fault.HintOf(err))
			}
		}
	}
}

// TestClosedClientLeavesNothing is what goleak checks for the package; here the
// connections are counted.
func TestClosedClientLeavesNothing(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		c := s.client()
		observe(c, desired(3))
		if s.link.Open() == 0 {
			t.Error("no connection is kept")
		}
		c.Close()
		time.Sleep(time.Millisecond)
		if n := s.link.Open(); n != 0 {
			t.Errorf("%d connections are open", n)
		}
		c = s.client()
		defer c.Close()
		observe(c, desired(3))
		time.Sleep(idleAfter + time.Second)
		if n := s.link.Open(); n != 0 {
			t.Errorf("%d connections are open after %v", n, idleAfter)
		}
	})
}

// TestFreeOnlyByVMID: only the VMID itself in the answer means that it is free;
// anything else is no answer.
func TestFreeOnlyByVMID(t *testing.T) {
	for answer, free := range map[string]bool{
		`{"data":"411"}`: true, `{"data":411}`: true,
		`{"data":"412"}`: false, `{"data":"0411"}`: false, `{"data":""}`: false, `{"data":null}`: false, `{}`: false,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) })
		if got, err := c.free(context.Background(), 411); got != free || (err == nil) != free {
			t.Errorf("%s: %v, %v", answer, got, err)
		}
	}
}
