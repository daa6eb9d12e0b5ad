package cluster

import "fmt"

// FixedConfig is what of a machine config can never change on a cluster that lives: it is
// in certificates, in etcd and in what runs. The zero value is unknown.
type FixedConfig struct {
	Cluster   string // its name
	DNSDomain string
	Pods      string // networks, comma-separated
	Services  string
}

// Differences are what of two is not the same, for people; none where one is unknown.
func (f FixedConfig) Differences(want FixedConfig) []string {
	if f == (FixedConfig{}) || want == (FixedConfig{}) {
		return nil
	}
	var out []string
	for _, x := range []struct{ name, have, want string }{
		{"cluster name", f.Cluster, want.Cluster}, {"DNS domain", f.DNSDomain, want.DNSDomain},
		{"pod network", f.Pods, want.Pods}, {"service network", f.Services, want.Services},
	} {
		if x.have != x.want {
			out = append(out, fmt.Sprintf("%s %s (the inventory has %s)", x.name, x.have, x.want))
		}
	}
	return out
}
