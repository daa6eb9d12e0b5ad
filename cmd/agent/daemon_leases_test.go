package main

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestLeasesOfADaemon: a worker without an address is found by its MAC in the lease file that the config names; while
// that cannot be read the status has why, and where else the agent looks.
func TestLeasesOfADaemon(t *testing.T) {
	r := newRig(t, lab.Config{})
	file := filepath.Join(r.dir, "dnsmasq.leases")
	r.config["dhcp"] = map[string]any{"leases": []string{file}}
	r.write()
	files := r.inventory(1)
	edit := func(name, from, to string) {
		files["inventory/dev/"+name] = []byte(strings.Replace(string(files["inventory/dev/"+name]), from, to, 1))
	}
	edit("cluster.yaml", "network: {", "network: {address_mode: dhcp-discover, ")
	edit("nodes.yaml", "ip: "+r.base+"21", "vmid: 521")
	mac := cluster.NodeMAC("BC:24:11", cluster.ClusterID("rig", "dev"), "dev-wk-1", 0)
	r.lab.DHCP.Move(mac, netip.MustParsePrefix(r.base+"121/24"))
	commit := r.push(files)
	r.start()
	r.until("it is not found", func() bool {
		a := r.try("status")
		return a.has("its address is not known: no address of "+mac+" that it could have is in "+file+", the table of neighbours") && a.has("cannot read the leases: open "+file)
	})
	r.until("it has a lease", func() bool { return len(r.lab.DHCP.Addresses()[mac]) == 1 })
	r.file("dnsmasq.leases", r.lab.DHCP.File(time.Now()))
	r.untilReady(commit)
	r.run(exitOK, do("status"), r.base+"121")
}
