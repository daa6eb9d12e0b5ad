package machineconfig

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestCheck(t *testing.T) {
	const at = "inventory/dev/cluster.yaml"
	for name, c := range map[string]struct {
		talos, kubernetes, contract string
		want                        string
	}{
		"document":           {"v1.8.2", "v1.30.1", "v1.8", at + ":2:16: warning: talos_version: Talos v1.8.2 is managed with limits: a node does not tell its version before it is configured, and a config that waits for a reboot cannot be told from the one in force (choose v1.10 or newer when you can)"},
		"current":            {"v1.13.9", "v1.36.1", "v1.13", ""},
		"newest":             {"v1.14.1", "v1.37.0", "v1.14", ""},
		"not released yet":   {"v1.14.0-beta.1", "v1.36.1", "v1.14", ""},
		"old contract":       {"v1.14.1", "v1.36.1", "v1.8", ""},
		"too old":            {"v1.7.6", "v1.30.1", "v1.7", at + ":2:16: talos_version: Talos v1.7.6 is too old to be managed (choose a version from v1.8 to v1.14)"},
		"too new":            {"v1.15.0", "v1.37.0", "v1.15", at + ":2:16: talos_version: Talos v1.15.0 is newer than this talos-agent, which knows v1.8 to v1.14 (update talos-agent first, or write a version up to v1.14, whole, like v1.13.9)"},
		"no patch level":     {"v1.13", "v1.36.1", "v1.13", at + ":2:16: talos_version: \"v1.13\" is not a version of Talos 1.x (write it like v1.13.9)"},
		"another major":      {"v2.0.0", "v1.36.1", "v1.13", at + ":2:16: talos_version: \"v2.0.0\" is not a version of Talos 1.x (write it like v1.13.9)"},
		"kubernetes old":     {"v1.13.9", "v1.30.1", "v1.13", at + ":3:21: kubernetes_version: Kubernetes v1.30.1 does not run on Talos v1.13.9 (choose a version from v1.31 to v1.36)"},
		"kubernetes new":     {"v1.12.4", "v1.36.0", "v1.12", at + ":3:21: kubernetes_version: Kubernetes v1.36.0 does not run on Talos v1.12.4 (choose a version from v1.30 to v1.35, or raise talos_version to one of v1.13, which runs it)"},
		"kubernetes newest":  {"v1.10.9", "v1.37.2", "v1.10", at + ":3:21: kubernetes_version: Kubernetes v1.37.2 does not run on Talos v1.10.9 (choose a version from v1.28 to v1.33, or raise talos_version to one of v1.14, which runs it)"},
		"kubernetes unknown": {"v1.14.1", "v1.38.0", "v1.14", at + ":3:21: kubernetes_version: Kubernetes v1.38.0 is newer than this talos-agent, which knows versions up to v1.37 (update talos-agent first, or write a version up to v1.37)"},
		"kubernetes ancient": {"v1.8.4", "v1.25.0", "v1.8", at + ":2:16: warning: talos_version: Talos v1.8.4 is managed with limits: a node does not tell its version before it is configured, and a config that waits for a reboot cannot be told from the one in force (choose v1.10 or newer when you can)\n" +
			at + ":3:21: kubernetes_version: Kubernetes v1.25.0 does not run on Talos v1.8.4 (choose a version from v1.26 to v1.31)"},
		"both too new": {"v1.15.0", "v1.39.0", "v1.15", at + ":2:16: talos_version: Talos v1.15.0 is newer than this talos-agent, which knows v1.8 to v1.14 (update talos-agent first, or write a version up to v1.14, whole, like v1.13.9)\n" +
			at + ":3:21: kubernetes_version: Kubernetes v1.39.0 is newer than this talos-agent, which knows versions up to v1.37 (update talos-agent first, or write a version up to v1.37)"},
		"neither is one": {"v1.13", "stable", "v1.13", at + ":2:16: talos_version: \"v1.13\" is not a version of Talos 1.x (write it like v1.13.9)\n" +
			at + ":3:21: kubernetes_version: \"stable\" is not a version of Kubernetes (write it like v1.36.1)"},
		"too old, and no Kubernetes": {"v1.7.6", "stable", "v1.7", at + ":2:16: talos_version: Talos v1.7.6 is too old to be managed (choose a version from v1.8 to v1.14)\n" +
			at + ":3:21: kubernetes_version: \"stable\" is not a version of Kubernetes (write it like v1.36.1)"},
		"kubernetes none":   {"v1.12.4", "stable", "v1.12", at + ":3:21: kubernetes_version: \"stable\" is not a version of Kubernetes (write it like v1.36.1)"},
		"contract ahead":    {"v1.12.4", "v1.35.0", "v1.13", at + ":4:18: config_contract: contract v1.13 asks for configs that Talos v1.12.4 does not know (it is the minor at which the cluster was made and stays behind when talos_version moves on; for a cluster that is still to be made, write the minor of talos_version)"},
		"contract too old":  {"v1.12.4", "v1.35.0", "v1.7", at + ":4:18: config_contract: contract v1.7 is too old to be written (choose one from v1.8 to v1.12)"},
		"contract no minor": {"v1.12.4", "v1.35.0", "v1.12.4", at + ":4:18: config_contract: \"v1.12.4\" is not a minor of Talos (write the minor at which the cluster was made, like v1.13)"},
		"two at once": {"v1.12.4", "v1.36.0", "v1.13", at + ":4:18: config_contract: contract v1.13 asks for configs that Talos v1.12.4 does not know (it is the minor at which the cluster was made and stays behind when talos_version moves on; for a cluster that is still to be made, write the minor of talos_version)\n" +
			at + ":3:21: kubernetes_version: Kubernetes v1.36.0 does not run on Talos v1.12.4 (choose a version from v1.30 to v1.35, or raise talos_version to one of v1.13, which runs it)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, "v1.13")
			s.Spec.Versions = cluster.Versions{Talos: c.talos, Kubernetes: c.kubernetes, Contract: c.contract}
			if got := Check(s).Error(); got != c.want {
				t.Errorf("problems:\n%s\nwant:\n%s", got, c.want)
			}
			var r Renderer
			configs, ps := r.Render(s, testSchematic)
			if bad := Check(s).HasErrors(); bad != ps.HasErrors() || bad != (configs == nil) {
				t.Errorf("rendering gives %d configs and problems:\n%v", len(configs), ps)
			}
		})
	}
}

// An update of the library moves this line, and the settings, kinds and tests
// of the new minor with it.
func TestNewestMinor(t *testing.T) {
	if got := newestMinor(); got != 14 {
		t.Errorf("the library's newest minor is %d", got)
	}
}
