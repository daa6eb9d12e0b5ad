// Package manifests makes the static pods of a control plane out of its machine config, and finds
// which of their images its kubelet can have. It knows no machine.
package manifests

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// StaticPods renders the static pods of a control plane, and counts how often what each is made
// of has changed since the machine booted, as Talos' controllers do (recorded: Talos 1.13.9).
type StaticPods struct {
	of   config.Provider // that was rendered last
	pods []world.StaticPod
	had  map[string]counted
}

// counted is what a part of a pod was made of, and the version that it had.
type counted struct {
	from    string
	version int
}

// Render returns the static pods of a config.
func (s *StaticPods) Render(cfg config.Provider) []world.StaticPod {
	if s.of == cfg {
		return s.pods
	}
	s.of, s.pods = cfg, nil
	if s.had == nil {
		s.had = map[string]counted{}
	}
	scheduler := cfg.K8sSchedulerConfig()
	if api := cfg.K8sAPIServerConfig(); api != nil {
		files := ""
		if scheduler != nil { // its config file is rendered with those of the kube-apiserver
			files = fmt.Sprint(scheduler.Image(), scheduler.Enabled(), scheduler.ExtraArgs(), scheduler.Config())
		}
		s.add("kube-apiserver", api.Image(), fmt.Sprint(api.Image(), api.ExtraArgs(), api.ExtraVolumes(), api.Env(), api.Resources()),
			map[string]string{constants.AnnotationStaticPodConfigFileVersion: "111" + s.count("files", files)})
	}
	if manager := cfg.K8sControllerManagerConfig(); manager != nil && manager.Enabled() {
		s.add("kube-controller-manager", manager.Image(), fmt.Sprint(manager.Image(), manager.ExtraArgs(), manager.ExtraVolumes(), manager.Env(), manager.Resources()), nil)
	}
	if scheduler != nil && scheduler.Enabled() {
		s.add("kube-scheduler", scheduler.Image(), fmt.Sprint(scheduler.Image(), scheduler.ExtraArgs(), scheduler.ExtraVolumes(), scheduler.Env(), scheduler.Resources(), scheduler.Config()), nil)
	}
	return s.pods
}

func (s *StaticPods) add(name, image, from string, more map[string]string) {
	versions := map[string]string{constants.AnnotationStaticPodConfigVersion: s.count(name, from), constants.AnnotationStaticPodSecretsVersion: "1"}
	maps.Copy(versions, more)
	s.pods = append(s.pods, world.StaticPod{Name: name, Image: image, Versions: versions})
}

// count returns the version of a part that is made from this.
func (s *StaticPods) count(part, from string) string {
	c, ok := s.had[part]
	if !ok || c.from != from {
		c = counted{from, c.version + 1}
		s.had[part] = c
	}
	return strconv.Itoa(c.version)
}

// Manifest is a static pod as the machine's resources have it.
func Manifest(p world.StaticPod) map[string]any {
	annotations := map[string]any{}
	for k, v := range p.Versions {
		annotations[k] = v
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"name": p.Name, "namespace": "kube-system", "annotations": annotations,
			"labels": map[string]any{"app.kubernetes.io/managed-by": "Talos", "app.kubernetes.io/name": p.Name, "k8s-app": p.Name, "tier": "control-plane"},
		},
		"spec":   map[string]any{"hostNetwork": true, "containers": []any{map[string]any{"name": p.Name, "image": p.Image}}},
		"status": map[string]any{},
	}
}
