package terminal

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestPrintRendering(t *testing.T) {
	var b bytes.Buffer
	err := NewPlain(&b).PrintRendering(cluster.Rendering{Cluster: "dev", Revision: "main@sha1:0123", Notes: []string{"a note"},
		Nodes: []cluster.RenderedNode{
			{Node: "cp-1", VM: cluster.RenderedVM{VMID: 411, Tags: []string{}}, MachineConfig: "a: 1\n---\nb: |\n    ---\n    x\n", Base: "main@sha1:4567"},
			{Node: "wk-1", VM: cluster.RenderedVM{VMID: 521}, Unrendered: "there are no secrets"},
		},
		Addons: []cluster.RenderedAddon{{Addon: "app", Order: 1, Values: json.RawMessage(`{"number":3,"text":"3","empty":{},"off":"no","lines":"a\nb","hidden":"<secret hmac:0123>","nothing":null}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `# cluster dev at main@sha1:0123
# a note
---
# node cp-1: vm
vmid: 411
name: ""
uuid: ""
host: ""
tags: []
cpuType: ""
cores: 0
memoryMiB: 0
ballooning: false
machine: ""
bios: ""
scsi: ""
disks: null
network:
    model: ""
    mac: ""
    bridge: ""
boot: ""
guestAgent: false
startAtBoot: false
---
# node cp-1: machine config of main@sha1:4567
a: 1
---
# node cp-1: machine config of main@sha1:4567
b: |
    ---
    x
---
# node wk-1: vm
vmid: 521
name: ""
uuid: ""
host: ""
tags: null
cpuType: ""
cores: 0
memoryMiB: 0
ballooning: false
machine: ""
bios: ""
scsi: ""
disks: null
network:
    model: ""
    mac: ""
    bridge: ""
boot: ""
guestAgent: false
startAtBoot: false
# node wk-1: machine config: none: there are no secrets
---
# addon app
addon: app
namespace: ""
order: 1
chart: ""
ownership: ""
values:
    number: 3
    text: "3"
    empty: {}
    "off": "no"
    lines: "a\nb"
    hidden: <secret hmac:0123>
    nothing: null
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}
