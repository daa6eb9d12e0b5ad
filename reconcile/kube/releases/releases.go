// Package releases reads which deprecated APIs of Kubernetes the manifests have that Helm keeps of its releases,
// whoever made these: `helm upgrade` compares with such a manifest, and fails where Kubernetes does not serve an API of
// it any longer ("no matches for kind").
//
// Helm keeps them in Secrets, unless somebody has it keep them elsewhere. Which APIs are deprecated, and which version of Kubernetes
// does not have them, is what k8s.io/api knows.
package releases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/reconcile/helm/record"
)

const (
	// selectReleases are the Secrets of Helm. Source: Helm 3.22, pkg/storage/driver/secrets.go.
	selectReleases = "owner=helm"
	// perPage is how many revisions are listed at once, without what is in them.
	perPage = 500
)

// Reader reads the records of releases, and each of them once. The zero value has read none. It is not safe for
// use by several goroutines.
type Reader struct {
	read map[version]found
}

// version is one state of a Secret.
type version struct {
	uid      types.UID
	resource string
}

// found is what was found in a record.
type found struct {
	apis   []cluster.DeprecatedAPI
	unread string
}

// revision is the revision of a release that the next upgrade compares with.
type revision struct {
	version
	name   cluster.ReleaseName
	secret string
	number int
	status string
}

// Read returns the deprecated APIs of all releases, in a fixed order. What was read is not read again: after an error,
// such as the end of ctx, the next call goes on where this one came to.
func (r *Reader) Read(ctx context.Context, server string, c *kubeapi.Connection) ([]cluster.ReleaseAPI, error) {
	config := &rest.Config{Host: server, QPS: -1, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON}}
	client := &http.Client{Transport: kubeapi.Once(c)}
	list, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), client)
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", server, err)
	}
	core, err := corev1client.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("make client for %s: %w", server, err)
	}
	all, err := listRevisions(ctx, list)
	if err != nil {
		return nil, fmt.Errorf("list the releases of Helm: %s", kubeapi.Reason(err))
	}
	if err := r.readAll(ctx, core, all); err != nil {
		return nil, err
	}
	var out []cluster.ReleaseAPI
	for _, rev := range all {
		f := r.read[rev.version]
		if f.unread != "" {
			out = append(out, cluster.ReleaseAPI{Release: rev.name, Unread: f.unread})
		}
		for _, api := range f.apis {
			out = append(out, cluster.ReleaseAPI{Release: rev.name, API: api})
		}
	}
	return out, nil
}

// listRevisions lists of each release the revision that the next upgrade compares with, sorted by name. It goes through the pages of
// the list, of which one may be too old when its turn comes: then it is an error.
func listRevisions(ctx context.Context, from metadata.Interface) ([]revision, error) {
	current := map[cluster.ReleaseName]revision{}
	for o := (metav1.ListOptions{LabelSelector: selectReleases, Limit: perPage}); ; {
		page, err := from.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).List(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			number, err := strconv.Atoi(item.Labels["version"])
			if err != nil {
				continue // Helm would not find it either
			}
			rev := revision{version{item.UID, item.ResourceVersion}, cluster.ReleaseName{Namespace: item.Namespace, Name: item.Labels["name"]}, item.Name, number, item.Labels["status"]}
			if have, ok := current[rev.name]; !ok || isRather(rev, have) {
				current[rev.name] = rev
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			break
		}
	}
	maps.DeleteFunc(current, func(_ cluster.ReleaseName, rev revision) bool { return rev.status == "uninstalled" })
	return slices.SortedFunc(maps.Values(current), func(a, b revision) int {
		return cmp.Or(strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name))
	}), nil
}

// isRather reports whether an upgrade compares with one revision of a release rather than with another one: with the newest that is
// deployed, or else with the newest. Of a release that is uninstalled and kept as history none is deployed. Source: Helm 3.22,
// pkg/action/upgrade.go, prepareUpgrade.
func isRather(a, b revision) bool {
	if deployed := a.status == "deployed"; deployed != (b.status == "deployed") {
		return deployed
	}
	return a.number > b.number
}

// readAll reads the records of some revisions that were not read yet, one after the other, because each takes many times of its size
// while it is read, and forgets those of others.
func (r *Reader) readAll(ctx context.Context, from corev1client.SecretsGetter, all []revision) error {
	keep := map[version]found{}
	for _, rev := range all {
		if f, ok := r.read[rev.version]; ok {
			keep[rev.version] = f
		}
	}
	r.read = keep
	for _, rev := range all {
		if _, ok := r.read[rev.version]; ok {
			continue
		}
		f, err := readOne(ctx, from, rev)
		if err != nil {
			return fmt.Errorf("read release %s of Helm: %s (%d of %d are read)", rev.name, kubeapi.Reason(err), len(r.read), len(all))
		}
		r.read[rev.version] = f
	}
	return nil
}

// readOne reads the record of one revision.
func readOne(ctx context.Context, from corev1client.SecretsGetter, rev revision) (found, error) {
	secret, err := from.Secrets(rev.name.Namespace).Get(ctx, rev.secret, metav1.GetOptions{})
	switch {
	case err != nil:
		return found{}, err
	case secret.UID != rev.uid || secret.ResourceVersion != rev.resource:
		return found{}, errors.New("it was changed meanwhile")
	}
	made, err := record.Decode(secret.Data["release"])
	if err != nil {
		return found{unread: err.Error()}, nil
	}
	apis, err := findDeprecated(made.Manifest)
	if err != nil {
		return found{unread: err.Error()}, nil
	}
	return found{apis: apis}, nil
}
