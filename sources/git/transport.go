package git

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
)

// maxRefs bounds the list of references, which protocol version 0 sends whole:
// about 200,000 of them.
const maxRefs = 16 << 20

// remote is a git server. go-git's own clients are not used: they live in one
// map for the whole process, take neither our dialer nor our certificates per
// repository, dial ssh without a context, and read error pages without bound.
// What is used of go-git is its protocol encoding.
type remote interface {
	// open begins a session; over ssh it connects.
	open(ctx context.Context) (session, error)
	// close drops idle connections.
	close()
}

// session is one conversation: references once, then at most one pack.
type session interface {
	refs(ctx context.Context) (*packp.AdvRefs, error)
	// pack asks for a pack; the reader gives the pack alone.
	pack(ctx context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error)
	// close ends the session and everything it started; it may be called twice.
	close()
}

// decodeRefs reads the server's list of references. A repository without
// commits gives an empty list, not an error.
func decodeRefs(r io.Reader) (*packp.AdvRefs, error) {
	// The object format is in the first line, which go-git cannot read when the
	// format is not SHA-1.
	var head bytes.Buffer
	refs := packp.NewAdvRefs()
	err := refs.Decode(io.TeeReader(r, &prefix{buf: &head, left: 4 << 10}))
	var answer *pktline.ErrorLine
	switch {
	case errors.Is(err, packp.ErrEmptyAdvRefs):
		return packp.NewAdvRefs(), nil
	case errors.As(err, &answer):
		return nil, readRefusal(answer.Text)
	case err == nil:
	case bytes.Contains(head.Bytes(), []byte("object-format=sha256")):
		return nil, newError(ErrUnsupported, "use a repository made with the default object format, SHA-1", nil, "the repository uses SHA-256 object names")
	default:
		return nil, err
	}
	if len(refs.Shallows) > 0 {
		return nil, newError(ErrUnsupported, "run git fetch --unshallow in it", nil, "the repository is a shallow clone: its history is cut off")
	}
	return refs, nil
}

// refusals are the words by which servers refuse; the protocol has no codes.
var refusals = []struct {
	text string // in lower case
	kind error
	hint string
}{
	// git upload-pack and git daemon of git 2.39.
	{"does not appear to be a git repository", ErrNotFound, ""},
	{"access denied or repository not exported", ErrNotFound, ""},
	// The texts of GitHub, GitLab, Bitbucket and Gogs that go-git 5.19 also knows
	// (plumbing/transport/internal/common).
	{"repository not found", ErrNotFound, hiddenHint},
	{"the project you were looking for could not be found", ErrNotFound, hiddenHint},
	{"repository does not exist", ErrNotFound, hiddenHint},
	{"no such repository", ErrNotFound, hiddenHint},
	// Gitea and Forgejo: cmd/serv.go.
	{"cannot find repository", ErrNotFound, hiddenHint},
}

const hiddenHint = "check the path; a repository that our key or token may not read looks the same as one that does not exist"

// readRefusal makes an error of the server's words.
func readRefusal(text string) error {
	answer := cleanRemark(text)
	for _, r := range refusals {
		if strings.Contains(strings.ToLower(text), r.text) {
			return newError(r.kind, r.hint, nil, "the server answers: %s", answer)
		}
	}
	return fmt.Errorf("the server answers: %s", answer)
}

// encodeRequest writes what a client sends to get a pack. Over a connection
// that stays open the haves end with a flush.
func encodeRequest(req *packp.UploadPackRequest, flush bool) ([]byte, error) {
	var b bytes.Buffer
	if err := req.UploadRequest.Encode(&b); err != nil {
		return nil, err
	}
	if err := req.UploadHaves.Encode(&b, flush); err != nil {
		return nil, err
	}
	if err := pktline.NewEncoder(&b).EncodeString("done\n"); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decodePack reads the acknowledgements and leaves a reader at the pack.
func decodePack(req *packp.UploadPackRequest, body io.ReadCloser) (io.ReadCloser, error) {
	// Not of req: for that go-git would blame every failure on multi_ack, which
	// it does not support in its own client but decodes well.
	res := packp.NewUploadPackResponse(packp.NewUploadPackRequest())
	if err := res.Decode(body); err != nil {
		var answer *pktline.ErrorLine
		if errors.As(err, &answer) {
			err = readRefusal(answer.Text)
		}
		return nil, errors.Join(err, body.Close())
	}
	var pack io.Reader = res
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		pack = printableErrors{sideband.NewDemuxer(sideband.Sideband64k, res)}
	case req.Capabilities.Supports(capability.Sideband):
		pack = printableErrors{sideband.NewDemuxer(sideband.Sideband, res)}
	}
	return readCloser{bufio.NewReader(pack), res}, nil
}

// printableErrors makes a line of what the server sends on the band for errors,
// which go-git passes on as it came.
type printableErrors struct{ r io.Reader }

func (p printableErrors) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err == nil || err == io.EOF || isKnown(err) {
		return n, err
	}
	if answer, ok := strings.CutPrefix(err.Error(), "unexpected error: "); ok {
		return n, readRefusal(answer)
	}
	return n, errors.New(cleanRemark(err.Error()))
}

type readCloser struct {
	io.Reader
	io.Closer
}

// prefix keeps the first bytes written to it and drops the rest.
type prefix struct {
	buf  *bytes.Buffer
	left int
}

func (p *prefix) Write(b []byte) (int, error) {
	n := min(p.left, len(b))
	p.buf.Write(b[:n])
	p.left -= n
	return len(b), nil
}

// capped gives an error, not an end, when there is more than left.
type capped struct {
	r    io.Reader
	left int64
	what string
}

func (c *capped) Read(p []byte) (int, error) {
	if c.left < 0 {
		return 0, newError(ErrLimit, "", nil, "%s is too long", c.what)
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left+1)])
	if c.left -= int64(n); c.left < 0 {
		return n, newError(ErrLimit, "", nil, "%s is too long", c.what)
	}
	return n, err
}
