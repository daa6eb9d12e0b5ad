package git

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
	"github.com/go-git/go-git/v5/storage/memory"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// memOrigin is a repository in memory behind go-git's own server, on a network
// in memory: it runs no program and lives in a bubble.
type memOrigin struct {
	sto      *memory.Storage
	requests int
	delay    time.Duration
}

func (o *memOrigin) commit(msg string, files map[string]string, parents ...string) string {
	t := &object.Tree{}
	for name, text := range files {
		t.Entries = append(t.Entries, object.TreeEntry{Name: name, Mode: filemode.Regular, Hash: o.store(plumbing.BlobObject, []byte(text))})
	}
	slices.SortFunc(t.Entries, func(a, b object.TreeEntry) int { return strings.Compare(a.Name, b.Name) })
	tree := o.encode(t)
	who := object.Signature{Name: "a", Email: "a@example.org", When: time.Unix(1_700_000_000, 0).In(time.FixedZone("", 5*3600+1800))}
	c := &object.Commit{Author: who, Committer: who, Message: msg, TreeHash: tree}
	for _, p := range parents {
		c.ParentHashes = append(c.ParentHashes, plumbing.NewHash(p))
	}
	return o.encode(c).String()
}

func (o *memOrigin) store(kind plumbing.ObjectType, b []byte) plumbing.Hash {
	obj := o.sto.NewEncodedObject()
	obj.SetType(kind)
	w := must(obj.Writer())
	_ = must(w.Write(b))
	_ = w.Close()
	return must(o.sto.SetEncodedObject(obj))
}

func (o *memOrigin) encode(v interface {
	Encode(plumbing.EncodedObject) error
}) plumbing.Hash {
	obj := o.sto.NewEncodedObject()
	if err := v.Encode(obj); err != nil {
		panic(err)
	}
	return must(o.sto.SetEncodedObject(obj))
}

func (o *memOrigin) setMain(id string) {
	if err := o.sto.SetReference(plumbing.NewHashReference("refs/heads/main", plumbing.NewHash(id))); err != nil {
		panic(err)
	}
}

func (o *memOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.requests++
	time.Sleep(o.delay)
	ep := must(transport.NewEndpoint("https://lab/infra.git"))
	sess := must(server.NewServer(server.MapLoader{ep.String(): o.sto}).NewUploadPackSession(ep, nil))
	if strings.HasSuffix(r.URL.Path, refsPath) {
		refs, err := sess.AdvertisedReferencesContext(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		refs.Prefix = [][]byte{[]byte("# service=git-upload-pack"), pktline.Flush}
		w.Header().Set("Content-Type", refsType)
		_ = refs.Encode(w)
		return
	}
	req := packp.NewUploadPackRequest()
	if err := req.UploadRequest.Decode(r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	lines := pktline.NewScanner(r.Body)
	for lines.Scan() {
		if id, ok := strings.CutPrefix(strings.TrimSpace(string(lines.Bytes())), "have "); ok {
			req.Haves = append(req.Haves, plumbing.NewHash(id))
		}
	}
	res, err := sess.UploadPack(r.Context(), req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", packType)
	if err := res.Encode(w); err != nil {
		panic(err)
	}
}

// serveMemory serves an origin at an address of a network until the test ends.
func serveMemory(t testing.TB, n *world.Memory, addr string, h http.Handler) {
	l, err := n.Listen(addr)
	check(t, err)
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
}

func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := world.NewMemory()
		o := &memOrigin{sto: memory.NewStorage(), delay: 700 * time.Millisecond}
		other := &memOrigin{sto: memory.NewStorage()}
		serveMemory(t, n, "10.0.0.1:80", o)
		serveMemory(t, n, "10.0.0.2:80", other)
		files := map[string]string{"cluster.yaml": "cluster_name: dev\n"}
		one := o.commit("one", files)
		o.setMain(one)
		other.setMain(other.commit("other", files))

		// Stores with dialers of their own live side by side.
		s := open(t, Config{URL: "http://10.0.0.1/infra.git", Dial: n.DialContext})
		s2 := open(t, Config{URL: "http://10.0.0.2/infra.git", Dial: n.DialContext, Dir: t.TempDir()})
		start := time.Now()
		c := head(t, s)
		if got := time.Since(start); got != 2*o.delay {
			t.Errorf("a first Head took %v of virtual time, want two requests of %v", got, o.delay)
		}
		if c.Hash != one || head(t, s2).Subject != "other" {
			t.Errorf("head %+v", c)
		}
		equal(t, readAll(t, s, c), files)
		start = time.Now()
		head(t, s)
		if got := time.Since(start); got != o.delay {
			t.Errorf("a quiet Head took %v, want one request of %v", got, o.delay)
		}

		n.Darken("10.0.0.1", true)
		start = time.Now()
		_, err := s.Head(t.Context())
		wantKind(t, err, ErrUnreachable, "no connection to 10.0.0.1:80 within 30s")
		if got := time.Since(start); got != patience {
			t.Errorf("gave up after %v", got)
		}
		n.Darken("10.0.0.1", false)
		if again := head(t, s); again != c {
			t.Errorf("after the outage: %+v, want %+v", again, c)
		}
	})
}

// TestDialThatIsLate: how late it is is reported the same whether the network's
// clock strikes first or the context's.
func TestDialThatIsLate(t *testing.T) {
	for most, want := range map[time.Duration]string{0: "no connection to 10.0.0.1:80 within 30s", 10 * time.Second: "not done within 10s"} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, Config{URL: "http://10.0.0.1/infra.git", Limits: Limits{Timeout: most}, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				by, _ := ctx.Deadline()
				select {
				case <-time.After(time.Until(by) - time.Nanosecond):
				case <-ctx.Done():
				}
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
			}})
			_, err := s.Head(t.Context())
			wantKind(t, err, ErrUnreachable, want)
		})
	}
}

// TestHistoriesAtRandom pushes, amends, merges, rewinds and starts over, and
// holds the store to what was done.
func TestHistoriesAtRandom(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := world.NewMemory()
		o := &memOrigin{sto: memory.NewStorage()}
		l := must(n.Listen("10.0.0.1:80"))
		srv := &http.Server{Handler: o}
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(l) }()
		s := must(Open(Config{URL: "http://10.0.0.1/infra.git", Dial: n.DialContext}))
		defer func() { _ = s.Close(); _ = srv.Close(); <-done }()

		parents := map[string][]string{}
		files := map[string]map[string]string{}
		var ids []string
		ancestors := func(id string) map[string]bool {
			seen := map[string]bool{}
			for todo := []string{id}; len(todo) > 0; {
				id, todo = todo[0], todo[1:]
				if !seen[id] {
					seen[id] = true
					todo = append(todo, parents[id]...)
				}
			}
			return seen
		}
		for i := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			var from []string
			if len(ids) > 0 {
				from = rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 0, 2, rapid.ID[string]).Draw(rt, "parents")
			}
			id := ""
			if len(ids) > 0 && rapid.Bool().Draw(rt, "rewind") {
				id = rapid.SampledFrom(ids).Draw(rt, "to")
			} else {
				f := rapid.MapOfN(rapid.StringMatching("[a-d]"), rapid.String(), 0, 4).Draw(rt, "files")
				id = o.commit(fmt.Sprint(i), f, from...)
				parents[id], files[id] = from, f
				ids = append(ids, id)
			}
			o.setMain(id)
			c, err := s.Head(context.Background())
			if err != nil || c.Hash != id {
				rt.Fatalf("step %d: head %+v, %v; want %s", i, c, err, id)
			}
			fsys, err := s.Tree(context.Background(), c)
			if err != nil {
				rt.Fatal(err)
			}
			for name, text := range files[id] {
				f, err := fsys.Open(name)
				if err != nil {
					rt.Fatal(err)
				}
				if b := must(io.ReadAll(f)); string(b) != text {
					rt.Fatalf("%s is %q, want %q", name, b, text)
				}
			}
			in := ancestors(id)
			for _, a := range ids {
				if got, err := s.Descends(context.Background(), id, a); err != nil || got != in[a] {
					rt.Fatalf("%s descends from %s: %v, %v; want %v", id, a, got, err, in[a])
				}
			}
		}
	})
}

func BenchmarkQuietHead(b *testing.B) {
	o := &memOrigin{sto: memory.NewStorage()}
	o.setMain(o.commit("one", map[string]string{"a": "1"}))
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	srv := &http.Server{Handler: o}
	go func() { _ = srv.Serve(l) }()
	defer func() { _ = srv.Close() }()
	s := open(b, Config{URL: "http://" + l.Addr().String() + "/infra.git", Dir: b.TempDir()})
	head(b, s)
	b.ReportAllocs()
	for b.Loop() {
		head(b, s)
	}
}
