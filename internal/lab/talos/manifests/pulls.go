package manifests

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// PullBackoff is how long a kubelet waits, in the end, before it asks for an image again.
// Source: kubernetes v1.36, pkg/kubelet, MaxImageBackOff.
const PullBackoff = 5 * time.Minute

// PullImages returns static pods with why the image of each cannot be had: the machine has not
// pulled it before, and no registry gives it out. registries is asked if it is a world.Containers.
func PullImages(pods []world.StaticPod, had []system.Image, registries any) []world.StaticPod {
	pods = slices.Clone(pods)
	for i, p := range pods {
		pods[i].PullError = ""
		k, asks := registries.(world.Containers)
		host, _, _ := strings.Cut(p.Image, "/")
		failed := fmt.Sprintf("failed to pull and unpack image %[1]q: failed to resolve reference %[1]q: ", p.Image)
		switch {
		case system.HasImage(had, p.Image):
		case !system.IsPublished(p.Image): // recorded
			pods[i].PullError = "rpc error: code = NotFound desc = " + failed + p.Image + ": not found"
		case asks && !k.CanPull(p.Image):
			pods[i].PullError = failed + fmt.Sprintf("failed to do request: dial tcp: lookup %s: no such host", host)
		}
	}
	return pods
}

// KeepImages adds the images of static pods that run to those of a machine. It reports whether
// all run.
func KeepImages(to *[]system.Image, pods []world.StaticPod, at time.Time) bool {
	all := true
	for _, p := range pods {
		switch {
		case p.PullError != "":
			all = false
		case !system.HasImage(*to, p.Image):
			*to = append(*to, system.Image{Ref: p.Image, Namespace: common.ContainerdNamespace_NS_CRI, Pulled: at})
		}
	}
	return all
}

// Unmet is how a machine reports a static pod that is not ready (recorded: Talos 1.13.9).
func Unmet(pods []world.StaticPod, name string) string {
	if FindPullError(pods, name) != "" {
		return "pending"
	}
	return "not ready"
}

// FindPullError returns why the image of a static pod cannot be pulled, "" if it runs or is not
// there.
func FindPullError(pods []world.StaticPod, name string) string {
	for _, p := range pods {
		if p.Name == name {
			return p.PullError
		}
	}
	return ""
}

// Status is what a machine shows of a static pod that its kubelet has (recorded: Talos 1.13.9).
func Status(pods []world.StaticPod, name string, ready bool, ip netip.Addr) map[string]any {
	if FindPullError(pods, name) != "" {
		return map[string]any{"phase": "Pending"}
	}
	is := "False"
	if ready {
		is = "True"
	}
	return map[string]any{
		"phase":      "Running",
		"conditions": []any{map[string]any{"type": "Ready", "status": is}},
		"podIP":      ip.String(),
	}
}

// OwnImages are the images of what Talos itself runs of a machine config.
func OwnImages(cfg config.Provider, pulled time.Time, runs func(service string) bool) (images []system.Image) {
	add := func(service, ref string) {
		if runs(service) {
			images = append(images, system.Image{Ref: ref, Namespace: common.ContainerdNamespace_NS_SYSTEM, Pulled: pulled})
		}
	}
	if k := cfg.K8sKubeletConfig(); k != nil {
		add("kubelet", k.Image())
	}
	if e := cfg.Cluster().Etcd(); e != nil {
		add("etcd", e.Image())
	}
	return images
}
