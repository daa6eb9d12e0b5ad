package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// TalosTimeServer is what nodes ask whose inventory names no time server.
// Source: Talos, pkg/machinery/constants.DefaultNTPServer.
const TalosTimeServer = "time.cloudflare.com"

// NotAsked reports for each time server of the nodes why root does not ask it, "" of
// one that is asked. The repository names them, and who may push must not choose to
// whom root sends anything: so it is Talos' own, this host itself, and who is on a
// bridge that the nodes are on and the policy allows. way looks for a route, and
// sends nothing.
func (w Wants) NotAsked(way func(netip.Addr) (Way, error)) map[string]string {
	out := map[string]string{}
	for server, clusters := range w.timeServers() {
		for _, c := range clusters {
			if why, known := out[server]; !known || why != "" {
				out[server] = w.notAsked(c, server, way)
			}
		}
	}
	return out
}

// timeServers are those that nodes ask, each with the clusters whose nodes do.
func (w Wants) timeServers() map[string][]Cluster {
	out := map[string][]Cluster{}
	for _, c := range w.Clusters {
		servers := c.TimeServers
		if len(servers) == 0 {
			servers = []string{TalosTimeServer}
		}
		for _, s := range servers {
			out[s] = append(out[s], c)
		}
	}
	return out
}

func (w Wants) notAsked(c Cluster, server string, way func(netip.Addr) (Way, error)) string {
	if server == TalosTimeServer {
		return ""
	}
	ip, err := netip.ParseAddr(server)
	if err != nil {
		return "the repository gives a name, which may lead anywhere"
	}
	to, err := way(ip.Unmap())
	switch {
	case err != nil:
		return err.Error()
	case to.Loopback:
		return ""
	case to.Via.IsValid():
		return "it is on no network of this host"
	case !w.bridged(c, to):
		return fmt.Sprintf("it is on %s, and %s", to.Link, notBridged)
	}
	return ""
}

// timeServers judges the time servers of all clusters. A node whose clock is
// not in sync never joins.
func (h Host) timeServers() []Check {
	servers := h.Wants.timeServers()
	namesNone := func(c Cluster) bool { return len(c.TimeServers) == 0 }
	var out []Check
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		f := h.TimeServers[name]
		c := Check{Name: "timeserver", Subject: name, Level: Pass, Message: "answers"}
		switch why := h.NotAsked[name]; {
		case why != "":
			c.Level, c.Message = Skipped, "not asked: "+why
			c.Hint = fmt.Sprintf("name one on a network of the nodes under network.time_servers; or ask it yourself: `chronyd -Q 'server %s iburst'`", name)
		case !f.Known && slices.ContainsFunc(servers[name], namesNone):
			c.Level = Warn
			c.Message = fmt.Sprintf("does not answer this host (%s), and no other is named: if it does not answer the nodes either, they never join", f.Why)
			c.Hint = "name one of the network under network.time_servers; a host with chrony serves them with `allow` in /etc/chrony/chrony.conf"
		case !f.Known:
			c.Level = Fail
			c.Message = fmt.Sprintf("does not answer this host (%s): a node whose clock is not in sync never joins", f.Why)
			c.Hint = "name one that answers the nodes under network.time_servers; a host with chrony serves them with `allow` in /etc/chrony/chrony.conf"
		case f.Value.Abs() > skewWarn:
			c.Level = Warn
			c.Message = fmt.Sprintf("its clock and this host's differ by %v", f.Value.Abs().Round(time.Second))
			c.Hint = "synchronise both with the same source"
		}
		out = append(out, c)
	}
	return out
}
