package history

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Line writes a value as one line of JSON, the form in which events and runs
// are kept: a torn file loses its last line only.
func Line(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a line: %w", err)
	}
	return append(b, '\n'), nil
}

// Lines reads what Line wrote. Lines that cannot be read are left out and
// counted: what is kept for people is never worth stopping for.
func Lines[T any](text []byte) (all []T, bad int) {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			bad++
			continue
		}
		all = append(all, v)
	}
	return all, bad
}
