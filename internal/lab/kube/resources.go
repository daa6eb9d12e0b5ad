package kube

import (
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// resource is one kind of object as the API serves it. It never changes.
type resource struct {
	group    string
	versions []string // served ones, preferred first
	storage  string   // the version objects are kept in
	name     string   // plural
	kind     string
	listKind string
	singular string
	short    []string

	categories []string
	namespaced bool
	status     bool     // has a status subresource
	review     bool     // is answered, and not stored
	subs       []string // other subresources
	// typ is the Go type that defines which fields exist and how lists merge; nil
	// for custom resources.
	typ reflect.Type
}

func (r *resource) gr() schema.GroupResource {
	return schema.GroupResource{Group: r.group, Resource: r.name}
}

func (r *resource) gk() schema.GroupKind { return schema.GroupKind{Group: r.group, Kind: r.kind} }

func (r *resource) servesVersion(version string) bool { return slices.Contains(r.versions, version) }

// apiVersion is that of objects in the version they are kept in.
func (r *resource) apiVersion() string {
	return schema.GroupVersion{Group: r.group, Version: r.storage}.String()
}

// emptyStatus is the status of an object of which nothing is known yet; nil
// where the type has none.
func (r *resource) emptyStatus() map[string]any {
	if r.typ == nil {
		return nil
	}
	f := reflect.New(r.typ).Elem().FieldByName("Status")
	if !f.IsValid() {
		return nil
	}
	// The types of the API always convert.
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(f.Addr().Interface())
	if err != nil {
		panic(err)
	}
	return status
}

// row is a built-in resource in the table below.
type row struct {
	name   string
	sample any // a value of its type, which also names its kind
	short  []string
	flags  uint8
	subs   []string
}

const (
	isGlobal  uint8 = 1 << iota // lives in no namespace
	hasStatus                   // has a status subresource
	inAll                       // is part of "kubectl get all"
	isReview                    // is answered, and not stored
)

// builtins are the resources every kube-apiserver of the lab serves, in the
// order discovery lists their groups.
var builtins = slices.Concat(
	newRows("", "v1",
		row{"configmaps", corev1.ConfigMap{}, []string{"cm"}, 0, nil},
		//lint:ignore SA1019 deprecated, and served by every cluster all the same
		row{"endpoints", corev1.Endpoints{}, []string{"ep"}, 0, nil},
		row{"events", corev1.Event{}, []string{"ev"}, 0, nil},
		row{"limitranges", corev1.LimitRange{}, []string{"limits"}, 0, nil},
		row{"namespaces", corev1.Namespace{}, []string{"ns"}, isGlobal | hasStatus, []string{"finalize"}},
		row{"nodes", corev1.Node{}, []string{"no"}, isGlobal | hasStatus, nil},
		row{"persistentvolumeclaims", corev1.PersistentVolumeClaim{}, []string{"pvc"}, hasStatus, nil},
		row{"persistentvolumes", corev1.PersistentVolume{}, []string{"pv"}, isGlobal | hasStatus, nil},
		row{"pods", corev1.Pod{}, []string{"po"}, hasStatus | inAll, []string{"eviction", "attach", "exec", "log", "portforward"}},
		row{"podtemplates", corev1.PodTemplate{}, nil, 0, nil},
		row{"replicationcontrollers", corev1.ReplicationController{}, []string{"rc"}, hasStatus | inAll, nil},
		row{"resourcequotas", corev1.ResourceQuota{}, []string{"quota"}, hasStatus, nil},
		row{"secrets", corev1.Secret{}, nil, 0, nil},
		row{"serviceaccounts", corev1.ServiceAccount{}, []string{"sa"}, 0, nil},
		row{"services", corev1.Service{}, []string{"svc"}, hasStatus | inAll, nil},
	),
	newRows("apps", "v1",
		row{"controllerrevisions", appsv1.ControllerRevision{}, nil, 0, nil},
		row{"daemonsets", appsv1.DaemonSet{}, []string{"ds"}, hasStatus | inAll, nil},
		row{"deployments", appsv1.Deployment{}, []string{"deploy"}, hasStatus | inAll, []string{"scale"}},
		row{"replicasets", appsv1.ReplicaSet{}, []string{"rs"}, hasStatus | inAll, []string{"scale"}},
		row{"statefulsets", appsv1.StatefulSet{}, []string{"sts"}, hasStatus | inAll, []string{"scale"}},
	),
	newRows("authentication.k8s.io", "v1",
		row{"selfsubjectreviews", authenticationv1.SelfSubjectReview{}, nil, isGlobal | isReview, nil},
	),
	newRows("authorization.k8s.io", "v1",
		row{"selfsubjectaccessreviews", authorizationv1.SelfSubjectAccessReview{}, nil, isGlobal | isReview, nil},
		row{"selfsubjectrulesreviews", authorizationv1.SelfSubjectRulesReview{}, nil, isGlobal | isReview, nil},
	),
	newRows("autoscaling", "v2",
		row{"horizontalpodautoscalers", autoscalingv2.HorizontalPodAutoscaler{}, []string{"hpa"}, hasStatus | inAll, nil},
	),
	newRows("batch", "v1",
		row{"cronjobs", batchv1.CronJob{}, []string{"cj"}, hasStatus | inAll, nil},
		row{"jobs", batchv1.Job{}, nil, hasStatus | inAll, nil},
	),
	newRows("certificates.k8s.io", "v1",
		row{"certificatesigningrequests", certificatesv1.CertificateSigningRequest{}, []string{"csr"}, isGlobal | hasStatus, []string{"approval"}},
	),
	newRows("networking.k8s.io", "v1",
		row{"ingressclasses", networkingv1.IngressClass{}, nil, isGlobal, nil},
		row{"ingresses", networkingv1.Ingress{}, []string{"ing"}, hasStatus, nil},
		row{"networkpolicies", networkingv1.NetworkPolicy{}, []string{"netpol"}, 0, nil},
	),
	newRows("policy", "v1",
		row{"poddisruptionbudgets", policyv1.PodDisruptionBudget{}, []string{"pdb"}, hasStatus, nil},
	),
	newRows("rbac.authorization.k8s.io", "v1",
		row{"clusterrolebindings", rbacv1.ClusterRoleBinding{}, nil, isGlobal, nil},
		row{"clusterroles", rbacv1.ClusterRole{}, nil, isGlobal, nil},
		row{"rolebindings", rbacv1.RoleBinding{}, nil, 0, nil},
		row{"roles", rbacv1.Role{}, nil, 0, nil},
	),
	newRows("storage.k8s.io", "v1",
		row{"csidrivers", storagev1.CSIDriver{}, nil, isGlobal, nil},
		row{"csinodes", storagev1.CSINode{}, nil, isGlobal, nil},
		row{"csistoragecapacities", storagev1.CSIStorageCapacity{}, nil, 0, nil},
		row{"storageclasses", storagev1.StorageClass{}, []string{"sc"}, isGlobal, nil},
		row{"volumeattachments", storagev1.VolumeAttachment{}, nil, isGlobal | hasStatus, nil},
	),
	newRows("admissionregistration.k8s.io", "v1",
		row{"mutatingwebhookconfigurations", admissionregistrationv1.MutatingWebhookConfiguration{}, nil, isGlobal, nil},
		row{"validatingadmissionpolicies", admissionregistrationv1.ValidatingAdmissionPolicy{}, nil, isGlobal | hasStatus, nil},
		row{"validatingadmissionpolicybindings", admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, nil, isGlobal, nil},
		row{"validatingwebhookconfigurations", admissionregistrationv1.ValidatingWebhookConfiguration{}, nil, isGlobal, nil},
	),
	newRows("apiextensions.k8s.io", "v1",
		row{"customresourcedefinitions", apiextensionsv1.CustomResourceDefinition{}, []string{"crd", "crds"}, isGlobal | hasStatus, nil},
	),
	newRows("scheduling.k8s.io", "v1",
		row{"priorityclasses", schedulingv1.PriorityClass{}, []string{"pc"}, isGlobal, nil},
	),
	newRows("coordination.k8s.io", "v1",
		row{"leases", coordinationv1.Lease{}, nil, 0, nil},
	),
	newRows("discovery.k8s.io", "v1",
		row{"endpointslices", discoveryv1.EndpointSlice{}, nil, 0, nil},
	),
)

func newRows(group, version string, in ...row) []*resource {
	out := make([]*resource, 0, len(in))
	for _, r := range in {
		typ := reflect.TypeOf(r.sample)
		res := &resource{
			group: group, versions: []string{version}, storage: version,
			name: r.name, kind: typ.Name(), listKind: typ.Name() + "List", singular: strings.ToLower(typ.Name()),
			short: r.short, subs: r.subs, namespaced: r.flags&isGlobal == 0, status: r.flags&hasStatus != 0, review: r.flags&isReview != 0, typ: typ,
		}
		if r.flags&inAll != 0 {
			res.categories = []string{"all"}
		}
		out = append(out, res)
	}
	return out
}

// The resources the simulation itself reads and writes.
var (
	resConfigMaps      = findBuiltin("", "configmaps")
	resEndpoints       = findBuiltin("", "endpoints")
	resEvents          = findBuiltin("", "events")
	resNamespaces      = findBuiltin("", "namespaces")
	resNodes           = findBuiltin("", "nodes")
	resPods            = findBuiltin("", "pods")
	resClaims          = findBuiltin("", "persistentvolumeclaims")
	resVolumes         = findBuiltin("", "persistentvolumes")
	resServices        = findBuiltin("", "services")
	resServiceAccounts = findBuiltin("", "serviceaccounts")
	resDaemonSets      = findBuiltin("apps", "daemonsets")
	resDeployments     = findBuiltin("apps", "deployments")
	resReplicaSets     = findBuiltin("apps", "replicasets")
	resStatefulSets    = findBuiltin("apps", "statefulsets")
	resJobs            = findBuiltin("batch", "jobs")
	resLeases          = findBuiltin("coordination.k8s.io", "leases")
	resSlices          = findBuiltin("discovery.k8s.io", "endpointslices")
	resAttachments     = findBuiltin("storage.k8s.io", "volumeattachments")
	resBudgets         = findBuiltin("policy", "poddisruptionbudgets")
	resCRDs            = findBuiltin("apiextensions.k8s.io", "customresourcedefinitions")
)

func findBuiltin(group, name string) *resource {
	for _, r := range builtins {
		if r.group == group && r.name == name {
			return r
		}
	}
	panic("kube: no built-in resource " + group + "/" + name)
}

// typeOf is the Go type of a built-in kind, nil if there is none.
func typeOf(group, kind string) reflect.Type {
	for _, r := range builtins {
		if r.group == group && r.kind == kind {
			return r.typ
		}
	}
	return nil
}

// scales reports whether the resource has a scale subresource.
func (r *resource) scales() bool { return slices.Contains(r.subs, "scale") }

// customResource is the resource a definition asks for.
func customResource(o *object) *resource {
	names := rules.MapAt(o.body, "spec", "names")
	res := &resource{
		group: rules.TextAt(o.body, "spec", "group"), name: rules.TextAt(names, "plural"), kind: rules.TextAt(names, "kind"),
		listKind: rules.TextAt(names, "listKind"), singular: rules.TextAt(names, "singular"), namespaced: rules.TextAt(o.body, "spec", "scope") == "Namespaced",
		short: rules.TextsAt(names, "shortNames"), categories: rules.TextsAt(names, "categories"),
	}
	for _, v := range rules.MapsAt(o.body, "spec", "versions") {
		if rules.BoolAt(v, "storage") {
			res.storage = rules.TextAt(v, "name")
		}
		if rules.BoolAt(v, "served") {
			res.versions = append(res.versions, rules.TextAt(v, "name"))
		}
		res.status = res.status || rules.MapAt(v, "subresources")["status"] != nil
	}
	slices.SortFunc(res.versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	return res
}
