package inventory

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// unusedMark is the line at the beginning of a file that nobody is to list.
const unusedMark = "# unused: ok"

// Where a file of each kind is listed.
const (
	listPatch  = "name it in patches.all, patches.controlplane or patches.worker of cluster.yaml, or in patches of a node"
	listAddon  = "name it in addons of cluster.yaml"
	listValues = "name it in addons of cluster.yaml, or in values_files of an addon"
	listGate   = "name it as the job of a gate in cluster.yaml"
	listAny    = "name it in patches, addons or gates of cluster.yaml"
)

// Unlisted finds the patches, addons and Jobs under root that no cluster names: they
// look as if they had an effect. The snapshots are the valid clusters there are.
// In the folder of a cluster that is not among them nothing is looked for, for
// its lists are not known, and in a folder that clusters share only when all of
// them are known.
func Unlisted(fsys fs.FS, root string, snaps []cluster.Snapshot) cluster.Problems {
	u := unlisted{fsys: fsys, root: path.Clean(root), named: map[string]bool{}, folders: map[string]bool{}}
	all, misnamed, _ := listFolders(fsys, root)
	all = append(all, misnamed...)
	for _, name := range all {
		u.folders[path.Join(u.root, name)] = false
	}
	for _, s := range snaps {
		u.folders[path.Dir(s.Where[""].File)] = true
		for _, file := range s.Files {
			u.named[file] = true
		}
	}
	u.whole = len(snaps) == len(all)
	// What cannot be walked cannot be read as part of a cluster either.
	_ = fs.WalkDir(fsys, u.root, u.visit)
	u.problems.Sort()
	return u.problems
}

// unlisted is one run of Unlisted.
type unlisted struct {
	fsys     fs.FS
	root     string
	named    map[string]bool
	folders  map[string]bool // of clusters, and whether each is known
	whole    bool            // all are
	problems cluster.Problems
}

func (u *unlisted) visit(file string, e fs.DirEntry, err error) error {
	name := path.Base(file)
	switch known, isCluster := u.folders[file]; {
	case err != nil:
		return nil
	case e.IsDir() && file != u.root && (strings.HasPrefix(name, ".") || u.named[file] || isCluster && !known):
		return fs.SkipDir // not ours, a chart, or a cluster whose lists are not known
	case !e.Type().IsRegular() || u.named[file]:
		return nil
	}
	ext := path.Ext(name)
	if ext != ".yaml" && ext != ".yml" || strings.HasSuffix(name, ".sops"+ext) || strings.HasPrefix(name, ".") {
		return nil
	}
	_, own := u.folders[path.Dir(file)]
	if own && (name == ClusterFile || name == NodesFile) || !u.whole && !u.inCluster(file) {
		return nil
	}
	data, err := ReadFile(u.fsys, file)
	if err != nil || isMarkedUnused(string(data)) {
		return nil
	}
	if list := u.listFor(file, data); list != "" {
		u.problems = append(u.problems, cluster.Problem{Severity: cluster.Error, File: file, Message: "no list names the file: nothing in it has an effect",
			Hint: list + "; to keep it unused, begin it with the line " + unusedMark})
	}
	return nil
}

func (u *unlisted) inCluster(file string) bool {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if _, ok := u.folders[dir]; ok {
			return true
		}
	}
	return false
}

// listFor returns where a file belongs by what it holds, or else by where it
// lies; "" for a file of somebody else.
func (u *unlisted) listFor(file string, data []byte) string {
	d := yamlschema.Document{File: file, Report: yamlschema.NewReport()}
	for _, n := range d.Parse(data) {
		has := func(key string) bool { return yamlschema.Lookup(n, key) != nil }
		version := yamlschema.Lookup(n, "apiVersion")
		switch {
		case has("chart") && has("name"):
			return listAddon
		case isMapping(n, "machine"), isMapping(n, "cluster"), version != nil && version.Value == "v1alpha1" && has("kind"):
			return listPatch
		case version != nil && version.Value == "batch/v1" && path.Base(path.Dir(file)) == "gates":
			return listGate
		}
	}
	dir := path.Dir(file)
	switch path.Base(dir) {
	case "patches":
		return listPatch
	case "addons":
		return listValues
	}
	if _, isCluster := u.folders[dir]; !isCluster && u.besideNamed(dir) {
		return listAny
	}
	return ""
}

func isMapping(n *yaml.Node, key string) bool {
	v := yamlschema.Lookup(n, key)
	return v != nil && v.Kind == yaml.MappingNode
}

// besideNamed reports whether a folder holds a file that a cluster names.
func (u *unlisted) besideNamed(dir string) bool {
	for file := range u.named {
		if path.Dir(file) == dir {
			return true
		}
	}
	return false
}

// isMarkedUnused reports whether one of the comments that a text begins with is
// the mark.
func isMarkedUnused(text string) bool {
	var head []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			break
		}
		head = append(head, line)
	}
	return slices.Contains(head, unusedMark)
}
