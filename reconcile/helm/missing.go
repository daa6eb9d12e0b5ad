package helm

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"helm.sh/helm/v3/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/reconcile/edits"
)

// Workloads are watched, so that one that is deleted or changed is seen at once. All other
// objects of a release are looked for once in a while.
const (
	searchEvery  = 10 * time.Minute
	searchWithin = time.Minute
)

// damage is what of a release is not as its manifest has it.
type damage struct {
	missing []string
	altered []alteration
}

// search is what the last search for the objects of a revision found.
type search struct {
	at      time.Time // when it began, or when the revision was seen first
	running bool
	found   damage
}

// searches are the searches for the objects of releases, by the secrets of their
// revisions.
type searches struct {
	mu    sync.Mutex
	found map[types.UID]search
}

// lookUp returns what the last search for a revision found, and whether the next one is
// to begin now.
func (s *searches) lookUp(uid types.UID) (found damage, begin bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.found[uid]
	begin = ok && !last.running && time.Since(last.at) >= searchEvery
	if !ok || begin {
		last.at, last.running = time.Now(), begin
		s.found[uid] = last
	}
	return last.found, begin
}

// end takes in what a search found, and reports whether that is news.
func (s *searches) end(uid types.UID, found damage) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.found[uid]
	if !ok {
		return false
	}
	news = !reflect.DeepEqual(last.found, found)
	last.found, last.running = found, false
	s.found[uid] = last
	return news
}

// forget forgets all but some.
func (s *searches) forget(keep map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.found, func(uid types.UID, _ search) bool { return !keep[uid] })
}

// notCompared are the kinds of which no changes are put back. Claims of volumes are
// enlarged by hand, which the API does not let anybody take back. Webhooks are written by
// what they belong to: by the jobs of charts that make certificates (kube-webhook-certgen
// patches failurePolicy, too), and by operators such as Istio's when they are ready.
var notCompared = map[schema.GroupKind]bool{
	{Kind: "PersistentVolumeClaim"}:                                                 true,
	{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}:   true,
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"}: true,
}

// damageIn looks for the objects of a manifest. Jobs and pods are not missed: they end,
// and are deleted by whoever cleans up.
func damageIn(client kube.Interface, manifest string) (damage, error) {
	list, err := client.Build(strings.NewReader(manifest), false)
	if err != nil {
		return damage{}, err
	}
	var out damage
	for _, info := range list {
		kind := info.Mapping.GroupVersionKind
		if kind.Kind == "Job" && kind.Group == "batch" || kind.Kind == "Pod" && kind.Group == "" {
			continue
		}
		name := nameObject(info).String()
		wants, described := info.Object.(*unstructured.Unstructured) // Get puts another in its place
		switch err := info.Get(); {
		case apierrors.IsNotFound(err):
			out.missing = append(out.missing, name)
			continue
		case err != nil:
			return damage{}, err
		}
		has, ok := info.Object.(*unstructured.Unstructured)
		if !described || !ok || notCompared[kind.GroupKind()] {
			continue
		}
		found := append(edits.Find(wants.Object, has.Object, edits.Foreign(has.GetManagedFields(), isOurs)), removedFrom(info, wants, has)...)
		if len(found) > 0 {
			out.altered = append(out.altered, alteration{name, found})
		}
	}
	return out, nil
}

// removedFrom lists what somebody has removed from an object. Whether the API keeps what is not there
// is asked of it: a field that it does not know, or that a webhook takes out, is no loss. Where it
// does not answer nothing is known to be removed.
func removedFrom(info *resource.Info, wants, has *unstructured.Unstructured) []edits.Edit {
	if len(edits.Removed(wants.Object, has.Object, wants.Object)) == 0 {
		return nil
	}
	way := types.MergePatchType
	if scheme.Scheme.Recognizes(info.Mapping.GroupVersionKind) { // lists are merged by their keys, as Helm does it
		way = types.StrategicMergePatchType
	}
	after, err := dryRun(info, wants, way)
	restored, ok := after.(*unstructured.Unstructured)
	if err != nil || !ok {
		return nil
	}
	return edits.Removed(wants.Object, has.Object, restored.Object)
}

// dryRun asks the API what would become of an object with its manifest written over it.
func dryRun(info *resource.Info, manifest runtime.Object, way types.PatchType) (runtime.Object, error) {
	body, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	return resource.NewHelper(info.Client, info.Mapping).DryRun(true).Patch(info.Namespace, info.Name, way, body, nil)
}

// nameObject is what an object of a manifest is called.
func nameObject(info *resource.Info) object {
	return object{strings.ToLower(info.Mapping.GroupVersionKind.Kind), info.Namespace, info.Name}
}

// checkPutBack asks the API whether it would take back what somebody changed, and returns
// an error when it refuses: a revision that fails on what cannot be changed back would be
// all that there is of a release that works.
func checkPutBack(client kube.Interface, manifest string, altered []alteration) error {
	list, err := client.Build(strings.NewReader(manifest), false)
	if err != nil {
		return err
	}
	for _, info := range list {
		name := nameObject(info).String()
		if !slices.ContainsFunc(altered, func(a alteration) bool { return a.object == name }) {
			continue
		}
		if _, err := dryRun(info, info.Object, types.MergePatchType); err != nil {
			return newError("undo the change by hand, have the values of the addon ask for the same, or delete the object, which is then made again", "what somebody changed of %s cannot be put back: %s", name, kubeapi.Reason(err))
		}
	}
	return nil
}
