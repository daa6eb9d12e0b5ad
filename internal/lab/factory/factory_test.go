package factory

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const emptySchematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// The ids are those the public factory gives.
func TestSchematicIDs(t *testing.T) {
	for name, c := range map[string]struct{ doc, id string }{
		"nothing":     {`{}`, emptySchematic},
		"empty lists": {`{"customization": {"extraKernelArgs": [], "systemExtensions": {}}}`, emptySchematic},
		"auto loader": {"customization: {bootloader: auto}", emptySchematic},
		"kernel args": {`customization: {extraKernelArgs: [noapic, nolapic]}`,
			"9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c"},
		"meta": {`customization: {meta: [{key: 0xa, value: foo}]}`,
			"d308a2a5ee2277bed5fbaa104fcbc8d59122abfa737df987a95b4ca763459a7f"},
		"agent": {`customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent]}}`,
			"ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515"},
		"iscsi": {"customization:\n  systemExtensions:\n    officialExtensions:\n    - siderolabs/iscsi-tools\n    - siderolabs/util-linux-tools\n",
			"613e1592b2da41ae5e265e8789429f22e121aab91cb4deb6bc3c0b6262961245"},
		"overlay": {`{overlay: {name: rpi_generic, image: siderolabs/sbc-raspberrypi}}`,
			"ee21ef4a5ef808a9b7484cc0dda0f25075021691c8c09a276591eedb638ea1f9"},
		"secure boot": {`{customization: {secureboot: {includeWellKnownCertificates: true}}}`,
			"fa8e05f142a851d3ee568eb0a8e5841eaf6b0ebc8df9a63df16ac5ed2c04f3e6"},
		"sectors": {`{customization: {diskImage: {sectorSize: 4096}}}`,
			"92833e9ddd9bb9e11b2464fa5525429f01866306d52ebd882ee08d7918f6d1ea"},
	} {
		s, err := parseSchematic([]byte(c.doc))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, id, err := s.encodeCanonical(); err != nil || id != c.id {
			t.Errorf("%s: id is %s (%v), want %s", name, id, err, c.id)
		}
	}
}

func TestSchematicIsStrict(t *testing.T) {
	for _, doc := range []string{
		"", "[]", "customization: {extensions: []}", "customisation: {}", "owner: me",
		"customization: {bootloader: lilo}", "customization: {}\ncustomization: {}", "customization: {meta: [{key: 300, value: x}]}", "{",
	} {
		if s, err := parseSchematic([]byte(doc)); err == nil {
			t.Errorf("%q was read as %+v", doc, s)
		}
	}
}

// register posts a schematic and returns its id.
func register(b *servicetest.Bench, f *Factory, doc string) string {
	b.Helper()
	r := b.Must("POST", f.URL()+"/schematics", doc, "Content-Type: application/yaml")
	var answer struct{ ID, Schematic string }
	if err := json.Unmarshal(r.Body, &answer); err != nil || r.Status != http.StatusCreated {
		b.Fatalf("POST /schematics: %d %s (%v)", r.Status, r.Body, err)
	}
	if sum := sha256.Sum256([]byte(answer.Schematic)); hex.EncodeToString(sum[:]) != answer.ID {
		b.Errorf("id %s is not the hash of %q", answer.ID, answer.Schematic)
	}
	return answer.ID
}

func TestFactory(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		f := servicetest.Opened[*Factory](b)(New(Config{
			Service: b.Config("factory"),
			Missing: map[string][]string{"v1.14.1": {"siderolabs/zfs"}},
		}))
		b.Want(b.Must("POST", f.URL()+"/schematics", "customization: {wrong: 1}"), 400, "wrong")
		b.Want(b.Must("GET", f.URL()+"/schematics/"+strings.Repeat("0", 64), ""), 404, "schematic not found")
		b.Want(b.Must("GET", f.URL()+"/versions", ""), 200, `"v1.13.9"`)
		b.Want(b.Must("GET", f.URL()+"/versions?broken=true", ""), 200, "[]")
		b.Want(b.Must("GET", f.URL()+"/nowhere", ""), 404, "route not registered")

		id := register(b, f, "customization: {systemExtensions: {officialExtensions: [siderolabs/zfs]}}")
		if again := register(b, f, `{"customization": {"systemExtensions": {"officialExtensions": ["siderolabs/zfs"]}}}`); again != id {
			b.Errorf("the same schematic got another id: %s, %s", id, again)
		}
		b.Want(b.Must("GET", f.URL()+"/schematics/"+id, ""), 200, "siderolabs/zfs")
		b.Want(b.Must("GET", f.URL()+"/version/v1.13.9/extensions/official", ""), 200, `"siderolabs/zfs"`)
		if r := b.Must("GET", f.URL()+"/version/v1.14.1/extensions/official", ""); bytes.Contains(r.Body, []byte("zfs")) {
			b.Errorf("v1.14.1 lists an extension it lacks: %s", r.Body)
		}

		image := func(id, version, path string) string { return f.URL() + "/image/" + id + "/" + version + "/" + path }
		for _, c := range []struct {
			url    string
			status int
			words  string
		}{
			{image("beef", "v1.13.9", imageFile), 404, `schematic ID "beef" not found`},
			{image(id, "v1.7.9", imageFile), 404, "version 1.7.9 is not available"},
			{image(id, "v1.15.0", imageFile), 404, "version 1.15.0 is not available"},
			{image(id, "latest", imageFile), 500, "internal server error"},
			{image(id, "v1.14.1", imageFile), 400, `official extension "siderolabs/zfs" is not available for Talos version v1.14.1`},
			{image(id, "v1.13.9", imageFile+".sha256"), 402, "enterprise not enabled"},
			{image(id, "v1.13.9", "metal-amd64.iso"), 501, imageFile},
		} {
			b.Want(b.Must("GET", c.url, ""), c.status, c.words)
		}
		if got := f.Downloads(); len(got) != 0 {
			b.Errorf("refused downloads were counted: %v", got)
		}

		r := b.Must("GET", image(id, "v1.13.9", imageFile), "")
		b.Want(r, 200, "version v1.13.9\nschematic "+id)
		if got := r.Header.Get("Content-Length"); got != "196608" || len(r.Body) != qcowFileBytes {
			b.Errorf("Content-Length %s, %d bytes", got, len(r.Body))
		}
		sum := sha256.Sum256(r.Body)
		known, ok := b.World.ImageOf(hex.EncodeToString(sum[:]))
		want := world.Image{Platform: "nocloud", Version: "v1.13.9", Schematic: id}
		if !ok || known.Platform != want.Platform || known.Version != want.Version || known.Schematic != id || !slices.Equal(known.Extensions, []string{"siderolabs/zfs"}) {
			b.Errorf("the world knows the image as %+v (%v)", known, ok)
		}
		if other := b.Must("GET", image(emptySchematic, "v1.13.9", imageFile), ""); bytes.Equal(other.Body, r.Body) {
			b.Error("another schematic has the same bytes")
		}
		if got, want := f.Downloads()[0], (Download{Schematic: id, Version: "v1.13.9", Bytes: qcowFileBytes, Whole: true}); got != want {
			b.Errorf("download is kept as %+v", got)
		}
		total, chain := b.World.LongestChain()
		if total != b.World.Latency.Download || !strings.HasPrefix(chain[0], "download/talos-v1.13.9-") {
			b.Errorf("longest chain is %v: %v", total, chain)
		}

		head := b.Must("HEAD", image(id, "v1.13.9", imageFile), "")
		if head.Status != 200 || head.Header.Get("Content-Length") != "196608" {
			b.Errorf("HEAD: %d %v", head.Status, head.Header)
		}
		part := b.Must("GET", image(id, "v1.13.9", imageFile), "", "Range: bytes=100000-")
		if part.Status != http.StatusPartialContent || !bytes.Equal(part.Body, r.Body[100000:]) {
			b.Errorf("range: %d, %d bytes", part.Status, len(part.Body))
		}
		if built, err := f.Image("v1.13.9", id); err != nil || !bytes.Equal(built, r.Body) {
			b.Errorf("Image returns something else (%v)", err)
		}

		manifest := f.URL() + "/v2/nocloud-installer/" + id + "/manifests/"
		if r := b.Must("HEAD", manifest+"v1.13.9", ""); r.Status != 200 || r.Header.Get("Docker-Content-Digest") == "" {
			b.Errorf("HEAD of an installer: %d %v", r.Status, r.Header)
		}
		b.Want(b.Must("GET", manifest+"v0.1.0", ""), 404, "not available")
		b.Want(b.Must("GET", manifest+"v1.14.1", ""), 400, `official extension "siderolabs/zfs" is not available for Talos version v1.14.1`)
		b.Want(b.Must("GET", f.URL()+"/v2/nocloud-installer/beef/manifests/v1.13.9", ""), 404, "not found")
		b.Want(b.Must("GET", f.URL()+"/v2/other/"+id+"/manifests/v1.13.9", ""), 404, "")
		b.Want(b.Must("GET", f.URL()+"/v2/", ""), 200, "")
	})
}

// What a repository may ask for is built: every version that is managed, those
// that were published after this program too, and every official extension.
func TestFactoryBuildsWhatMayBePublished(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		f := servicetest.Opened[*Factory](b)(New(Config{Service: b.Config("factory")}))
		id := register(b, f, "customization: {systemExtensions: {officialExtensions: [siderolabs/made-tomorrow, siderolabs/tailscale]}}")
		for _, version := range []string{"v1.8.2", "v1.9.0", "v1.10.3", "v1.11.2", "v1.12.4", "v1.13.99", "v1.14.0-beta.1"} {
			b.Want(b.Must("HEAD", f.URL()+"/image/"+id+"/"+version+"/"+imageFile, ""), 200, "")
		}
		b.Want(b.Must("GET", f.URL()+"/version/v1.13.99/extensions/official", ""), 200, `"siderolabs/made-tomorrow"`)
		foreign := register(b, f, "customization: {systemExtensions: {officialExtensions: [example/own]}}")
		if r := b.Must("GET", f.URL()+"/version/v1.13.9/extensions/official", ""); bytes.Contains(r.Body, []byte("example/own")) {
			t.Errorf("it lists an extension that it does not build: %s", r.Body)
		}
		for _, last := range []string{"v1.8.4", "v1.9.6", "v1.10.9", "v1.11.6", "v1.12.11", "v1.13.9", "v1.14.1"} {
			b.Want(b.Must("GET", f.URL()+"/versions", ""), 200, `"`+last+`"`)
		}
		b.Want(b.Must("GET", f.URL()+"/image/"+foreign+"/v1.13.9/"+imageFile, ""), 400, `official extension "example/own" is not available`)

		if image, ok := b.World.FindInstaller(id, "v1.13.99"); !ok || image.Schematic != id || image.Version != "v1.13.99" || len(image.Extensions) != 2 {
			t.Errorf("installer %+v, %v", image, ok)
		}
		for schematic, version := range map[string]string{foreign: "v1.13.9", id: "v9.9.9", emptySchematic[1:] + "0": "v1.13.9"} {
			if _, ok := b.World.FindInstaller(schematic, version); ok {
				t.Errorf("an installer of %s with schematic %.8s", version, schematic)
			}
		}

		few := servicetest.Opened[*Factory](b)(New(Config{Service: b.Config("few"), Versions: []string{"v1.13.9"}}))
		b.Want(b.Must("GET", few.URL()+"/image/"+emptySchematic+"/v1.13.8/"+imageFile, ""), 404, "version 1.13.8 is not available")
		b.Want(b.Must("GET", few.URL()+"/versions", ""), 200, `["v1.13.9"]`)
	})
}

// In virtual time a download takes exactly as long as the world wants, and its
// bytes come one after another.
func TestFactoryDrips(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		f := servicetest.Opened[*Factory](b)(New(Config{Service: b.Config("factory")}))
		began := time.Now()
		resp, err := b.Client.Get(f.URL() + "/image/" + emptySchematic + "/v1.13.9/" + imageFile)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		half := make([]byte, qcowFileBytes/2)
		if _, err := io.ReadFull(resp.Body, half); err != nil {
			b.Fatal(err)
		}
		lat := b.World.Latency
		if got, want := time.Since(began), lat.Call+lat.Download/2; got != want {
			b.Errorf("half of it came after %v, want %v", got, want)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		if got, want := time.Since(began), lat.Call+lat.Download; got != want {
			b.Errorf("all of it came after %v, want %v", got, want)
		}
	})
}

func TestFactoryFaults(t *testing.T) {
	const op = "GET /image/{schematic}/{version}/{path}"
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		f := servicetest.Opened[*Factory](b)(New(Config{Service: b.Config("factory")}))
		url := f.URL() + "/image/" + emptySchematic + "/v1.13.9/" + imageFile
		fault := func(k world.FaultKind) {
			b.World.Heal()
			b.World.Inject(world.Fault{System: "factory", Op: op, Kind: k, Status: 503, Text: "service temporarily unavailable", Times: 1})
		}

		fault(world.Answer)
		b.Want(b.Must("GET", url, ""), 503, "service temporarily unavailable")

		fault(world.LoseRequest)
		// On a connection that was used before, net/http would send it again.
		b.Client.CloseIdleConnections()
		if r, err := b.Do("GET", url, ""); err == nil {
			b.Errorf("a lost request was answered: %d", r.Status)
		}

		fault(world.LoseReply)
		r, err := b.Do("GET", url, "")
		if !errors.Is(err, io.ErrUnexpectedEOF) || r.Status != 200 || len(r.Body) == 0 || len(r.Body) >= qcowFileBytes {
			b.Errorf("a servicetest.Reply lost in the middle: %d, %d bytes, %v", r.Status, len(r.Body), err)
		}
		cut := f.Downloads()[len(f.Downloads())-1]
		if cut.Whole || cut.Bytes != qcowFileBytes/2 {
			b.Errorf("the cut download is kept as %+v", cut)
		}

		// Of a short range, half gets through too.
		fault(world.LoseReply)
		if r, err := b.Do("GET", url, "", "Range: bytes=0-99"); !errors.Is(err, io.ErrUnexpectedEOF) || len(r.Body) != 50 {
			b.Errorf("a range lost in the middle: %d bytes, %v", len(r.Body), err)
		}

		// Who dies as the call ends has almost all of it.
		crashed := 0
		b.World.OnCrash(func(world.Call) { crashed++ })
		fault(world.CrashAfter)
		if r, err := b.Do("GET", url, ""); err == nil || len(r.Body) != qcowFileBytes-1 || crashed != 1 {
			b.Errorf("a crash at the end: %d bytes, %v, %d crashes", len(r.Body), err, crashed)
		}

		f.Corrupt(true)
		if r := b.Must("GET", url, ""); r.Status != 200 || len(r.Body) != 9 || r.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			b.Errorf("corrupt: %d %q %v", r.Status, r.Body, r.Header)
		}
		f.Corrupt(false)
		if r := b.Must("GET", url, ""); len(r.Body) != qcowFileBytes {
			b.Errorf("healed: %d bytes", len(r.Body))
		}
	})
}

// The image is what the qcow2 specification asks for: every cluster in use has
// reference count one, every table lies inside the file.
func TestImageIsAValidQcow2(t *testing.T) {
	img := buildImage("nocloud", "v1.13.9", emptySchematic, false)
	be := binary.BigEndian
	u32 := func(at int) uint64 { return uint64(be.Uint32(img[at:])) }
	u64 := func(at uint64) uint64 { return be.Uint64(img[at:]) }
	if string(img[:4]) != "QFI\xfb" || u32(4) != 3 || u64(24) != 1246<<20 || u32(100) != 104 {
		t.Fatalf("header % x", img[:104])
	}
	if u64(8) != 0 || u32(16) != 0 || u32(32) != 0 || u32(60) != 0 || u64(72) != 0 {
		t.Error("it has a backing file, encryption, snapshots or incompatible features")
	}
	cluster := uint64(1) << u32(20)
	used := map[uint64]int{0: 1}
	use := func(what string, offset uint64) {
		if offset%cluster != 0 || offset+cluster > uint64(len(img)) {
			t.Errorf("%s at %d is outside of the file or not aligned", what, offset)
		}
		used[offset/cluster]++
	}
	l1, refTable := u64(40), u64(48)
	use("L1 table", l1)
	use("refcount table", refTable)
	refBlock := u64(refTable)
	use("refcount block", refBlock)
	perL2 := cluster / 8 * cluster
	if entries := u32(36); entries*perL2 < 1246<<20 || (entries-1)*perL2 >= 1246<<20 {
		t.Errorf("%d L1 entries for %d bytes", entries, 1246<<20)
	}
	const copied, offset = 1 << 63, 1<<56 - 1<<9
	for i := range u32(36) {
		e := u64(l1 + 8*i)
		if e == 0 {
			continue
		}
		use("L2 table", e&offset)
		for j := range cluster / 8 {
			if d := u64(e&offset + 8*j); d != 0 {
				use("data", d&offset)
				if d&copied == 0 || e&copied == 0 {
					t.Error("a cluster of its own is not marked so")
				}
			}
		}
	}
	for i := range cluster / 2 {
		if got := int(be.Uint16(img[refBlock+2*i:])); got != used[i] {
			t.Errorf("cluster %d has reference count %d, is used %d times", i, got, used[i])
		}
	}
	if uint64(len(used))*cluster != uint64(len(img)) {
		t.Errorf("%d clusters in use, file of %d bytes", len(used), len(img))
	}
}

func TestImageWithQemu(t *testing.T) {
	qemu, err := exec.LookPath("qemu-img")
	if err != nil {
		t.Skip("no qemu-img here")
	}
	file := filepath.Join(t.TempDir(), "image.qcow2")
	if err := os.WriteFile(file, buildImage("nocloud", "v1.13.9", emptySchematic, false), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "-f", "qcow2", file}, {"info", "-f", "qcow2", file}} {
		if out, err := exec.CommandContext(t.Context(), qemu, args...).CombinedOutput(); err != nil {
			t.Errorf("qemu-img %s: %v\n%s", args[0], err, out)
		}
	}
}

func FuzzParseSchematic(f *testing.F) {
	f.Add([]byte("customization: {extraKernelArgs: [a]}"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		s, err := parseSchematic(doc)
		if err != nil {
			return
		}
		text, id, err := s.encodeCanonical()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseSchematic(text)
		if err != nil {
			t.Fatalf("%q became %q, which does not parse: %v", doc, text, err)
		}
		if _, other, err := again.encodeCanonical(); err != nil || other != id {
			t.Fatalf("%q became %q, whose id is another (%v)", doc, text, err)
		}
	})
}
