package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// The packages of an older repository come from a web server, and a new signature
// stands for them. They are taken as apt would take them: the signature of the suite
// covers the lists, and these the packages.

// packagesList is the list of an architecture, as a suite names it.
var packagesList = regexp.MustCompile(`^` + component + `/binary-[a-z0-9-]+/Packages$`)

// readPrevious returns the SHA-256 of every package that an older repository lists, by
// where it lies. With a key the repository must be signed with it.
func readPrevious(top string, s *signer) (map[string]string, error) {
	suiteText, err := readSuite(filepath.Join(top, "dists", suite), s)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, sum := range listedIndexes(suiteText) {
		if !packagesList.MatchString(name) {
			continue
		}
		path := filepath.Join(top, "dists", suite, filepath.FromSlash(name))
		list, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if hashText(list) != sum {
			return nil, fmt.Errorf("%s is not the list that the suite has", path)
		}
		for paragraph := range strings.SplitSeq(string(list), "\n\n") {
			fields := map[string]string{}
			for _, m := range controlField.FindAllStringSubmatch(paragraph, -1) {
				fields[strings.ToLower(m[1])] = m[2]
			}
			if fields["filename"] != "" {
				out[fields["filename"]] = fields["sha256"]
			}
		}
	}
	return out, nil
}

// readSuite is the Release file of a suite; with a key out of InRelease, of which only
// what is signed with that key is read.
func readSuite(dir string, s *signer) (string, error) {
	if s == nil {
		text, err := os.ReadFile(filepath.Join(dir, "Release"))
		return string(text), err
	}
	path := filepath.Join(dir, "InRelease")
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("it is not signed, and its packages are to be signed now: %w", err)
	case err != nil:
		return "", err
	}
	block, _ := clearsign.Decode(text)
	if block == nil {
		return "", fmt.Errorf("%s has no signature in it", path)
	}
	// The signature may be newer than this commit.
	now := latest(time.Now(), s.config.Now())
	if _, err := block.VerifySignature(openpgp.EntityList{s.entity}, &packet.Config{Time: func() time.Time { return now }}); err != nil {
		return "", fmt.Errorf("%s is not signed with the key that is to sign now: %w", path, err)
	}
	return string(block.Bytes), nil
}

// listedIndexes are the SHA-256 of the files that a Release file lists.
func listedIndexes(text string) map[string]string {
	out := map[string]string{}
	inside := false
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, " ") {
			inside = strings.TrimSpace(line) == "SHA256:"
			continue
		}
		if fields := strings.Fields(line); inside && len(fields) == 3 {
			out[fields[2]] = fields[0]
		}
	}
	return out
}

// checkListed makes sure that a package of the new pool is what the lists of the older
// repository have.
func checkListed(deb string, listed map[string]string) error {
	name := filepath.Base(deb)
	want, ok := listed[pool+"/"+name]
	if !ok {
		return fmt.Errorf("%s lies in its pool, and none of its lists has it", name)
	}
	got, _, err := hashFile(deb)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s is not the package that its list has", name)
	}
	return nil
}
