// Package record reads what Helm keeps of a release: bytes that whoever may write a secret in
// the cluster has made.
package record

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxRelease is how large a release may be, unpacked. Kubernetes keeps at most
// 1 MiB of it, packed.
const maxRelease = 64 << 20

// Record is what is read of the record Helm keeps of a release.
type Record struct {
	Manifest string          `json:"manifest"`
	Config   json.RawMessage `json:"config"` // the values that it was made with
	Info     struct {
		Description string `json:"description"` // "Rollback to 2", or what whoever made it wrote
	} `json:"info"`
	Chart struct {
		Metadata struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"metadata"`
	} `json:"chart"`
}

// Decode reads a record: JSON, packed with gzip and written in base64. Source: Helm
// 3.22, pkg/storage/driver/util.go.
func Decode(packed []byte) (Record, error) {
	b, err := base64.StdEncoding.DecodeString(string(packed))
	if err != nil {
		return Record{}, errors.New("it is not written in base64")
	}
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b, 0x08}) {
		zip, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return Record{}, errors.New("it cannot be unpacked")
		}
		if b, err = io.ReadAll(io.LimitReader(zip, maxRelease+1)); err != nil {
			return Record{}, errors.New("it cannot be unpacked")
		}
		if len(b) > maxRelease {
			return Record{}, fmt.Errorf("it unpacks to more than %d MiB", maxRelease>>20)
		}
	}
	var made Record
	if err := json.Unmarshal(b, &made); err != nil {
		return Record{}, errors.New("it is no release of Helm's")
	}
	return made, nil
}
