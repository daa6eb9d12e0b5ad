package machineconfig

import (
	"slices"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
)

// TestTakeNetwork: a config takes the network of another, what that has no more as well, and
// nothing else; it is the other's when nothing else differs.
func TestTakeNetwork(t *testing.T) {
	const (
		env      = "machine: {env: {X: \"1\"}}"
		firewall = "apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n"
		rule     = "apiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: talos\nportSelector: {ports: [50000], protocol: tcp}\ningress: [{subnet: 10.10.0.0/24}]\n"
		sysctl   = "machine: {sysctls: {net.ipv4.conf.all.rp_filter: \"1\"}}"
		volume   = "apiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {maxSize: 20GiB}\n"
	)
	for _, contract := range contracts {
		rendered := map[string][]byte{}
		render := func(patches ...string) []byte {
			if out, ok := rendered[strings.Join(patches, "\n---\n")]; ok {
				return out
			}
			s := snapshot(t, contract)
			if len(patches) > 0 {
				withPatch(&s, "1-change.yaml", strings.Join(patches, "\n---\n"))
			}
			out := mustRender(t, s)[s.Spec.Nodes[0].Name].Bytes.Reveal()
			rendered[strings.Join(patches, "\n---\n")] = out
			return out
		}
		for _, c := range []struct {
			name             string
			have, want, gets []string
		}{
			{"nothing", nil, nil, nil},
			{"what is not about the network", []string{volume}, []string{env}, nil},
			{"a firewall", nil, []string{env, firewall, rule}, []string{firewall, rule}},
			{"a firewall less", []string{env, firewall, rule}, nil, []string{env}},
			{"another firewall", []string{env, firewall}, []string{firewall, rule, volume}, []string{env, firewall, rule}},
			{"a setting of the kernel", []string{env}, []string{sysctl}, []string{env, sysctl}},
			{"a setting of the kernel less", []string{sysctl}, []string{env}, []string{}},
		} {
			name := c.name + " at " + contract
			got, err := TakeNetwork(render(c.have...), render(c.want...))
			switch {
			case err != nil:
				t.Errorf("%s: %v", name, err)
			case c.gets == nil && got != nil:
				t.Errorf("%s: it takes something:\n%s", name, got)
			case c.gets != nil && !slices.Equal(mustSplit(t, got), mustSplit(t, render(c.gets...))):
				t.Errorf("%s:\n%s", name, got)
			}
			if again, err := TakeNetwork(got, render(c.want...)); got != nil && (again != nil || err != nil) {
				t.Errorf("%s: it takes something twice: %v\n%s", name, err, again)
			}
		}
	}
	whole := renderFirst(t)
	for _, broken := range []string{"{", "machine: {nosuch: 1}", "apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n"} {
		if _, err := TakeNetwork([]byte(broken), whole); err == nil {
			t.Errorf("%q is taken", broken)
		}
		if _, err := TakeNetwork(whole, []byte(broken)); err == nil {
			t.Errorf("%q is given", broken)
		}
	}
}

// renderFirst renders the config of one node.
func renderFirst(t *testing.T) []byte {
	s := snapshot(t, contracts[0])
	return mustRender(t, s)[s.Spec.Nodes[0].Name].Bytes.Reveal()
}

// mustSplit lists the documents and settings of a config, in any order.
func mustSplit(t *testing.T, config []byte) []string {
	t.Helper()
	settings, err := splitSettings(config)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for name, text := range settings {
		out = append(out, name+": "+text)
	}
	slices.Sort(out)
	return out
}

// TestNetworkKindsExist: a list of kinds is right only with kinds that exist, and none of them is
// let through without a trial.
func TestNetworkKindsExist(t *testing.T) {
	for _, kind := range networkKinds {
		_, err := configloader.NewFromBytes([]byte("apiVersion: v1alpha1\nkind: " + kind + "\nnosuch: 1\n"))
		if err == nil || strings.Contains(err.Error(), "not registered") || slices.Contains(reachableKinds, kind) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
