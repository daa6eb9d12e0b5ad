package proxmox

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// recordings is the folder with what a real Proxmox VE was asked and answered.
func recordings(t *testing.T) string {
	t.Helper()
	return golden.Recordings(t, "pve")
}

// exchange is one recorded request and its answer.
type exchange struct {
	name    string
	Request struct {
		Method, URL string
		Body        any
	}
	Response struct {
		Status  int
		Reason  string
		BodyRaw string `json:"body_raw"`
	}
}

func exchanges(t *testing.T, pattern string) []exchange {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(recordings(t), pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings match %s: %v", pattern, err)
	}
	var out []exchange
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		x := exchange{name: filepath.Base(filepath.Dir(f)) + "/" + filepath.Base(f)}
		if err := json.Unmarshal(raw, &x); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, x)
	}
	return out
}

// request is a request in a form that can be compared.
type request struct {
	method, path string
	params       map[string]string
}

func parsedRequest(t *testing.T, method, rawURL, contentType string, body []byte) request {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	r := request{method: method, path: strings.TrimPrefix(u.Path, apiPath), params: map[string]string{}}
	for k, v := range u.Query() {
		r.params[k] = v[0]
	}
	switch {
	case len(body) == 0:
	case strings.HasPrefix(contentType, "application/json"):
		if err := json.Unmarshal(body, &r.params); err != nil {
			t.Fatal(err)
		}
	default:
		form, err := url.ParseQuery(string(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range form {
			r.params[k] = v[0]
		}
	}
	return r
}

// recorder keeps the requests that change something.
type recorder struct {
	t      *testing.T
	next   http.RoundTripper
	writes []request
	form   []string // the fields of the last upload, in order
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return r.next.RoundTrip(req)
	}
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		if int64(len(body)) != req.ContentLength {
			r.t.Errorf("%s %s has %d bytes and declares %d", req.Method, req.URL.Path, len(body), req.ContentLength)
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	kind, attrs, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err == nil && kind == "multipart/form-data" {
		r.form = nil
		for m := multipart.NewReader(bytes.NewReader(body), attrs["boundary"]); ; {
			part, err := m.NextPart()
			if err != nil {
				break
			}
			value, err := io.ReadAll(part)
			if err != nil {
				return nil, err
			}
			if part.FileName() != "" {
				value = []byte(part.FileName())
			}
			r.form = append(r.form, part.FormName()+"="+string(value))
		}
		body = nil
	}
	r.writes = append(r.writes, parsedRequest(r.t, req.Method, req.URL.String(), kind, body))
	return r.next.RoundTrip(req)
}

// TestRequestsAreTheRecordedOnes leads the life of the recorded VM and compares
// every request that changes something with the one a real Proxmox VE took,
// option by option.
func TestRequestsAreTheRecordedOnes(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			want := map[string]request{}
			for _, x := range exchanges(t, "golden-"+flavour+"/g*.json") {
				_, name, _ := strings.Cut(strings.TrimSuffix(x.name, ".json"), "-")
				name = name[strings.Index(name, "-")+1:]
				if x.Request.Method == http.MethodGet || x.Response.Status != 200 {
					// 8.4 made its VM with the tags in the creation; the request
					// without them, which is ours, was then refused for that.
					if name != "create" {
						continue
					}
				}
				body, _ := x.Request.Body.(string)
				if strings.HasPrefix(body, "<multipart") {
					body = ""
				}
				want[name] = parsedRequest(t, x.Request.Method, x.Request.URL, "", []byte(body))
			}
			onStand(t, flavour, func(t *testing.T, s *stand) {
				got, form := goldenLife(t, s)
				for i, step := range []struct {
					golden string
					differ map[string]string // parameters that differ, and why
				}{
					{"upload-image", nil},
					{"create", map[string]string{
						"description": "the mark has no generation, and people are told in a second line", "smbios1": "the UUID follows from cluster and node",
						"efidisk0": "another storage", "scsi0": "another storage", "scsi1": "another storage", "ide2": "another storage",
					}},
					{"tag", map[string]string{"tags": "other tags", "digest": "of another file"}},
					{"resize", map[string]string{"digest": "of another file"}},
					{"start", nil},
					{"mark-deleting", map[string]string{"tags": "the word stands in the description, which the token may always write", "description": "see tags", "digest": "of another file"}},
					{"stop", map[string]string{"overrule-shutdown": "a shutdown under way would hold the lock for as long as the guest takes"}},
					{"delete", nil},
				} {
					w, ok := want[step.golden]
					if !ok || i >= len(got) {
						t.Fatalf("%s: nothing to compare: %v, %v", step.golden, ok, got)
					}
					compare(t, step.golden, got[i], w, step.differ)
				}
				if len(got) != 8 {
					t.Errorf("%d requests changed something: %+v", len(got), got)
				}
				if len(form) != 4 || form[0] != "content=import" || form[1] != "checksum-algorithm=sha256" || !strings.HasPrefix(form[2], "checksum=") || form[3] != "filename="+imageName {
					t.Errorf("upload form %v", form)
				}
			})
		})
	}
}

// goldenLife makes, starts and deletes the recorded VM.
func goldenLife(t *testing.T, s *stand) ([]request, []string) {
	d := desired(1)
	n := d.Spec.Nodes[0]
	n.VMID, n.IP, n.MAC = 410, netip.MustParseAddr("10.78.0.11"), "BC:24:11:00:00:11"
	n.Disks = []cluster.Disk{{Name: "data0", Bytes: 2 << 30, Datastore: "local-lvm", Serial: "talos-data0"}}
	d.Spec.Nodes[0] = n
	d.Spec.Network.CIDR, d.Spec.Network.Gateway = netip.MustParsePrefix("10.78.0.0/24"), netip.MustParseAddr("10.78.0.1")
	d.Spec.Network.Nameservers = []netip.Addr{netip.MustParseAddr("10.78.0.1")}
	c, ctx, image := s.client(), context.Background(), s.imageBytes()
	defer c.Close()
	check := c.http.Transport.(*checker)
	rec := &recorder{t: t, next: check.next}
	check.next = rec
	s.must(c.Upload(ctx, testHost, "local", imageName, int64(len(image)), bytes.NewReader(image), nil))
	s.must(c.Create(ctx, d, n, n.Placement.Pin, d.Image, nil))
	s.must(c.Start(ctx, d, n, nil))
	s.must(c.Delete(ctx, d, cluster.VM{VMID: n.VMID, Node: n.Name, Host: n.Placement.Pin}, nil))
	return rec.writes, rec.form
}

func compare(t *testing.T, name string, got, want request, differ map[string]string) {
	t.Helper()
	want.path = strings.Replace(want.path, "/nodes/pve/", "/nodes/"+testHost+"/", 1)
	if got.method != want.method || got.path != want.path {
		t.Errorf("%s: %s %s, recorded %s %s", name, got.method, got.path, want.method, want.path)
	}
	keys := map[string]bool{}
	for k := range got.params {
		keys[k] = true
	}
	for k := range want.params {
		keys[k] = true
	}
	for k := range differ {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if _, ok := differ[k]; ok {
			if got.params[k] == want.params[k] {
				t.Errorf("%s: %s does not differ", name, k)
			}
			// On the other storage everything else is the same.
			if differ[k] == "another storage" && strings.ReplaceAll(got.params[k], "local-lvm:", "vmdata:") != want.params[k] {
				t.Errorf("%s: %s is %q, recorded %q", name, k, got.params[k], want.params[k])
			}
			continue
		}
		if got.params[k] != want.params[k] {
			t.Errorf("%s: %s is %q, recorded %q", name, k, got.params[k], want.params[k])
		}
	}
}

// TestRecordedAnswersAreUnderstood reads what a real Proxmox VE answered.
func TestRecordedAnswersAreUnderstood(t *testing.T) {
	data := func(x exchange, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(x.Response.BodyRaw), &struct{ Data any }{into}); err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
	}
	n := 0
	for _, x := range exchanges(t, "*-[89].?/*.json") {
		if x.Response.Status != http.StatusOK || x.Request.Method != http.MethodGet {
			continue
		}
		u, err := url.Parse(x.Request.URL)
		if err != nil {
			t.Fatal(err)
		}
		switch path := strings.TrimPrefix(u.Path, apiPath); {
		case path == "/cluster/resources":
			var rows []row
			data(x, &rows)
			for _, r := range rows {
				if r.Type == "" || r.isGuest() != (r.Type == "qemu") || r.Node == "" {
					t.Errorf("%s: %+v", x.name, r)
				}
			}
		case strings.HasSuffix(path, "/status/current"):
			var s pveconf.Current
			data(x, &s)
			if powerOf(s) == cluster.PowerUnknown || s.HA.Managed != "0" {
				t.Errorf("%s: %+v", x.name, s)
			}
		case strings.HasSuffix(path, "/config") && strings.Contains(path, "/qemu/"):
			var o pveconf.Options
			data(x, &o)
			var f facts
			f.configured(o, nil, 411, f.read)
			if o.Digest() == "" || o["lock"] == "" && f.uuid == "" {
				t.Errorf("%s: %v", x.name, o)
			}
		case strings.HasSuffix(path, "/tasks") && strings.HasPrefix(path, "/nodes/"):
			var rows []taskRow
			data(x, &rows)
			tasks, err := tasksOf(rows)
			if err != nil {
				t.Errorf("%s: %v", x.name, err)
			}
			for _, k := range tasks {
				if k.running != strings.Contains(x.name, "tasks-active") {
					t.Errorf("%s: %+v", x.name, k)
				}
			}
		default:
			continue
		}
		n++
	}
	if n < 50 {
		t.Errorf("only %d answers were read", n)
	}
}

// TestGoldenHardware: the recorded VM has the hardware it was made with.
func TestGoldenHardware(t *testing.T) {
	for _, x := range exchanges(t, "golden-*/g*-config-after-resize.json") {
		var o struct{ Data pveconf.Options }
		if err := json.Unmarshal([]byte(x.Response.BodyRaw), &o); err != nil {
			t.Fatal(err)
		}
		got := hardware.Of(o.Data)
		want := cluster.Hardware{CPUType: "x86-64-v2-AES", Cores: 2, MemoryMiB: 2048, Machine: "q35", BIOS: "ovmf", SCSIHardware: "virtio-scsi-single",
			MAC: "BC:24:11:00:00:11", Bridge: "vmbr1", System: cluster.DiskSeen{Datastore: "vmdata", Bytes: 10 << 30},
			Data: map[string]cluster.DiskSeen{"talos-data0": {Datastore: "vmdata", Bytes: 2 << 30}}, Address: "10.78.0.11/24,gw=10.78.0.1", OnBoot: true, Boot: cluster.BootSystemDisk}
		if !sameHardware(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", x.name, got, want)
		}
		if hardware.UUIDOf(o.Data) != "6f3a0f3e-8c1e-5d2b-9c3f-0a1b2c3d4e5f" || hardware.SystemDisk(o.Data) != "scsi0" || len(hardware.ListOthersVolumes(o.Data, "410")) != 0 {
			t.Errorf("%s: %v", x.name, o.Data)
		}
	}
}

// TestPhrasesWereSeen: every row of the table that claims to have been seen on
// a real host is in the recordings, and every recorded refusal is an *Error
// with the reason in it.
func TestPhrasesWereSeen(t *testing.T) {
	all := exchanges(t, "*-[89].?/*.json")
	for _, p := range phrases {
		if strings.Contains(p.seen, "source") {
			continue
		}
		if !slices.ContainsFunc(all, func(x exchange) bool {
			return strings.Contains(x.Response.Reason, p.words) || strings.Contains(x.Response.BodyRaw, p.words)
		}) {
			t.Errorf("%q was never answered", p.words)
		}
	}
	refused := 0
	for _, x := range all {
		if x.Response.Status < 400 {
			continue
		}
		refused++
		resp := &http.Response{StatusCode: x.Response.Status, Body: io.NopCloser(strings.NewReader(x.Response.BodyRaw)), Header: http.Header{}}
		resp.Status = strings.TrimSpace(strconv.Itoa(x.Response.Status) + " " + x.Response.Reason)
		check := &checker{next: roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil }), token: "u@pve!t", pool: "p"}
		req, err := http.NewRequest(x.Request.Method, "https://h"+x.Request.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = check.RoundTrip(req)
		e, ok := err.(*Error)
		if !ok || e.Status != x.Response.Status || e.Reason != sanitize(x.Response.Reason) || strings.Contains(e.Error(), "\n") || !isAnswered(err) {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		if strings.Contains(x.Response.BodyRaw, `"errors":{`) && len(e.Params) == 0 {
			t.Errorf("%s: the parameters are lost: %v", x.name, err)
		}
		if e.Status == 403 && fault.HintOf(e) == "" || e.Status == 401 && !strings.Contains(fault.HintOf(e), "u@pve!t") {
			t.Errorf("%s: no hint for %v", x.name, err)
		}
	}
	if refused < 50 {
		t.Errorf("only %d refusals were read", refused)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func sameHardware(a, b cluster.Hardware) bool {
	same := maps.Equal(a.Data, b.Data)
	a.Data, b.Data = nil, nil
	type flat struct {
		cpu, machine, bios, scsi, mac, bridge, address, boot string
		cores, vlan                                          int
		memory                                               int64
		balloon, agent, onboot                               bool
		system                                               cluster.DiskSeen
	}
	f := func(h cluster.Hardware) flat {
		return flat{h.CPUType, h.Machine, h.BIOS, h.SCSIHardware, h.MAC, h.Bridge, h.Address, h.Boot, h.Cores, h.VLAN, h.MemoryMiB, h.Balloon, h.Agent, h.OnBoot, h.System}
	}
	return same && f(a) == f(b)
}
