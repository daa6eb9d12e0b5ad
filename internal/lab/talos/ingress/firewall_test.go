package ingress

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
)

// TestDropsAPI: where the default is to block, one rule that matches lets the host in;
// where it is to accept, one rule of the port that does not match shuts it out.
func TestDropsAPI(t *testing.T) {
	action := func(what string) string {
		return "apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: " + what + "\n"
	}
	rule := func(name, ports, subnet string) string {
		return "apiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: " + name + "\nportSelector: {ports: [" + ports + "], protocol: tcp}\ningress: [{subnet: " + subnet + "}]\n"
	}
	ours, others, but := rule("a", "50000", "10.5.0.0/24"), rule("b", "49999-50001", "192.168.0.0/16"), rule("c", "50000", "10.5.0.0/24, except: 10.5.0.1/32")
	for _, tc := range []struct {
		docs  []string
		drops bool
	}{
		{nil, false},
		{[]string{action("block")}, true},
		{[]string{action("block"), ours}, false},
		{[]string{action("block"), others}, true},
		{[]string{action("block"), others, ours}, false},
		{[]string{action("block"), but}, true},
		{[]string{action("block"), rule("d", "6443", "10.5.0.0/24")}, true},
		{[]string{action("accept"), ours}, false},
		{[]string{action("accept"), others}, true},
		{[]string{action("accept"), ours, others}, true},
	} {
		cfg, err := configloader.NewFromBytes([]byte("machine: {type: worker}\n---\n" + strings.Join(tc.docs, "---\n")))
		if err != nil {
			t.Fatal(err)
		}
		if got := DropsAPI(cfg.NetworkRules(), netip.MustParsePrefix("10.5.0.11/24")); got != tc.drops {
			t.Errorf("%v: %v", tc.docs, got)
		}
	}
}
