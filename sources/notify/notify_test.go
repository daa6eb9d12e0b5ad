package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var notice = Notice{Agent: "north", Host: "pve1", Cluster: "dev", Condition: "Stalled", Message: "dev: no room", Hint: "make room",
	Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Revision: "main@sha1:2222222222222222222222222222222222222222", Applied: "main@sha1:111111111111"}

// request is what a server was sent.
type request struct {
	header http.Header
	path   string
	body   []byte
}

// receiver is a server that takes one request at a time and answers with a status.
func receiver(t *testing.T, status int, answer string) (*httptest.Server, chan request) {
	t.Helper()
	got := make(chan request, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- request{r.Header, r.URL.Path, b}
		w.Header().Set("Location", "http://192.0.2.1/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s, got
}

// TestWebhook: the body is exactly this, and signed so that everybody can check it.
func TestWebhook(t *testing.T) {
	s, got := receiver(t, http.StatusNoContent, "")
	target, err := New(Config{Kind: Webhook, URL: s.URL + "/c4n4ry-path", Secret: "c4n4ry-key"})
	check(t, err)
	check(t, target.Send(t.Context(), notice))
	h := <-got
	const want = `{"kind":"Notice","apiVersion":"v1","data":{"agent":"north","host":"pve1","cluster":"dev","condition":"Stalled","message":"dev: no room",` +
		`"hint":"make room","since":"2026-03-01T12:00:00Z","revision":"main@sha1:2222222222222222222222222222222222222222","applied":"main@sha1:111111111111"}}`
	if string(h.body) != want {
		t.Errorf("got  %s\nwant %s", h.body, want)
	}
	mac := hmac.New(sha256.New, []byte("c4n4ry-key"))
	mac.Write(h.body)
	if h.header.Get("X-Hub-Signature-256") != "sha256="+hex.EncodeToString(mac.Sum(nil)) || h.header.Get("Content-Type") != "application/json" || h.path != "/c4n4ry-path" {
		t.Errorf("%s %v", h.path, h.header)
	}
	target, err = New(Config{Kind: Webhook, URL: s.URL})
	check(t, err)
	check(t, target.Send(t.Context(), notice))
	if h = <-got; h.header.Get(SignatureHeader) != "" {
		t.Error("signed without a key")
	}
}

func TestWebhookTrust(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that fails
	s.StartTLS()
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	target, err := New(Config{Kind: Webhook, URL: s.URL, CA: ca})
	check(t, err)
	check(t, target.Send(t.Context(), notice))
	target, err = New(Config{Kind: Webhook, URL: s.URL})
	check(t, err)
	if err := target.Send(t.Context(), notice); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown server is trusted: %v", err)
	}
}

// TestWebhookErrors: they name what is wrong, and nothing of the address.
func TestWebhookErrors(t *testing.T) {
	for status, want := range map[int]string{302: "302 Found", 400: "400 Bad Request", 401: "401 Unauthorized", 500: "500"} {
		s, got := receiver(t, status, "c4n4ry-path")
		target, err := New(Config{Kind: Webhook, URL: s.URL + "/c4n4ry-path?t=c4n4ry"})
		check(t, err)
		err = target.Send(t.Context(), notice)
		<-got
		if err == nil || !strings.Contains(err.Error(), want) || leaks(err) || status == 401 && fault.HintOf(err) == "" {
			t.Errorf("%d: %v", status, err)
		}
	}
	target, err := New(Config{Kind: Webhook, URL: "http://127.0.0.1:1/c4n4ry"})
	check(t, err)
	if err := target.Send(t.Context(), notice); err == nil || !strings.Contains(err.Error(), "connection refused") || leaks(err) {
		t.Errorf("%v", err)
	}
	// A server that never answers, and an agent that stops.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer func() { _ = l.Close() }()
	target, err = New(Config{Kind: Webhook, URL: "http://" + l.Addr().String() + "/c4n4ry"})
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := target.Send(ctx, notice); err == nil || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("%v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := target.Send(ctx, notice); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestBadAddresses(t *testing.T) {
	for _, c := range []struct {
		kind               Kind
		url, secret, error string
	}{
		{"mail", "x", "", "neither webhook nor chat"},
		{Webhook, "c4n4ry", "", "not a web address"},
		{Webhook, "ftp://c4n4ry/", "", "not a web address"},
		{Webhook, "http://c4n4ry.example.org/x", "", "plain http"},
		{Webhook, "https://c4n4ry.example.org/x\nhttps://y", "", "more than an address"},
		{Webhook, "https://c4n4ry.example.org/%zz", "", "not a web address"},
		{Chat, "c4n4ry", "", "not the address of a chat service"},
		{Chat, "https://hooks.slack.com/services/c4n4ry", "", "service is not known"},
		{Chat, "logger://c4n4ry", "", "service is not known"},
		{Chat, "ntfy://ntfy.sh/c4n4ry", "key", "no signature"},
		{Chat, "slack://c4n4ry", "", "not an address that slack takes"},
		{Chat, "telegram://123456789:c4n4rytokenc4n4rytokenc4n4rytoken12@telegram?chats=@c4n4ry", "", "loses messages"},
		{Chat, "slack+https://hooks.slack.com/c4n4ry", "", "service is not known"},
		{Chat, "discord://c4n4ry", "", "not an address that discord takes"},
		{Chat, "smtp://me:c4n4ry%zz@mail.example.org/", "", "not the address of a chat service"},
	} {
		_, err := New(Config{Kind: c.kind, URL: c.url, Secret: c.secret})
		if err == nil || !strings.Contains(err.Error(), c.error) || leaks(err) {
			t.Errorf("%s %s: %v, want %s", c.kind, c.url, err, c.error)
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", Config{URL: "c4n4ry", Secret: "c4n4ry"}, Config{URL: "c4n4ry"}, Config{URL: "c4n4ry"}); strings.Contains(text, "c4n4ry") {
		t.Errorf("printed: %s", text)
	}
}

func leaks(err error) bool {
	return strings.Contains(strings.ToLower(fmt.Sprintf("%v %+v %#v %s", err, err, errors.Unwrap(err), fault.HintOf(err))), "c4n4ry")
}

// TestChat sends through a service as people have it, over the real protocol.
func TestChat(t *testing.T) {
	s, got := receiver(t, http.StatusOK, `{"id": "1", "event": "message"}`)
	host := strings.TrimPrefix(s.URL, "http://")
	target, err := New(Config{Kind: Chat, URL: "ntfy://:c4n4ry@" + host + "/topic?scheme=http"})
	check(t, err)
	check(t, target.Send(t.Context(), notice))
	h := <-got
	if h.path != "/topic" || h.header.Get("Title") != "dev is Stalled" || string(h.body) != "dev: no room\n-> make room\nnorth on pve1, main@sha1:222222222222" {
		t.Errorf("%s %v %s", h.path, h.header, h.body)
	}
	// One's own title, and a service that has none.
	target, err = New(Config{Kind: Chat, URL: "ntfy://" + host + "/topic?scheme=http&title=mine"})
	check(t, err)
	check(t, target.Send(t.Context(), notice))
	if h = <-got; h.header.Get("Title") != "mine" || !strings.HasPrefix(string(h.body), "dev is Stalled: dev: no room\n") {
		t.Errorf("%v %s", h.header, h.body)
	}
	// What is no cluster's.
	target, err = New(Config{Kind: Chat, URL: "ntfy://" + host + "/topic?scheme=http"})
	check(t, err)
	check(t, target.Send(t.Context(), Notice{Agent: "north", Host: "pve1", Condition: "Unknown", Message: "no repository", Hint: "start it"}))
	if h = <-got; h.header.Get("Title") != "north on pve1" || string(h.body) != "no repository\n-> start it" {
		t.Errorf("%v %s", h.header, h.body)
	}
	// What the hint has for Telegram.
	target, err = New(Config{Kind: Chat, URL: "generic://" + host + "/botTOKEN/sendMessage?disabletls=yes&template=json&messagekey=text&$chat_id=-100123"})
	check(t, err)
	check(t, target.Send(t.Context(), notice))
	h = <-got
	var telegram map[string]string
	check(t, json.Unmarshal(h.body, &telegram))
	if h.path != "/botTOKEN/sendMessage" || telegram["chat_id"] != "-100123" || !strings.HasPrefix(telegram["text"], "dev is Stalled: dev: no room\n") {
		t.Errorf("%s %s", h.path, h.body)
	}
	s, got = receiver(t, http.StatusOK, `{}`)
	target, err = New(Config{Kind: Chat, URL: "rocketchat://" + strings.TrimPrefix(s.URL, "http://") + "/tokenA/tokenB/general"})
	check(t, err)
	err = target.Send(t.Context(), notice) // it speaks https only
	if err == nil || leaks(err) || strings.Contains(err.Error(), "tokenA") {
		t.Errorf("%v", err)
	}
	close(got)
}

// TestChatMail sends a mail.
func TestChatMail(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer func() { _ = l.Close() }()
	mail := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		var all strings.Builder
		write := func(s string) { _, _ = io.WriteString(c, s+"\r\n") }
		write("220 mail.example.org")
		buf, data := make([]byte, 4096), false
		for {
			n, err := c.Read(buf)
			if err != nil {
				break
			}
			all.Write(buf[:n])
			line := string(buf[:n])
			switch {
			case data && strings.Contains(all.String(), "\r\n.\r\n"):
				data = false
				write("250 taken")
			case data:
			case strings.HasPrefix(line, "EHLO"):
				write("250 mail.example.org")
			case strings.HasPrefix(line, "DATA"):
				data = true
				write("354 go on")
			case strings.HasPrefix(line, "QUIT"):
				write("221 bye")
			default:
				write("250 ok")
			}
		}
		mail <- all.String()
	}()
	target, err := New(Config{Kind: Chat, URL: "smtp://" + l.Addr().String() + "/?from=agent@example.org&to=me@example.org&usestarttls=no"})
	check(t, err)
	check(t, target.Send(t.Context(), notice))
	text := <-mail
	for _, want := range []string{"Subject: dev is Stalled", "To: me@example.org", "dev: no room"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

// TestChatThatHangs: who waits can go, and no second message piles up behind one
// that hangs.
func TestChatThatHangs(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		_, _ = io.WriteString(w, "{}")
	}))
	defer s.Close()
	target, err := New(Config{Kind: Chat, URL: "ntfy://" + strings.TrimPrefix(s.URL, "http://") + "/topic?scheme=http"})
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := target.Send(ctx, notice); err == nil || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("%v", err)
	}
	if err := target.Send(t.Context(), notice); err == nil || !strings.Contains(err.Error(), "has not answered the message before") {
		t.Errorf("%v", err)
	}
	close(release)
	for err = errors.New("not yet"); err != nil; { // the message that hung has ended some time
		err = target.Send(t.Context(), notice)
	}
}

// taking is a network whose servers take everything at once.
type taking struct{}

func (taking) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

// TestChatInARow: once a message is reported as taken the next may be sent.
func TestChatInARow(t *testing.T) {
	target, err := New(Config{Kind: Chat, URL: samples["ntfy"], Wrap: func(http.RoundTripper) http.RoundTripper { return taking{} }})
	check(t, err)
	for range 500 {
		check(t, target.Send(t.Context(), notice))
	}
}

// samples are an address of every service, with secrets wherever it has some.
var samples = map[string]string{
	"bark":       "bark://:c4n4rydevice@127.0.0.1:1/?scheme=http",
	"discord":    "discord://c4n4ry_to-ken1234@1234567890",
	"generic":    "generic://127.0.0.1:1/c4n4rypath?disabletls=yes&@token=c4n4rytoken",
	"gotify":     "gotify://127.0.0.1:1/AzyoeNS.D4iJLVa?disabletls=yes",
	"googlechat": "googlechat://chat.googleapis.com/v1/spaces/c4n4ryspace/messages?key=c4n4rykey&token=c4n4rytoken",
	"ifttt":      "ifttt://c4n4rykey@c4n4ryhook/?events=c4n4ryevent&value1=x",
	"join":       "join://shoutrrr:c4n4ryapikey@join/?devices=c4n4rydevice",
	"lark":       "lark://open.larksuite.com/c4n4rytoken?secret=c4n4rysecret",
	"matrix":     "matrix://user:c4n4rypassword@127.0.0.1:1/?disableTLS=yes&rooms=c4n4ryroom",
	"mattermost": "mattermost://user@127.0.0.1:1/c4n4rytoken/c4n4rychannel?disabletls=yes",
	"notifiarr":  "notifiarr://c4n4ryapikey?channel=1234567890",
	"ntfy":       "ntfy://user:c4n4rypassword@127.0.0.1:1/c4n4rytopic?scheme=http",
	"opsgenie":   "opsgenie://api.opsgenie.com/c4n4ryapikey",
	"pagerduty":  "pagerduty://events.pagerduty.com/0123456789abcdef0123456789abcdef",
	"pushbullet": "pushbullet://o.c4n4ry78901234567890123456789012/c4n4rydevice",
	"pushover":   "pushover://shoutrrr:c4n4rytoken@c4n4ryuser/?devices=c4n4rydevice",
	"rocketchat": "rocketchat://127.0.0.1:1/c4n4rytokenA/c4n4rytokenB/c4n4rychannel",
	"signal":     "signal://user:c4n4rypassword@127.0.0.1:1/+1234567890/+0987654321?disabletls=yes",
	"slack":      "slack://hook:T00000000-B00000000-C4n4rytokenC4n4rytoken12@webhook",
	"smtp":       "smtp://c4n4ryuser:c4n4rypassword@127.0.0.1:1/?from=c4n4ry@example.org&to=c4n4ry@example.org",
	"teams":      "teams://11111111-4444-4444-8444-cccccccccccc@22222222-4444-4444-8444-cccccccccccc/33333333012222222222333333333344/44444444-4444-4444-8444-cccccccccccc/V2ESyij_gAljSoUQHvZoZYzlpAoAXExyOl26dlf1xHEx05?host=c4n4ry.webhook.office.com",
	"wecom":      "wecom://c4n4rykey",
	"zulip":      "zulip://c4n4rybot%40example.org:c4n4ryapikey@127.0.0.1:1/?stream=c4n4rystream&topic=c4n4rytopic",
}

// quoting is a network that is down, or whose servers answer with all they were
// asked.
type quoting struct{ down bool }

func (q quoting) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	if q.down {
		return nil, fmt.Errorf("no route to %s with %s", r.URL, r.Header)
	}
	echo := fmt.Sprint(r.URL, " ", r.Header, " ", string(body))
	return &http.Response{StatusCode: http.StatusTeapot, Status: "418 " + echo, Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(echo))}, nil
}

// TestChatErrorsHoldNoSecrets tries every service there is against a network that
// is down and servers that quote: whatever comes back reveals nothing of the
// address.
func TestChatErrorsHoldNoSecrets(t *testing.T) {
	old := http.DefaultTransport
	defer func() { http.DefaultTransport = old }()
	for _, service := range (&router.ServiceRouter{}).ListServices() {
		address, ok := samples[service]
		if !ok {
			if service != "hangouts" && !slices.Contains(unusable, service) {
				t.Errorf("no sample of %s", service)
			}
			continue
		}
		for _, network := range []quoting{{down: true}, {down: false}} {
			http.DefaultTransport = network
			target, err := New(Config{Kind: Chat, URL: address, Wrap: func(http.RoundTripper) http.RoundTripper { return network }})
			if err != nil {
				t.Errorf("%s: %v", service, err)
				continue
			}
			err = target.Send(t.Context(), notice)
			switch u, _ := url.Parse(address); {
			case err == nil:
				t.Errorf("%s: the message was taken", service)
			case leaks(err), u.User != nil && strings.Contains(err.Error(), u.User.String()), strings.Contains(err.Error(), "AzyoeNS"), strings.Contains(err.Error(), "dXNlcjp"), strings.Contains(err.Error(), "0123456789abcdef"):
				t.Errorf("%s: %v", service, err)
			default:
				t.Logf("%s: %v", service, err)
			}
		}
	}
}

// FuzzClean: no address, and no word of a service, has a secret come through.
func FuzzClean(f *testing.F) {
	for _, address := range samples {
		f.Add(address, "sending to \""+address+"\" failed: ")
	}
	f.Fuzz(func(t *testing.T, address, words string) {
		u, err := url.Parse(address)
		if err != nil || u.User == nil {
			return
		}
		c := &chat{address: address, service: "slack"}
		password, _ := u.User.Password()
		got := c.clean(errors.New(words + password + address)).Error()
		if len(password) >= 6 && !strings.Contains("[redacted] [address]…", password) && strings.Contains(got, password) {
			t.Errorf("%q of %q comes through: %q", password, address, got)
		}
	})
}

func TestNoticeIsJSON(t *testing.T) {
	b, err := json.Marshal(Notice{})
	check(t, err)
	if strings.Contains(string(b), "hint") {
		t.Errorf("%s", b)
	}
}

// TestChatLeavesNoConnections: services that make transports of their own would
// leave a connection behind with every message, for a server that keeps it open.
func TestChatLeavesNoConnections(t *testing.T) {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateClosed {
			delete(open, c)
		} else {
			open[c] = true
		}
	}
	s.Start()
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	for _, address := range []string{"ntfy://" + host + "/topic?scheme=http", "mattermost://" + host + "/token?disabletls=yes", "gotify://" + host + "/AzyoeNS.D4iJLVa?disabletls=yes"} {
		target, err := New(Config{Kind: Chat, URL: address})
		check(t, err)
		for range 3 {
			check(t, target.Send(t.Context(), notice))
		}
		left := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(open)
		}
		for end := time.Now().Add(time.Minute); left() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // the server learns of it some time
		}
		if n := left(); n > 0 {
			t.Errorf("%s: %d connections are open", address, n)
		}
	}
}
