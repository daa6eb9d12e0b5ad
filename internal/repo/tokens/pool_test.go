//go:build linux

package tokens

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestChoosePool: the host's policy names the pool, and without one all nodes name the same.
func TestChoosePool(t *testing.T) {
	for _, c := range []struct {
		allowed    string
		pools      []string
		want, fail string
	}{
		{"talos", []string{"", ""}, "talos", ""},
		{"talos", []string{"talos", ""}, "talos", ""},
		{"talos", []string{"", "other"}, "", "the node b wants the pool other, and the policy of this host allows talos"},
		{"", []string{"one", "one"}, "one", ""},
		{"", []string{"one", ""}, "one", ""},
		{"", []string{"one", "two"}, "", "the node b wants the pool two, and others want one"},
	} {
		var nodes []cluster.Node
		for i, pool := range c.pools {
			nodes = append(nodes, cluster.Node{Name: string(rune('a' + i)), Pool: pool})
		}
		got, err := choosePool("dev", c.allowed, nodes)
		if got != c.want || (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%q %q: %q, %v", c.allowed, c.pools, got, err)
		}
	}
}
