package helm

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// The kinds whose readiness decides that of a release, as keys have them.
const (
	kindDaemonSet   = "daemonset"
	kindDeployment  = "deployment"
	kindStatefulSet = "statefulset"
)

var kinds = map[string]string{"DaemonSet": kindDaemonSet, "Deployment": kindDeployment, "StatefulSet": kindStatefulSet}

// object names a workload, or another object: its kind, namespace and name.
type object struct{ kind, namespace, name string }

// String implements fmt.Stringer.
func (o object) String() string {
	if o.namespace == "" {
		return o.kind + " " + o.name
	}
	return o.kind + " " + o.namespace + "/" + o.name
}

// maxRelease is how large a release may be, unpacked. Kubernetes keeps at most
// 1 MiB of it, packed.
const maxRelease = 64 << 20

// record is what is read of the record Helm keeps of a release.
type record struct {
	Manifest string          `json:"manifest"`
	Config   json.RawMessage `json:"config"` // the values that it was made with
	Chart    struct {
		Metadata struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"metadata"`
	} `json:"chart"`
}

// decodeRecord reads a record: JSON, packed with gzip and written in base64. Source: Helm
// 3.22, pkg/storage/driver/util.go.
func decodeRecord(packed []byte) (record, error) {
	b, err := base64.StdEncoding.DecodeString(string(packed))
	if err != nil {
		return record{}, errors.New("it is not written in base64")
	}
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b, 0x08}) {
		zip, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return record{}, errors.New("it cannot be unpacked")
		}
		if b, err = io.ReadAll(io.LimitReader(zip, maxRelease+1)); err != nil {
			return record{}, errors.New("it cannot be unpacked")
		}
		if len(b) > maxRelease {
			return record{}, fmt.Errorf("it unpacks to more than %d MiB", maxRelease>>20)
		}
	}
	var made record
	if err := json.Unmarshal(b, &made); err != nil {
		return record{}, errors.New("it is no release of Helm's")
	}
	return made, nil
}

// aWorkload finds documents that are worth parsing: most are not.
var aWorkload = regexp.MustCompile(`(?m)^kind:\s*["']?(DaemonSet|Deployment|StatefulSet)\b`)

// workloadsIn lists the workloads of a manifest in the order it has them, which
// is that of Helm's installation, and their documents. Those without a namespace are in
// the release's.
func workloadsIn(manifest, namespace string) (list []object, documents map[object]string) {
	documents = map[object]string{}
	for document := range strings.SplitSeq("\n"+manifest, "\n---") {
		if !aWorkload.MatchString(document) {
			continue
		}
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Metadata   struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"metadata"`
		}
		// Helm could read it; what does not fit these fields is no workload.
		if yaml.Unmarshal([]byte(document), &head) != nil || !strings.HasPrefix(head.APIVersion, "apps/") || kinds[head.Kind] == "" {
			continue
		}
		o := object{kinds[head.Kind], cmp.Or(head.Metadata.Namespace, namespace), head.Metadata.Name}
		list = append(list, o)
		documents[o] = strings.Clone(document) // and not the whole manifest
	}
	return list, documents
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
