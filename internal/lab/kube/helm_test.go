package kube_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// getter hands Helm the connection to an API.
type getter struct {
	config *rest.Config
	cached discovery.CachedDiscoveryInterface
}

func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	if g.cached == nil {
		client, err := discovery.NewDiscoveryClientForConfig(g.config)
		if err != nil {
			return nil, err
		}
		g.cached = memory.NewMemCacheClient(client)
	}
	return g.cached, nil
}

func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	client, err := g.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	return restmapper.NewDeferredDiscoveryRESTMapper(client), nil
}

func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: "kube-system"}})
}

// addon is a small chart like that of a container network.
func addon(t *testing.T, image string) *chart.Chart {
	t.Helper()
	crd, err := json.Marshal(thingDefinition().Object)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"Chart.yaml":          "apiVersion: v2\nname: cilium\nversion: 1.0.0\n",
		"values.yaml":         "image: " + image + "\nmode: vxlan\n",
		"crds/thing.json":     string(crd),
		"templates/sa.yaml":   "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: cilium, namespace: {{ .Release.Namespace }}}\n",
		"templates/conf.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cilium-config, namespace: {{ .Release.Namespace }}}\ndata: {mode: {{ .Values.mode | quote }}}\n",
		"templates/ds.yaml": `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: {{ .Release.Namespace }}}
spec:
  selector: {matchLabels: {k8s-app: cilium}}
  template:
    metadata: {labels: {k8s-app: cilium}}
    spec:
      hostNetwork: true
      serviceAccountName: cilium
      tolerations: [{operator: Exists}]
      containers:
      - {name: agent, image: {{ .Values.image }}, env: [{name: A, value: "1"}]}
`,
		"templates/operator.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: cilium-operator, namespace: {{ .Release.Namespace }}}
spec:
  replicas: 1
  selector: {matchLabels: {name: cilium-operator}}
  template:
    metadata: {labels: {name: cilium-operator}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers: [{name: operator, image: "operator:1"}]
`,
		"templates/hook.yaml": `apiVersion: batch/v1
kind: Job
metadata:
  name: after
  namespace: {{ .Release.Namespace }}
  annotations: {helm.sh/hook: post-upgrade, helm.sh/hook-delete-policy: before-hook-creation}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: "i:1"}]}
`,
	}
	var buffered []*loader.BufferedFile
	for name, data := range files {
		buffered = append(buffered, &loader.BufferedFile{Name: name, Data: []byte(data)})
	}
	c, err := loader.LoadFiles(buffered)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHelm installs, upgrades over a manual edit, and uninstalls a chart with
// Helm's own code, which waits for what it made.
func TestHelm(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.bare(2)
		g := &getter{config: l.config(apiAddr)}
		var log []string
		cfg := new(action.Configuration)
		if err := cfg.Init(g, "kube-system", "secret", func(format string, v ...any) { log = append(log, fmt.Sprintf(format, v...)) }); err != nil {
			t.Fatal(err)
		}
		install := action.NewInstall(cfg)
		install.ReleaseName, install.Namespace = "cilium", "kube-system"
		install.DisableOpenAPIValidation, install.Wait, install.Timeout = true, true, 5*time.Minute
		rel, err := install.Run(addon(t, "cilium:1"), nil)
		if err != nil {
			t.Fatalf("install: %v\n%v", err, log)
		}
		if rel.Info.Status != release.StatusDeployed || rel.Version != 1 {
			t.Errorf("release %+v", rel.Info)
		}
		for _, n := range []string{"cp-1", "wk-1", "wk-2"} {
			eventually(t, n, time.Minute, func() error { return nodeReady(set, n) })
		}
		if err := daemonsReady(set, 3); err != nil {
			t.Error(err)
		}

		// Somebody edits what the chart sets, and something it does not set:
		// the upgrade repairs the first and leaves the second.
		edit := `{"spec":{"template":{"spec":{"containers":[{"name":"agent","image":"cilium:mine","env":[{"name":"B","value":"2"}]}]}}}}`
		daemons := set.AppsV1().DaemonSets("kube-system")
		if _, err := daemons.Patch(ctx, "cilium", types.StrategicMergePatchType, []byte(edit), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		upgrade := action.NewUpgrade(cfg)
		upgrade.Namespace, upgrade.DisableOpenAPIValidation, upgrade.Wait, upgrade.Timeout = "kube-system", true, true, 5*time.Minute
		rel, err = upgrade.Run("cilium", addon(t, "cilium:2"), chartutil.Values{"mode": "geneve"})
		if err != nil {
			t.Fatalf("upgrade: %v\n%v", err, log)
		}
		if rel.Info.Status != release.StatusDeployed || rel.Version != 2 {
			t.Errorf("release %+v", rel.Info)
		}
		ds, err := daemons.Get(ctx, "cilium", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := ds.Spec.Template.Spec.Containers[0]
		if c.Image != "cilium:2" || len(c.Env) != 2 {
			t.Errorf("container after the upgrade: image %s, env %v", c.Image, c.Env)
		}
		if conf, err := set.CoreV1().ConfigMaps("kube-system").Get(ctx, "cilium-config", metav1.GetOptions{}); err != nil || conf.Data["mode"] != "geneve" {
			t.Errorf("config %v, %v", conf.Data, err)
		}
		if secrets, err := set.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "owner=helm"}); err != nil || len(secrets.Items) != 2 || secrets.Items[0].Type != "helm.sh/release.v1" {
			t.Errorf("release secrets %+v, %v", secrets, err)
		}

		uninstall := action.NewUninstall(cfg)
		uninstall.Wait, uninstall.Timeout = true, time.Minute
		if _, err := uninstall.Run("cilium"); err != nil {
			t.Fatalf("uninstall: %v\n%v", err, log)
		}
		if _, err := daemons.Get(ctx, "cilium", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("daemonset after the uninstall: %v", err)
		}
		if _, err := uninstall.Run("cilium"); !errors.Is(err, driver.ErrReleaseNotFound) {
			t.Errorf("second uninstall: %v", err)
		}
	})
}

// TestHelmLeavesForeignObjects: Helm refuses to take over what it did not make.
func TestHelmLeavesForeignObjects(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.bare(0)
		if _, err := set.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "cilium"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		cfg := new(action.Configuration)
		if err := cfg.Init(&getter{config: l.config(apiAddr)}, "kube-system", "secret", func(string, ...any) {}); err != nil {
			t.Fatal(err)
		}
		install := action.NewInstall(cfg)
		install.ReleaseName, install.Namespace, install.DisableOpenAPIValidation = "cilium", "kube-system", true
		_, err := install.Run(addon(t, "cilium:1"), nil)
		if err == nil {
			t.Error("Helm took over an object of somebody else's")
		}
	})
}
