//lint:file-ignore SA1019 the fields by which v1.13 and older decide are deprecated since

package rules

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// RefuseChange explains why v1.13 and older can apply the change from one config to
// another only with a reboot: something differs outside of a list of fields.
// Further documents never count. nil: it can be applied at once.
func RefuseChange(old, next *v1alpha1.Config) error {
	if old == nil || next == nil {
		return errors.New("current config is not v1alpha1")
	}
	was, is := old.DeepCopy(), next.DeepCopy()
	for _, c := range []*v1alpha1.Config{was, is} {
		c.ConfigDebug, c.ClusterConfig = nil, nil
		if c.MachineConfig != nil {
			forgetImmediate(c.MachineConfig)
		}
	}
	if reflect.DeepEqual(was, is) {
		return nil
	}
	diff, err := Diff(container.NewV1Alpha1(was), container.NewV1Alpha1(is))
	if err != nil {
		return err
	}
	return fmt.Errorf("this config change can't be applied in immediate mode\ndiff:\n%s", diff)
}

// Diff compares two configs line by line; old may be nil. The text
// holds whatever secrets differ, as it does in life.
func Diff(old, next config.Container) (string, error) {
	var texts [2]string
	for i, cfg := range []config.Container{old, next} {
		if cfg == nil {
			continue
		}
		text, err := cfg.EncodeString(encoder.WithComments(encoder.CommentsDisabled))
		if err != nil {
			return "", fmt.Errorf("error calculating diff: %w", err)
		}
		texts[i] = text
	}
	diff, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(texts[0]), FromFile: "a",
		B: difflib.SplitLines(texts[1]), ToFile: "b",
		Context: 3,
	})
	if err != nil {
		return "", fmt.Errorf("error calculating diff: %w", err)
	}
	return diff, nil
}

// forgetImmediate empties every field whose change needs no reboot.
func forgetImmediate(m *v1alpha1.MachineConfig) {
	m.MachineCA, m.MachineAcceptedCAs, m.MachineCertSANs = nil, nil, nil
	m.MachineTime, m.MachineInstall, m.MachineNetwork = nil, nil, nil
	m.MachineSysfs, m.MachineSysctls, m.MachineLogging = nil, nil, nil
	m.MachineControlPlane, m.MachineKubelet, m.MachineKernel = nil, nil, nil
	m.MachineRegistries = v1alpha1.RegistriesConfig{}
	m.MachinePods, m.MachineSeccompProfiles = nil, nil
	m.MachineNodeAnnotations, m.MachineNodeLabels, m.MachineNodeTaints = nil, nil, nil
	if f := m.MachineFeatures; f != nil {
		f.KubernetesTalosAPIAccessConfig, f.KubePrismSupport, f.HostDNSSupport = nil, nil, nil
		f.ImageCacheSupport = nil
		f.FeatureNodeAddressSortAlgorithm = ""
	}
}
