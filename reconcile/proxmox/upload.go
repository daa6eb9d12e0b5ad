package proxmox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/turns"
)

// images lists what is on a storage that VMs are made from, of one type of content: name and bytes.
func (c *Client) images(ctx context.Context, host, store, content string) (map[string]int64, error) {
	if !hardware.StoragePattern.MatchString(store) {
		return nil, fmt.Errorf("%q is no name of a storage", store)
	}
	var rows []struct{ VolID, Size pveconf.Scalar }
	if err := c.get(ctx, hostPath(host, "storage", store, "content"), params{"content": content}, &rows); err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, r := range rows {
		if name, ok := strings.CutPrefix(string(r.VolID), store+":"+content+"/"); ok {
			out[name] = r.Size.Number()
		}
	}
	return out, nil
}

// volumes lists how large the disks of guests on a storage are, by VMID.
func (c *Client) volumes(ctx context.Context, host, store string) (map[int]int64, error) {
	if !hardware.StoragePattern.MatchString(store) {
		return nil, fmt.Errorf("%q is no name of a storage", store)
	}
	var rows []struct{ VMID, Size, Content pveconf.Scalar }
	if err := c.get(ctx, hostPath(host, "storage", store, "content"), nil, &rows); err != nil {
		return nil, err
	}
	out := map[int]int64{}
	for _, r := range rows {
		if r.Content == "images" || r.Content == "rootdir" {
			out[int(r.VMID.Number())] += r.Size.Number()
		}
	}
	return out, nil
}

// Upload puts an image into a storage as something VMs can be made from.
// An image of that name and size that is there already is success; one of
// another size is never overwritten. size is the number of bytes body yields.
// When body can be rewound it is read twice, the first time for its SHA-256,
// which Proxmox VE checks then.
func (c *Client) Upload(ctx context.Context, host, datastore, name string, size int64, body io.Reader, progress func(cluster.Progress)) error {
	if err := c.upload(ctx, place{host, datastore, name, size}, body, defaultProgress(progress)); err != nil {
		return fmt.Errorf("upload image %s to %s on %s: %w", name, datastore, host, err)
	}
	return nil
}

// place is where an image goes, and what it is.
type place struct {
	host, store, name string
	size              int64
}

func (c *Client) upload(ctx context.Context, at place, body io.Reader, progress func(cluster.Progress)) error {
	var check hardware.Checks
	check.Is("host", at.host, hardware.HostPattern)
	check.Is("datastore", at.store, hardware.StoragePattern)
	check.Is("image", at.name, hardware.ImagePattern)
	check.Must(at.size > 0, "the image is empty")
	if err := check.Err(); err != nil {
		return err
	}
	what := "image " + at.name + " on " + at.host + "/" + at.store
	done, err := c.turns.Take(ctx, what, "another upload of it", turns.Alone, func(holder string) { progress(cluster.Progress{Waits: waitsFor(what, holder)}) })
	if err != nil {
		return err
	}
	defer done()
	if there, err := c.uploaded(ctx, at, progress); err != nil || there {
		return err
	}
	sum, err := digestOf(body)
	if err != nil {
		return err
	}
	err = c.start(ctx, progress, func(task *pveconf.Scalar) error { return c.send(ctx, at, sum, body, progress, task) })
	if err != nil && isDecided(ctx, err) {
		return err
	}
	switch there, again := c.uploaded(ctx, at, progress); {
	case again != nil:
		return again
	case there:
		return nil
	case err != nil:
		return fmt.Errorf("nothing came of it: %w", err)
	default:
		return errors.New("its task succeeded, and the image is not there")
	}
}

// uploaded reports whether the image is in its place, once nothing of ours is
// being copied on the host any more.
func (c *Client) uploaded(ctx context.Context, at place, progress func(cluster.Progress)) (bool, error) {
	tasks, err := c.activeTasks(ctx, at.host)
	if err != nil {
		return false, err
	}
	for _, t := range tasks {
		if t.kind != "imgcopy" || !t.running || !c.ours(t.upid) {
			continue
		}
		var failed *TaskError
		if err := c.wait(ctx, t.text, progress); err != nil && !errors.As(err, &failed) {
			return false, err
		}
	}
	images, err := c.images(ctx, at.host, at.store, hardware.ContentOf(at.name))
	if err != nil {
		return false, err
	}
	have, ok := images[at.name]
	if ok && have != at.size {
		return false, fault.Errorf(fmt.Sprintf("as root on %s: `pvesm free %s:%s/%s`; it is uploaded again then", at.host, at.store, hardware.ContentOf(at.name), at.name),
			"an image of that name is there with %d bytes instead of %d, perhaps from an upload that was cut off", have, at.size)
	}
	return ok, nil
}

// digestOf returns the SHA-256 of a body that can be rewound, "" of another.
func digestOf(body io.Reader) (string, error) {
	s, ok := body.(io.Seeker)
	if !ok {
		return "", nil
	}
	start, err := s.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", nil // a pipe
	}
	h := sha256.New()
	if _, err := io.Copy(h, body); err != nil {
		return "", fmt.Errorf("read the image: %w", err)
	}
	if _, err := s.Seek(start, io.SeekStart); err != nil {
		return "", fmt.Errorf("rewind the image: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// stalled is how long an upload may make no headway before it is given up.
const stalled = 2 * time.Minute

// watched is a reader that reports how far it is, and can be closed for good:
// the transport may still read from a request's body after the request has
// ended.
type watched struct {
	from   io.Reader
	report func(done int64)

	mu     sync.Mutex
	done   int64
	closed bool
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, io.ErrClosedPipe
	}
	n, err := w.from.Read(p)
	w.done += int64(n)
	if n > 0 {
		w.report(w.done)
	}
	return n, err
}

// Close implements io.Closer.
func (w *watched) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return nil
}

// exactly is a reader that must yield a given number of bytes: what follows it
// in a request must not be sent when it was shorter or longer, or half an image
// would look like a whole one.
type exactly struct {
	from io.Reader
	left int64
}

// Read implements io.Reader.
func (e *exactly) Read(p []byte) (int, error) {
	n, err := e.from.Read(p)
	e.left -= int64(n)
	switch {
	case e.left < 0:
		return 0, errors.New("the image is larger than it was said to be")
	case errors.Is(err, io.EOF) && e.left > 0:
		return n, fmt.Errorf("the image ends %d bytes early: %w", e.left, io.ErrUnexpectedEOF)
	}
	return n, err
}

// send streams the image in one request. go-proxmox would read it into memory
// first. Proxmox VE insists on the order of the fields, with the file last, and
// on a length.
func (c *Client) send(ctx context.Context, at place, sum string, body io.Reader, progress func(cluster.Progress), task *pveconf.Scalar) error {
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	fields := [][2]string{{"content", hardware.ContentOf(at.name)}}
	if sum != "" {
		fields = append(fields, [2]string{"checksum-algorithm", "sha256"}, [2]string{"checksum", sum})
	}
	for _, f := range fields {
		if err := form.WriteField(f[0], f[1]); err != nil {
			return err
		}
	}
	if _, err := form.CreateFormFile("filename", at.name); err != nil {
		return err
	}
	begin := head.Len()
	if err := form.Close(); err != nil {
		return err
	}
	begins, ends := bytes.NewReader(head.Bytes()[:begin]), bytes.NewReader(head.Bytes()[begin:])
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	headway := time.AfterFunc(stalled, func() { cancel(fmt.Errorf("no headway for %v", stalled)) })
	defer headway.Stop()
	file := &watched{from: io.MultiReader(begins, &exactly{body, at.size}, ends), report: func(sent int64) {
		headway.Reset(stalled)
		progress(cluster.Progress{Done: min(max(0, sent-int64(begin)), at.size), Total: at.size, Unit: "bytes"})
	}}
	defer func() { _ = file.Close() }() // it cannot fail
	path := hostPath(at.host, "storage", at.store, "upload")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, file)
	if err != nil {
		return err
	}
	req.ContentLength = int64(head.Len()) + at.size
	req.Header.Set("Content-Type", form.FormDataContentType())
	req.Header.Set("Authorization", c.header.RevealString())
	resp, err := c.http.Do(req)
	c.recent.Requested(http.MethodPost, path)
	if err != nil {
		return nameRequest(http.MethodPost, path, err)
	}
	answer := struct{ Data *pveconf.Scalar }{task}
	err = json.NewDecoder(resp.Body).Decode(&answer)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("read the answer to the upload: %w", err)
	}
	return nil
}
