package formats

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// File is a file to read, by its name on the command line.
type File struct {
	Name string
	Data []byte
}

// Options are what a person sets besides.
type Options struct {
	// Set are scalar values of cluster.yaml by their paths, such as network.gateway. They
	// win over what the files have.
	Set map[string]string
}

// Format is a description of clusters that is read.
type Format struct {
	Name string // for people
	read func(*reading, source)
}

// The formats.
var (
	inventoryFile = Format{"cluster.yaml of an inventory", (*reading).readCluster}
	nodesFile     = Format{"nodes.yaml of an inventory", (*reading).readNodes}
	terraform     = Format{"Terraform variables", (*reading).readTerraform}
	nodesJSON     = Format{"nodes.json", (*reading).readNodesJSON}
	talhelper     = Format{"talconfig.yaml of talhelper", (*reading).readTalhelper}
	patchFile     = Format{"a patch of a machine config", func(*reading, source) {}}
)

// source is a file with what was found in it.
type source struct {
	File
	Format      Format
	value       *value
	expressions []entry
}

// reading is one run of Read.
type reading struct {
	d       *draft.Draft
	sources []source
	vars    []variable // of all files of Terraform variables
	used    map[string]bool
}

// Read reads the files into one draft. An error is a file that cannot be read, or none of
// the formats: then nothing is known.
func Read(files []File, o Options) (*draft.Draft, error) {
	r := &reading{d: draft.New(), used: map[string]bool{}}
	for _, key := range sortedKeys(o.Set) {
		r.set(key, o.Set[key])
	}
	var problems cluster.Problems
	for _, f := range files {
		s, err := recognizeFile(f)
		if err != nil {
			problems = append(problems, describeError(f.Name, err))
			continue
		}
		r.sources = append(r.sources, s)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	if !slices.ContainsFunc(r.sources, func(s source) bool { return s.Format.Name != patchFile.Name }) {
		return nil, errors.New("there are only patches, and no description of a cluster")
	}
	before := r.d.Cluster.YAML()
	for _, s := range r.sources {
		if s.Format.Name != patchFile.Name {
			r.d.AddSource(s.Name)
		}
		for _, e := range s.expressions {
			r.d.Leave(draft.Origin{File: s.Name, Line: e.line}, e.key, e.value.text, "write what it comes to")
		}
		s.Format.read(r, s)
	}
	r.finishTerraform()
	if r.d.Cluster.YAML() == before && !r.d.HasNodes() {
		return nil, fault.WithHint(errors.New("nothing in the files is known to import"), "docs/how-to/import.md lists what is")
	}
	for _, s := range r.sources {
		if s.Format.Name == patchFile.Name && !r.used[s.Name] && !r.keepPatch(s) {
			r.d.Leave(draft.Origin{File: s.Name}, "", "is a patch that no description names", "copy it to patches/ and name it in patches of cluster.yaml")
		}
	}
	r.ask()
	return r.d, nil
}

// keepPatch keeps a patch at the path that a cluster.yaml or nodes.yaml names it by.
func (r *reading) keepPatch(s source) bool {
	for _, from := range r.sources {
		if from.Format.Name != inventoryFile.Name && from.Format.Name != nodesFile.Name {
			continue
		}
		file, inside := strings.CutPrefix(path.Clean(toSlash(s.Name)), strings.TrimPrefix(path.Dir(path.Clean(toSlash(from.Name)))+"/", "./"))
		if !inside || !strings.HasPrefix(file, "patches/") || !from.value.names(file) {
			continue
		}
		o := draft.Origin{File: s.Name}
		if why, hint := refusePatch(string(s.Data)); why != "" {
			r.d.Leave(o, "", why, hint)
		} else {
			r.d.AddFile(o, file, string(s.Data))
		}
		return true
	}
	return false
}

// describeError is the problem that an error of a file is.
func describeError(file string, err error) cluster.Problem {
	p := cluster.Problem{Severity: cluster.Error, File: file, Message: err.Error(), Hint: fault.HintOf(err)}
	if e, ok := errors.AsType[*syntaxError](err); ok {
		p.Line = e.line
	}
	return p
}

// IsSecret reports whether a file holds secrets by its name, so that it is not opened.
func IsSecret(name string) bool {
	base := strings.ToLower(path.Base(strings.ReplaceAll(name, `\`, "/")))
	return strings.Contains(base, ".sops.") || strings.HasPrefix(base, "talsecret") || strings.HasPrefix(base, "talenv") ||
		strings.HasPrefix(base, "secrets.") || strings.HasPrefix(base, "credentials.") || strings.HasSuffix(base, ".tfstate")
}

// recognizeFile finds out which format a file has, and parses it.
func recognizeFile(f File) (source, error) {
	s := source{File: f}
	var err error
	switch name := strings.ToLower(path.Base(strings.ReplaceAll(f.Name, `\`, "/"))); {
	case strings.HasSuffix(name, ".tfvars"):
		s.Format = terraform
		s.value, s.expressions, err = readHCL(f.Name, f.Data)
	case strings.HasSuffix(name, ".tfvars.json"):
		s.Format = terraform
		s.value, err = readJSON(f.Data)
	case strings.HasSuffix(name, ".json"):
		s.Format = nodesJSON
		s.value, err = readJSON(f.Data)
		if err == nil && !s.value.has("controlplanes", "workers", "nodes", "control_plane_vip") {
			err = unknownFormat("it has none of controlplanes, workers and nodes")
		}
	case strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"):
		return recognizeYAML(s)
	case strings.HasSuffix(name, ".tf"):
		err = fault.WithHint(errors.New("is a program of Terraform"), "name the files with the values of its variables: terraform.tfvars, *.auto.tfvars, *.tfvars.json")
	default:
		err = unknownFormat("its name ends in none of .yaml, .yml, .json, .tfvars and .tfvars.json")
	}
	if err == nil && s.value.kind != mapping {
		err = failAt(s.value.line, "is %s, and not a mapping", kindNames[s.value.kind])
	}
	return s, err
}

func recognizeYAML(s source) (source, error) {
	docs, err := readYAML(s.Data)
	if err != nil {
		return s, err
	}
	for _, d := range docs {
		if d.has("machine", "cluster", "kind") || d.kind == list && len(d.items) > 0 && d.items[0].has("op") {
			s.Format, s.value = patchFile, d
			return s, nil
		}
	}
	if len(docs) != 1 || docs[0].kind != mapping {
		return s, unknownFormat("it is not one mapping")
	}
	switch s.value = docs[0]; {
	case s.value.has("clusterName"):
		s.Format = talhelper
	case s.value.has("cluster_name", "talos_version", "kubernetes_version", "proxmox"):
		s.Format = inventoryFile
	case s.value.has("controlplane", "workers", "counted"):
		s.Format = nodesFile
	default:
		return s, unknownFormat("it has neither cluster_name nor clusterName, and no controlplane or workers")
	}
	return s, nil
}

func unknownFormat(why string) error {
	return fault.WithHint(fmt.Errorf("is no description of a cluster that import knows: %s", why),
		"it knows cluster.yaml and nodes.yaml, Terraform's *.tfvars and *.tfvars.json, nodes.json, and talhelper's talconfig.yaml")
}

// set sets a scalar of cluster.yaml for a person.
func (r *reading) set(key, written string) {
	v := draft.Text(written)
	if isLiteral(written) {
		v = draft.Literal(written)
	}
	if key == "proxmox.nodes" || key == "network.nameservers" || key == "network.time_servers" || key == "network.cert_sans" {
		v = draft.Texts(strings.Split(written, ",")...)
	}
	r.d.Cluster.Set(draft.Origin{File: "--set " + key}, v, strings.Split(key, ".")...)
}

// isLiteral reports whether a text is a whole number or a truth value.
func isLiteral(s string) bool {
	return s == "true" || s == "false" || s == "0" || s != "" && s[0] != '0' && len(s) < 10 && strings.Trim(s, "0123456789") == ""
}

// ask leaves comments where something is missing without which no inventory is valid.
func (r *reading) ask() {
	c := r.d.Cluster
	c.Ask("the name of the cluster, like dev", "cluster_name")
	c.Ask("the version of Talos, like v1.13.9", "talos_version")
	c.Ask("the version of Kubernetes, like v1.36.1", "kubernetes_version")
	if c.Get("proxmox", "nodes") == nil {
		c.Ask("the name of the Proxmox VE host, like pve1", "proxmox", "node")
	}
	if c.Get("network", "cidr") != nil {
		c.Ask("the router of the nodes, like 10.10.0.1", "network", "gateway")
	} else if c.Get("network", "gateway") != nil {
		c.Ask("the network of the nodes, like 10.10.0.0/24", "network", "cidr")
	}
}
