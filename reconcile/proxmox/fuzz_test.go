package proxmox

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// FuzzConfig: no configuration of Proxmox VE, whatever is in it, makes the
// reading of it panic or an owner appear from nowhere.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"smbios1":"uuid=6F3A0F3E-8c1e-5d2b-9c3f-0a1b2c3d4e5f","scsi0":"a:vm-1-disk-0,serial=talos-sys,size=1.5T","net0":"virtio=BC:24:11:00:00:11,bridge=vmbr1","cores":4,"agent":1,"tags":"a;b"}`))
	f.Add([]byte(`{"lock":"create","digest":"a7e9"}`))
	f.Add([]byte(`{"description":"talos-agent: {\"v\":1,\"cluster\":\"x\",\"node\":\"n\",\"deleting\":true}\nhi","ide2":"none,media=cdrom","cpu":{},"memory":[]}`))
	id := cluster.ClusterID("talos-agent", "dev")
	f.Fuzz(func(t *testing.T, raw []byte) {
		var o pveconf.Options
		if json.Unmarshal(raw, &o) != nil {
			return
		}
		var fs facts
		fs.configured(o, nil, 411, time.Time{})
		hardware.ListOthersVolumes(o, "410")
		if name := orphanOf(fs, id); name != "" && !strings.EqualFold(fs.uuid, cluster.NodeUUID(id, name)) {
			t.Errorf("%s is an orphan: %+v", name, fs)
		}
		provenOthers(fs, id)
		if fs.hw.System.Bytes < 0 || fs.hw.Cores < 1 {
			t.Errorf("%+v", fs.hw)
		}
	})
}

// FuzzRows: no list makes the reading of it panic.
func FuzzRows(f *testing.F) {
	f.Add([]byte(`[{"vmid":410,"type":"qemu","status":"running","pool":"talos-dev","uptime":10,"maxcpu":2,"tags":"a;b","node":"pve"},{"type":"node","node":"pve","maxcpu":16}]`))
	f.Add([]byte(`[{"vmid":"410","status":"unknown"},{"upid":"UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:u@pve:","status":"RUNNING"}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var rows []row
		if json.Unmarshal(raw, &rows) == nil {
			for _, r := range rows {
				wrongPlace(r, identity{vmid: 410, pool: "x"})
				if !(facts{row: r.steady(), uptime: r.Uptime.Number()}).still(r) {
					t.Errorf("%+v is not what it is", r)
				}
			}
		}
		var tasks []taskRow
		if json.Unmarshal(raw, &tasks) == nil {
			if _, err := tasksOf(tasks); err != nil && err.Error() == "" {
				t.Error("an error without words")
			}
		}
	})
}
