package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
	"github.com/talos-agent/talos-agent/reconcile/snapshot/database"
)

// The first line of a file, and what it begins with in every version.
const (
	magic     = "talos-agent etcd snapshot, version "
	firstLine = magic + "1\n"
)

// mostHeader bounds the line with the header, in bytes.
const mostHeader = 64 << 10

// Source is where a snapshot is from: what whoever takes one knows besides its bytes. A
// restore needs it to find the right cluster, secrets and versions. Only the name is
// necessary; what is not known is empty.
type Source struct {
	Name
	Node      string `json:"node,omitempty"`      // whose member of etcd sent it
	ClusterID string `json:"clusterID,omitempty"` // of Talos, from the secrets bundle
	// Bundle and EncryptionKeys are fingerprints, of the secrets bundle and of the keys that
	// Kubernetes encrypts Secrets with in etcd: with others the Secrets of a snapshot cannot
	// be read.
	Bundle         string `json:"bundle,omitempty"`
	EncryptionKeys string `json:"encryptionKeys,omitempty"`
	Talos          string `json:"talos,omitempty"`      // versions: v1.14.1
	Kubernetes     string `json:"kubernetes,omitempty"` // v1.37.0
	Etcd           string `json:"etcd,omitempty"`       // 3.6.5
	Commit         string `json:"commit,omitempty"`     // main@sha1:..., that was in force
	Agent          string `json:"agent,omitempty"`      // the version that wrote the file
}

// Header is what a file has in clear.
type Header struct {
	Source
	Database   database.Contents `json:"database"`
	Recipients []string          `json:"recipients"` // public keys; the private half of one opens it
}

// Errors of files, for errors.Is.
var (
	// ErrDamaged: the bytes are not those of a snapshot that etcd or this package has written.
	ErrDamaged = errors.New("it is damaged")
	// ErrNoKey: no key that was given opens it.
	ErrNoKey = errors.New("no key that was given opens it")
	// errOther: it is no file of this package.
	errOther = fault.WithHint(fmt.Errorf("%w: it is no encrypted snapshot", ErrDamaged),
		"one that `talosctl etcd snapshot` has written is in clear already: `talos-agent snapshot verify FILE` reads it without a key")
)

// encodeHead is the two lines of a header.
func encodeHead(h Header) ([]byte, error) {
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(line) >= mostHeader {
		return nil, fmt.Errorf("its header has %d bytes, and at most %d are possible", len(line), mostHeader)
	}
	return append([]byte(firstLine), append(line, '\n')...), nil
}

// readHead reads the two lines at the begin of a file, and returns them with what they
// contain.
func readHead(r io.ReaderAt, size int64) (Header, []byte, error) {
	b := make([]byte, min(size, int64(len(firstLine)+mostHeader)))
	if n, err := r.ReadAt(b, 0); n < len(b) {
		return Header{}, nil, err
	}
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	switch version, ours := bytes.CutPrefix(line, []byte(magic)); {
	case !ours:
		return Header{}, nil, errOther
	case string(line)+"\n" != firstLine:
		return Header{}, nil, fault.Errorf("open it with the version of talos-agent that wrote it, or a newer one",
			"its format has version %s, and this program knows version 1", text.Sanitize(string(version), 20))
	}
	line, _, whole := bytes.Cut(rest, []byte("\n"))
	if !whole {
		return Header{}, nil, fmt.Errorf("%w: its header has no end", ErrDamaged)
	}
	var h Header
	if err := json.Unmarshal(line, &h); err != nil {
		return Header{}, nil, fmt.Errorf("%w: its header cannot be read: %s", ErrDamaged, text.Sanitize(err.Error(), 200))
	}
	return h, b[:len(firstLine)+len(line)+1], nil
}

// digestSize is that of what the content of the age file begins with.
const digestSize = sha256.Size
