package factory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	labfactory "github.com/talos-agent/talos-agent/internal/lab/factory"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is the lab's factory and ours as its client, in virtual time.
type bench struct {
	*testing.T
	world *world.World
	lab   *labfactory.Factory
	dir   string
	f     *Factory
}

// inLab runs a test against the lab's factory in a bubble of virtual time.
func inLab(t *testing.T, test func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := world.New(world.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		lab, err := labfactory.New(labfactory.Config{
			Service: httpservice.Config{World: w, Addr: "factory.lab:443"},
			Missing: map[string][]string{"v1.14.1": {"siderolabs/zfs"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := lab.Close(); err != nil {
				t.Error(err)
			}
		}()
		b := &bench{T: t, world: w, lab: lab, dir: filepath.Join(t.TempDir(), "images")}
		b.f = b.open()
		test(b)
	})
}

// open makes a client, as a restart of the agent does.
func (b *bench) open() *Factory {
	b.Helper()
	f, err := New(Config{URL: b.lab.URL(), CacheDir: b.dir, CA: b.world.PKI.PEM, Dial: b.world.Net.DialContext})
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// image registers a schematic and names its image.
func (b *bench) image(version string, extensions ...string) cluster.Image {
	b.Helper()
	id, err := b.f.Schematic(b.Context(), cluster.Schematic{Extensions: extensions})
	if err != nil {
		b.Fatal(err)
	}
	return cluster.Spec{}.NewImage(version, id)
}

// TestDownloadForSecureBoot: the image that is signed is another one than the plain one of the same schematic, in the cache as well.
func TestDownloadForSecureBoot(t *testing.T) {
	inLab(t, func(b *bench) {
		plain := b.image("v1.14.1", "siderolabs/iscsi-tools")
		signed := cluster.Spec{SecureBoot: true}.NewImage(plain.Version, plain.Schematic)
		if !strings.HasSuffix(signed.Name, "-nocloud-amd64-secureboot.qcow2") {
			t.Errorf("it is called %s", signed.Name)
		}
		pins := map[string]cluster.ImagePin{}
		for _, img := range []cluster.Image{plain, signed} {
			pin, err := b.f.Download(b.Context(), img, nil)
			if err != nil {
				t.Fatal(err)
			}
			if pins[img.Name] = pin; !b.f.Cached(img, pin) {
				t.Errorf("%s is not in the cache", img.Name)
			}
			if known, ok := b.world.ImageOf(pin.SHA256); !ok || known.Signed != img.SecureBoot || known.Version != img.Version {
				t.Errorf("%s is %+v", img.Name, known)
			}
		}
		if pins[plain.Name].SHA256 == pins[signed.Name].SHA256 {
			t.Error("both are the same")
		}
		for _, mixed := range []cluster.Image{{Name: plain.Name, Version: plain.Version, Schematic: plain.Schematic, SecureBoot: true}, {Name: signed.Name, Version: plain.Version, Schematic: plain.Schematic}} {
			if _, err := b.f.Download(b.Context(), mixed, nil); err == nil {
				t.Errorf("%+v was downloaded", mixed)
			}
		}
		removed, err := b.f.Prune([]string{plain.Name})
		if err != nil || !slices.Equal(removed, []string{signed.Name}) {
			t.Errorf("pruned %v, %v", removed, err)
		}
	})
}

func (b *bench) files() []string {
	b.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// asked counts the calls the factory got for an operation.
func (b *bench) asked(op string) int {
	return b.world.CountCalls(func(c world.CallRecord) bool { return c.System == "factory" && strings.Contains(c.Op, op) })
}

// mustFail checks an error's words, its hint and whether it is transient.
func mustFail(t testing.TB, err error, transient bool, words, hint string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v", err)
	}
	if !strings.Contains(e.Error(), words) || strings.Contains(err.Error(), "\n") || e.Transient() != transient || !strings.Contains(fault.HintOf(e), hint) || fault.HintOf(e) == "" {
		t.Errorf("error is %q (hint %q, transient %v),\nwant it to hold %q, %q, %v", err, fault.HintOf(e), e.Transient(), words, hint, transient)
	}
}

func TestDownload(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9", "siderolabs/util-linux-tools", "siderolabs/iscsi-tools")
		if b.f.Cached(img, cluster.ImagePin{}) {
			t.Error("an image is there before it was downloaded")
		}
		if _, _, err := b.f.Open(img); err == nil {
			t.Error("an image opens before it was downloaded")
		}
		var dones []int64
		var total int64
		start := time.Now()
		pin, err := b.f.Download(b.Context(), img, func(done, of int64) { dones, total = append(dones, done), of })
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < b.world.Latency.Download {
			t.Errorf("it took %v", took)
		}
		want, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(want)
		if pin != (cluster.ImagePin{Schematic: img.Schematic, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(want))}) {
			t.Errorf("pin is %+v", pin)
		}
		if len(dones) < 10 || !slices.IsSorted(dones) || dones[len(dones)-1] != pin.Bytes || total != pin.Bytes {
			t.Errorf("progress is %v of %d", dones, total)
		}

		for name, f := range map[string]*Factory{"the same": b.f, "after a restart": b.open()} {
			if !f.Cached(img, pin) || !f.Cached(img, cluster.ImagePin{}) {
				t.Errorf("%s: the image is not there", name)
			}
			if f.Cached(img, cluster.ImagePin{SHA256: strings.Repeat("0", 64), Bytes: pin.Bytes}) {
				t.Errorf("%s: another image is there", name)
			}
			r, size, err := f.Open(img)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := io.ReadAll(r)
			if err != nil || size != pin.Bytes || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, declared as %d (%v)", name, len(got), size, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			again, err := f.Download(b.Context(), img, nil)
			if err != nil || again != pin {
				t.Errorf("%s: again it is %+v (%v)", name, again, err)
			}
		}
		if n := b.asked("/image/"); n != 1 {
			t.Errorf("the factory was asked for the image %d times", n)
		}
		if got := b.files(); !slices.Equal(got, []string{img.Name, img.Name + ".json"}) {
			t.Errorf("the cache holds %v", got)
		}
		for _, name := range b.files() {
			if info, err := os.Stat(filepath.Join(b.dir, name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v (%v)", name, info.Mode(), err)
			}
		}
		if info, err := os.Stat(b.dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the cache has mode %v (%v)", info.Mode(), err)
		}
	})
}

func TestOneDownloadForAll(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		type outcome struct {
			pin cluster.ImagePin
			err error
		}
		outcomes := make(chan outcome)
		for range 5 {
			go func() {
				pin, err := b.f.Download(b.Context(), img, nil)
				outcomes <- outcome{pin, err}
			}()
		}
		first := <-outcomes
		for range 4 {
			if o := <-outcomes; o != first || o.err != nil {
				t.Errorf("%+v and %+v", first, o)
			}
		}
		if n := b.asked("/image/"); n != 1 {
			t.Errorf("the factory was asked for the image %d times", n)
		}
	})
}

func TestSchematic(t *testing.T) {
	inLab(t, func(b *bench) {
		ctx := b.Context()
		one, err := b.f.Schematic(ctx, cluster.Schematic{Extensions: []string{"siderolabs/iscsi-tools", "siderolabs/util-linux-tools"}})
		if err != nil {
			t.Fatal(err)
		}
		// What the public factory answers for this schematic.
		if want := "613e1592b2da41ae5e265e8789429f22e121aab91cb4deb6bc3c0b6262961245"; one != want {
			t.Errorf("id is %s, want %s", one, want)
		}
		other, err := b.f.Schematic(ctx, cluster.Schematic{Extensions: []string{"siderolabs/util-linux-tools", "siderolabs/iscsi-tools"}})
		if err != nil || other != one {
			t.Errorf("in another order it is %s (%v)", other, err)
		}
		if id, err := b.f.Schematic(ctx, cluster.Schematic{}); err != nil || id != vanilla {
			t.Errorf("nothing has the id %s (%v)", id, err)
		}
		args := cluster.Schematic{ExtraKernelArgs: []string{"noapic", "nolapic"}}
		if id, err := b.f.Schematic(ctx, args); err != nil || id != "9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c" {
			t.Errorf("kernel arguments have the id %s (%v)", id, err)
		}
		before := b.asked("/schematics")
		if _, err := b.f.Schematic(ctx, args); err != nil {
			t.Error(err)
		}
		if n := b.asked("/schematics"); n != before {
			t.Error("the same question was asked twice")
		}
		odd := cluster.Schematic{ExtraKernelArgs: []string{"a=\"b: {c}\" & <d> 'e' \\ \u00e4 # f"}}
		id, err := b.f.Schematic(ctx, odd)
		if err != nil {
			t.Fatal(err)
		}
		if doc := b.lab.Schematics()[id]; !strings.Contains(doc, `a="b: {c}" & <d> ''e'' \ ä # f`) {
			t.Errorf("the factory has %q", doc)
		}
	})
}

func TestFactoryFaults(t *testing.T) {
	inLab(t, func(b *bench) {
		ctx := b.Context()
		img := b.image("v1.13.9")
		empty := func(what string) {
			t.Helper()
			if got := b.files(); len(got) > 0 {
				t.Errorf("%s: the cache holds %v", what, got)
			}
		}
		try := func(kind world.FaultKind, status int) error {
			t.Helper()
			b.world.Inject(world.Fault{System: "factory", Kind: kind, Status: status, Text: "out\x07 of\n order"})
			defer b.world.Heal()
			_, err := b.f.Download(ctx, img, nil)
			empty(string(kind))
			return err
		}
		mustFail(t, try(world.Answer, 503), true, "the factory answers 503: out of order", "asked again")
		mustFail(t, try(world.Answer, 429), true, "the factory answers 429", "asked again")
		mustFail(t, try(world.Answer, 401), false, "the factory answers 401", "credentials")
		err := try(world.LoseReply, 0)
		mustFail(t, err, true, " of 196608 bytes", "tried again")
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the cause is %v", errors.Unwrap(err))
		}
		mustFail(t, try(world.LoseRequest, 0), true, "ask factory.lab", b.dir)

		b.lab.Corrupt(true)
		_, err = b.f.Download(ctx, img, nil)
		mustFail(t, err, true, `the answer is not an image of Talos: it begins with "not found"`, "curl https://factory.lab/versions")
		b.lab.Corrupt(false)
		empty("a page")

		_, err = b.f.Download(ctx, b.image("v1.14.1", "siderolabs/zfs"), nil)
		mustFail(t, err, false, `official extension "siderolabs/zfs" is not available for Talos version v1.14.1`, "talos.schematic.extensions")
		_, err = b.f.Download(ctx, b.image("v1.15.0"), nil)
		mustFail(t, err, false, "version 1.15.0 is not available", "talos_version")
		lost := strings.Repeat("ab", 32)
		_, err = b.f.Download(ctx, cluster.Spec{}.NewImage("v1.13.9", lost), nil)
		mustFail(t, err, false, "not found", "registered there again")
		if !errors.Is(err, ErrUnknownSchematic) {
			t.Errorf("the cause is %v", errors.Unwrap(err))
		}
		empty("refusals")

		if _, err := b.f.Download(ctx, img, nil); err != nil {
			t.Errorf("when all is well again: %v", err)
		}
	})
}

// TestDownloadGoesOn: a connection that breaks in the middle of an image costs what had
// not come, and not the whole.
func TestDownloadGoesOn(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		whole, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		b.world.Inject(world.Fault{System: "factory", Kind: world.LoseReply, Times: 2})
		defer b.world.Heal()
		var last int64
		pin, err := b.f.Download(b.Context(), img, func(done, total int64) {
			if done < last || total > 0 && total != int64(len(whole)) {
				t.Errorf("%d of %d bytes after %d", done, total, last)
			}
			last = done
		})
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(whole)
		if pin.SHA256 != hex.EncodeToString(sum[:]) || pin.Bytes != int64(len(whole)) {
			t.Errorf("%+v", pin)
		}
		var sent int64
		for _, d := range b.lab.Downloads() {
			sent += d.Bytes
		}
		if n := len(b.lab.Downloads()); n != 3 || sent > int64(len(whole))+3*overlap {
			t.Errorf("%d connections, %d bytes sent of an image of %d", n, sent, len(whole))
		}
	})
}

// TestDownloadOfAnotherImage: what comes after a break must continue what came before.
func TestDownloadOfAnotherImage(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		whole, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		other := slices.Clone(whole)
		other[len(other)/2-1] ^= 1
		var answer http.HandlerFunc
		f := b.serve(func(w http.ResponseWriter, r *http.Request) { answer(w, r) })
		for name, second := range map[string]http.HandlerFunc{
			"built anew": func(w http.ResponseWriter, r *http.Request) {
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(whole))
			},
			"no parts": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
				_, _ = w.Write(whole)
			},
			"another size": func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
					return
				}
				_, _ = w.Write(whole)
			},
			"another part": func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-9/%d", len(whole)))
					w.WriteHeader(http.StatusPartialContent)
					return
				}
				_, _ = w.Write(whole)
			},
		} {
			asked := 0
			answer = func(w http.ResponseWriter, r *http.Request) {
				if asked++; asked > 1 {
					second(w, r)
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(other)))
				_, _ = w.Write(other[:len(other)/2])
				panic(http.ErrAbortHandler)
			}
			pin, err := f.Download(b.Context(), img, nil)
			sum := sha256.Sum256(whole)
			if err != nil || pin.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("%s: %+v, %v", name, pin, err)
			}
			if err := os.Remove(filepath.Join(f.dir, img.Name)); err != nil {
				t.Error(err)
			}
		}
	})
}

// A factory that was set up again gets the schematic once more.
func TestForgottenSchematic(t *testing.T) {
	inLab(t, func(b *bench) {
		s := cluster.Schematic{Extensions: []string{"siderolabs/zfs"}}
		id, err := b.f.Schematic(b.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		b.world.Inject(world.Fault{System: "factory", Op: "GET /image/{schematic}/{version}/{path}", Kind: world.Answer, Status: 404, Text: "schematic ID \"x\" not found", Times: 1})
		img := cluster.Spec{}.NewImage("v1.13.9", id)
		if _, err := b.f.Download(b.Context(), img, nil); !errors.Is(err, ErrUnknownSchematic) {
			t.Fatal(err)
		}
		before := b.asked("/schematics")
		if again, err := b.f.Schematic(b.Context(), s); err != nil || again != id || b.asked("/schematics") != before+1 {
			t.Errorf("id is %s (%v), asked %d times", again, err, b.asked("/schematics")-before)
		}
	})
}

func TestCancel(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		_, err := b.f.Download(ctx, img, nil)
		var e *Error
		if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) {
			t.Errorf("error is %v", err)
		}
		if got := b.files(); len(got) > 0 {
			t.Errorf("the cache holds %v", got)
		}

		// One waits for the other's download and gives up.
		go func() { _, _ = b.f.Download(b.Context(), img, nil) }()
		synctest.Wait()
		ctx, cancel = context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if _, err := b.f.Download(ctx, img, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		time.Sleep(time.Hour) // until the other one is done
	})
}

func TestOffline(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		bytes, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.lab.Close(); err != nil {
			t.Fatal(err)
		}
		f := b.open()
		_, err = f.Schematic(b.Context(), cluster.Schematic{Extensions: []string{"siderolabs/zfs"}})
		mustFail(t, err, true, "register schematic: ask factory.lab: ", "factory.lab")
		if id, err := f.Schematic(b.Context(), cluster.Schematic{}); err != nil || id != vanilla {
			t.Errorf("nothing has the id %s (%v)", id, err)
		}
		_, err = f.Download(b.Context(), img, nil)
		mustFail(t, err, true, "ask factory.lab", "put the image into "+b.dir)

		if err := os.WriteFile(filepath.Join(b.dir, img.Name), bytes, 0o644); err != nil {
			t.Fatal(err)
		}
		if f.Cached(img, cluster.ImagePin{}) {
			t.Error("an unverified image counts as verified")
		}
		sum := sha256.Sum256(bytes)
		want := cluster.ImagePin{Schematic: img.Schematic, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(bytes))}
		if !f.Cached(img, want) {
			t.Error("the image of the pin is not taken")
		}
		if pin, err := b.open().Download(b.Context(), img, nil); err != nil || pin != want {
			t.Errorf("the image put there is %+v (%v)", pin, err)
		}
	})
}

func TestImagesPutIntoTheCache(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		good, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(b.dir, img.Name)
		for name, c := range map[string]struct {
			put        func() error
			words, tip string
		}{
			"a page":   {func() error { return os.WriteFile(path, []byte("not found"), 0o600) }, "it is not a qcow2 image", "remove the file"},
			"a part":   {func() error { return os.WriteFile(path, good[:len(good)-1<<15], 0o600) }, "cut off", "remove the file"},
			"nothing":  {func() error { return os.WriteFile(path, nil, 0o600) }, "it is not a qcow2 image", "remove the file"},
			"a folder": {func() error { return os.Mkdir(path, 0o700) }, "not a regular file", "itself"},
			"a link":   {func() error { return os.Symlink("/etc/passwd", path) }, "not a regular file", "itself"},
		} {
			if err := c.put(); err != nil {
				t.Fatal(err)
			}
			if b.f.Cached(img, cluster.ImagePin{}) || b.f.Cached(img, cluster.ImagePin{SHA256: strings.Repeat("0", 64), Bytes: int64(len(good))}) {
				t.Errorf("%s counts as an image", name)
			}
			_, err := b.f.Download(b.Context(), img, nil)
			mustFail(t, err, false, c.words, c.tip)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if n := b.asked("/image/"); n != 0 {
			t.Errorf("the factory was asked for the image %d times", n)
		}
	})
}

// What we downloaded is not used any more when it is not what it was.
func TestChangedImage(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		pin, err := b.f.Download(b.Context(), img, nil)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(b.dir, img.Name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// Touched and the same: read once, then known again.
		if err := os.Chtimes(path, testTime, testTime); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.f.Open(img); err == nil {
			t.Error("a touched image opens unseen")
		}
		if b.f.Cached(img, cluster.ImagePin{}) {
			t.Error("a touched image is there without a pin")
		}
		if !b.f.Cached(img, pin) || !b.f.Cached(img, cluster.ImagePin{}) {
			t.Error("the same image is not there")
		}
		// Changed, though an image still.
		changed := bytes.Clone(whole)
		changed[len(changed)-1] ^= 1
		for _, f := range []*Factory{b.f, b.open()} {
			if err := os.WriteFile(path, changed, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, testTime.Add(time.Hour), testTime.Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			if f.Cached(img, pin) || f.Cached(img, cluster.ImagePin{}) {
				t.Error("a changed image is there")
			}
			if _, _, err := f.Open(img); err == nil {
				t.Error("a changed image opens")
			}
			before := b.asked("/image/")
			if again, err := f.Download(b.Context(), img, nil); err != nil || again != pin || b.asked("/image/") != before+1 {
				t.Errorf("downloaded again it is %+v (%v)", again, err)
			}
			if !f.Cached(img, pin) {
				t.Error("the image is not there")
			}
		}
	})
}

var testTime = time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)

func TestPrune(t *testing.T) {
	inLab(t, func(b *bench) {
		old, now, mine := b.image("v1.13.8"), b.image("v1.13.9"), b.image("v1.14.1")
		for _, img := range []cluster.Image{old, now} {
			if _, err := b.f.Download(b.Context(), img, nil); err != nil {
				t.Fatal(err)
			}
		}
		whole, err := b.lab.Image(mine.Version, mine.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.dir, mine.Name), whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.f.Download(b.Context(), mine, nil); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"README", "talos-v1.13.8-nocloud-amd64.iso"} {
			if err := os.WriteFile(filepath.Join(b.dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		removed, err := b.f.Prune([]string{now.Name})
		if err != nil || !slices.Equal(removed, []string{old.Name}) {
			t.Errorf("removed %v (%v)", removed, err)
		}
		want := []string{"README", now.Name, now.Name + ".json", mine.Name, mine.Name + ".json", "talos-v1.13.8-nocloud-amd64.iso"}
		slices.Sort(want)
		if got := b.files(); !slices.Equal(got, want) {
			t.Errorf("the cache holds %v, want %v", got, want)
		}
		if b.f.Cached(old, cluster.ImagePin{}) || !b.f.Cached(now, cluster.ImagePin{}) || !b.f.Cached(mine, cluster.ImagePin{}) {
			t.Error("what is cached is not what is there")
		}
	})
}

func TestLeftoversAreRemoved(t *testing.T) {
	inLab(t, func(b *bench) {
		for _, name := range []string{leftover + "talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2-123", "other"} {
			if err := os.WriteFile(filepath.Join(b.dir, name), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.open()
		if got := b.files(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("the cache holds %v", got)
		}
	})
}

func TestNoteThatCannotBeRead(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		pin, err := b.f.Download(b.Context(), img, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.dir, img.Name+".json"), []byte("{\"sha"), 0o600); err != nil {
			t.Fatal(err)
		}
		f := b.open()
		if f.Cached(img, cluster.ImagePin{}) {
			t.Error("verified without a note")
		}
		if !f.Cached(img, pin) {
			t.Error("the image of the pin is not taken")
		}
	})
}

func TestNoRoom(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		b.f.free = func(string) (int64, error) { return 100 << 20, nil }
		_, err := b.f.Download(b.Context(), img, nil)
		mustFail(t, err, false, "100 MiB are: the disk of "+b.dir+" is full", "cache_dir")
		b.f.free = func(string) (int64, error) { return 0, errors.New("no such disk") }
		if _, err := b.f.Download(b.Context(), img, nil); err == nil || !strings.Contains(err.Error(), "no such disk") {
			t.Errorf("error is %v", err)
		}
		if got := b.files(); len(got) > 0 {
			t.Errorf("the cache holds %v", got)
		}
	})
}

func TestImagesThatAreNone(t *testing.T) {
	inLab(t, func(b *bench) {
		good := b.image("v1.13.9")
		for name, img := range map[string]cluster.Image{
			"nothing":           {},
			"another name":      {Name: "talos.qcow2", Version: good.Version, Schematic: good.Schematic},
			"a path":            cluster.Spec{}.NewImage("../x", good.Schematic),
			"a short schematic": cluster.Spec{}.NewImage("v1.13.9", "abc"),
			"another version":   {Name: good.Name, Version: "v1.13.8", Schematic: good.Schematic},
		} {
			if b.f.Cached(img, cluster.ImagePin{}) {
				t.Errorf("%s is there", name)
			}
			if _, err := b.f.Download(b.Context(), img, nil); err == nil {
				t.Errorf("%s was downloaded", name)
			}
			if _, _, err := b.f.Open(img); err == nil {
				t.Errorf("%s opened", name)
			}
		}
	})
}

func TestValidate(t *testing.T) {
	ok := Config{URL: "https://factory.talos.dev/", CacheDir: "/var/cache/talos-agent"}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for _, c := range []Config{
		{CacheDir: "/x"}, {URL: "factory.talos.dev", CacheDir: "/x"}, {URL: "ftp://x", CacheDir: "/x"}, {URL: "https://", CacheDir: "/x"},
		{URL: "https://me:s3cret@x", CacheDir: "/x"}, {URL: "https://x?token=s3cret", CacheDir: "/x"}, {URL: "https://x#s3cret", CacheDir: "/x"},
		{URL: "https://s3cret\x00", CacheDir: "/x"}, {URL: ok.URL}, {URL: ok.URL, CacheDir: "cache"}, {URL: ok.URL, CacheDir: "/x", CA: []byte("none")},
	} {
		f, err := New(c)
		if f != nil {
			t.Errorf("%+v was taken", c)
		}
		mustFail(t, err, false, "factory: ", "")
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a secret is shown: %v", err)
		}
	}
}

// serve is a factory of another kind, at http://other.lab in the bubble.
func (b *bench) serve(h http.HandlerFunc) *Factory {
	b.Helper()
	l, err := b.world.Net.Listen("other.lab:80")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: h}
	ended := make(chan error)
	go func() { ended <- s.Serve(l) }()
	b.Cleanup(func() {
		_ = s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	})
	f, err := New(Config{URL: "http://other.lab", CacheDir: filepath.Join(b.TempDir(), "x"), CA: b.world.PKI.PEM, Dial: b.world.Net.DialContext})
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func TestSilence(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		whole, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		var before, pause atomic.Int64
		f := b.serve(func(w http.ResponseWriter, r *http.Request) {
			before, pause := time.Duration(before.Load()), time.Duration(pause.Load())
			wait := func(d time.Duration) { _ = retry.Sleep(r.Context(), d) }
			wait(before)
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			for part := range slices.Chunk(whole, 16<<10) {
				if _, err := w.Write(part); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				wait(pause)
			}
		})
		for _, c := range []struct {
			before, pause time.Duration
			words         string
		}{
			{14 * time.Minute, 59 * time.Second, ""}, // slow, but alive
			{16 * time.Minute, 0, "nothing came from other.lab for 15m0s"},
			{0, 61 * time.Second, "nothing came from other.lab for 1m0s"},
		} {
			before.Store(int64(c.before))
			pause.Store(int64(c.pause))
			_, err := f.Download(b.Context(), img, nil)
			if c.words == "" {
				if err != nil {
					t.Errorf("slow as it is: %v", err)
				}
				if err := os.Remove(filepath.Join(f.dir, img.Name)); err != nil {
					t.Error(err)
				}
				continue
			}
			mustFail(t, err, true, c.words, "asked again")
			if entries, err := os.ReadDir(f.dir); err != nil || len(entries) > 1 {
				t.Errorf("the cache holds %v (%v)", entries, err)
			}
		}
	})
}

func TestOddAnswers(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		whole, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		var answer http.HandlerFunc
		f := b.serve(func(w http.ResponseWriter, r *http.Request) { answer(w, r) })
		write := func(body string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
		}
		for name, c := range map[string]struct {
			answer    http.HandlerFunc
			transient bool
			words     string
		}{
			"nothing":       {write(""), true, "it is empty"},
			"a login page":  {write("<!DOCTYPE html>\n<html>\n" + strings.Repeat("x", 1000)), true, `it begins with "<!DOCTYPE html> <html> xxx`},
			"a short image": {write(string(whole[:100<<10])), true, "what came is no whole Talos image: it is cut off"},
			"too much": {func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(int64(9)<<30))
				w.WriteHeader(http.StatusOK)
			}, false, "9216 MiB"},
			"a page with an error": {func(w http.ResponseWriter, r *http.Request) { http.Error(w, "<html>no</html>", http.StatusBadGateway) }, true, "502: Bad Gateway"},
			"a signed address that does not answer": {func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://nowhere.lab/x?X-Signature=s3cret", http.StatusFound)
			}, true, "ask other.lab: "},
			"a circle": {func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/again?token=s3cret", http.StatusFound)
			}, true, "redirects more than five times"},
		} {
			answer = c.answer
			_, err := f.Download(b.Context(), img, nil)
			mustFail(t, err, c.transient, c.words, "")
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: a token is shown: %v", name, err)
			}
			if entries, err := os.ReadDir(f.dir); err != nil || len(entries) > 0 {
				t.Errorf("%s: the cache holds %v (%v)", name, entries, err)
			}
		}

		// Without a length, and by way of an object storage, it is an image all
		// the same.
		answer = func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/storage") {
				http.Redirect(w, r, "/storage?X-Signature=s3cret", http.StatusFound)
				return
			}
			for part := range slices.Chunk(whole, 64<<10) {
				_, _ = w.Write(part)
				_ = http.NewResponseController(w).Flush()
			}
		}
		if pin, err := f.Download(b.Context(), img, nil); err != nil || pin.Bytes != int64(len(whole)) {
			t.Errorf("pin is %+v (%v)", pin, err)
		}

		for _, c := range []struct {
			answer    http.HandlerFunc
			transient bool
			words     string
		}{
			{write("<html>"), true, "is not that of an image factory"},
			{write(`{"id": "../../etc"}`), true, "is not that of an image factory"},
			{func(w http.ResponseWriter, r *http.Request) {
				http.Error(w, "yaml: unknown field", http.StatusBadRequest)
			}, false, "400: yaml: unknown field"},
		} {
			answer = c.answer
			_, err := f.Schematic(b.Context(), cluster.Schematic{ExtraKernelArgs: []string{"a"}})
			var e *Error
			if !errors.As(err, &e) || e.Transient() != c.transient || !strings.Contains(err.Error(), c.words) {
				t.Errorf("error is %v, want %s", err, c.words)
			}
		}
		// The plain schematic's id is known, whoever answers in the factory's
		// place.
		answer = write("<html>")
		if id, err := f.Schematic(b.Context(), cluster.Schematic{}); err != nil || id != vanilla {
			t.Errorf("id is %s (%v)", id, err)
		}
	})
}

func TestNoWayOutOfTLS(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		b.serve(func(w http.ResponseWriter, r *http.Request) { t.Error("asked without TLS") })
		f := b.f
		f.client.Transport = redirect{f.client.Transport}
		_, err := f.Download(b.Context(), img, nil)
		mustFail(t, err, true, "it redirects from https to http", "")
	})
}

// redirect sends everyone to the factory without TLS.
type redirect struct{ http.RoundTripper }

func (r redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {"http://other.lab/x"}}, Body: http.NoBody, Request: req}, nil
}

// Over real sockets, with the system's dialer.
func TestLoopback(t *testing.T) {
	w, err := world.New(world.Config{Speed: 1000, Network: world.Loopback{}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	lab, err := labfactory.New(labfactory.Config{Service: httpservice.Config{World: w, Addr: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lab.Close() }()
	f, err := New(Config{URL: lab.URL(), CacheDir: t.TempDir(), CA: w.PKI.PEM})
	if err != nil {
		t.Fatal(err)
	}
	id, err := f.Schematic(t.Context(), cluster.Schematic{Extensions: []string{"siderolabs/qemu-guest-agent"}})
	if err != nil {
		t.Fatal(err)
	}
	img := cluster.Spec{}.NewImage("v1.13.9", id)
	if _, err := f.Download(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	untrusting, err := New(Config{URL: lab.URL(), CacheDir: t.TempDir(), Dial: (&net.Dialer{}).DialContext})
	if err != nil {
		t.Fatal(err)
	}
	_, err = untrusting.Download(t.Context(), img, nil)
	mustFail(t, err, true, "signed by an authority that is not trusted here", "")
}

func TestSanitize(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "",
		"a\r\n\tb\x1b[31m c":                  "a b [31m c",
		strings.Repeat("\u00e4", 400):         strings.Repeat("\u00e4", 150) + "...",
		"x" + strings.Repeat("\u00e4", 400):   "x" + strings.Repeat("\u00e4", 149) + "...",
		"\xff\xfe bad bytes \u202e backwards": "bad bytes backwards",
	} {
		if got := sanitize(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	if !regexp.MustCompile(`^[ -~]*$`).MatchString(sanitize("plain ~ text")) {
		t.Error("plain text is not left alone")
	}
}
