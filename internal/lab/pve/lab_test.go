package pve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLab is a simulated Proxmox VE with a client beside it.
type testLab struct {
	t      testing.TB
	world  *world.World
	pve    *Server
	guests *watchers
	http   *http.Client
	token  string // of whom the client is; agent's by default
	admin  string
}

// inBubble runs a test against a lab in virtual time.
func inBubble(t *testing.T, c Config, test func(*testLab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newTestLab(t, c, world.Config{})
		defer l.close()
		test(l)
	})
}

func newTestLab(t testing.TB, c Config, wc world.Config) *testLab {
	t.Helper()
	w, err := world.New(wc)
	if err != nil {
		t.Fatal(err)
	}
	l := &testLab{t: t, world: w, guests: &watchers{running: map[int]world.Guest{}}}
	c.World = w
	if c.Guests == nil {
		c.Guests = l.guests
	}
	if l.pve, err = New(c); err != nil {
		t.Fatal(err)
	}
	l.token = l.pve.AgentToken(AgentScope{Pool: "talos", Storages: []string{"local", "local-lvm"}, Bridges: []string{"vmbr1"}})
	l.admin = l.pve.AdminToken()
	l.http = &http.Client{Transport: &http.Transport{DialContext: w.Net.DialContext, TLSClientConfig: clientTLS(w)}}
	return l
}

func (l *testLab) close() {
	l.http.CloseIdleConnections()
	l.pve.Close()
	l.world.Close()
}

// watchers are guests that write down what happens to them.
type watchers struct {
	mu      sync.Mutex
	running map[int]world.Guest
	booted  int
	deaf    bool // to the power button
}

func (w *watchers) PowerOn(g world.Guest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[g.VMID] = g
	w.booted++
}

func (w *watchers) PowerOff(id int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, id)
}

func (w *watchers) Shutdown(id int, off func()) bool {
	w.mu.Lock()
	deaf := w.deaf
	if !deaf {
		delete(w.running, id)
	}
	w.mu.Unlock()
	if !deaf {
		off()
	}
	return !deaf
}

func (w *watchers) guest(id int) (world.Guest, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g, ok := w.running[id]
	return g, ok
}

// answer is what a call came back with.
type answer struct {
	status int
	reason string
	data   any
	errors map[string]any
	total  any
}

// call makes a call as the lab's current client. form is url-encoded; "" means
// no body.
func (l *testLab) call(method, path, form string) answer {
	l.t.Helper()
	a, err := l.try(method, path, form)
	if err != nil {
		l.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (l *testLab) try(method, path, form string) (answer, error) {
	var body io.Reader
	if form != "" {
		body = strings.NewReader(form)
	}
	req, err := http.NewRequest(method, l.pve.URL()+"/api2/json"+path, body)
	if err != nil {
		return answer{}, err
	}
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return l.do(req)
}

func (l *testLab) do(req *http.Request) (answer, error) {
	req.Header.Set("Authorization", "PVEAPIToken="+l.token)
	resp, err := l.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	var parsed struct {
		Data   any            `json:"data"`
		Errors map[string]any `json:"errors"`
		Total  any            `json:"total"`
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &parsed); err != nil {
			return answer{}, fmt.Errorf("%s: %w", text, err)
		}
	}
	_, reason, _ := strings.Cut(resp.Status, " ")
	return answer{status: resp.StatusCode, reason: reason, data: parsed.Data, errors: parsed.Errors, total: parsed.Total}, nil
}

// as returns the lab with another client.
func (l *testLab) as(token string) *testLab {
	other := *l
	other.token = token
	return &other
}

// ok makes a call that must succeed, waits for its task if it starts one, and
// returns its data.
func (l *testLab) ok(method, path, form string) any {
	l.t.Helper()
	a := l.call(method, path, form)
	if a.status != http.StatusOK {
		l.t.Fatalf("%s %s: %d %s %v", method, path, a.status, a.reason, a.errors)
	}
	if upid, isTask := a.data.(string); isTask && strings.HasPrefix(upid, "UPID:") {
		if err := l.pve.WaitTask(l.world.Context(), upid); err != nil {
			l.t.Fatalf("%s %s: %v", method, path, err)
		}
	}
	return a.data
}

// refused makes a call that must be refused with exactly this.
func (l *testLab) refused(method, path, form string, status int, reason string) answer {
	l.t.Helper()
	a := l.call(method, path, form)
	if a.status != status || a.reason != reason {
		l.t.Errorf("%s %s: got %d %q, want %d %q", method, path, a.status, a.reason, status, reason)
	}
	return a
}

// exit makes a call that starts a task and returns how the task ended.
func (l *testLab) exit(method, path, form string) string {
	l.t.Helper()
	a := l.call(method, path, form)
	upid, _ := a.data.(string)
	if a.status != http.StatusOK || !strings.HasPrefix(upid, "UPID:") {
		l.t.Fatalf("%s %s: %d %s: no task", method, path, a.status, a.reason)
	}
	l.await(upid)
	return l.task(upid).Exit
}

func (l *testLab) await(upid string) {
	l.t.Helper()
	t := l.pve.taskNamed(upid)
	if t == nil {
		l.t.Fatalf("no task %s", upid)
	}
	<-t.done
}

func (l *testLab) task(upid string) TaskView {
	for _, t := range l.pve.Tasks() {
		if t.UPID == upid {
			return t
		}
	}
	l.t.Fatalf("no task %s", upid)
	return TaskView{}
}

// image is what the lab's uploads hold.
var image = world.Image{Platform: "nocloud", Version: "v1.13.9", Schematic: "376567988ad3"}

// imageName is the name they are uploaded under.
const imageName = "talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2"

// upload uploads a Talos image of 1246 MiB and returns the answer.
func (l *testLab) upload(name string) answer {
	l.t.Helper()
	bytes := fileBytes(4096, 1246<<20)
	l.world.KnowImage(sumOf(bytes), image)
	a, err := l.tryUpload("local", name, bytes)
	if err != nil {
		l.t.Fatal(err)
	}
	return a
}

func (l *testLab) tryUpload(storage, name string, content []byte) (answer, error) {
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	if err := m.WriteField("content", "import"); err != nil {
		return answer{}, err
	}
	part, err := m.CreateFormFile("filename", name)
	if err != nil {
		return answer{}, err
	}
	if _, err := part.Write(content); err != nil {
		return answer{}, err
	}
	if err := m.Close(); err != nil {
		return answer{}, err
	}
	req, err := http.NewRequest(http.MethodPost, l.pve.URL()+"/api2/json/nodes/pve1/storage/"+storage+"/upload", &b)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", m.FormDataContentType())
	return l.do(req)
}

// ready uploads the image and waits for it.
func (l *testLab) ready() {
	l.t.Helper()
	a := l.upload(imageName)
	upid, _ := a.data.(string)
	if err := l.pve.WaitTask(l.world.Context(), upid); err != nil {
		l.t.Fatal(a, err)
	}
}

// vmForm is the creation of a Talos VM, in full.
func vmForm(id int) string {
	v := url.Values{}
	for _, p := range strings.Split(fmt.Sprintf(`vmid=%d name=dev-cp-%[1]d pool=talos ostype=l26 machine=q35 bios=ovmf efidisk0=local-lvm:1,efitype=4m,pre-enrolled-keys=0
		cpu=x86-64-v2-AES sockets=1 cores=2 numa=0 memory=2048 balloon=0 scsihw=virtio-scsi-single
		scsi0=local-lvm:0,import-from=local:import/%s,discard=on,ssd=1,iothread=1,serial=talos-sys scsi1=local-lvm:2,serial=talos-data0
		ide2=local-lvm:cloudinit citype=nocloud ipconfig0=ip=10.10.0.%d/24,gw=10.10.0.1 nameserver=10.10.0.1
		net0=virtio=BC:24:11:00:00:%02X,bridge=vmbr1,firewall=0 boot=order=scsi0 serial0=socket vga=std agent=0 onboot=1
		smbios1=uuid=6f3a0f3e-8c1e-5d2b-9c3f-%012d protection=0 description=mine`, id, imageName, id%250, id%250, id), " ") {
		p = strings.TrimSpace(p)
		for _, p := range strings.Fields(p) {
			k, value, _ := strings.Cut(p, "=")
			v.Set(k, value)
		}
	}
	return v.Encode()
}

// vm is a VM that must be there.
func (l *testLab) vm(id int) VMView {
	l.t.Helper()
	v, ok := l.pve.VM(id)
	if !ok {
		l.t.Fatalf("no vm %d", id)
	}
	return v
}

// took runs something and returns how long it took, to a tenth of a second.
func took(do func()) time.Duration {
	began := time.Now()
	do()
	return time.Since(began).Round(100 * time.Millisecond)
}

func (l *testLab) noViolations() {
	l.t.Helper()
	for _, v := range l.world.Violations() {
		l.t.Errorf("rule broken: %s", v)
	}
}
