package machineconfig

import (
	"fmt"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// component is a part of Kubernetes whose image a machine config names.
type component struct {
	name  string
	plane bool // only a control plane has it
	want  func(cluster.Components) string
	image func(config.Provider) string
	kind  string // of the document that has the image, from contract 1.14 on
	path  []string
}

// components are those that have the version of the cluster. Source: Talos machinery 1.14.1,
// config/generate.
var components = []component{
	{"kube-apiserver", true, func(c cluster.Components) string { return c.APIServer },
		func(c config.Provider) string { return c.K8sAPIServerConfig().Image() },
		"KubeAPIServerConfig", []string{"cluster", "apiServer", "image"}},
	{"kube-controller-manager", true, func(c cluster.Components) string { return c.ControllerManager },
		func(c config.Provider) string { return c.K8sControllerManagerConfig().Image() },
		"KubeControllerManagerConfig", []string{"cluster", "controllerManager", "image"}},
	{"kube-scheduler", true, func(c cluster.Components) string { return c.Scheduler },
		func(c config.Provider) string { return c.K8sSchedulerConfig().Image() },
		"KubeSchedulerConfig", []string{"cluster", "scheduler", "image"}},
	{"kube-proxy", true, func(c cluster.Components) string { return c.Proxy }, imageOfProxy,
		"KubeProxyConfig", []string{"cluster", "proxy", "image"}},
	{"kubelet", false, func(c cluster.Components) string { return c.Kubelet },
		func(c config.Provider) string { return c.K8sKubeletConfig().Image() },
		"KubeletConfig", []string{"machine", "kubelet", "image"}},
}

// imageOfProxy is the image of kube-proxy, "" where no document has one.
func imageOfProxy(c config.Provider) string {
	if p := c.K8sProxyConfig(); p != nil {
		return p.Image()
	}
	return ""
}

// stageComponents gives the parts of Kubernetes in a config, which has the version of the cluster,
// those that the node is to have now. It comes after the patches, so that a patch which takes
// an image from another registry does so at every step of an upgrade; one that names a tag of
// its own keeps it. No version can be given to an image with a digest.
func stageComponents(patched config.Provider, in *input) (config.Provider, error) {
	d := &draft{}
	for _, c := range components {
		want := c.want(in.Components)
		if want == "" || want == in.Kubernetes || c.plane && !in.controlPlane() {
			continue
		}
		image := c.image(patched)
		name, digest, pinned := strings.Cut(image, "@")
		repository, fits := strings.CutSuffix(name, ":"+in.Kubernetes)
		switch {
		case !fits:
			continue
		case pinned:
			return nil, &fault.Error{Op: fmt.Sprintf("a patch has the digest %s for the image of %s, and its version has to be %s before it is %s", digest, c.name, want, in.Kubernetes),
				Hint: "leave the digest out of the patch until all nodes run " + in.Kubernetes}
		}
		image = repository + ":" + want
		if hasDocument(patched, c.kind) {
			d.doc(c.kind, fields{"image": image})
		} else {
			d.set(image, c.path...)
		}
	}
	if d.legacy == nil && len(d.docs) == 0 {
		return patched, nil
	}
	text, err := d.encode()
	if err != nil {
		return nil, fmt.Errorf("write versions: %w", err)
	}
	doc, err := configloader.NewFromBytes(text, configloader.WithAllowPatchDelete(), configloader.WithNoValidation())
	if err != nil {
		return nil, fmt.Errorf("load versions: %w", err)
	}
	staged, err := configpatcher.StrategicMerge(patched, configpatcher.NewStrategicMergePatch(doc))
	if err != nil {
		return nil, fmt.Errorf("merge versions: %w", err)
	}
	return staged, nil
}

// hasDocument reports whether a config has a document of a kind.
func hasDocument(c config.Provider, kind string) bool {
	for _, d := range c.Documents() {
		if d.Kind() == kind {
			return true
		}
	}
	return false
}
