package pve

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// changers are guests that write down which medium is in their drive.
type changers struct {
	watchers
	mu     sync.Mutex
	medium map[int][]string // versions, "" for none
}

func (c *changers) ChangeMedium(id int, medium *world.Image, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.medium[id] = append(c.medium[id], nameMedium(medium, first))
}

func nameMedium(medium *world.Image, first bool) string {
	switch {
	case medium == nil:
		return ""
	case first:
		return medium.Version + " first"
	}
	return medium.Version
}

// uploadMedium uploads a file as an ISO image.
func (l *testLab) uploadMedium(name string, content []byte) {
	l.t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	if err := m.WriteField("content", "iso"); err != nil {
		l.t.Fatal(err)
	}
	part, err := m.CreateFormFile("filename", name)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := part.Write(content); err != nil {
		l.t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		l.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, l.pve.URL()+"/api2/json/nodes/pve1/storage/local/upload", &b)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Content-Type", m.FormDataContentType())
	a, err := l.do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	upid, _ := a.data.(string)
	if err := l.pve.WaitTask(l.world.Context(), upid); err != nil {
		l.t.Fatal(a, err)
	}
}

// mediumLab has guests that notice media, a disk image and two media as files.
func mediumLab(t *testing.T, test func(*testLab, *changers)) {
	t.Helper()
	guests := &changers{watchers: watchers{running: map[int]world.Guest{}}, medium: map[int][]string{}}
	inBubble(t, Config{Guests: guests}, func(l *testLab) {
		l.guests = &guests.watchers
		for version, size := range map[string]int{"v1.13.9": 40000, "v1.14.1": 50000} {
			content := fileBytes(size, 0)
			l.world.KnowImage(sumOf(content), world.Image{Platform: "nocloud", Version: version, Medium: true})
			l.uploadMedium("talos-"+version+"-nocloud-amd64.iso", content)
		}
		disk := fileBytes(4096, 1246<<20)
		l.world.KnowImage(sumOf(disk), image)
		l.uploadMedium("disk.img", disk)
		test(l, guests)
	})
}

// mediumForm is the creation of a VM with an empty disk and a medium.
func mediumForm(id, medium, order string) string {
	v := url.Values{}
	for k, text := range map[string]string{
		"vmid": id, "name": "cp1", "pool": "talos", "memory": "2048", "scsihw": "virtio-scsi-single", "scsi0": "local-lvm:20,serial=talos-sys",
		"ide0": "local:iso/" + medium + ",media=cdrom", "ide2": "local-lvm:cloudinit", "citype": "nocloud", "ipconfig0": "ip=10.10.0.11/24,gw=10.10.0.1",
		"boot": "order=" + order, "net0": "virtio=BC:24:11:00:00:0A,bridge=vmbr1",
	} {
		v.Set(k, text)
	}
	return v.Encode()
}

// TestMedium: a guest finds the medium of its drive, and the empty disk that it is to be installed on; what else is in a drive
// boots nothing. Another medium, and none, is noticed by a guest that runs.
func TestMedium(t *testing.T) {
	mediumLab(t, func(l *testLab, guests *changers) {
		const nodes = "/nodes/pve1/qemu"
		for _, c := range []struct {
			id, medium, order string
			want              string
		}{
			{"410", "talos-v1.13.9-nocloud-amd64.iso", "scsi0;ide0", "v1.13.9"},
			{"411", "talos-v1.13.9-nocloud-amd64.iso", "ide0;scsi0", "v1.13.9 first"},
			{"412", "talos-v1.13.9-nocloud-amd64.iso", "scsi0", ""},
			{"413", "disk.img", "scsi0;ide0", ""},
		} {
			l.ok("POST", nodes, mediumForm(c.id, c.medium, c.order))
			l.ok("POST", nodes+"/"+c.id+"/status/start", "")
			g, _ := l.guests.guest(map[string]int{"410": 410, "411": 411, "412": 412, "413": 413}[c.id])
			if got := nameMedium(g.Medium, g.MediumFirst); got != c.want {
				t.Errorf("%s with order %s: medium %q, want %q", c.medium, c.order, got, c.want)
			}
			if g.Boot == nil || g.Boot.Serial != "talos-sys" || g.Boot.Bytes != 20<<30 || g.Boot.Image.Platform != "" {
				t.Errorf("%s with order %s: its disk is %+v", c.medium, c.order, g.Boot)
			}
		}
		l.ok("PUT", nodes+"/410/config", "ide0=local%3Aiso%2Ftalos-v1.14.1-nocloud-amd64.iso%2Cmedia%3Dcdrom")
		l.ok("PUT", nodes+"/410/config", "ide0=none%2Cmedia%3Dcdrom")
		if got := guests.medium[410]; !slices.Equal(got, []string{"v1.14.1", ""}) {
			t.Errorf("the guest noticed %q", got)
		}
		if text := l.vm(410).Config["ide0"]; text != "none,media=cdrom" {
			t.Errorf("the drive is %q", text)
		}
	})
}

// TestMediumIsGone: a medium that a configuration names can be deleted, and its VM does not start any more.
func TestMediumIsGone(t *testing.T) {
	mediumLab(t, func(l *testLab, _ *changers) {
		const node, medium = "/nodes/pve1", "talos-v1.13.9-nocloud-amd64.iso"
		l.ok("POST", node+"/qemu", mediumForm("410", medium, "scsi0;ide0"))
		l.as(l.admin).ok("DELETE", node+"/storage/local/content/local:iso/"+medium, "")
		if exit := l.exit("POST", node+"/qemu/410/status/start", ""); exit != "volume 'local:iso/"+medium+"' does not exist" {
			t.Errorf("the start ended with %q", exit)
		}
		l.ok("PUT", node+"/qemu/410/config", "ide0=none%2Cmedia%3Dcdrom")
		l.ok("POST", node+"/qemu/410/status/start", "")
		if g, _ := l.guests.guest(410); g.Medium != nil {
			t.Errorf("the guest has a medium: %+v", g.Medium)
		}
	})
}

// TestMediumIsNoSource: no disk is imported from a medium.
func TestMediumIsNoSource(t *testing.T) {
	mediumLab(t, func(l *testLab, _ *changers) {
		a := l.call("POST", "/nodes/pve1/qemu", "vmid=410&pool=talos&scsi0=local-lvm%3A0%2Cimport-from%3Dlocal%3Aiso%2Ftalos-v1.13.9-nocloud-amd64.iso")
		if a.status != http.StatusBadRequest || a.errors["scsi0"] == nil {
			t.Errorf("got %d %v", a.status, a.errors)
		}
	})
}
