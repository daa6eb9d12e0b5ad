package helm

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// canary is a secret that must not be seen anywhere but in the cluster.
const canary = "c4nary-7Qx9vLmT2pRzK8sWbN3dYh6F"

// mustNotSing fails when the canary is seen in an error, its hint, or anything
// that was logged.
func (b *bench) mustNotSing(err error) {
	b.Helper()
	logged := b.logged.String()
	for e := err; e != nil; e = errors.Unwrap(e) {
		logged += fault.HintOf(e)
	}
	if err != nil {
		logged += err.Error()
	}
	for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary)), canary[:12], canary[len(canary)-12:]} {
		if strings.Contains(logged, form) {
			b.Errorf("%s is seen in: %s", form, logged)
		}
	}
}

// TestHostileCharts: charts that cannot be installed, or try what a chart must
// not do. Each is reported with a hint, and without the secrets among its
// values.
func TestHostileCharts(t *testing.T) {
	configMap := func(name, value string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata:\n  v: " + value + "\n"
	}
	job := func(annotations string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: hook, annotations: {" + annotations + "}}\nspec:\n  backoffLimit: 0\n  template:\n    spec: {restartPolicy: Never, containers: [{name: c, image: \"never.invalid/i:1\"}]}\n"
	}
	for _, c := range []struct {
		name, words, hint string
		files             map[string]string
	}{
		{"required", "execution error at (web/templates/x.yaml:5:8): the password [redacted] is missing", "does not accept the values", map[string]string{
			"templates/x.yaml": configMap("x", `{{ required (printf "the password %s is missing" .Values.password) nil }}`)}},
		{"fail", "no: map[...]", "does not accept the values", map[string]string{
			"templates/x.yaml": configMap("x", `{{ fail (printf "no: %v" .Values) }}`)}},
		{"fail in base64", "no: [redacted]", "", map[string]string{
			"templates/x.yaml": configMap("x", `{{ fail (printf "no: %s" (.Values.password | b64enc)) }}`)}},
		{"nil", "nil pointer evaluating", "is not set", map[string]string{
			"templates/x.yaml": configMap("x", `{{ .Values.settings.answer }}`)}},
		{"wrong type", "error calling", "", map[string]string{
			"templates/x.yaml": configMap("x", `{{ index .Values.nested.list 5 }}`)}},
		{"parse", "parse error at (web/templates/x.yaml:1)", "another version", map[string]string{"templates/x.yaml": "{{ if }}"}},
		{"tpl", "error", "", map[string]string{"templates/x.yaml": configMap("x", `{{ tpl (printf "{{ %s | nosuch }}" .Values.password) . }}`)}},
		{"no YAML", "YAML parse error on web/templates/x.yaml", "no YAML", map[string]string{
			"templates/x.yaml": "a: {{ .Values.password }}: {{ .Values.password }}: [\n"}},
		{"schema", "don't meet the specifications of the schema", "correct the values", map[string]string{
			"values.schema.json": `{"properties":{"password":{"enum":["a","b"],"pattern":"^[a-z]$","type":"integer"}}}`}},
		{"loop of includes", "nested reference name", "without end", map[string]string{
			"templates/_h.tpl": `{{ define "a" }}{{ include "a" . }}{{ end }}`, "templates/x.yaml": `{{ include "a" . }}`}},
		{"loop of templates", "exceeded maximum template depth", "without end", map[string]string{
			"templates/_h.tpl": `{{ define "a" }}{{ template "a" . }}{{ end }}`, "templates/x.yaml": `{{ template "a" . }}`}},
		{"unknown kind", "no matches for kind", "depends_on", map[string]string{
			"templates/x.yaml": "apiVersion: example.org/v9\nkind: Unheard\nmetadata: {name: {{ .Values.password | quote }}}\n"}},
		{"refused by the API", "Invalid value", "", map[string]string{
			"templates/x.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"_{{ .Values.password }}_\"}\n"}},
		{"not decoded by the API", "", "", map[string]string{
			"templates/x.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: {{ .Values.password | quote }}}\n"}},
		{"kubeVersion", "chart requires kubeVersion", "supports the cluster's Kubernetes", map[string]string{
			"Chart.yaml": "apiVersion: v2\nname: web\nversion: 0.1.0\nkubeVersion: \">= 9.0.0\"\n"}},
		{"hook that fails", "hook Job hook has not ended after 5m0s", "kubectl logs", map[string]string{
			"templates/x.yaml": job(`"helm.sh/hook": pre-install`)}},
		{"table over value", "", "", map[string]string{
			"values.yaml": "password: {a: b}\nnested: text\n", "templates/x.yaml": configMap("x", "{{ .Values.none.of.this }}")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.serve("flannel")
				a := b.local("web", "default", map[string]any{
					"password": canary, "nested": map[string]any{"token": canary, "list": []any{canary}}, "text": "user: " + canary + "\n", "b64": base64.StdEncoding.EncodeToString([]byte(canary)),
				}, c.files)
				b.want(a)
				began := time.Now()
				err := b.install(a)
				t.Logf("after %v: %v", time.Since(began), err)
				mustFail(b, err, c.words, c.hint)
				b.mustNotSing(err)
				if strings.Contains(fmt.Sprint(err), "\n") {
					t.Error("it has more than one line")
				}
				o := b.look()
				b.mustNotSing(errors.New(o.Releases.Value["web"].Why))
				if rel, ok := o.Releases.Value["web"]; ok && (rel.Ready || rel.Status == "deployed") {
					t.Errorf("the release is %+v", rel)
				}
			})
		})
	}
}

// TestChartsLookNothingUp: templates see nothing of the net and nothing of the
// host; what they look up in the cluster stays there.
func TestChartsLookNothingUp(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		if _, err := b.client().CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Data: map[string][]byte{"k": []byte(canary)}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		t.Setenv("CANARY", canary)
		a := b.local("web", "default", nil, map[string]string{
			"templates/x.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n" +
				"  dns: \"{{ getHostByName \"charts.lab\" }}\"\n" +
				"  file: \"{{ .Files.Get \"../../../../etc/passwd\" }}{{ .Files.Get \"/etc/passwd\" }}\"\n" +
				"  found: \"{{ (lookup \"v1\" \"Secret\" \"default\" \"other\").metadata.name }}\"\n",
		})
		b.want(a)
		if err := b.install(a); err != nil {
			b.Fatal(err)
		}
		for _, o := range b.objects("", "v1", "configmaps", "default") {
			if data, _ := o.Object["data"].(map[string]any); o.GetName() == "x" && (data["dns"] != "" || data["file"] != "" || data["found"] != "other") {
				b.Errorf("the chart found %v", data)
			}
		}
		for _, f := range []string{`{{ env "CANARY" }}`, `{{ expandenv "$CANARY" }}`} {
			bad := b.local("bad", "default", nil, map[string]string{"templates/x.yaml": f})
			b.want(bad)
			err := b.install(bad)
			mustFail(b, err, "not defined", "")
			b.mustNotSing(err)
		}
	})
}

// TestChartsLookUpLittle: what templates look up goes through this process.
func TestChartsLookUpLittle(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		for i := range maxLookedUp>>20 + 1 {
			data := map[string]string{"k": strings.Repeat("x", 1000<<10)}
			if _, err := b.client().CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i)}, Data: data}, metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		for template, words := range map[string]string{
			`{{ len (lookup "v1" "ConfigMap" "default" "") }}`:                                        "look up more than 8 MiB",
			`{{ range until 600 }}{{ lookup "v1" "Secret" "default" (printf "none-%d" .) }}{{ end }}`: "look something up more than 500 times",
		} {
			bad := b.local("bad", "default", nil, map[string]string{"templates/x.yaml": template})
			b.want(bad)
			mustFail(b, b.install(bad), words, "")
		}
		good := b.local("good", "default", nil, map[string]string{"templates/x.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n" +
			`data: {found: "{{ range until 7 }}{{ (lookup "v1" "ConfigMap" "default" (printf "large-%d" .)).metadata.name }}{{ end }}"}` + "\n"})
		b.want(good)
		if err := b.install(good); err != nil {
			b.Error(err)
		}
	})
}

// TestSchemasReadNothingElse: the schema of a chart, and of a chart in it, reads no file of
// the host and nothing of the net. The values are not checked then; those of any other are.
func TestSchemasReadNothingElse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(file, []byte(`{"type":"integer"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	bubble(t, func(b *bench) {
		b.serve("flannel")
		a := b.local("web", "default", map[string]any{"count": "text"}, map[string]string{
			"values.schema.json": `{"properties":{"count":{"$ref":"file://` + file + `"}}}`, "templates/x.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"})
		b.want(a)
		if err := b.install(a); err != nil {
			b.Errorf("the answer shows what is in a file of the host: %v", err)
		}
		if !strings.Contains(b.logged.String(), "values of an addon are not checked") {
			b.Errorf("it is not reported: %s", b.logged.String())
		}
	})
}

// TestSecretsGoNowhereElse: values reach the cluster, and are neither logged
// nor kept on the host.
func TestSecretsGoNowhereElse(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		b.join(1)
		a := b.addon("web", "apps", "podinfo", "6.9.0", map[string]any{"message": canary})
		b.want(a)
		for _, op := range []string{"POST /apis/apps/v1/namespaces/{namespace}/deployments", "PUT /api/v1/namespaces/{namespace}/secrets/{name}", "GET /version", "GET /apis"} {
			for _, kind := range []world.FaultKind{world.LoseReply, world.LoseRequest, world.Answer} {
				b.world.Inject(world.Fault{Op: op, Nth: 1, Kind: kind, Status: 500, Text: "message " + canary + " is bad"})
				b.mustNotSing(b.install(a))
			}
		}
		b.settle(a, 10*time.Minute)
		b.mustNotSing(nil)
		if message, _, _ := nested(b.objects("apps", "v1", "deployments", "apps")[0].Object); message != canary {
			b.Errorf("the message is %q", message)
		}
		for _, name := range filesIn(b, b.releaser.cache.dir) {
			if strings.Contains(name, leftover) {
				b.Errorf("%s is left", name)
			}
		}
	})
}

// TestChartThatTakesTooMuch: a chart that ends its worker is one error with a hint, which is
// remembered: it takes no worker again before something of it changes. Others are installed
// as ever.
func TestChartThatTakesTooMuch(t *testing.T) {
	bubble(t, func(b *bench) {
		b.serve("flannel")
		begun := 0
		b.config.Worker = func(ctx context.Context, job worker.Job, l worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
			begun++
			return worker.Run(ctx, job, l, request, answer)
		}
		b.stop()
		b.start()
		huge := map[string]string{"templates/x.yaml": `{{ repeat 20000000000 "x" }}`}
		good := map[string]string{"templates/x.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"}
		bad, other := b.local("bad", "apps", map[string]any{"password": canary}, huge), b.local("good", "apps", nil, good)
		b.want(bad, other)
		for i, want := range []int{2, 1, 1} { // the chart is read each time
			begun = 0
			err := b.install(bad)
			mustFail(b, err, "it takes more than 384 MiB of memory", "another version of the chart")
			b.mustNotSing(err)
			if begun != want {
				b.Errorf("time %d: %d workers, want %d", i+1, begun, want)
			}
		}
		if err := b.install(other); err != nil {
			b.Error(err)
		}
		begun = 0
		bad = b.local("bad", "apps", map[string]any{"password": "other"}, huge)
		b.want(bad, other)
		if err := b.install(bad); err == nil || !strings.Contains(err.Error(), "of memory") || begun != 2 {
			b.Errorf("with other values: %d workers, %v", begun, err)
		}
	})
}
