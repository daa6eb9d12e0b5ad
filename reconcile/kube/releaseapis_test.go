package kube

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

const budgetManifest = "---\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata:\n  name: web\n"

// packRelease is a record of a release as Helm writes it.
func packRelease(t testing.TB, manifest string) []byte {
	t.Helper()
	body, err := json.Marshal(map[string]string{"manifest": manifest})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	_, err = zip.Write(body)
	if err = errors.Join(err, zip.Close()); err != nil {
		t.Fatal(err)
	}
	return []byte(base64.StdEncoding.EncodeToString(out.Bytes()))
}

// keepRelease stores what Helm keeps of a revision.
func (b *bench) keepRelease(name string, number int, status string, record []byte) {
	b.Helper()
	conn, err := kubeapi.Connect(b.desired.Access.Kube, b.world.Net.DialContext, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client, err := corev1client.NewForConfigAndClient(&rest.Config{
		Host: serverOf(b.desired.Spec.Nodes[0].IP), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	}, &http.Client{Transport: conn})
	if err != nil {
		b.Fatal(err)
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("sh.helm.release.v1.%s.v%d", name, number),
		Labels: map[string]string{"owner": "helm", "name": name, "version": fmt.Sprint(number), "status": status}}, Type: "helm.sh/release.v1", Data: map[string][]byte{"release": record}}
	if _, err := client.Secrets("default").Create(context.Background(), s, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}

// TestReleaseAPIs: what is in releases of Helm that Kubernetes has no longer is looked for where deprecated APIs are, whoever made the
// releases. Each record is read once, and one that cannot be read is not passed over.
func TestReleaseAPIs(t *testing.T) {
	bubble(t, 1, func(b *bench) {
		b.serve(1)
		ready, _ := b.join("cp-1", "10.0.0.11", 511)
		<-ready
		b.keepRelease("web", 1, "superseded", packRelease(t, ""))
		b.keepRelease("web", 2, "deployed", packRelease(t, budgetManifest))
		b.keepRelease("new", 1, "deployed", packRelease(t, "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\n"))
		b.keepRelease("odd", 1, "deployed", []byte("%"))
		reads := func() (n int) {
			for op, count := range b.calls() {
				if strings.HasPrefix(op, "GET ") && strings.Contains(op, "/secrets") {
					n += count
				}
			}
			return n
		}
		b.desired.Spec.Versions.Kubernetes = "v1.36.1"
		if o := b.look(); o.ReleaseAPIs.Known || o.ReleaseAPIs.Why != o.Deprecated.Why || reads() > 0 {
			t.Errorf("%+v", o.ReleaseAPIs)
		}
		b.desired.Spec.Versions.Kubernetes = "v1.37.0"
		name := func(name string) cluster.ReleaseName {
			return cluster.ReleaseName{Namespace: "default", Name: name}
		}
		want := []cluster.ReleaseAPI{{Release: name("odd"), Unread: "it is not written in base64"}, {Release: name("web"), API: cluster.DeprecatedAPI{Group: "policy", Version: "v1beta1", Resource: "PodDisruptionBudget", Removed: "v1.25"}}}
		if o := b.look(); !o.ReleaseAPIs.Known || !slices.Equal(o.ReleaseAPIs.Value, want) {
			t.Errorf("%+v", o.ReleaseAPIs)
		}
		if n := reads(); n != 1+3 {
			t.Errorf("%d reads", n)
		}
		if b.look(); reads() > 0 {
			t.Error("it was read again at once")
		}
		b.keepRelease("zoo", 1, "deployed", packRelease(t, budgetManifest))
		time.Sleep(metricsFor)
		want = append(want, cluster.ReleaseAPI{Release: name("zoo"), API: want[1].API})
		if o := b.look(); !slices.Equal(o.ReleaseAPIs.Value, want) {
			t.Errorf("%+v", o.ReleaseAPIs)
		}
		if n := reads(); n != 1+1 {
			t.Errorf("%d reads, of what was read before too", n)
		}
		time.Sleep(metricsFor)
		b.world.Inject(world.Fault{System: "kube", Op: "GET /api/v1/secrets", Kind: world.Answer, Status: 403, Text: `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"message":"secrets is forbidden"}`})
		if o := b.look(); o.ReleaseAPIs.Known || !strings.Contains(o.ReleaseAPIs.Why, "forbidden") {
			t.Errorf("%+v", o.ReleaseAPIs)
		}
		b.world.Heal()
		time.Sleep(readyFor)
		if o := b.look(); !slices.Equal(o.ReleaseAPIs.Value, want) {
			t.Errorf("%+v", o.ReleaseAPIs)
		}
	})
}
