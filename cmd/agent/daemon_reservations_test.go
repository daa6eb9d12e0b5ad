package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestReservationsOfADaemon: a directory that is not there is a problem of the status, with what to
// do, and holds up no pass; what is written into it everybody may read, and doctor says how dnsmasq
// finds it.
func TestReservationsOfADaemon(t *testing.T) {
	r := newRig(t, lab.Config{})
	dir := filepath.Join(r.dir, "dhcp")
	r.config["dhcp"] = map[string]any{"directory": dir}
	r.write()
	files := r.inventory(1)
	const name = "inventory/dev/cluster.yaml"
	files[name] = []byte(strings.Replace(string(files[name]), "network: {", "network: {address_mode: dhcp-reservation, ", 1))
	r.push(files)
	r.start()
	r.until("the directory is missed", func() bool {
		a := r.try("status")
		return a.has("problem dhcp.directory (dev): cannot write the reservations: ") && a.has(dir) && a.has("install -d -m 0755 -o talos-agent -g talos-agent "+dir)
	})
	r.until("machines are made all the same", func() bool { return len(r.vms()) == 2 })
	if a := r.try("doctor", "--config", filepath.Join(r.dir, "config.yaml")); !a.has("there is no such directory: the agent writes no DHCP reservations") {
		t.Errorf("doctor does not name it: %v", a)
	}

	must(os.Mkdir(dir, 0o755))
	line := func(node, host string) string {
		return strings.ToLower(cluster.NodeMAC("BC:24:11", cluster.ClusterID("rig", "dev"), node, 0)) + "," + r.base + host + "," + node + "\n"
	}
	for node, host := range map[string]string{"dev-cp-1": "11", "dev-wk-1": "21"} {
		file := filepath.Join(dir, "rig.dev."+node)
		r.until(file+" is there", func() bool { _, err := os.Stat(file); return err == nil })
		info, err := os.Stat(file)
		if err != nil || info.Mode() != 0o644 {
			t.Errorf("%s has mode %v, %v", file, info.Mode(), err)
		}
		text, err := os.ReadFile(file)
		if _, entry, _ := strings.Cut(string(text), "\n"); err != nil || entry != line(node, host) {
			t.Errorf("%s has %q, %v", file, text, err)
		}
	}
	r.until("the problem is solved", func() bool { return !r.try("status").has("dhcp.directory") })
}
