package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// sumsFile lists the files of a release for sha256sum --check.
const sumsFile = "SHA256SUMS"

// writeSums lists every file of the release in a folder.
func writeSums(out string) error {
	names, err := filepath.Glob(filepath.Join(out, "talos-agent_*"))
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, name := range names {
		sum, _, err := hashFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, filepath.Base(name))
	}
	return os.WriteFile(filepath.Join(out, sumsFile), []byte(list.String()), 0o644)
}

// hashText is the SHA-256 of a text, in hexadecimal.
func hashText(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// hashFile is the SHA-256 of a file, in hexadecimal, and its size.
func hashFile(path string) (sum string, size int64, _ error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
