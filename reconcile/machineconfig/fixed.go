package machineconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Fixed returns what of a machine config can never change on a cluster that lives. The
// error names what is wrong without quoting the config.
func Fixed(config []byte) (cluster.FixedConfig, error) {
	p, err := configloader.NewFromBytes(config)
	if err != nil {
		return cluster.FixedConfig{}, errors.New("load machine config: " + explainError(err, config))
	}
	return recoverPanic(func() (cluster.FixedConfig, error) { return fixedOf(p), nil })
}

func fixedOf(p config.Config) cluster.FixedConfig {
	var f cluster.FixedConfig
	if c := p.K8sClusterConfig(); c != nil {
		f.Cluster = c.ClusterName()
	}
	if n := p.K8sNetworkConfig(); n != nil {
		f.DNSDomain, f.Pods, f.Services = n.DNSDomain(), joinNetworks(n.PodCIDRs()), joinNetworks(n.ServiceCIDRs())
	}
	return f
}

func joinNetworks(networks []netip.Prefix) string {
	var out []string
	for _, n := range networks {
		out = append(out, fmt.Sprint(n))
	}
	return strings.Join(out, ",")
}
