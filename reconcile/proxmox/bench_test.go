package proxmox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
)

// BenchmarkQuietPass is what a pass costs the agent in which nothing changed,
// without network and host: time is CPU.
func BenchmarkQuietPass(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := desired(n)
			c, err := New(Config{URL: "https://h:8006", Token: testToken, Pool: testPool})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			var calls atomic.Int64
			c.http.Transport.(*checker).next = canned(b, d, &calls)
			observe(c, d)
			calls.Store(0)
			b.ReportAllocs()
			for b.Loop() {
				var o cluster.Observed
				observeLater(context.Background(), c, d, &o)
				if o.VMs["dev-cp-1"].Owner != cluster.Ours || !o.Orphans.Known {
					b.Fatalf("%+v", o)
				}
			}
			b.ReportMetric(float64(calls.Load())/float64(b.N), "calls/op")
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/op")
		})
	}
}

// canned answers like a host on which the nodes' VMs run.
func canned(b *testing.B, d cluster.Desired, calls *atomic.Int64) http.RoundTripper {
	rows := []map[string]any{{"type": "node", "node": testHost, "status": "online", "maxcpu": 16, "maxmem": 64 << 30, "id": "node/pve1", "cpu": 0.03, "uptime": 100, "level": ""},
		{"type": "storage", "node": testHost, "storage": "local", "status": "available", "content": "import,iso", "maxdisk": 1 << 40, "disk": 1 << 30, "plugintype": "dir", "shared": 0}}
	answers := map[string][]byte{}
	put := func(path string, data any) {
		raw, err := json.Marshal(map[string]any{"data": data})
		if err != nil {
			b.Fatal(err)
		}
		answers[apiPath+path] = raw
	}
	for _, n := range d.Spec.Nodes {
		rows = append(rows, map[string]any{"type": "qemu", "vmid": n.VMID, "node": testHost, "pool": testPool, "status": "running", "name": n.Name, "uptime": 1000,
			"maxcpu": n.Cores, "maxmem": n.MemoryMiB << 20, "maxdisk": n.DiskBytes, "tags": "controlplane;dev;talos-agent", "id": fmt.Sprintf("qemu/%d", n.VMID), "template": 0,
			"cpu": 0.0123, "mem": 1 << 30, "memhost": 1 << 30, "netin": 110, "netout": 110, "diskread": 71168, "diskwrite": 0, "disk": 0})
		p, err := hardware.CreateParams(d, n, testPool, d.Image)
		if err != nil {
			b.Fatal(err)
		}
		p["scsi0"] = fmt.Sprintf("local-lvm:vm-%d-disk-1,discard=on,iothread=1,serial=talos-sys,size=10G,ssd=1", n.VMID)
		put(fmt.Sprintf("/nodes/pve1/qemu/%d/config", n.VMID), p)
		put(fmt.Sprintf("/nodes/pve1/qemu/%d/status/current", n.VMID), map[string]any{"status": "running", "qmpstatus": "running", "uptime": 1000, "ha": map[string]any{"managed": 0}})
	}
	put("/cluster/resources", rows)
	put("/nodes/pve1/tasks", []any{})
	put("/version", map[string]any{"version": "9.2.11"})
	put("/cluster/status", []any{})
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		calls.Add(1)
		body, ok := answers[r.URL.Path]
		if !ok {
			return nil, fmt.Errorf("nobody answers %s", r.URL.Path)
		}
		return &http.Response{StatusCode: 200, Status: "200 OK", Body: io.NopCloser(bytes.NewReader(body)), Header: http.Header{}, Request: r}, nil
	})
}

// BenchmarkFirstPass is what the first pass of an agent costs that was started
// beside a running cluster: every VM is read.
func BenchmarkFirstPass(b *testing.B) {
	d := desired(100)
	var calls atomic.Int64
	next := canned(b, d, &calls)
	b.ReportAllocs()
	for b.Loop() {
		c, err := New(Config{URL: "https://h:8006", Token: testToken, Pool: testPool})
		if err != nil {
			b.Fatal(err)
		}
		c.http.Transport.(*checker).next = next
		if o := observe(c, d); strings.Contains(fmt.Sprint(o.Orphans), "nobody") {
			b.Fatal(o.Orphans)
		}
		c.Close()
	}
	b.ReportMetric(float64(calls.Load())/float64(b.N), "calls/op")
}
