package helm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

var ctx = context.Background()

// mustFail fails unless an error contains some words and its hint others.
func mustFail(t testing.TB, err error, words, hint string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("error is %v, want %q", err, words)
		return
	}
	if !strings.Contains(fault.HintOf(err), hint) {
		t.Errorf("%v: hint lacks %q", err, hint)
	}
}

// oci is an addon whose chart is in the registry.
func (b *bench) oci(name, chart, version string) cluster.Addon {
	a := b.addon(name, "apps", chart, version, nil)
	a.Chart = cluster.Chart{OCI: b.registry.Reference(chart), Name: chart, Version: version}
	return a
}

func TestFetchFromRepository(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.want(a)
		first, err := b.releaser.FetchChart(ctx, a, "")
		if err != nil || !hexDigest.MatchString(first) {
			b.Fatalf("%s, %v", first, err)
		}
		if o := b.look(); o.Charts["web"].Known {
			b.Error("a chart without a pin is taken for the wanted one")
		}
		b.facts.Charts[a.Chart.Ref()] = first
		o := b.look()
		if c := o.Charts["web"]; !c.Known || c.Value.Digest != first || len(c.Value.Release) != 16 {
			b.Errorf("the chart is %+v", c)
		}
		b.calls("charts")
		if again, err := b.releaser.FetchChart(ctx, a, first); err != nil || again != first {
			b.Errorf("again: %s, %v", again, err)
		}
		// The pin of the inventory comes before that of the journal.
		a.Chart.Digest = strings.Repeat("0", 64)
		b.want(a)
		if o := b.look(); o.Charts["web"].Known {
			b.Error("a chart with another pin is taken for the wanted one")
		}
		a.Chart.Digest = strings.ToUpper(first)
		b.want(a)
		if o := b.look(); !o.Charts["web"].Known {
			b.Error("the case of a digest counts")
		}
		if calls := b.calls("charts"); len(calls) != 0 {
			b.Errorf("calls for what is in the cache: %v", calls)
		}

		_, err = b.releaser.FetchChart(ctx, a, "sha1:abc")
		mustFail(b, err, "pinned digest is no SHA-256", "64 hex digits")
		other := mustPack(b, map[string]string{"Chart.yaml": "apiVersion: v2\nname: podinfo\nversion: 6.9.0\n", "README": "changed"})
		b.charts.Publish(other)
		fresh := b.addon("web", "apps", "podinfo", "6.9.0", nil)
		b.releaser.cache.dir = b.TempDir()
		_, err = b.releaser.FetchChart(ctx, fresh, first)
		mustFail(b, err, "what came has sha256 "+other.Digest()+", and "+first+" is pinned", "addons/web.yaml")
		if names := filesIn(b, b.releaser.cache.dir); len(names) != 0 {
			b.Errorf("what is not the pinned chart is kept: %v", names)
		}

		_, err = b.releaser.FetchChart(ctx, b.addon("x", "apps", "nothing", "1.0.0", nil), "")
		mustFail(b, err, "has no chart nothing", "name")
		_, err = b.releaser.FetchChart(ctx, b.addon("x", "apps", "podinfo", "9.9.9", nil), "")
		mustFail(b, err, "has no version 9.9.9 of chart podinfo", "choose a version it has: 6.9.0, 6.9.1")
	})
}

func filesIn(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
		names = append(names, e.Name())
	}
	return names
}

func TestFetchFromRegistry(t *testing.T) {
	bubble(t, func(b *bench) {
		a := b.oci("web", "podinfo", "6.9.0")
		b.want(a)
		pin, err := b.registry.ManifestDigest("podinfo", "6.9.0")
		if err != nil {
			b.Fatal(err)
		}
		digest, err := b.releaser.FetchChart(ctx, a, "")
		if err != nil || digest != pin {
			b.Fatalf("%s, %v, want %s", digest, err, pin)
		}
		b.facts.Charts[a.Chart.Ref()] = digest
		b.calls("registry")
		if c := b.look().Charts["web"]; !c.Known || c.Value.Digest != pin {
			b.Errorf("the chart is %+v", c)
		}
		if again, err := b.releaser.FetchChart(ctx, a, pin); err != nil || again != pin || len(b.calls("registry")) != 0 {
			b.Errorf("again: %s, %v", again, err)
		}
		if names := filesIn(b, b.releaser.cache.dir); len(names) != 2 {
			b.Errorf("the cache holds %v", names)
		}

		// The tag moves: who pinned the chart does not get another.
		b.releaser.cache.dir = b.TempDir()
		b.registry.Publish(mustPack(b, map[string]string{"Chart.yaml": "apiVersion: v2\nname: podinfo\nversion: 6.9.0\n"}))
		_, err = b.releaser.FetchChart(ctx, a, pin)
		mustFail(b, err, "has no manifest "+pin+" any more", "new digest")
		if moved, err := b.releaser.FetchChart(ctx, a, ""); err != nil || moved == pin {
			b.Errorf("without a pin: %s, %v", moved, err)
		}
		_, err = b.releaser.FetchChart(ctx, b.oci("web", "podinfo", "1.1.1"), "")
		mustFail(b, err, "404", "version")
		_, err = b.releaser.FetchChart(ctx, b.oci("web", "nothing", "1.1.1"), "")
		mustFail(b, err, "404", "")
		bad := b.oci("web", "podinfo", "6.9.0")
		bad.Chart.OCI = "https://registry.lab/charts/podinfo"
		_, err = b.releaser.FetchChart(ctx, bad, "")
		mustFail(b, err, "is no place in an OCI registry", "oci://")
	})
}

func TestArchiveIn(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	config := `"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json"},`
	for _, c := range []struct{ manifest, words string }{
		{`{` + config + `"layers":[{"mediaType":"application/vnd.cncf.helm.chart.provenance.v1.prov"},{"mediaType":"application/tar+gzip","digest":"` + digest + `"}]}`, ""},
		{`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json"}}`, "no Helm chart"},
		{`<html>`, "no Helm chart"},
		{`{` + config + `"layers":[]}`, "names no archive"},
		{`{` + config + `"layers":[{"mediaType":"application/tar+gzip","digest":"sha512:00"}]}`, "something else than a SHA-256"},
		{`{` + config + `"layers":[{"mediaType":"application/tar+gzip","size":99999999999,"digest":"` + digest + `"}]}`, "larger than 10 MiB"},
	} {
		hex, err := archiveIn([]byte(c.manifest))
		if c.words == "" && (err != nil || hex != strings.Repeat("a", 64)) {
			t.Errorf("%s: %s, %v", c.manifest, hex, err)
		}
		if c.words != "" {
			mustFail(t, err, c.words, "")
		}
	}
}

func FuzzArchiveIn(f *testing.F) {
	f.Add([]byte(`{"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json"},"layers":[{"mediaType":"application/tar+gzip","digest":"sha256:00"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if hex, err := archiveIn(b); err == nil && !hexDigest.MatchString(hex) {
			t.Errorf("%q", hex)
		}
	})
}

// TestFetchOverFaults: whatever goes wrong with one call, the error has words,
// nothing broken is kept, and the next try succeeds.
func TestFetchOverFaults(t *testing.T) {
	for _, fault := range []world.Fault{
		{Kind: world.LoseRequest}, {Kind: world.LoseReply}, {Kind: world.Answer, Status: 503, Text: "busy"}, {Kind: world.Answer, Status: 401, Text: "who are you"},
		{Kind: world.Answer, Status: 500, Text: "<html>oh</html>"}, {Kind: world.Slow, Delay: time.Hour},
	} {
		for _, op := range []string{"GET /index.yaml", "GET /{archive}", "GET /v2/charts/{chart}/manifests/{reference}", "GET /v2/charts/{chart}/blobs/{digest}"} {
			t.Run(fmt.Sprintf("%s %d %s", fault.Kind, fault.Status, strings.ReplaceAll(op, "/", "_")), func(t *testing.T) {
				bubble(t, func(b *bench) {
					a := b.addon("web", "apps", "podinfo", "6.9.0", nil)
					if strings.Contains(op, "/v2/") {
						a = b.oci("web", "podinfo", "6.9.0")
					}
					fault := fault
					fault.Op, fault.Nth = op, 1
					b.world.Inject(fault)
					began := time.Now()
					_, err := b.releaser.FetchChart(ctx, a, "")
					if err == nil || !strings.HasPrefix(err.Error(), "fetch chart "+a.Chart.Ref()+": ") || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "<html") {
						b.Errorf("error is %v", err)
					}
					if took := time.Since(began); took > fetchWithin+time.Minute {
						b.Errorf("it took %v", took)
					}
					if names := filesIn(b, b.releaser.cache.dir); len(names) != 0 {
						b.Errorf("the cache holds %v", names)
					}
					if _, err := b.releaser.FetchChart(ctx, a, ""); err != nil {
						b.Error(err)
					}
				})
			})
		}
	}
}

// TestCacheIsVerified: what lies in the cache and is not what it should be is
// fetched again.
func TestCacheIsVerified(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"cut":     func(file string) error { return os.Truncate(file, 100) },
		"changed": func(file string) error { return os.WriteFile(file, []byte("x"), 0o600) },
		"removed": os.Remove,
		"a link": func(file string) error {
			return errors.Join(os.Rename(file, file+".there"), os.Symlink(file+".there", file))
		},
		"a folder":   func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
		"unreadable": func(file string) error { return errors.Join(os.Remove(file), os.WriteFile(file, nil, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				for _, a := range []cluster.Addon{b.addon("web", "apps", "podinfo", "6.9.0", nil), b.oci("oci", "cilium", "1.19.3")} {
					digest, err := b.releaser.FetchChart(ctx, a, "")
					if err != nil {
						b.Fatal(err)
					}
					b.facts.Charts[a.Chart.Ref()] = digest
					b.want(a)
					if !b.look().Charts[a.Name].Known {
						b.Fatal("not in the cache")
					}
					for _, file := range filesOf(b, a) {
						time.Sleep(time.Second)
						if err := spoil(file); err != nil {
							b.Fatal(err)
						}
						if b.look().Charts[a.Name].Known {
							b.Errorf("%s is taken for whole", filepath.Base(file))
						}
						if name == "a folder" {
							// Only a person can have put it there.
							if err := os.Remove(file); err != nil {
								b.Fatal(err)
							}
						}
						if _, err := b.releaser.FetchChart(ctx, a, digest); err != nil {
							b.Fatal(err)
						}
						if !b.look().Charts[a.Name].Known {
							b.Error("fetched again and not in the cache")
						}
					}
				}
			})
		})
	}
}

// filesOf are the files of the cache an addon's chart consists of.
func filesOf(b *bench, a cluster.Addon) (files []string) {
	b.Helper()
	digest := b.facts.Charts[a.Chart.Ref()]
	hex, err := b.releaser.archiveOf(a.Chart, digest)
	if err != nil {
		b.Fatal(err)
	}
	files = append(files, filepath.Join(b.releaser.cache.dir, hex+archiveFile))
	if a.Chart.OCI != "" {
		files = append(files, filepath.Join(b.releaser.cache.dir, hexOf(digest)+manifestFile))
	}
	return files
}

func TestNewRemovesLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{leftover + "123", "kept.tgz"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(Config{CacheDir: dir, API: func() (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if names := filesIn(t, dir); len(names) != 1 || names[0] != "kept.tgz" {
		t.Errorf("the cache holds %v", names)
	}
}

func TestNewReportsWhatIsMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	api := func() (string, bool) { return "", false }
	for _, c := range []struct {
		config Config
		words  string
	}{
		{Config{API: api}, "CacheDir"}, {Config{CacheDir: t.TempDir()}, "API"}, {Config{CacheDir: file, API: api}, "make chart cache"},
		{Config{CacheDir: t.TempDir(), API: api, CA: []byte("x")}, "PEM"},
	} {
		if r, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v: %v, %v", c.config, r, err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	a := &archives{dir: filepath.Join(t.TempDir(), "gone")}
	if err := a.write([]byte("x"), archiveFile); err != nil {
		t.Errorf("a directory that was deleted is not made again: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&archives{dir: file}).write([]byte("x"), archiveFile); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("error is %v", err)
	}
	mustFail(t, a.full(fmt.Errorf("write: %w", syscall.ENOSPC)), "is full", "make room")
}

func TestMirrors(t *testing.T) {
	m := mirrors{
		"https://helm.cilium.io":    "https://mirror.example.org/cilium",
		"https://charts.org/a":      "https://mirror.example.org/a/",
		"https://charts.org/a/deep": "http://deep",
		"oci://ghcr.io/":            "oci://mirror.example.org/ghcr",
	}
	for _, c := range []struct{ from, to string }{
		{"https://helm.cilium.io", "https://mirror.example.org/cilium"},
		{"https://helm.cilium.io/index.yaml", "https://mirror.example.org/cilium/index.yaml"},
		{"https://helm.cilium.io.evil.org/x", "https://helm.cilium.io.evil.org/x"},
		{"https://charts.org/ab", "https://charts.org/ab"},
		{"https://charts.org/a/b", "https://mirror.example.org/a/b"},
		{"https://charts.org/a/deep/b", "http://deep/b"},
		{"oci://ghcr.io/org/chart", "oci://mirror.example.org/ghcr/org/chart"},
		{"https://other.org", "https://other.org"},
	} {
		if got := m.of(c.from); got != c.to {
			t.Errorf("%s becomes %s, want %s", c.from, got, c.to)
		}
	}
}

// TestFetchThroughMirrors fetches charts of hosts that do not exist.
func TestFetchThroughMirrors(t *testing.T) {
	bubble(t, func(b *bench) {
		b.releaser.mirrors = mirrors{"https://helm.cilium.io": b.charts.URL(), "oci://ghcr.io/org": strings.TrimSuffix(b.registry.Reference("x"), "/x")}
		a := b.addon("cilium", "kube-system", "cilium", "1.19.3", nil)
		a.Chart.Repository = "https://helm.cilium.io"
		if _, err := b.releaser.FetchChart(ctx, a, ""); err != nil {
			b.Error(err)
		}
		o := b.oci("cilium", "cilium", "1.19.3")
		o.Chart.OCI = "oci://ghcr.io/org/cilium"
		if _, err := b.releaser.FetchChart(ctx, o, ""); err != nil {
			b.Error(err)
		}
		a.Chart.Repository = "https://elsewhere.org"
		_, err := b.releaser.FetchChart(ctx, a, "")
		mustFail(b, err, "ask elsewhere.org: there is no way to it", "way from this host")
	})
}

// TestForeignAuthority: a mirror with an authority of its own is not believed
// until that is given.
func TestForeignAuthority(t *testing.T) {
	bubble(t, func(b *bench) {
		b.stop()
		b.config.CA = nil
		b.start()
		_, err := b.releaser.FetchChart(ctx, b.addon("web", "apps", "podinfo", "6.9.0", nil), "")
		mustFail(b, err, "ask charts.lab: ", "authority")
	})
}

// serveHTTP serves what a test answers itself, with TLS on port 443.
func (b *bench) serveHTTP(addr string, h http.HandlerFunc) {
	b.Helper()
	l, err := b.world.Net.Listen(addr)
	if err != nil {
		b.Fatal(err)
	}
	if strings.HasSuffix(addr, ":443") {
		cert, err := b.world.PKI.Server(strings.TrimSuffix(addr, ":443"))
		if err != nil {
			b.Fatal(err)
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	s := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	b.Cleanup(func() {
		if err := errors.Join(s.Close(), l.Close()); err != nil {
			b.Error(err)
		}
		<-done
	})
}

// TestHostileServers: a mirror inside the host's network speaks plain HTTP
// here, so that the test can write its answers.
func TestHostileServers(t *testing.T) {
	bubble(t, func(b *bench) {
		endless := func(w http.ResponseWriter, line string) {
			for {
				if _, err := io.WriteString(w, strings.Repeat(line, 1000)); err != nil {
					return
				}
			}
		}
		index := func(url string) string {
			return "apiVersion: v1\nentries:\n  web:\n  - version: 1.0.0\n    urls: [\"" + url + "\"]\n"
		}
		good := mustPack(b, map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n"})
		b.serveHTTP("mirror.lab:80", func(w http.ResponseWriter, r *http.Request) {
			which, file, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
			switch which + " " + file {
			case "endless index.yaml":
				_, _ = io.WriteString(w, "entries:\n")
				endless(w, "  other: []\n")
			case "wide index.yaml":
				endless(w, "x")
			case "page index.yaml":
				_, _ = io.WriteString(w, "<html><body>log in</body></html>")
			case "large index.yaml", "wrong index.yaml", "page2 index.yaml", "whole index.yaml":
				_, _ = io.WriteString(w, index(which+".tgz"))
			case "large large.tgz":
				endless(w, "x")
			case "page2 page2.tgz":
				_, _ = io.WriteString(w, "<html>")
			case "wrong wrong.tgz":
				_, _ = w.Write(mustPack(b, map[string]string{"Chart.yaml": "apiVersion: v2\nname: other\nversion: 1.0.0\n"}).Archive)
			case "whole whole.tgz":
				_, _ = w.Write(good.Archive)
			case "scheme index.yaml":
				_, _ = io.WriteString(w, index("file:///etc/passwd"))
			case "lies index.yaml":
				_, _ = io.WriteString(w, index("whole.tgz")+"    digest: "+strings.Repeat("0", 64)+"\n")
			case "lies whole.tgz":
				_, _ = w.Write(good.Archive)
			case "round index.yaml":
				http.Redirect(w, r, "/round/index.yaml", http.StatusFound)
			case "empty index.yaml":
				_, _ = io.WriteString(w, "apiVersion: v1\nentries:\n  web:\n  - version: 1.0.0\n")
			default:
				http.NotFound(w, r)
			}
		})
		for _, c := range []struct{ which, words, hint string }{
			{"endless", "is larger than 50 MiB", "OCI registry"},
			{"wide", "a line of more than 4 MiB", ""},
			{"page", "it is no index of a chart repository", ""},
			{"large", "is larger than 10 MiB", ""},
			{"page2", "it is no packed chart", "owner"},
			{"wrong", "it is chart other 1.0.0, not web 1.0.0", "what the source really holds"},
			{"scheme", "is no URL to fetch from", "https"},
			{"lies", "and its index has 0000", "broken"},
			{"round", "redirects more than five times", ""},
			{"empty", "has no version 1.0.0", ""},
			{"gone", "404", "name and version"},
		} {
			a := b.addon("web", "apps", "web", "1.0.0", nil)
			a.Chart.Repository = "http://mirror.lab/" + c.which
			_, err := b.releaser.FetchChart(ctx, a, "")
			mustFail(b, err, c.words, c.hint)
		}
		a := b.addon("web", "apps", "web", "v1.0.0", nil)
		a.Chart.Repository = "http://mirror.lab/whole"
		if digest, err := b.releaser.FetchChart(ctx, a, ""); err != nil || digest != good.Digest() {
			b.Errorf("%s, %v", digest, err)
		}
	})
}

// TestHostileRegistries: one wants everybody to fetch a token first, as the
// large ones do, the others send something else than was asked for.
func TestHostileRegistries(t *testing.T) {
	bubble(t, func(b *bench) {
		good := mustPack(b, map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0+build\n"})
		manifest := []byte(`{"config":{"mediaType":"` + mediaConfig + `"},"layers":[{"mediaType":"` + mediaChart + `","digest":"sha256:` + good.Digest() + `"}]}`)
		var asked []string
		b.serveHTTP("registry2.lab:443", func(w http.ResponseWriter, r *http.Request) {
			which := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")[0]
			asked = append(asked, r.URL.Path)
			switch {
			case r.URL.Path == "/token":
				if r.Header.Get("Authorization") != "" {
					b.Error("credentials are sent for a token")
				}
				_, _ = io.WriteString(w, `{"token":"t"}`)
			case which == "token" && r.Header.Get("Authorization") != "Bearer t":
				w.Header().Set("WWW-Authenticate", `Bearer realm="https://registry2.lab/token",service="registry2.lab",scope="repository:token/web:pull"`)
				w.WriteHeader(http.StatusUnauthorized)
			case which == "login":
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			case strings.Contains(r.URL.Path, "/manifests/"):
				_, _ = w.Write(manifest)
			case which == "lies":
				_, _ = w.Write(mustPack(b, map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n"}).Archive)
			default:
				_, _ = w.Write(good.Archive)
			}
		})
		fetch := func(which, pin string) error {
			a := b.oci("web", "web", "1.0.0+build")
			a.Chart.OCI = "oci://registry2.lab/" + which + "/web"
			_, err := b.releaser.FetchChart(ctx, a, pin)
			return err
		}
		if err := fetch("token", ""); err != nil {
			b.Error(err)
		}
		if !slices.Contains(asked, "/v2/token/web/manifests/1.0.0_build") {
			b.Errorf("asked %v", asked)
		}
		mustFail(b, fetch("lies", ""), "another archive than the one its manifest names", "")
		mustFail(b, fetch("open", "sha256:"+strings.Repeat("0", 64)), "another manifest than the one it was asked for", "")
		mustFail(b, fetch("login", ""), "401", "without credentials")
	})
}

func TestRedirects(t *testing.T) {
	request := func(url string) *http.Request {
		r, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := checkRedirect(request("http://x"), []*http.Request{request("https://x")}); err == nil {
		t.Error("it leaves TLS")
	}
	if err := checkRedirect(request("https://y"), []*http.Request{request("https://x")}); err != nil {
		t.Error(err)
	}
}

func TestChartsThatCannotBeInstalled(t *testing.T) {
	bubble(t, func(b *bench) {
		for _, c := range []struct{ chart, words, hint string }{
			{"apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: redis, version: 1.0.0, repository: \"https://x\"}]\n", "missing in charts/ directory: redis", "helm dependency update"},
			{"apiVersion: v2\nname: web\nversion: 1.0.0\ntype: library\n", "type library", "chart that uses it"},
			{"apiVersion: v9\nname: web\n", "chart.metadata", ""},
			{"[", "cannot load Chart.yaml", ""},
		} {
			a := b.local("web", "apps", nil, map[string]string{"Chart.yaml": c.chart})
			_, err := b.releaser.FetchChart(ctx, a, "")
			mustFail(b, err, c.words, c.hint)
			b.want(a)
			err = b.releaser.Install(ctx, b.desired, a, b.look().Charts["web"].Value.Release)
			mustFail(b, err, c.words, c.hint)
		}
	})
}

// TestLocalChart: a chart of the inventory needs no fetching, and has another
// digest as soon as one byte of it changes.
func TestLocalChart(t *testing.T) {
	files := map[string]string{"values.yaml": "a: b\n", "templates/x.yaml": "kind: ConfigMap\n"}
	bubble(t, func(b *bench) {
		a := b.local("web", "apps", nil, files)
		b.want(a)
		first := b.look().Charts["web"]
		if !first.Known {
			b.Fatalf("it is %+v", first)
		}
		if digest, err := b.releaser.FetchChart(ctx, a, ""); err != nil || digest != first.Value.Digest {
			b.Errorf("%s, %v", digest, err)
		}
		seen := map[string]string{first.Value.Release: "the first"}
		for name, change := range map[string]func(a *cluster.Addon){
			"a byte":        func(a *cluster.Addon) { a.Chart.Files["values.yaml"] = []byte("a: c\n") },
			"a name":        func(a *cluster.Addon) { a.Chart.Files["x"] = nil },
			"a boundary":    func(a *cluster.Addon) { a.Chart.Files["templates/x.yaml"] = []byte("kind: ConfigMap") },
			"the values":    func(a *cluster.Addon) { a.Values = b.values(map[string]any{"a": 1}) },
			"the namespace": func(a *cluster.Addon) { a.Namespace = "other" },
		} {
			a := b.local("web", "apps", nil, files)
			change(&a)
			b.want(a)
			release := b.look().Charts["web"].Value.Release
			if seen[release] != "" {
				b.Errorf("with %s changed the digest is that of %s", name, seen[release])
			}
			seen[release] = name
		}
	})
}
