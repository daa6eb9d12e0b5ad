package machineconfig

import (
	"strings"
	"testing"
)

// TestMovedSettings: a patch that was written for an older contract is refused by a newer
// one with the document to write instead, and the library still refuses each of them with
// the text that the table has.
func TestMovedSettings(t *testing.T) {
	patches := map[string]string{
		"machine.kubelet":                        `machine: {kubelet: {extraArgs: {v: "2"}}}`,
		"cluster.apiServer":                      `cluster: {apiServer: {extraArgs: {v: "2"}}}`,
		"cluster.controllerManager":              `cluster: {controllerManager: {extraArgs: {v: "2"}}}`,
		"cluster.scheduler":                      `cluster: {scheduler: {extraArgs: {v: "2"}}}`,
		"cluster.proxy":                          `cluster: {proxy: {extraArgs: {v: "2"}}}`,
		"cluster.coreDNS":                        `cluster: {coreDNS: {disabled: true}}`,
		"machine.features.kubePrism":             `machine: {features: {kubePrism: {enabled: true, port: 7446}}}`,
		"machine.features.hostDNS":               `machine: {features: {hostDNS: {enabled: true}}}`,
		"machine.network.nameservers":            `machine: {network: {nameservers: [192.0.2.1]}}`,
		"machine.time":                           `machine: {time: {servers: [time.example.org]}}`,
		"cluster.allowSchedulingOnControlPlanes": `cluster: {allowSchedulingOnControlPlanes: true}`,
		"machine.nodeLabels":                     `machine: {nodeLabels: {a: b}}`,
		"machine.nodeAnnotations":                `machine: {nodeAnnotations: {a: b}}`,
		"machine.nodeTaints":                     `machine: {nodeTaints: {a: "b:NoSchedule"}}`,
	}
	for _, m := range moved {
		s := snapshot(t, "v1.14")
		withPatch(&s, "old.yaml", patches[m.old])
		var r Renderer
		_, ps := r.Render(s, testSchematic)
		hint := "(with this config_contract these settings are documents of their own; write " + m.instead + " instead of " + m.old + ")"
		if got := ps.Error(); !strings.HasPrefix(got, "old.yaml: Talos would refuse the config: ") || !strings.HasSuffix(got, hint) {
			t.Errorf("%s: %s\nwant the hint %s", m.old, got, hint)
		}
		if kind, ok := strings.CutPrefix(m.instead, "kind: "); ok && kindSince[kind] == 0 {
			t.Errorf("%s is a kind of no version of Talos", kind)
		}
	}
	const both = "machine: {kubelet: {extraArgs: {v: \"2\"}}}\ncluster: {scheduler: {extraArgs: {v: \"2\"}}}\n"
	s := snapshot(t, "v1.14")
	withPatch(&s, "old.yaml", both)
	var r Renderer
	if _, ps := r.Render(s, testSchematic); !strings.Contains(ps.Error(), "write kind: KubeletConfig instead of machine.kubelet, kind: KubeSchedulerConfig instead of cluster.scheduler)") {
		t.Errorf("two settings: %v", ps)
	}
	s = snapshot(t, "v1.14")
	withPatch(&s, "new.yaml", "apiVersion: v1alpha1\nkind: KubeletConfig\nextraArgs: {v: \"2\"}\n")
	if _, ps := r.Render(s, testSchematic); len(ps) > 0 {
		t.Errorf("the document: %v", ps)
	}
}
