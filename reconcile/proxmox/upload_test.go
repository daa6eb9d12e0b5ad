package proxmox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const uploadOp = "POST /nodes/{node}/storage/{storage}/upload"

func (s *stand) uploads() int {
	return s.world.CountCalls(func(r world.CallRecord) bool { return r.Op == uploadOp })
}

// stream hides that a reader can be rewound.
type stream struct{ io.Reader }

func TestUpload(t *testing.T) {
	for _, flavour := range flavours {
		for _, rewinds := range []bool{true, false} {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				image := s.imageBytes()
				c, ctx := s.client(), context.Background()
				defer c.Close()
				var last cluster.Progress
				var upids []string
				progress := func(p cluster.Progress) {
					if p.UPID != "" {
						upids = append(upids, p.UPID)
						return
					}
					if p.Done < last.Done || p.Total != int64(len(image)) || p.Unit != "bytes" {
						t.Errorf("progress goes from %+v to %+v", last, p)
					}
					last = p
				}
				body := func() io.Reader {
					if rewinds {
						return bytes.NewReader(image)
					}
					return stream{bytes.NewReader(image)}
				}
				for range 2 { // the second time it is there
					s.must(c.Upload(ctx, testHost, "local", imageName, int64(len(image)), body(), progress))
				}
				if n := s.uploads(); n != 1 {
					t.Errorf("%d uploads", n)
				}
				if last.Done != int64(len(image)) || len(upids) != 1 {
					t.Errorf("progress ended with %+v, tasks %v", last, upids)
				}
				v := s.host.Volumes(testHost, "local")
				sum := sha256.Sum256(image)
				if len(v) != 1 || v[0].Volid != "local:import/"+imageName || v[0].SHA256 != hex.EncodeToString(sum[:]) {
					t.Errorf("%+v", v)
				}
				s.checkRules()
			})
		}
	}
}

func TestUploadNeverOverwrites(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		image := s.imageBytes()
		c, ctx := s.client(), context.Background()
		defer c.Close()
		s.must(c.Upload(ctx, testHost, "local", imageName, 1000, bytes.NewReader(image[:1000]), nil))
		err := c.Upload(ctx, testHost, "local", imageName, int64(len(image)), bytes.NewReader(image), nil)
		if err == nil || !strings.Contains(err.Error(), "with 1000 bytes instead of 200000") || !strings.Contains(fault.HintOf(err), "pvesm free local:import/") {
			t.Errorf("got %v [%s]", err, fault.HintOf(err))
		}
		if n := s.uploads(); n != 1 {
			t.Errorf("%d uploads", n)
		}
	})
}

// TestUploadAgainAfterTheAgentDied: what an agent that died had begun is waited
// for.
func TestUploadAgainAfterTheAgentDied(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		image := s.imageBytes()
		s.world.Inject(world.Fault{System: "pve", Op: uploadOp, Kind: world.HangTask, Delay: 30 * time.Second, Times: 1})
		c := s.client()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := c.Upload(ctx, testHost, "local", imageName, int64(len(image)), bytes.NewReader(image), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		cancel()
		c.Close()
		c = s.client()
		defer c.Close()
		if h := observe(c, desired(1)).Hosts[testHost]; h.Images.Known {
			t.Errorf("images are known while one is being copied: %+v", h.Images)
		}
		s.must(c.Upload(context.Background(), testHost, "local", imageName, int64(len(image)), bytes.NewReader(image), nil))
		if n := s.uploads(); n != 1 {
			t.Errorf("%d uploads", n)
		}
		s.checkRules()
	})
}

// TestUploadSideBySide: two that want the same image upload it once.
func TestUploadSideBySide(t *testing.T) {
	onStand(t, "9.2", func(t *testing.T, s *stand) {
		image := s.imageBytes()
		c := s.client()
		defer c.Close()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := c.Upload(context.Background(), testHost, "local", imageName, int64(len(image)), bytes.NewReader(image), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := s.uploads(); n != 1 {
			t.Errorf("%d uploads", n)
		}
		s.checkRules()
	})
}

// broken fails in the middle.
type broken struct{ n int }

func (b *broken) Read(p []byte) (int, error) {
	if b.n -= len(p); b.n < 0 {
		return 0, errors.New("the disk is gone")
	}
	return len(p), nil
}

// stuck yields nothing until it is released.
type stuck struct{ until chan struct{} }

func (b stuck) Read([]byte) (int, error) {
	<-b.until
	return 0, io.EOF
}

func TestUploadGoesWrong(t *testing.T) {
	for _, tc := range []struct {
		name string
		size int64
		body func(*testing.T) io.Reader
		want string
	}{
		{"breaks", 200_000, func(*testing.T) io.Reader { return &broken{n: 100_000} }, "the disk is gone"},
		{"too short", 200_000, func(*testing.T) io.Reader { return stream{strings.NewReader("short")} }, "the image ends 199995 bytes early"},
		{"too long", 200_000, func(*testing.T) io.Reader { return bytes.NewReader(make([]byte, 200_001)) }, "the image is larger than it was said to be"},
		{"empty", 0, func(*testing.T) io.Reader { return strings.NewReader("") }, "the image is empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStand(t, "9.2", func(t *testing.T, s *stand) {
				c := s.client()
				defer c.Close()
				err := c.Upload(context.Background(), testHost, "local", imageName, tc.size, tc.body(t), nil)
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v", err)
				}
				if v := s.host.Volumes(testHost, "local"); len(v) != 0 {
					t.Errorf("left: %+v", v)
				}
			})
		})
	}
	t.Run("stalls", func(t *testing.T) {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			c := s.client()
			defer c.Close()
			until := make(chan struct{})
			time.AfterFunc(stalled+time.Minute, func() { close(until) })
			began := time.Now()
			err := c.Upload(context.Background(), testHost, "local", imageName, 200_000, stuck{until}, nil)
			if err == nil {
				t.Error("it succeeded")
			}
			t.Logf("after %v: %v", time.Since(began), err)
		})
	})
	t.Run("wrong checksum", func(t *testing.T) {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			s.world.Inject(world.Fault{System: "pve", Op: uploadOp, Kind: world.FailTask, Text: "checksum mismatch: got 'a' != expect 'b'"})
			c := s.client()
			defer c.Close()
			err := c.Upload(context.Background(), testHost, "local", imageName, 4, strings.NewReader("QFI\xfb"), nil)
			var failed *TaskError
			if !errors.As(err, &failed) || failed.Type != "imgcopy" {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("no privilege", func(t *testing.T) {
		onStand(t, "9.2", func(t *testing.T, s *stand) {
			s.host.Role("TalosAgentStore", "Datastore.Audit")
			c := s.client()
			defer c.Close()
			err := c.Upload(context.Background(), testHost, "local", imageName, 4, strings.NewReader("QFI\xfb"), nil)
			want := "give Datastore.AllocateTemplate on /storage/local to the user talos-agent@pve and to the token talos-agent@pve!pve1"
			if err == nil || fault.HintOf(err) != want {
				t.Errorf("got %v [%s]", err, fault.HintOf(err))
			}
		})
	})
}
