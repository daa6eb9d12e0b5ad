package scaffold

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

//go:embed files
var templates embed.FS

// SecretsPattern is the path_regex of .sops.yaml for the clusters in a folder.
func SecretsPattern(folder string) string {
	return `^` + regexp.QuoteMeta(folder) + `/[^/]+/secrets\.sops\.yaml$`
}

// release matches a version with its tag, and what git describe adds to one that
// comes after it.
var release = pattern.New(`^v([0-9]+\.[0-9]+\.[0-9]+)(-[0-9]+-g[0-9a-f]+)?(-dirty)?$`)

// releaseOf is the release that a program of some version is, or comes after; "" where
// there is none.
func releaseOf(version string) string {
	m := release.FindStringSubmatch(version)
	if m == nil || m[1] == "0.0.0" {
		return ""
	}
	return m[1]
}

// checks are the files with the checks of a forge's CI, by its name.
var checks = map[string]string{"github": ".github/workflows/talos-agent.yaml", "gitea": ".gitea/workflows/talos-agent.yaml", "gitlab": ".gitlab-ci.yml"}

// WithoutRelease lists the files that want the version of a release written into
// them, because the program is none.
func (w Wishes) WithoutRelease() []string {
	var out []string
	if releaseOf(w.Version) == "" {
		for _, ci := range w.CI {
			out = append(out, checks[ci])
		}
	}
	slices.Sort(out)
	return out
}

// Files are the files of the repository by their paths, all but the encrypted
// secrets.
func Files(w Wishes, nodes []Node) (map[string]string, error) {
	control, worker := w.Ranges()
	controlSize, workerSize, _ := w.Sizes()
	data := struct {
		Wishes
		Nodes                           []Node
		Control, Worker                 cluster.Range
		ControlSize, WorkerSize         Size
		SecretsPattern                  string
		Talos, Kubernetes, Contract     string
		VIPGiven, HA, UsesCilium, Other bool
		Renovate                        bool
		Release                         string
		// Up leads from the folder of a cluster to the top.
		Up                                            string
		CiliumRepository, CiliumVersion, CiliumSHA256 string
	}{w, nodes, control, worker, controlSize, workerSize, SecretsPattern(w.Folder), Talos, Kubernetes, Contract, w.VIP.IsValid(), w.ControlPlanes > 1, w.CNI == "cilium", w.Images != "",
		len(w.CI) > 0, releaseOf(w.Version), strings.Repeat("../", strings.Count(w.Folder, "/")+2), CiliumRepository, Cilium, ciliumSHA256}
	at := path.Join(w.Folder, w.Cluster)
	out := map[string]string{}
	for name, schema := range w.Schemas {
		out[".schema/"+name+".json"] = string(schema)
	}
	files := map[string]string{
		"README.md": "README.md", ".gitignore": "gitignore", ".sops.yaml": "sops.yaml",
		path.Join(at, "cluster.yaml"): "cluster.yaml", path.Join(at, "nodes.yaml"): "nodes.yaml",
	}
	if data.UsesCilium {
		files[path.Join(at, "addons/cilium.yaml")] = "cilium.yaml"
	}
	if data.Renovate {
		files["renovate.json"] = "renovate.json"
	}
	for _, ci := range w.CI {
		files[checks[ci]] = "ci/" + ci + ".yaml"
	}
	functions := template.FuncMap{"join": func(list []string) string { return strings.Join(list, ", ") }, "comma": func(list []string) string { return strings.Join(list, ",") }}
	for name, from := range files {
		text, err := templates.ReadFile("files/" + from)
		if err != nil {
			return nil, err
		}
		// The forges' own ${{ }} stays what it is.
		t, err := template.New(from).Delims("<<", ">>").Funcs(functions).Parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("read the template of %s: %w", name, err)
		}
		var b strings.Builder
		if err := t.Execute(&b, data); err != nil {
			return nil, fmt.Errorf("write %s: %w", name, err)
		}
		out[name] = b.String()
	}
	return out, nil
}
