package machineconfig

import (
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestGolden holds the configs of a control plane and a worker at every
// contract whose shape differs, for each network and address mode, against what
// was read and found right.
func TestGolden(t *testing.T) {
	for _, contract := range []string{"v1.8", "v1.10", "v1.12", "v1.13", "v1.14"} {
		for _, cni := range []cluster.CNI{cluster.CNIFlannel, cluster.CNICilium} {
			for _, mode := range []cluster.AddressMode{cluster.AddressStatic, cluster.AddressReserved} {
				name := strings.Join([]string{contract, string(cni), string(mode)}, "-")
				t.Run(name, func(t *testing.T) {
					s := snapshot(t, contract)
					s.Spec.CNI = cni
					if mode == cluster.AddressReserved {
						reservedAddresses(&s)
					}
					configs := mustRender(t, s)
					for _, n := range s.Spec.Nodes {
						golden(t, "golden/"+name+"-"+string(n.Role)+".yaml", shorten(configs[n.Name].Bytes.RevealString()))
					}
				})
			}
		}
	}
}
