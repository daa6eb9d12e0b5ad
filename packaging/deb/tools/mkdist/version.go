package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
)

var (
	// tagged is a version with a tag in it: v1.2.3, v1.2.3-rc.1, and with commits
	// after the tag v1.2.3-5-gabc1234.
	tagged = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+)(?:-([0-9A-Za-z.]*[A-Za-z.][0-9A-Za-z.]*))?(?:-([0-9]+)-g([0-9a-f]+))?$`)
	// untagged is a commit in a history without tags.
	untagged = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// debianVersion is the upstream part of a package's version, from what git
// describe tells. Versions sort as the commits do: a release candidate (~) is
// before its release, commits after a tag (+) are after it, and in a history
// without tags the time of the commit decides.
func debianVersion(described string, date time.Time) (string, error) {
	version, dirty := strings.CutSuffix(described, "-dirty")
	var out string
	switch m := tagged.FindStringSubmatch(version); {
	case m != nil:
		out = m[1]
		if m[2] != "" {
			out += "~" + m[2]
		}
		if m[3] != "" {
			out += "+" + m[3] + ".g" + m[4]
		}
	case untagged.MatchString(version):
		out = "0.0.0+git" + date.Format("20060102150405") + "." + version
	default:
		return "", fmt.Errorf("version %q is none that a package could have: write one like v1.2.3, or build in a clone with git", described)
	}
	if dirty {
		out += "+dirty"
	}
	return out, nil
}

// changelog is the changelog of a package: one entry, of the commits since the
// last release.
func (r release) changelog(info *nfpm.Info) ([]byte, error) {
	subjects, err := r.subjects()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "talos-agent (%s-%s) stable; urgency=medium\n\n", info.Version, info.Release)
	for _, s := range subjects {
		b.WriteString(wrap("  * ", "    ", s, 79))
	}
	fmt.Fprintf(&b, "\n -- %s  %s\n", info.Maintainer, r.date.Format(time.RFC1123Z))
	return b.Bytes(), nil
}

// subjects are what the commits since the last release say they do, newest
// first.
func (r release) subjects() ([]string, error) {
	revisions := "HEAD"
	// The tag before this commit, so that a tagged one tells what is new in it.
	if tag, err := output(r.top, nil, "git", "describe", "--tags", "--abbrev=0", "HEAD^"); err == nil {
		revisions = strings.TrimSpace(tag) + "..HEAD"
	}
	out, err := output(r.top, nil, "git", "log", "--no-merges", "--format=%s", revisions)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(out), "\n"), nil
}

// wrap breaks a text into lines of a width, the first with one prefix, the others
// with another.
func wrap(first, rest, text string, width int) string {
	var b strings.Builder
	line := first
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	return b.String() + line + "\n"
}

// compressed is a text as Debian wants it compressed: as small as it gets, and
// without a time.
func compressed(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
