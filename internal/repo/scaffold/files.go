package scaffold

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"
	"text/template"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

//go:embed files
var templates embed.FS

// CiliumAddon is the addon file of Cilium.
const CiliumAddon = "name: cilium\nnamespace: kube-system\nchart: {repository: https://helm.cilium.io, name: cilium, version: " + Cilium + "}\n"

// SecretsPattern is the path_regex of .sops.yaml for the clusters in a folder.
func SecretsPattern(folder string) string {
	return `^` + regexp.QuoteMeta(folder) + `/[^/]+/secrets\.sops\.yaml$`
}

// Files are the files of the repository by their paths, all but the encrypted
// secrets.
func Files(w Wishes, nodes []Node) (map[string]string, error) {
	control, worker := w.Ranges()
	data := struct {
		Wishes
		Nodes                           []Node
		Control, Worker                 cluster.Range
		SecretsPattern                  string
		Talos, Kubernetes, Contract     string
		VIPGiven, HA, UsesCilium, Other bool
		Release                         string
	}{w, nodes, control, worker, SecretsPattern(w.Folder), Talos, Kubernetes, Contract, w.VIP.IsValid(), w.ControlPlanes > 1, w.CNI == "cilium", w.Images != "",
		strings.TrimPrefix(w.Version, "v")}
	at := path.Join(w.Folder, w.Cluster)
	out := map[string]string{}
	if data.UsesCilium {
		out[path.Join(at, "addons/cilium.yaml")] = CiliumAddon
	}
	files := map[string]string{
		"README.md": "README.md", ".gitignore": "gitignore", ".sops.yaml": "sops.yaml",
		path.Join(at, "cluster.yaml"): "cluster.yaml", path.Join(at, "nodes.yaml"): "nodes.yaml",
	}
	for _, ci := range w.CI {
		files[map[string]string{"github": ".github/workflows/talos-agent.yaml", "gitea": ".gitea/workflows/talos-agent.yaml", "gitlab": ".gitlab-ci.yml"}[ci]] = "ci/" + ci + ".yaml"
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
