package inventory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// Options are what an inventory does not contain: who reads it, and what the host's own config sets.
type Options struct {
	// Owner is the owner in the host's config; "" means DefaultOwner. With the cluster's name it makes the cluster's identity.
	Owner string
	// Pool and ImageDatastore are the host's defaults; "" means no pool and the storage "local".
	Pool, ImageDatastore string
	// Mirrors maps a registry host to the mirror that the nodes pull from.
	Mirrors map[string]string
	// Secrets are the cluster's decrypted secrets; nil when there are none to be had (no file, no key). Placeholders stand for
	// ${values.name} then, and a note lists what was not checked.
	Secrets *Secrets
	// Revision is what the files are a state of; it is carried through.
	Revision cluster.Revision
	// Budget is what the host's clusters may still have together; nil: there is no other.
	Budget *Budget
}

// DefaultOwner is the owner of clusters whose host config names none.
const DefaultOwner = "talos-agent"

// The names of the files of a cluster's folder.
const (
	ClusterFile = "cluster.yaml"
	NodesFile   = "nodes.yaml"
	SecretsFile = "secrets.sops.yaml"
)

// loader is one run of Load.
type loader struct {
	*yamlschema.Report
	fsys fs.FS
	dir  string
	opts Options

	cluster clusterFile
	nodes   nodesFile
	spec    cluster.Spec

	clusterRead bool                 // cluster.yaml is a mapping, whatever is wrong in it
	nodesRead   bool                 // and nodes.yaml
	named       []string             // the files and folders that lists and fields name
	patches     map[string]patchFile // by path; each file is read once
	unreadPatch bool                 // a patch could not be read
	rows        []rowProblem         // of counted rows, to be reported once
	spend       spend
	spent       bool // which is reported: nothing more is read
	unverified  bool // a placeholder stood for a secret value

	confidential []cluster.Secret // texts with secrets too short to be found by themselves
}

// Load reads the cluster in the folder dir of fsys, for example "inventory/dev", and checks it. With an error among the problems
// the snapshot is empty except for its revision: an inventory is valid as a whole or not at all. Otherwise Snapshot.Warnings
// holds the problems.
//
// Paths in the inventory are relative to dir. They may climb out of it to share files between clusters, but never out of fsys.
func Load(fsys fs.FS, dir string, opts Options) (cluster.Snapshot, cluster.Problems) {
	l := &loader{Report: yamlschema.NewReport(), fsys: fsys, dir: path.Clean(dir), opts: opts, patches: map[string]patchFile{}, spend: newSpend(opts.Budget)}
	if l.opts.Owner == "" {
		l.opts.Owner = DefaultOwner
	}
	l.Where[""] = cluster.Position{File: path.Join(l.dir, ClusterFile)}
	l.Where["nodes"] = cluster.Position{File: path.Join(l.dir, NodesFile)}
	l.clusterRead = l.readInto(ClusterFile, "", &l.cluster)
	l.nodesRead = l.readInto(NodesFile, "nodes", &l.nodes)

	l.resolveCluster()
	l.resolveNetwork()
	l.resolveNodes()
	l.resolveCapacity()
	l.resolveForwards()
	l.resolveEndpoint()
	l.resolvePatches()
	l.resolveAddons()
	if l.unverified {
		l.Note("", "", "the values of %s are not known here: placeholders stand for them, and what they lead to was not checked", SecretsFile)
	}

	if reserved := func(n cluster.Node) bool { return l.spec.Network.ModeOf(n) == cluster.AddressReserved }; slices.ContainsFunc(l.spec.Nodes, reserved) && !l.Problems.HasErrors() {
		l.Note("network", "`talos-agent validate` prints its lines", "the DHCP server of the nodes' network must know the MAC address of every node")
	}

	problems := l.Finish()
	if problems.HasErrors() {
		return cluster.Snapshot{Revision: opts.Revision}, problems
	}
	slices.Sort(l.named)
	snap := cluster.Snapshot{Revision: opts.Revision, Spec: l.spec, Where: l.Where, Files: slices.Compact(l.named), Content: l.digestContent(), Warnings: problems}
	if opts.Secrets != nil {
		snap.Bundle, snap.Authorities = opts.Secrets.Bundle, opts.Secrets.keys
		snap.Confidential = l.listConfidential()
		snap.Where["secrets"] = cluster.Position{File: path.Join(l.dir, SecretsFile)}
	}
	return snap, problems
}

// readInto decodes one of the two files of a cluster; it reports whether there was something to decode.
func (l *loader) readInto(name, prefix string, out any) bool {
	file := path.Join(l.dir, name)
	data, err := ReadFile(l.fsys, file)
	d := yamlschema.Document{File: file, Report: l.Report}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.Problem(0, 0, "", "the file is missing", "a cluster needs "+ClusterFile+" and "+NodesFile)
		return false
	case err != nil:
		d.Problem(0, 0, "", "cannot be read: "+err.Error(), fault.HintOf(err))
		return false
	}
	if why, hint := l.spend.takeYAML(len(data)); why != "" {
		l.spent = true
		d.Problem(0, 0, "", why, hint)
		return false
	}
	n := d.Single(data)
	if n == nil {
		return false
	}
	language.Decode(d, n, prefix, out)
	return true
}

// errTooLarge is a file beyond the bounds of one.
var errTooLarge = fmt.Errorf("larger than %d KiB", yamlschema.MaxFileBytes>>10)

// ReadFile reads a file of the repository within the bounds of one. Its errors do not name the file, which the problem they
// become names already; they may carry a Hint.
func ReadFile(fsys fs.FS, name string) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, errors.New("the path leaves the repository")
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, stripPath(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, stripPath(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, yamlschema.MaxFileBytes+1))
	if err != nil {
		return nil, stripPath(err)
	}
	if len(data) > yamlschema.MaxFileBytes {
		return nil, errTooLarge
	}
	return data, nil
}

// stripPath strips the operation and the path from an error of a file system: the problem it becomes names the file already.
func stripPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// fetch reads a file that a field names. On failure the problem is recorded and ok is false.
func (l *loader) fetch(field, name string) (file string, data []byte, ok bool) {
	file, ok = l.locate(field, name)
	if !ok || l.spent {
		return "", nil, false
	}
	data, err := ReadFile(l.fsys, file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.Wrong(field, "paths are relative to "+l.dir, "there is no file %s", yamlschema.Quote(file))
		return "", nil, false
	case err != nil:
		l.Wrong(field, fault.HintOf(err), "%s cannot be read: %s", yamlschema.Quote(file), err)
		return "", nil, false
	}
	if why, hint := l.spend.takeYAML(len(data)); why != "" {
		l.spent = true
		l.Wrong(field, hint, "%s", why)
		return "", nil, false
	}
	return file, data, true
}

// locate turns a path of the inventory into one of the file system.
func (l *loader) locate(field, name string) (string, bool) {
	file := path.Join(l.dir, name)
	switch {
	case path.IsAbs(name):
		l.Wrong(field, "write it relative to "+l.dir, "%s is an absolute path", yamlschema.Quote(name))
	case file == ".." || strings.HasPrefix(file, "../"):
		l.Wrong(field, "move the file into the repository", "%s leaves the repository", yamlschema.Quote(name))
	case slices.Contains(strings.Split(file, "/"), ".git"):
		l.Wrong(field, "", "%s is none of the repository's files", yamlschema.Quote(name))
	default:
		l.named = append(l.named, file)
		return file, true
	}
	return "", false
}

// CheckFolder returns what is wrong with the name of a cluster's folder under root, which is the cluster's own; nil if nothing
// is. It may be anything that a file system takes, so no text has it unquoted.
func CheckFolder(root, name string) cluster.Problems {
	if f := formats["label"]; f.Pattern.MatchString(name) && len(name) <= f.Max {
		return nil
	}
	return cluster.Problems{{Severity: cluster.Error, File: path.Clean(root),
		Message: fmt.Sprintf("the folder %s has a %s and a name that no cluster can have", yamlschema.Quote(name), ClusterFile),
		Hint:    "name it as its cluster: " + formats["label"].What}}
}

// Clusters lists the folders directly under root that hold a cluster.yaml, in
// order, as far as their names are those of clusters. Root itself may not be a cluster.
func Clusters(fsys fs.FS, root string) ([]string, cluster.Problems) {
	names, _, problems := listFolders(fsys, root)
	return names, problems
}

// maxFolderProblems is how many folders that are no clusters are reported: each stands in the
// log and in every status.
const maxFolderProblems = 50

// listFolders lists the folders of clusters, and those that would be clusters' if they
// were named as one.
func listFolders(fsys fs.FS, root string) (names, misnamed []string, problems cluster.Problems) {
	root = path.Clean(root)
	failed := func(message, hint string) cluster.Problems {
		return cluster.Problems{{Severity: cluster.Error, File: root, Message: message, Hint: hint}}
	}
	entries, err := fs.ReadDir(fsys, root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, failed("there is no such folder", "check the path of the repository in the host's config")
	}
	if err != nil {
		return nil, nil, failed("cannot be listed: "+stripPath(err).Error(), fault.HintOf(err))
	}
	for _, e := range entries {
		switch {
		case e.Name() == ClusterFile:
			return nil, nil, failed("holds a "+ClusterFile+" itself", "name the folder above it: every cluster has a folder of its own")
		case strings.HasPrefix(e.Name(), "."):
		case e.Type()&fs.ModeSymlink != 0:
			problems = append(problems, cluster.Problem{Severity: cluster.Warning, File: path.Join(root, e.Name()),
				Message: "is a symbolic link, which is not followed, so it is no cluster", Hint: "put the folder itself there"})
		case !e.IsDir():
		case isFile(fsys, path.Join(root, e.Name(), ClusterFile)):
			if wrong := CheckFolder(root, e.Name()); wrong != nil {
				misnamed, problems = append(misnamed, e.Name()), append(problems, wrong...)
				continue
			}
			names = append(names, e.Name())
		case isFile(fsys, path.Join(root, e.Name(), NodesFile)):
			problems = append(problems, cluster.Problem{Severity: cluster.Warning, File: path.Join(root, e.Name()),
				Message: "has a " + NodesFile + " but no " + ClusterFile + ", so it is no cluster", Hint: "add " + ClusterFile})
		}
	}
	if more := len(problems) - maxFolderProblems; more > 0 {
		problems.Sort()
		last := problems[len(problems)-1]
		last.Message, last.Hint = fmt.Sprintf("%d more folders are no clusters", more), "correct the others first"
		problems = append(problems[:maxFolderProblems], last)
	}
	if len(names) == 0 && !problems.HasErrors() {
		problems = append(problems, failed("holds no cluster", "a cluster is a folder with a "+ClusterFile+" in it")...)
	}
	return names, misnamed, problems
}

func isFile(fsys fs.FS, name string) bool {
	info, err := fs.Stat(fsys, name)
	return err == nil && info.Mode().IsRegular()
}
