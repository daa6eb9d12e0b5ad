package system

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// StaticPods are those of a control plane whose machine has not named its own.
func StaticPods(kubernetes string) (out []world.StaticPod) {
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		out = append(out, world.StaticPod{Name: name, Image: "registry.k8s.io/" + name + ":" + kubernetes})
	}
	return out
}

// staticRequests are what the static pods of a control plane ask for: processor and
// memory (recorded of Talos 1.13).
var staticRequests = map[string][2]string{
	"kube-apiserver": {"200m", "512Mi"}, "kube-controller-manager": {"50m", "256Mi"}, "kube-scheduler": {"10m", "64Mi"},
}

// Object is an object of a new cluster.
type Object struct {
	Group, Resource, Namespace, Name string
	Body                             map[string]any
	Manager                          string // who owns its fields, "": no one is noted
}

// NewCluster is what Kubernetes puts into a new cluster.
func NewCluster(cp world.ControlPlane) (out []Object) {
	for _, ns := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		out = append(out, Object{"", "namespaces", "", ns, map[string]any{}, ""})
	}
	return append(out, Object{"", "services", "default", "kubernetes", map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"component": "apiserver", "provider": "kubernetes"}},
		"spec": map[string]any{
			"clusterIP": rules.NthAddr(rules.FirstRange(cp.ServiceCIDR), 1).String(),
			"ports":     []any{map[string]any{"name": "https", "port": int64(443), "targetPort": int64(6443)}},
		},
	}, ""})
}

// newWorkload is a workload of one container that is found by its k8s-app label. It
// asks for so much processor and memory, or ("") for nothing.
func newWorkload(app, image, cpu, memory string, spec map[string]any) map[string]any {
	labels := map[string]any{"k8s-app": app}
	container := map[string]any{"name": app, "image": image}
	if cpu != "" {
		container["resources"] = map[string]any{"requests": map[string]any{"cpu": cpu, "memory": memory}}
	}
	spec["containers"] = []any{container}
	return map[string]any{
		"metadata": map[string]any{"labels": runtime.DeepCopyJSON(labels)},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{"metadata": map[string]any{"labels": runtime.DeepCopyJSON(labels)}, "spec": spec},
		},
	}
}

// StaticPod is the pod that stands for a static pod of a control plane. config is the hash
// of its manifest.
func StaticPod(node map[string]any, on string, p world.StaticPod, config string) map[string]any {
	annotations := map[string]any{corev1.MirrorPodAnnotationKey: config, "kubernetes.io/config.source": "file"}
	for k, v := range p.Versions {
		annotations[k] = v
	}
	return map[string]any{
		"metadata": map[string]any{
			"name": p.Name + "-" + on, "namespace": "kube-system",
			"labels":      map[string]any{"k8s-app": p.Name, "tier": "control-plane"},
			"annotations": annotations,
			"ownerReferences": []any{map[string]any{
				"apiVersion": "v1", "kind": "Node", "name": on, "uid": rules.TextAt(node, "metadata", "uid"), "controller": true,
			}},
		},
		"spec": map[string]any{
			"nodeName": on, "hostNetwork": true, "restartPolicy": "Always", "priorityClassName": "system-cluster-critical",
			"containers": []any{map[string]any{
				"name": p.Name, "image": p.Image,
				"resources": map[string]any{"requests": map[string]any{"cpu": staticRequests[p.Name][0], "memory": staticRequests[p.Name][1]}},
			}},
			"tolerations": []any{map[string]any{"operator": "Exists", "effect": "NoExecute"}},
		},
	}
}

// IsOf reports whether a pod is the one that stands for a static pod as it is now.
func IsOf(pod map[string]any, p world.StaticPod) bool {
	for k, v := range p.Versions {
		if rules.TextAt(pod, "metadata", "annotations", k) != v {
			return false
		}
	}
	containers := rules.MapsAt(pod, "spec", "containers")
	return len(containers) > 0 && rules.TextAt(containers[0], "image") == p.Image
}

// Volume is the volume that is made for a claim.
func Volume(claim map[string]any, ns, name, volume, driver string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": volume},
		"spec": map[string]any{
			"capacity":    rules.MapAt(claim, "spec", "resources", "requests"),
			"accessModes": rules.ListAt(claim, "spec", "accessModes"), "storageClassName": rules.TextAt(claim, "spec", "storageClassName"),
			"persistentVolumeReclaimPolicy": "Delete",
			"csi":                           map[string]any{"driver": driver, "volumeHandle": volume},
			"claimRef":                      map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": ns, "name": name, "uid": rules.TextAt(claim, "metadata", "uid")},
		},
		"status": map[string]any{"phase": "Bound"},
	}
}

// DefaultAccount is the service account that every namespace has.
func DefaultAccount(namespace string) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": "default", "namespace": namespace}}
}

// RootCA is the config map with the cluster's authority that every namespace has.
func RootCA(namespace, pem string) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": "kube-root-ca.crt", "namespace": namespace}, "data": map[string]any{"ca.crt": pem}}
}
