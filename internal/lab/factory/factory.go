package factory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Config sizes an Image Factory.
type Config struct {
	Service httpservice.Config
	// Versions are the only Talos versions it builds, each with its leading v;
	// empty: every version from v1.8 to v1.14. It cannot know which patches of a
	// minor will have been published, so it builds them all, and lists some.
	Versions []string
	// Missing names official extensions that a version (the key) lacks.
	Missing map[string][]string
}

// listedVersions are published Talos versions, old to new: of each minor some.
var listedVersions = []string{
	"v1.8.2", "v1.8.4", "v1.9.6", "v1.10.9", "v1.11.2", "v1.11.5", "v1.11.6", "v1.12.4", "v1.12.7", "v1.12.11", "v1.13.0", "v1.13.8", "v1.13.9", "v1.14.0", "v1.14.1",
}

// The minors of Talos 1.x whose machines the lab simulates.
const (
	oldestMinor = 8
	newestMinor = 14
)

// listedExtensions is a selection of the extensions the real factory lists. As
// with versions it builds others too: what is published is not known here. It lists
// those that a schematic has named as well, so that who looks before an upgrade finds them.
var listedExtensions = []string{
	"siderolabs/amd-ucode", "siderolabs/amdgpu", "siderolabs/binfmt-misc", "siderolabs/cloudflared", "siderolabs/crun", "siderolabs/drbd",
	"siderolabs/fuse3", "siderolabs/gvisor", "siderolabs/hailort", "siderolabs/i915", "siderolabs/intel-ucode", "siderolabs/iscsi-tools",
	"siderolabs/kata-containers", "siderolabs/lldpd", "siderolabs/mdadm", "siderolabs/netbird", "siderolabs/newt", "siderolabs/nfsd",
	"siderolabs/nut-client", "siderolabs/nvidia-container-toolkit-lts", "siderolabs/nvidia-container-toolkit-production",
	"siderolabs/nvidia-open-gpu-kernel-modules-lts", "siderolabs/nvidia-open-gpu-kernel-modules-production", "siderolabs/nvme-cli",
	"siderolabs/qemu-guest-agent", "siderolabs/qlogic-firmware", "siderolabs/realtek-firmware", "siderolabs/spin", "siderolabs/stargz-snapshotter",
	"siderolabs/tailscale", "siderolabs/thunderbolt", "siderolabs/usb-modem-drivers", "siderolabs/util-linux-tools", "siderolabs/wasmedge",
	"siderolabs/xen-guest-agent", "siderolabs/youki", "siderolabs/zfs",
}

// extensionName is the form of an official extension's name.
var extensionName = pattern.New(`^siderolabs/[a-z0-9][a-z0-9._-]*$`)

// The boot assets this factory builds: disk images, and installation media.
const (
	imageFile        = "nocloud-amd64.qcow2"
	signedFile       = "nocloud-amd64-secureboot.qcow2"
	mediumFile       = "nocloud-amd64.iso"
	signedMediumFile = "nocloud-amd64-secureboot.iso"
)

// assets are those files, and their media types.
var assets = map[string]string{
	imageFile: "application/x-qemu-disk", signedFile: "application/x-qemu-disk",
	mediumFile: "application/x-iso9660-image", signedMediumFile: "application/x-iso9660-image",
}

// enrollingMinor is the first minor whose disk images have a firmware take the keys that they are signed with; those of
// older ones boot in its setup mode, unverified. Media of all versions do in a virtual machine.
// Source: siderolabs/talos#13214, and the documentation of v1.14; talos, pkg/imager/iso and profile: if-safe.
const enrollingMinor = 14

// Factory is a simulated Image Factory, community edition: schematics,
// nocloud disk images and installation media, and the existence of installer images. Errors are plain
// text as in life: 400 for mistakes of the user, 402 for checksums, 404 for
// schematics and versions nobody knows.
type Factory struct {
	*httpservice.Server
	world    *world.World
	versions []string
	missing  map[string][]string

	mu         sync.Mutex
	schematics map[string]stored
	images     map[string][]byte // version/schematic/asset
	downloads  []Download
	corrupt    bool
}

type stored struct {
	doc  schematic
	text []byte
}

// Download is one image that was asked for with GET.
type Download struct {
	Schematic, Version string
	Bytes              int64 // sent
	Whole              bool  // the client got all it asked for
}

// New opens an Image Factory.
func New(c Config) (*Factory, error) {
	f := &Factory{
		world:      c.Service.World,
		versions:   slices.Clone(c.Versions),
		missing:    maps.Clone(c.Missing),
		schematics: map[string]stored{},
		images:     map[string][]byte{},
	}
	// The schematic without any customization is known everywhere.
	if _, err := f.storeSchematic(schematic{}); err != nil {
		return nil, fmt.Errorf("open factory: %w", err)
	}
	var err error
	if f.Server, err = httpservice.Open(c.Service); err != nil {
		return nil, fmt.Errorf("open factory: %w", err)
	}
	t := &httpservice.Routes{World: c.Service.World, System: "factory", Refuse: httpservice.RefuseText}
	t.Handle("POST /schematics", true, httpservice.NoSubject, f.postSchematic)
	t.Handle("GET /schematics/{schematic}", false, httpservice.PathValue("schematic"), f.getSchematic)
	t.Handle("GET /versions", false, httpservice.NoSubject, f.listVersions)
	t.Handle("GET /version/{version}/extensions/official", false, httpservice.PathValue("version"), f.listExtensions)
	t.Handle("GET /image/{schematic}/{version}/{path}", false, func(r *http.Request) string {
		return fileName(r.PathValue("version"), r.PathValue("schematic"), r.PathValue("path"))
	}, f.getImage)
	t.Handle("GET /v2/{$}", false, httpservice.NoSubject, func(http.ResponseWriter, *http.Request) {})
	t.Handle("GET /v2/{installer}/{schematic}/manifests/{reference}", false, httpservice.PathValue("schematic"), f.getInstaller)
	t.HandleRest("route not registered")

	f.world.ServeInstallers(f.findInstaller)
	f.Serve(keepWriter(t))
	return f, nil
}

// fileName names an image the way a storage would: version, twelve digits of
// the schematic, asset.
func fileName(version, schematic, asset string) string {
	return fmt.Sprintf("talos-%s-%.12s-%s", version, schematic, asset)
}

// Corrupt makes every image a page of nine bytes with status 200, as a proxy
// that is broken answers (true), or an image again (false).
func (f *Factory) Corrupt(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corrupt = on
}

// Schematics returns the canonical documents known so far, by id.
func (f *Factory) Schematics() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]string{}
	for id, s := range f.schematics {
		all[id] = string(s.text)
	}
	return all
}

// Downloads returns the images asked for with GET so far, in order of their
// end.
func (f *Factory) Downloads() []Download {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.downloads)
}

// Image returns the nocloud disk image of a version with a schematic the
// factory knows, and makes it known to the world, without anybody's request.
func (f *Factory) Image(version, id string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.schematics[id]
	if !ok {
		return nil, fmt.Errorf("schematic ID %q not found", id)
	}
	return f.ensureImage(version, id, imageFile, s.doc), nil
}

func (f *Factory) storeSchematic(s schematic) (id string, err error) {
	text, id, err := s.encodeCanonical()
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.schematics[id] = stored{doc: s, text: text}
	return id, nil
}

// ensureImage makes an image once. f.mu is held.
func (f *Factory) ensureImage(version, id, asset string, s schematic) []byte {
	key := version + "/" + id + "/" + asset
	img, ok := f.images[key]
	if !ok {
		medium, signed := asset == mediumFile || asset == signedMediumFile, asset == signedFile || asset == signedMediumFile
		if medium {
			img = buildMedium("nocloud", version, id, signed)
		} else {
			img = buildImage("nocloud", version, id, signed)
		}
		f.images[key] = img
		sum := sha256.Sum256(img)
		f.world.KnowImage(hex.EncodeToString(sum[:]), world.Image{
			Platform: "nocloud", Version: version, Schematic: id,
			Extensions: slices.Clone(s.Customization.SystemExtensions.OfficialExtensions),
			Signed:     signed, Enrolls: signed && (medium || minorOf(version) >= enrollingMinor), Medium: medium,
		})
	}
	return img
}

func (f *Factory) postSchematic(rw http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, 1<<20))
	if err != nil {
		httpservice.RefuseText(rw, http.StatusBadRequest, err.Error())
		return
	}
	s, err := parseSchematic(text)
	if err != nil {
		httpservice.RefuseText(rw, http.StatusBadRequest, err.Error())
		return
	}
	id, err := f.storeSchematic(s)
	if err != nil {
		httpservice.RefuseText(rw, http.StatusInternalServerError, "internal server error")
		return
	}
	f.mu.Lock()
	canonical := string(f.schematics[id].text)
	f.mu.Unlock()
	httpservice.WriteJSON(rw, http.StatusCreated, map[string]string{"id": id, "schematic": canonical})
}

func (f *Factory) getSchematic(rw http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	s, ok := f.schematics[r.PathValue("schematic")]
	f.mu.Unlock()
	if !ok {
		httpservice.RefuseText(rw, http.StatusNotFound, "schematic not found")
		return
	}
	rw.Header().Set("Content-Type", "application/yaml")
	_, _ = rw.Write(s.text)
}

func (f *Factory) listVersions(rw http.ResponseWriter, r *http.Request) {
	list := f.versions
	if len(list) == 0 {
		list = listedVersions
	}
	if r.URL.Query().Get("broken") == "true" {
		list = []string{}
	}
	httpservice.WriteJSON(rw, http.StatusOK, list)
}

// hasExtension reports whether a version has an official extension.
func (f *Factory) hasExtension(version, name string) bool {
	return extensionName.MatchString(name) && !slices.Contains(f.missing[version], name)
}

// knownExtensions are the listed extensions, and those that schematics have, by name.
func (f *Factory) knownExtensions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := slices.Clone(listedExtensions)
	for _, s := range f.schematics {
		names = append(names, s.doc.Customization.SystemExtensions.OfficialExtensions...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// refuseExtensions is why nothing is built of a schematic for a version: which of its extensions
// that version lacks; "": none.
func (f *Factory) refuseExtensions(s schematic, version string) string {
	for _, name := range s.Customization.SystemExtensions.OfficialExtensions {
		if !f.hasExtension(version, name) {
			return fmt.Sprintf("error enhancing profile from schematic: official extension %q is not available for Talos version %s", name, version)
		}
	}
	return ""
}

func (f *Factory) listExtensions(rw http.ResponseWriter, r *http.Request) {
	version, status, words := f.checkVersion(r.PathValue("version"))
	if status != 0 {
		httpservice.RefuseText(rw, status, words)
		return
	}
	type extension struct {
		Name        string `json:"name"`
		Ref         string `json:"ref"`
		Digest      string `json:"digest"`
		Author      string `json:"author"`
		Description string `json:"description"`
	}
	list := []extension{}
	for _, name := range f.knownExtensions() {
		if !f.hasExtension(version, name) {
			continue
		}
		ref := fmt.Sprintf("ghcr.io/%s:%s", name, version)
		sum := sha256.Sum256([]byte(ref))
		list = append(list, extension{
			Name: name, Ref: ref, Digest: "sha256:" + hex.EncodeToString(sum[:]),
			Author: "talos-agent lab", Description: "simulated " + name,
		})
	}
	httpservice.WriteJSON(rw, http.StatusOK, list)
}

var semver = pattern.New(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// checkVersion checks a version; the leading v may be missing. The real factory
// answers 500 to what is no version and 404 to one it does not build.
func (f *Factory) checkVersion(v string) (version string, status int, words string) {
	if !strings.HasPrefix(v, "v") {
		v = "v" + v
	}
	switch {
	case !semver.MatchString(v):
		return "", http.StatusInternalServerError, "internal server error"
	case !f.buildsVersion(v):
		return "", http.StatusNotFound, fmt.Sprintf("version %s is not available", v[1:])
	}
	return v, 0, ""
}

// buildsVersion reports whether a version is one of those that are built.
func (f *Factory) buildsVersion(v string) bool {
	if len(f.versions) > 0 {
		return slices.Contains(f.versions, v)
	}
	minor := minorOf(v)
	return minor >= oldestMinor && minor <= newestMinor
}

// minorOf is the minor of a version of Talos 1, 13 of v1.13.9; -1 of what is none.
func minorOf(v string) int {
	var minor, patch int
	if _, err := fmt.Sscanf(v, "v1.%d.%d", &minor, &patch); err != nil {
		return -1
	}
	return minor
}

// findInstaller returns the Talos in an installer image, which is built from what a disk image is
// built from.
func (f *Factory) findInstaller(schematic, version string) (world.Image, bool) {
	f.mu.Lock()
	s, known := f.schematics[schematic]
	f.mu.Unlock()
	if !known || !f.buildsVersion(version) || f.refuseExtensions(s.doc, version) != "" {
		return world.Image{}, false
	}
	return world.Image{Version: version, Schematic: schematic, Extensions: slices.Clone(s.doc.Customization.SystemExtensions.OfficialExtensions)}, true
}

func (f *Factory) getImage(rw http.ResponseWriter, r *http.Request) {
	id, asset := r.PathValue("schematic"), r.PathValue("path")
	for _, suffix := range []string{".sha256", ".sha512", ".sigstore.json"} {
		if strings.HasSuffix(asset, suffix) {
			httpservice.RefuseText(rw, http.StatusPaymentRequired, "enterprise not enabled: checksum endpoint is not available")
			return
		}
	}
	f.mu.Lock()
	s, known := f.schematics[id]
	corrupt := f.corrupt
	f.mu.Unlock()
	if !known {
		httpservice.RefuseText(rw, http.StatusNotFound, fmt.Sprintf("schematic ID %q not found", id))
		return
	}
	version, status, words := f.checkVersion(r.PathValue("version"))
	if status != 0 {
		httpservice.RefuseText(rw, status, words)
		return
	}
	if assets[asset] == "" {
		httpservice.RefuseText(rw, http.StatusNotImplemented, "the lab's factory builds "+strings.Join(slices.Sorted(maps.Keys(assets)), ", ")+" only")
		return
	}
	if why := f.refuseExtensions(s.doc, version); why != "" {
		httpservice.RefuseText(rw, http.StatusBadRequest, why)
		return
	}
	if corrupt {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.Header().Set("Content-Length", "9")
		_, _ = io.WriteString(rw, "not found")
		return
	}
	f.mu.Lock()
	img := f.ensureImage(version, id, asset, s.doc)
	f.mu.Unlock()
	f.sendImage(rw, r, version, id, img)
}

// sendImage drips the image over Latency.Download. A lost reply breaks in the
// middle of the body; an agent that dies after the call has all but the last
// byte.
func (f *Factory) sendImage(rw http.ResponseWriter, r *http.Request, version, id string, img []byte) {
	asset := r.PathValue("path")
	d := &drip{
		ResponseWriter: rw,
		size:           int64(len(img)),
		whole:          f.world.Latency.Download,
		sleep:          func(d time.Duration) error { return f.world.Sleep(r.Context(), d) },
	}
	switch world.VerdictOf(r.Context()).Fault.Kind {
	case world.LoseReply:
		d.ResponseWriter = writerOf(r.Context())
		d.through = func(length int64) int64 { return length / 2 }
	case world.CrashAfter:
		d.ResponseWriter = writerOf(r.Context())
		d.through = func(length int64) int64 { return length - 1 }
	}
	d.Header().Set("Content-Type", assets[asset])
	d.Header().Set("Content-Disposition", `attachment; filename="`+asset+`"`)
	// The zero time leaves Last-Modified out, as the real factory does.
	http.ServeContent(d, r, asset, time.Time{}, bytes.NewReader(img))
	if r.Method != http.MethodGet {
		return
	}
	all := d.sent == d.bodyLength()
	f.mu.Lock()
	f.downloads = append(f.downloads, Download{Schematic: id, Version: version, Bytes: d.sent, Whole: all})
	f.mu.Unlock()
	if all {
		f.world.Spend("download", fileName(version, id, asset), d.spent)
		f.world.Report("factory", "sent the image of Talos %s with schematic %.12s", version, id)
	}
}

// mediaIndex is the media type of an OCI image index.
const mediaIndex = "application/vnd.oci.image.index.v1+json"

var installerName = pattern.New(`^([a-z-]+-)?installer(-secureboot)?$`)

// getInstaller answers whether an installer image can be pulled, for who checks before an upgrade.
// As the real factory it builds the image first, so what is refused is what is refused of a disk image.
func (f *Factory) getInstaller(rw http.ResponseWriter, r *http.Request) {
	id := r.PathValue("schematic")
	f.mu.Lock()
	s, known := f.schematics[id]
	f.mu.Unlock()
	switch {
	case !installerName.MatchString(r.PathValue("installer")):
		httpservice.RefuseText(rw, http.StatusNotFound, "route not registered")
		return
	case !known:
		httpservice.RefuseText(rw, http.StatusNotFound, fmt.Sprintf("schematic ID %q not found", id))
		return
	}
	version, status, words := f.checkVersion(r.PathValue("reference"))
	if status != 0 {
		httpservice.RefuseText(rw, status, words)
		return
	}
	if why := f.refuseExtensions(s.doc, version); why != "" {
		httpservice.RefuseText(rw, http.StatusBadRequest, why)
		return
	}
	body, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": mediaIndex, "manifests": []any{},
		"annotations": map[string]string{"org.opencontainers.image.version": version, "dev.siderolabs.schematic": id},
	})
	if err != nil {
		httpservice.RefuseText(rw, http.StatusInternalServerError, "internal server error")
		return
	}
	httpservice.WriteBlob(rw, r, mediaIndex, body)
}
