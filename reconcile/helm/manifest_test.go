package helm

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
)

// recordOf writes a record as Helm does.
func recordOf(t testing.TB, body []byte, packed bool) []byte {
	t.Helper()
	if packed {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		_, err := zip.Write(body)
		if err = errors.Join(err, zip.Close()); err != nil {
			t.Fatal(err)
		}
		body = out.Bytes()
	}
	return []byte(base64.StdEncoding.EncodeToString(body))
}

func TestDecodeRecord(t *testing.T) {
	for _, packed := range []bool{true, false} {
		got, err := decodeRecord(recordOf(t, []byte(`{"name":"x","manifest":"kind: Deployment\n","config":{"a":1},"chart":{"metadata":{"name":"c","version":"1.2.3"}}}`), packed))
		if err != nil || got.Manifest != "kind: Deployment\n" || string(got.Config) != `{"a":1}` || got.Chart.Metadata.Name != "c" || got.Chart.Metadata.Version != "1.2.3" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	bomb := recordOf(t, bytes.Repeat([]byte{' '}, maxRelease+1), true)
	for _, c := range []struct {
		record []byte
		words  string
	}{
		{[]byte("%"), "base64"}, {recordOf(t, []byte("x"), false), "no release"}, {recordOf(t, []byte("x"), true), "no release"},
		{recordOf(t, []byte("\x1f\x8b\x08 and then nothing"), false), "unpacked"}, {bomb, "more than 64 MiB"}, {nil, "no release"},
	} {
		if _, err := decodeRecord(c.record); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%.40q: %v, want %s", c.record, err, c.words)
		}
	}
}

func TestWorkloadsIn(t *testing.T) {
	const manifest = `---
# Source: web/templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data:
  text: |
    kind: Deployment
---
# Source: web/templates/b.yaml
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: other}
---
kind: "Deployment"
apiVersion: apps/v1
metadata:
  name: web
---
apiVersion: apps/v1
kind: StatefulSet # of data
metadata: {name: data}
--- # not ours
apiVersion: example.org/v1
kind: Deployment
metadata: {name: foreign}
---
apiVersion: apps/v1
kind: Deployment
metadata: [broken
---
apiVersion: apps/v1
kind: DeploymentSet
metadata: {name: like}
`
	got, _ := workloadsIn(manifest, "apps")
	want := []object{{kindDaemonSet, "other", "agent"}, {kindDeployment, "apps", "web"}, {kindStatefulSet, "apps", "data"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s := want[0].String(); s != "daemonset other/agent" {
		t.Error(s)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(recordOf(f, []byte(`{"manifest":"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n"}`), true))
	f.Add([]byte("eA=="))
	f.Fuzz(func(t *testing.T, b []byte) {
		made, err := decodeRecord(b)
		manifest := made.Manifest
		if err != nil {
			manifest = string(b)
		}
		list, _ := workloadsIn(manifest, "apps")
		for _, o := range list {
			if o.kind == "" || o.namespace == "" {
				t.Errorf("%+v", o)
			}
		}
	})
}
