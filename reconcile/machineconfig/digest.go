package machineconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
)

// Digest identifies what a machine config means: a config in another spelling,
// with comments or in another order of keys, has the same digest, so that what
// a node returns can be compared with what was rendered. The order of documents
// counts, because it can matter. The error names what is wrong without quoting
// the config.
func Digest(config []byte) (string, error) {
	p, err := configloader.NewFromBytes(config)
	if err != nil {
		return "", errors.New("load machine config: " + explainError(err, config))
	}
	canonical, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return "", errors.New("encode machine config: " + explainError(err, config))
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}
