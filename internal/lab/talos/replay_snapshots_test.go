package talos_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
)

// parts are the chunks of a snapshot as they came.
type parts [][]byte

// sumUp sums a snapshot up as the recordings do, without how much there is of it.
func (p parts) sumUp() []any {
	if len(p) == 0 {
		return nil
	}
	sizes, last := map[string]any{}, p[len(p)-1]
	for _, part := range p {
		if len(part) != 1024 {
			sizes[fmt.Sprint(len(part))] = 1.0
		}
	}
	all := slices.Concat(p...)
	sum := sha256.Sum256(all[:len(all)-len(last)])
	return []any{map[string]any{
		"bytes_mod_512": float64(len(all) % 512), "chunks_by_size": sizes, "first_chunk": float64(len(p[0])), "last_chunk": float64(len(last)),
		"trailer_is_sha256_of_the_rest": bytes.Equal(sum[:], last),
	}}
}
