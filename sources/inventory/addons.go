package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// defaultReady is how long an addon may take to become ready.
const defaultReady = 15 * time.Minute

// resolveAddons reads and checks the addons.
func (l *loader) resolveAddons() {
	names := map[string]string{} // name -> field
	for i, file := range l.cluster.Addons {
		if file == "" {
			continue
		}
		at := yamlschema.Element("addons", i)
		a, ok := l.readAddon(at, file)
		if !ok {
			continue
		}
		if first, taken := names[a.Name]; taken {
			l.Wrong(at+".name", "give every addon a name of its own", "%s is the name of another addon (%s)", a.Name, l.Cite(first))
			continue
		}
		names[a.Name] = at
		l.spec.Addons = append(l.spec.Addons, a)
	}
	l.checkDependencies(names)
	l.checkNamespaces(names)
	l.checkCNI(names)
}

// readAddon reads one addon; ok is false when it has no usable name.
func (l *loader) readAddon(field, name string) (cluster.Addon, bool) {
	file, data, ok := l.fetch(field, name)
	if !ok {
		return cluster.Addon{}, false
	}
	d := yamlschema.Document{File: file, Report: l.Report}
	n := d.Single(data)
	if n == nil {
		return cluster.Addon{}, false
	}
	l.Where[field] = cluster.Position{File: file, Line: n.Line, Column: n.Column}
	var f addonFile
	language.Decode(d, n, field, &f)
	if f.Name == "" {
		return cluster.Addon{}, false
	}
	namespace := f.Name
	if f.Name == ciliumName {
		namespace = "kube-system"
	}
	a := cluster.Addon{
		Name:       f.Name,
		Namespace:  orDefault(f.Namespace, namespace),
		Chart:      l.chart(field+".chart", f.Chart),
		DependsOn:  f.DependsOn,
		Ownership:  cluster.Ownership(orDefault(f.Ownership, string(cluster.Managed))),
		ReadyAfter: f.Ready.Timeout,
		File:       file,
	}
	if a.ReadyAfter == 0 {
		a.ReadyAfter = defaultReady
	}
	a.RollBack = f.OnFailure == "rollback"
	if a.RollBack && a.Ownership == cluster.BootstrapOnly {
		l.Wrong(field+".on_failure", "remove it", "does not go with ownership: bootstrap-only, which is installed once and never upgraded")
	}
	a.Asks = cluster.NamespaceMeta{Labels: f.NamespaceLabels, Annotations: f.NamespaceAnnotations}
	l.checkNamespace(field, a)
	a.Values = l.addonValues(d, field, f)
	return a, true
}

// chart checks where a chart comes from.
func (l *loader) chart(field string, c chart) cluster.Chart {
	out := cluster.Chart{Repository: strings.TrimSuffix(c.Repository, "/"), OCI: c.OCI, Name: c.Name, Version: c.Version}
	var sources []string
	for _, key := range []string{"repository", "oci", "path"} {
		if l.Has(field + "." + key) {
			sources = append(sources, key)
		}
	}
	if len(sources) != 1 {
		if l.Has(field) {
			l.Wrong(field, "write exactly one of repository, oci and path", "has %s", countSources(sources))
		}
		return out
	}
	only := func(key string, with ...string) {
		if l.Has(field+"."+key) && !slices.Contains(with, sources[0]) {
			l.Wrong(field+"."+key, "remove it", "does not go with %s", sources[0])
		}
	}
	need := func(key, example string) {
		if !l.Has(field + "." + key) {
			l.Wrong(field+"."+key, "write "+key+": "+example, "is missing")
		}
	}
	only("name", "repository")
	only("version", "repository", "oci")
	only("sha256", "repository")
	only("digest", "oci")
	switch sources[0] {
	case "repository":
		need("name", formats["chartname"].Write)
		need("version", formats["chartversion"].Write)
		out.Digest = c.SHA256
	case "oci":
		need("version", formats["chartversion"].Write)
		out.Name, out.Digest = path.Base(c.OCI), c.Digest
	case "path":
		if c.Path != "" {
			l.localChart(field+".path", c.Path, &out)
		}
		return out
	}
	if out.Digest == "" && out.Version != "" && (out.Repository != "" && out.Name != "" || out.OCI != "") {
		pin := "sha256"
		if sources[0] == "oci" {
			pin = "digest"
		}
		l.Warn(field+"."+pin, "write the "+pin+" to fix it for every host", "is not written: the first chart fetched as %s is remembered on the host and taken from then on", out.Ref())
	}
	return out
}

func countSources(sources []string) string {
	if len(sources) == 0 {
		return "no source"
	}
	return strings.Join(sources, " and ")
}

// The bounds of a chart that lies in the repository.
const (
	maxChartFiles = 1000
	maxChartBytes = 5 << 20
)

// localChart reads a chart from the repository.
func (l *loader) localChart(field, name string, out *cluster.Chart) {
	dir, ok := l.locate(field, name)
	if !ok || l.spent {
		return
	}
	out.Path, out.Files = dir, map[string][]byte{}
	total := 0
	err := fs.WalkDir(l.fsys, dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return bareOf(err)
		}
		data, err := ReadFile(l.fsys, p)
		if err != nil {
			return fmt.Errorf("%s cannot be read: %w", yamlschema.Quote(p), err)
		}
		if why, hint := l.spend.takeChart(len(data)); why != "" {
			l.spent = true
			return fault.WithHint(errors.New(why), hint)
		}
		total += len(data)
		if len(out.Files) >= maxChartFiles || total > maxChartBytes {
			return fmt.Errorf("larger than %d files or %d MiB", maxChartFiles, maxChartBytes>>20)
		}
		out.Files[strings.TrimPrefix(p, dir+"/")] = data
		return nil
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.Wrong(field, "paths are relative to "+l.dir, "there is no folder %s", yamlschema.Quote(dir))
		return
	case err != nil:
		l.Wrong(field, fault.HintOf(err), "%s", err)
		return
	case out.Files["Chart.yaml"] == nil:
		l.Wrong(field, "name the folder that holds Chart.yaml", "%s holds no Chart.yaml", yamlschema.Quote(dir))
		return
	}
	meta := yamlschema.Document{File: path.Join(dir, "Chart.yaml"), Report: l.Report}
	if n := meta.Single(out.Files["Chart.yaml"]); n != nil {
		if v := yamlschema.Lookup(n, "name"); v != nil {
			out.Name = v.Value
		}
		if v := yamlschema.Lookup(n, "version"); v != nil {
			out.Version = v.Value
		}
	}
}

func bareOf(err error) error {
	if err == nil {
		return nil
	}
	return stripPath(err)
}

// addonValues merges the values of an addon: our defaults, its files in order,
// its own.
func (l *loader) addonValues(d yamlschema.Document, field string, f addonFile) cluster.Secret {
	merged := map[string]any{}
	for i, name := range f.ValuesFiles {
		if name == "" {
			continue
		}
		file, data, ok := l.fetch(yamlschema.Element(field+".values_files", i), name)
		if !ok {
			continue
		}
		vd := yamlschema.Document{File: file, Report: l.Report}
		if n := vd.Single(data); n != nil {
			l.mergeTree(vd, "", yamlschema.Tree{Node: n}, merged)
		}
	}
	if f.Values.Node != nil && !yamlschema.IsNull(f.Values.Node) {
		l.mergeTree(d, field+".values", f.Values, merged)
	}
	if f.Name == ciliumName {
		defaults := ciliumValues(l.spec, merged)
		mergeValues(defaults, merged)
		merged = defaults
		l.checkCiliumProxy(field, merged)
	}
	b, err := json.Marshal(merged)
	if err != nil {
		// Trees hold only what JSON has.
		l.Wrong(field+".values", "", "cannot be written as JSON")
		return cluster.Secret{}
	}
	return cluster.NewSecret(b)
}

// mergeTree fills the secrets into a tree of values and lays it over into.
func (l *loader) mergeTree(d yamlschema.Document, field string, t yamlschema.Tree, into map[string]any) {
	if !l.substitute(d, t.Node) {
		return
	}
	v, ok := plainValue(d, t.Node)
	if !ok {
		return
	}
	m, isMap := v.(map[string]any)
	if !isMap {
		d.Problem(t.Line, t.Column, field, "values need keys of their own, not "+yamlschema.KindOf(t.Node), "write lines of the form key: value below it")
		return
	}
	mergeValues(into, m)
}

// mergeValues lays over onto base: mappings are merged, everything else is
// replaced. A null stays, because to Helm it means "remove the chart's own".
func mergeValues(base, over map[string]any) {
	for k, v := range over {
		inner, isMap := v.(map[string]any)
		below, wasMap := base[k].(map[string]any)
		if isMap && wasMap {
			mergeValues(below, inner)
			continue
		}
		base[k] = v
	}
}

// checkDependencies finds dependencies on nothing and on each other.
func (l *loader) checkDependencies(fields map[string]string) {
	byName := map[string]cluster.Addon{}
	for _, a := range l.spec.Addons {
		byName[a.Name] = a
	}
	for _, a := range l.spec.Addons {
		for i, dep := range a.DependsOn {
			if _, known := byName[dep]; !known && dep != "" {
				l.Wrong(yamlschema.Element(fields[a.Name]+".depends_on", i), "add it to addons in "+ClusterFile+", or remove it", "there is no addon %s", dep)
			}
		}
		if cycle := cycleFrom(a.Name, byName); cycle != nil {
			l.Wrong(fields[a.Name]+".depends_on", "break the circle", "waits for itself: %s", strings.Join(cycle, " -> "))
		}
	}
}

// cycleFrom returns the way from an addon back to itself, or nil.
func cycleFrom(name string, addons map[string]cluster.Addon) []string {
	seen := map[string]bool{}
	var walk func(at string, way []string) []string
	walk = func(at string, way []string) []string {
		for _, dep := range addons[at].DependsOn {
			if dep == name {
				return append(way, name)
			}
			if seen[dep] {
				continue
			}
			seen[dep] = true
			if found := walk(dep, append(slices.Clip(way), dep)); found != nil {
				return found
			}
		}
		return nil
	}
	return walk(name, []string{name})
}
