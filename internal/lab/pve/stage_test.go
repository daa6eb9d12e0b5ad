package pve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// stage is a lab in which a folder is replayed.
type stage struct {
	t       *testing.T
	folder  string
	server  *Server
	world   *world.World
	client  *http.Client
	secrets map[string]string // token -> secret
	upids   map[string]string // recorded -> ours
	digests map[string]string // recorded -> ours
	fresh   []string          // UPIDs that unrecorded requests were answered with
	ticket  string
	csrf    string
	macs    map[string]bool // that requests named
	files   *http.Server
	guests  *mutes
	release func() // of a lock file that is held
}

func newStage(t *testing.T, folder string, exchanges []*exchange) *stage {
	t.Helper()
	const ms = time.Millisecond
	w, err := world.New(world.Config{Latency: world.Latencies{
		Call: ms, Upload: 20 * ms, Import: 50 * ms, Create: 50 * ms, Resize: 20 * ms, Start: 500 * ms, Stop: 500 * ms, Delete: 100 * ms,
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, flavour, _ := strings.Cut(folder, "-")
	st := &stage{
		t: t, folder: folder, world: w, guests: &mutes{answers: map[string]any{}}, secrets: map[string]string{}, upids: map[string]string{}, digests: map[string]string{}, macs: map[string]bool{},
	}
	all := []string{"iso", "vztmpl", "snippets", "backup", "rootdir", "images", "import"}
	st.server, err = New(Config{
		World: w, Flavour: flavour, Guests: st.guests, Agent: "nobody@pve!agent",
		Hosts: []Host{{Name: "pve", Cores: 16, Portless: true, Bridges: []string{"vmbr0", "vmbr1"}, Storages: []Storage{
			{Name: "local", Content: all}, {Name: "vmdata", Content: []string{"images", "rootdir"}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	st.addToken(st.server.Token("root@pam", "lab", false))
	st.client = &http.Client{Transport: &http.Transport{DialContext: w.Net.DialContext, TLSClientConfig: clientTLS(w)}}
	for _, e := range exchanges {
		if e.Request.Body != nil {
			body, err := url.QueryUnescape(*e.Request.Body)
			if err != nil {
				body = *e.Request.Body
			}
			for _, mac := range macInText.FindAllString(body, -1) {
				st.macs[strings.ToUpper(mac)] = true
			}
		}
	}
	st.serveFiles()
	return st
}

func (st *stage) close() {
	st.client.CloseIdleConnections()
	if err := st.files.Close(); err != nil {
		st.t.Error(err)
	}
	st.server.Close()
	st.world.Close()
}

func (st *stage) addToken(text string) {
	id, secret, _ := strings.Cut(text, "=")
	st.secrets[id] = secret
}

// mutes are guests that do not react to the power button unless they are asked
// to, nor answer the guest agent unless they have answers.
type mutes struct {
	listens map[int]bool
	answers map[string]any
}

func (m *mutes) PowerOn(g world.Guest) {}
func (m *mutes) PowerOff(int)          {}
func (m *mutes) Shutdown(id int, off func()) bool {
	if m.listens[id] {
		off()
	}
	return m.listens[id]
}

// teach gives the guest what the recorded one answered its agent's callers.
func (m *mutes) teach(e *exchange) {
	var answer struct {
		Data struct {
			Result any `json:"result"`
		} `json:"data"`
	}
	_, command, isAgent := strings.Cut(e.Request.URL, "/agent/")
	if isAgent && json.Unmarshal([]byte(e.Response.Body), &answer) == nil {
		m.answers[command] = answer.Data.Result
	}
}

func (m *mutes) GuestAgent(id int, command string) (any, bool) {
	a, ok := m.answers[command]
	return a, ok && m.listens[id]
}

// play replays one exchange, after whatever happened unrecorded before it, and
// returns how the answers differ.
func (st *stage) play(e *exchange) string {
	for _, d := range directions {
		if fits(d.folder, d.file, st.folder, e.file) {
			d.do(st)
		}
	}
	st.guests.teach(e)
	if unknown := st.unknownTask(e.Request.URL); unknown != "" {
		return fmt.Sprintf("no request is known to have started the task %s", unknown)
	}
	req := st.request(e)
	resp, err := st.client.Do(req)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	resp.Body.Close()
	_, reason, _ := strings.Cut(resp.Status, " ")
	st.learn(e, body)
	if upid := dataString(body); strings.HasPrefix(upid, "UPID:") {
		st.upids[dataString([]byte(e.Response.Body))] = upid
		if !lingering[e.file] {
			st.wait(upid)
		}
	}
	want := st.normal(fmt.Sprintf("%d %s", e.Response.Status, e.Response.Reason), []byte(e.Response.Body))
	have := st.normal(fmt.Sprintf("%d %s", resp.StatusCode, reason), body)
	// What the recordings mask agrees with anything.
	have = mask(want, have)
	if reflect.DeepEqual(want, have) {
		return ""
	}
	return "  " + strings.Join(diff("", want, have), "\n  ")
}

func (st *stage) wait(upid string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := st.server.WaitTask(ctx, upid); ctx.Err() != nil {
		st.t.Errorf("%s does not end: %v", upid, err)
	}
}

var upidInText = regexp.MustCompile(`UPID:[^/"]+:`)

// unknownTask finds a task in a URL that no replayed request started. An
// unrecorded request of a direction may have.
func (st *stage) unknownTask(rawURL string) string {
	u, err := url.PathUnescape(rawURL)
	if err != nil {
		return ""
	}
	name := upidInText.FindString(u)
	if name == "" || st.upids[name] != "" || strings.Contains(name, ":00000001:00000001:") {
		return ""
	}
	want, err := parseUPID(name)
	if err != nil {
		return name
	}
	for i := len(st.fresh) - 1; i >= 0; i-- {
		have, err := parseUPID(st.fresh[i])
		if err == nil && have.kind == want.kind && have.id == want.id && have.user == want.user {
			st.upids[name] = st.fresh[i]
			return ""
		}
	}
	return name
}

// request makes our version of a recorded request.
func (st *stage) request(e *exchange) *http.Request {
	target, err := url.PathUnescape(e.Request.URL)
	if err != nil || !strings.Contains(target, "UPID:") {
		target = e.Request.URL
	}
	for theirs, ours := range st.upids {
		target = strings.ReplaceAll(target, theirs, ours)
	}
	body, kind := st.body(e)
	req, err := http.NewRequest(e.Request.Method, st.server.URL()+target, body)
	if err != nil {
		st.t.Fatalf("%s: %v", e.file, err)
	}
	for k, v := range e.Request.Headers {
		switch k {
		case "Authorization":
			id, _, _ := strings.Cut(strings.TrimPrefix(v, "PVEAPIToken="), "=")
			secret := st.secrets[id]
			if wrongSecret[e.file] || secret == "" {
				secret = "wrong"
			}
			req.Header.Set(k, "PVEAPIToken="+id+"="+secret)
		case "CSRFPreventionToken":
			req.Header.Set(k, st.csrf)
		default:
			req.Header.Set(k, v)
		}
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	if req.Header.Get("Authorization") == "" && st.ticket != "" && !strings.HasSuffix(target, "/ticket") {
		req.Header.Set("Cookie", "PVEAuthCookie="+st.ticket)
	}
	return req
}

// body makes our version of a recorded body. Files that were uploaded were not
// kept; the table holds what the cases state about them.
func (st *stage) body(e *exchange) (io.Reader, string) {
	if u, ok := uploads[e.file]; ok {
		return u.form(st.t)
	}
	if text, ok := oddBodies[e.file]; ok {
		return strings.NewReader(text), ""
	}
	if e.Request.Body == nil {
		return nil, ""
	}
	text := *e.Request.Body
	for theirs, ours := range st.digests {
		text = strings.ReplaceAll(text, theirs, ours)
	}
	return strings.NewReader(text), ""
}

// uploaded is a file of an upload case, and the fields in order.
type uploaded struct {
	fields [][2]string // the last is content "file": its name
	bytes  int
	qcow2  int64 // virtual size; 0: no image
}

func (u uploaded) form(t *testing.T) (io.Reader, string) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	for _, f := range u.fields {
		if f[0] != "filename" {
			if err := m.WriteField(f[0], f[1]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		part, err := m.CreateFormFile(f[0], f[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := part.Write(fileBytes(u.bytes, u.qcow2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return &b, m.FormDataContentType()
}

// fileBytes makes a file; with a virtual size, the header of a qcow2 image.
func fileBytes(n int, virtual int64) []byte {
	b := make([]byte, n)
	if virtual > 0 {
		copy(b, "QFI\xfb\x00\x00\x00\x03")
		for i := range 8 {
			b[24+i] = byte(virtual >> (56 - 8*i))
		}
	}
	return b
}

// send sends a request that was made but not recorded, waits for its task, and
// keeps its UPID.
func (st *stage) send(who, method, target string, form string) {
	st.t.Helper()
	if upid := st.sendOnly(who, method, target, form); upid != "" {
		st.wait(upid)
	}
}

// sendOnly is send without the wait.
func (st *stage) sendOnly(who, method, target string, form string) string {
	st.t.Helper()
	var body io.Reader
	if form != "" {
		body = strings.NewReader(form)
	}
	req, err := http.NewRequest(method, st.server.URL()+"/api2/json"+target, body)
	if err != nil {
		st.t.Fatal(err)
	}
	req.Header.Set("Authorization", "PVEAPIToken="+who+"="+st.secrets[who])
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := st.client.Do(req)
	if err != nil {
		st.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		st.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		st.t.Errorf("unrecorded %s %s: %s", method, target, resp.Status)
	}
	st.learnToken(text)
	upid := dataString(text)
	if !strings.HasPrefix(upid, "UPID:") {
		return ""
	}
	st.fresh = append(st.fresh, upid)
	return upid
}

// login gets a ticket for later requests.
func (st *stage) login(user, password string) {
	st.t.Helper()
	form := url.Values{"username": {user}, "password": {password}}
	resp, err := st.client.PostForm(st.server.URL()+"/api2/json/access/ticket", form)
	if err != nil {
		st.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		st.t.Fatal(err)
	}
	resp.Body.Close()
	st.keepTicket(text)
}

func (st *stage) keepTicket(text []byte) {
	var answer struct {
		Data struct {
			Ticket string `json:"ticket"`
			CSRF   string `json:"CSRFPreventionToken"`
		} `json:"data"`
	}
	if json.Unmarshal(text, &answer) == nil && answer.Data.Ticket != "" {
		st.ticket, st.csrf = answer.Data.Ticket, answer.Data.CSRF
	}
}

// learn keeps what later requests will need: secrets and digests.
func (st *stage) learn(e *exchange, ours []byte) {
	st.learnToken(ours)
	st.keepTicket(ours)
	if theirs, mine := digestOf([]byte(e.Response.Body)), digestOf(ours); theirs != "" && mine != "" {
		st.digests[theirs] = mine
	}
}

func (st *stage) learnToken(text []byte) {
	var answer struct {
		Data struct {
			ID    string `json:"full-tokenid"`
			Value string `json:"value"`
		} `json:"data"`
	}
	if json.Unmarshal(text, &answer) == nil && answer.Data.ID != "" {
		st.secrets[answer.Data.ID] = answer.Data.Value
	}
}

func digestOf(text []byte) string {
	var answer struct {
		Data struct {
			Digest string `json:"digest"`
		} `json:"data"`
	}
	if json.Unmarshal(text, &answer) != nil {
		return ""
	}
	return answer.Data.Digest
}

func dataString(text []byte) string {
	var answer struct {
		Data string `json:"data"`
	}
	if json.Unmarshal(text, &answer) != nil {
		return ""
	}
	return answer.Data
}
