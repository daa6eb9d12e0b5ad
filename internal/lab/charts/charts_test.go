package charts

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
)

// load reads a chart with Helm.
func load(t *testing.T, archive []byte) *chart.Chart {
	t.Helper()
	c, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render renders a chart as an install would.
func render(c *chart.Chart, values map[string]any) (map[string]string, error) {
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "demo", Namespace: "apps", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

func stockChart(t *testing.T, name, version string) Chart {
	t.Helper()
	all, err := Stock()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Name == name && c.Version == version {
			return c
		}
	}
	t.Fatalf("no chart %s %s", name, version)
	return Chart{}
}

func TestChartsAreReproducible(t *testing.T) {
	first, err := packStock()
	if err != nil {
		t.Fatal(err)
	}
	second, err := packStock()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range first {
		if first[i].Digest() != second[i].Digest() {
			t.Errorf("%s has other bytes the second time", first[i].fileName())
		}
		if seen[first[i].Digest()] {
			t.Errorf("%s has the bytes of another chart", first[i].fileName())
		}
		seen[first[i].Digest()] = true
		if meta := load(t, first[i].Archive).Metadata; meta.Validate() != nil || meta.Name != first[i].Name || meta.Version != first[i].Version {
			t.Errorf("Helm reads %s as %+v", first[i].fileName(), meta)
		}
	}
}

func TestPackChartWantsAName(t *testing.T) {
	for _, files := range []map[string]string{
		nil, {"Chart.yaml": "name: x"}, {"Chart.yaml": "version: 1.0.0"}, {"Chart.yaml": "["},
	} {
		if c, err := Pack(files); err == nil {
			t.Errorf("%v was packed as %s", files, c.fileName())
		}
	}
}

// decodeManifests decodes every document of rendered templates by kind/name.
func decodeManifests(t *testing.T, rendered map[string]string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for file, text := range rendered {
		if strings.HasSuffix(file, "NOTES.txt") {
			continue
		}
		for doc := range strings.SplitSeq(text, "\n---\n") {
			var m struct {
				Kind     string
				Metadata struct{ Name string }
				Rest     map[string]any `yaml:",inline"`
			}
			if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, doc)
			}
			all[m.Kind+"/"+m.Metadata.Name] = m.Rest
		}
	}
	return all
}

func TestCiliumChart(t *testing.T) {
	c := load(t, stockChart(t, "cilium", "1.19.3").Archive)
	// What a cluster on Talos without kube-proxy asks for.
	values := map[string]any{}
	err := yaml.Unmarshal([]byte(`
ipam: {mode: kubernetes}
kubeProxyReplacement: true
k8sServiceHost: localhost
k8sServicePort: 7445
operator: {replicas: 1}
securityContext:
  capabilities:
    ciliumAgent: [CHOWN, NET_ADMIN]
    cleanCiliumState: [NET_ADMIN, SYS_ADMIN, SYS_RESOURCE]
cgroup: {autoMount: {enabled: false}, hostRoot: /sys/fs/cgroup}
`), &values)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := render(c, values)
	if err != nil {
		t.Fatal(err)
	}
	all := decodeManifests(t, rendered)
	for _, need := range []string{"ServiceAccount/cilium", "ServiceAccount/cilium-operator", "ConfigMap/cilium-config", "DaemonSet/cilium", "Deployment/cilium-operator"} {
		if all[need] == nil {
			t.Errorf("no %s in %v", need, rendered)
		}
	}
	data := all["ConfigMap/cilium-config"]["data"].(map[string]any)
	if data["ipam"] != "kubernetes" || data["kube-proxy-replacement"] != "true" || data["cgroup-root"] != "/sys/fs/cgroup" {
		t.Errorf("config map is %v", data)
	}
	agent := rendered["cilium/templates/daemonset.yaml"]
	for _, words := range []string{"hostNetwork: true", "operator: Exists", `value: "7445"`, `add: ["CHOWN","NET_ADMIN"]`} {
		if !strings.Contains(agent, words) {
			t.Errorf("the agent lacks %s:\n%s", words, agent)
		}
	}
	operator := rendered["cilium/templates/operator.yaml"]
	for _, words := range []string{"replicas: 1\n", "requiredDuringSchedulingIgnoredDuringExecution", "topologyKey: kubernetes.io/hostname"} {
		if !strings.Contains(operator, words) {
			t.Errorf("the operator lacks %s:\n%s", words, operator)
		}
	}
	if crds := c.CRDObjects(); len(crds) != 1 || crds[0].Name != "crds/ciliumnetworkpolicies.yaml" {
		t.Errorf("crds are %v", crds)
	}
}

func TestOtherCharts(t *testing.T) {
	for _, c := range []struct{ name, version, words string }{
		{"podinfo", "6.9.0", "podinfo:6.9.0"},
		{"podinfo", "6.9.1", "podinfo:6.9.1"},
		{"stuck", "0.1.0", "replicas: 1000"},
	} {
		rendered, err := render(load(t, stockChart(t, c.name, c.version).Archive), nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		decodeManifests(t, rendered)
		if text := rendered[c.name+"/templates/deployment.yaml"]; !strings.Contains(text, c.words) {
			t.Errorf("%s %s lacks %s:\n%s", c.name, c.version, c.words, text)
		}
	}
	if rendered, err := render(load(t, stockChart(t, "broken", "0.1.0").Archive), nil); err == nil {
		t.Errorf("broken was rendered: %v", rendered)
	}
}

func TestChartRepository(t *testing.T) {
	dir := t.TempDir()
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		h := servicetest.Opened[*Repository](b)(NewRepository(RepositoryConfig{Service: b.Config("charts")}))
		index := func() *repo.IndexFile {
			b.Helper()
			r := b.Must("GET", h.URL()+"/index.yaml", "")
			file := filepath.Join(dir, "index.yaml")
			if err := os.WriteFile(file, r.Body, 0o600); err != nil {
				b.Fatal(err)
			}
			i, err := repo.LoadIndexFile(file)
			if err != nil {
				b.Fatalf("Helm does not read the index: %v\n%s", err, r.Body)
			}
			return i
		}
		for _, want := range []struct{ name, version string }{{"cilium", "1.19.3"}, {"podinfo", "6.9.0"}, {"podinfo", "6.9.1"}, {"stuck", ""}, {"broken", ""}} {
			entry, err := index().Get(want.name, want.version)
			if err != nil {
				b.Fatal(err)
			}
			url, err := repo.ResolveReferenceURL(h.URL(), entry.URLs[0])
			if err != nil {
				b.Fatal(err)
			}
			r := b.Must("GET", url, "")
			if got := strings.TrimPrefix(digestOf(r.Body), "sha256:"); got != entry.Digest {
				b.Errorf("%s has digest %s, the index says %s", url, got, entry.Digest)
			}
			if c := load(b.T, r.Body); c.Name() != want.name {
				b.Errorf("%s is chart %s", url, c.Name())
			}
		}
		if total, chain := b.World.LongestChain(); total != b.World.Latency.Chart {
			b.Errorf("longest chain is %v: %v", total, chain)
		}
		b.Want(b.Must("GET", h.URL()+"/nothing-1.0.0.tgz", ""), 404, "not found")

		// The same version with other content.
		before, err := index().Get("podinfo", "6.9.0")
		if err != nil {
			b.Fatal(err)
		}
		other, err := Pack(map[string]string{"Chart.yaml": "apiVersion: v2\nname: podinfo\nversion: 6.9.0\n"})
		if err != nil {
			b.Fatal(err)
		}
		h.Publish(other)
		after, err := index().Get("podinfo", "6.9.0")
		if err != nil || after.Digest == before.Digest {
			b.Errorf("after publishing again the index has digest %s (%v)", after.Digest, err)
		}
	})
}

func TestRegistryWithHelm(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		g := servicetest.Opened[*Registry](b)(NewRegistry(RegistryConfig{Service: b.Config("registry")}))
		client, err := registry.NewClient(
			registry.ClientOptHTTPClient(b.Client), registry.ClientOptWriter(new(bytes.Buffer)),
			registry.ClientOptCredentialsFile("/nonexistent/registry.json"),
		)
		if err != nil {
			b.Fatal(err)
		}
		ref := strings.TrimPrefix(g.Reference("podinfo"), "oci://")
		tags, err := client.Tags(ref)
		if err != nil || strings.Join(tags, " ") != "6.9.1 6.9.0" {
			b.Errorf("tags are %v (%v)", tags, err)
		}
		pulled, err := client.Pull(ref+":6.9.0", registry.PullOptWithChart(true))
		if err != nil {
			b.Fatal(err)
		}
		want := stockChart(b.T, "podinfo", "6.9.0")
		pin, err := g.ManifestDigest("podinfo", "6.9.0")
		if err != nil || pulled.Manifest.Digest != pin || !bytes.Equal(pulled.Chart.Data, want.Archive) {
			b.Errorf("pulled %s with %d bytes, want %s (%v)", pulled.Manifest.Digest, len(pulled.Chart.Data), pin, err)
		}
		if pulled.Chart.Meta.Name != "podinfo" || pulled.Chart.Meta.AppVersion != "6.9.0" {
			b.Errorf("config says %+v", pulled.Chart.Meta)
		}
		if total, chain := b.World.LongestChain(); total != b.World.Latency.Chart || !strings.HasPrefix(chain[0], "chart/podinfo") {
			b.Errorf("longest chain is %v: %v", total, chain)
		}
		if _, err := client.Pull(ref+"@"+pin, registry.PullOptWithChart(true)); err != nil {
			b.Errorf("pull by digest: %v", err)
		}
		if _, err := client.Pull(ref+":9.9.9", registry.PullOptWithChart(true)); err == nil || !strings.Contains(err.Error(), "not found") {
			b.Errorf("pull of what is not there: %v", err)
		}
		if _, err := client.Tags(strings.TrimPrefix(g.Reference("nothing"), "oci://")); err == nil || !strings.Contains(strings.ToLower(err.Error()), "name_unknown") && !strings.Contains(err.Error(), "name unknown") {
			b.Errorf("tags of what is not there: %v", err)
		}
		if _, err := g.ManifestDigest("podinfo", "9.9.9"); err == nil {
			b.Error("a chart that is not there has a digest")
		}
		b.Want(b.Must("GET", g.URL()+"/v2/", ""), 200, "{}")
		b.Want(b.Must("GET", g.URL()+"/v2/charts/podinfo/blobs/sha256:00", ""), 404, "BLOB_UNKNOWN")

		g.Publish(Chart{Name: "podinfo", Version: "6.9.0", Meta: map[string]any{"name": "podinfo", "version": "6.9.0"}, Archive: []byte("x")})
		if moved, err := g.ManifestDigest("podinfo", "6.9.0"); err != nil || moved == pin {
			b.Errorf("the tag moved to %s (%v)", moved, err)
		}
	})
}
