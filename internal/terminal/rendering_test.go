package terminal

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestPrintRendering(t *testing.T) {
	var b bytes.Buffer
	err := NewPlain(&b).PrintRendering(cluster.Rendering{Cluster: "dev", Revision: "main@sha1:0123", Notes: []string{"a note"},
		Nodes: []cluster.RenderedNode{
			{Node: "cp-1", VM: cluster.RenderedVM{VMID: 411, Tags: []string{}}, Object: cluster.NodeMeta{Annotations: map[string]string{"of": "us"}}, MachineConfig: "a: 1\n---\nb: |\n    ---\n    x\n", Base: "main@sha1:4567"},
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
mark: ""
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
# node cp-1: Node object
annotations:
    of: us
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
mark: ""
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

func TestPrintDifference(t *testing.T) {
	var b bytes.Buffer
	NewPlain(&b).PrintDifference(cluster.Difference{Cluster: "dev"})
	NewPlain(&b).PrintDifference(cluster.Difference{Cluster: "dev", Differs: true,
		Nodes: []cluster.NodeDifference{{Node: "wk-1", VM: []cluster.FieldDifference{{Field: "cores", Has: "4", Wants: "2", How: "reboot"}},
			Machine: []cluster.FieldDifference{{Field: "talos version", Has: "v1", Wants: "v2", Since: time.Date(2026, 11, 22, 10, 31, 0, 0, time.UTC)}}, Object: []cluster.FieldDifference{{Field: "label a", Has: `"c"`, Wants: `"b"`, How: "in place", By: "set by kubectl-label, 2026-11-22 10:31 UTC"}},
			MachineConfig: "--- has\n+++ wants\n@@ -1 +1 @@\n-a\x1b[2J\n+b\n"}},
		Addons:  []cluster.AddonDifference{{Addon: "app", Missing: []string{"service app/web"}, Altered: []string{"deployment app/web: spec.replicas 2 -> 0, changed by kubectl"}, Values: "-a\n"}},
		Unknown: []cluster.UnknownPart{{Subject: "cp-1", Part: "machine config", Why: "no answer"}}})
	const want = `dev: no difference
node wk-1
  cores: 4 -> 2 (reboot)
  talos version: v1 -> v2, since 2026-11-22 10:31 UTC
  label a: "c" -> "b" (in place), set by kubectl-label, 2026-11-22 10:31 UTC
  machine config:
    --- has
    +++ wants
    @@ -1 +1 @@
    -a?[2J
    +b
addon app
  service app/web is missing
  deployment app/web: spec.replicas 2 -> 0, changed by kubectl
  values:
    -a
cp-1: machine config is unknown: no answer
`
	if b.String() != want {
		t.Errorf("printed\n%q\nwant\n%q", b.String(), want)
	}
}
