package render

import (
	"bytes"
	"fmt"
	"io/fs"

	"helm.sh/helm/v3/pkg/ignore"
)

// maxIgnoreSize is how many bytes a .helmignore may have: each of its rules is tried with every file of the chart, and with every
// folder on its path. The one that `helm create` writes has 350.
const maxIgnoreSize = 16 << 10

// dropIgnored returns the files of a chart without those that its .helmignore names, and
// without hidden files among the templates, which Helm leaves out of a chart that it reads
// from a folder. Packed charts were read so once. Source: Helm 3.22, pkg/chart/loader,
// directory.go.
func dropIgnored(files map[string][]byte) (map[string][]byte, error) {
	rules := ignore.Empty()
	if text, ok := files[ignore.HelmIgnore]; ok {
		var err error
		if len(text) > maxIgnoreSize {
			return nil, fmt.Errorf("%s has %d bytes, and may have %d: write fewer rules, or remove from the chart what they leave out", ignore.HelmIgnore, len(text), maxIgnoreSize)
		}
		if rules, err = ignore.Parse(bytes.NewReader(text)); err != nil {
			return nil, fmt.Errorf("%s: %s", ignore.HelmIgnore, sanitize(err.Error()))
		}
	}
	rules.AddDefaults()
	kept := map[string][]byte{}
	for name, data := range files {
		if !isIgnored(rules, name) {
			kept[name] = data
		}
	}
	return kept, nil
}

// isIgnored reports whether rules leave out a file, or a folder that it is in.
func isIgnored(rules *ignore.Rules, name string) bool {
	for i, c := range name {
		if c == '/' && rules.Ignore(name[:i], entryKind{isDir: true}) {
			return true
		}
	}
	return rules.Ignore(name, entryKind{})
}

// entryKind is what rules ask of a file: whether it is a folder.
type entryKind struct {
	fs.FileInfo // nil, because they ask nothing else
	isDir       bool
}

// IsDir implements fs.FileInfo.
func (e entryKind) IsDir() bool { return e.isDir }
