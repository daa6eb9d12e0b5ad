package pve

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/roles"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func clientTLS(w *world.World) *tls.Config { return &tls.Config{RootCAs: w.PKI.Pool()} }

// serveFiles simulates the web server the recorded hosts downloaded from.
func (st *stage) serveFiles() {
	l, err := st.world.Net.Listen("127.0.0.1:8099")
	if err != nil {
		st.t.Fatal(err)
	}
	types := map[string]string{"tiny.iso": "application/x-iso9660-image", "disk.raw": "application/octet-stream", "disk.qcow2": "application/octet-stream", "disk.raw.zst": "application/zstd"}
	bodies := map[string][]byte{
		"tiny.iso": fileBytes(3000000, 0), "disk.raw": fileBytes(64<<20, 0), "disk.qcow2": fileBytes(393216, 64<<20), "disk.raw.zst": fileBytes(2126, 0),
	}
	st.files = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		body, ok := bodies[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", types[name])
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if _, err := w.Write(body); err != nil {
			st.t.Log(err)
		}
	})}
	go st.files.Serve(l) //nolint:errcheck // ends with Close
}

// wrongSecret are the cases that sent another secret than the token's.
var wrongSecret = setOf("012-version-wrong-secret")

// lingering are the cases whose task was still running when the next request
// came.
var lingering = setOf("605-shutdown", "800-create-slow", "810-create-slow2", "820-create-slow3", "806-start-during-create")

// oddBodies are bodies that were not recorded in full.
var oddBodies = map[string]string{
	"641-duplicate-key":  "vmid=101&vmid=102",
	"643-text-plain":     "vmid=133",
	"647-body-too-large": "vmid=133&description=" + strings.Repeat("x", 700000),
}

func file(content, name string) uploaded {
	return uploaded{fields: [][2]string{{"content", content}, {"filename", name}}, bytes: 100}
}

// uploads are the forms of the upload cases.
var uploads = map[string]uploaded{
	"g28-upload-image": {fields: [][2]string{{"content", "import"}, {"filename", "talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2"}}, bytes: 196632, qcow2: 1246 << 20},
	"100-upload-iso":   {fields: [][2]string{{"content", "iso"}, {"filename", "talos-v1.iso"}}, bytes: 3000000},
	"102-upload-iso-checksum": {fields: [][2]string{{"content", "iso"}, {"checksum-algorithm", "sha256"}, {"checksum", sumOfTiny}, {"filename", "talos-sum.iso"}},
		bytes: 3000000},
	"102a-upload-iso-checksum-wrong-field-order": {fields: [][2]string{{"content", "iso"}, {"checksum", sumOfTiny}, {"checksum-algorithm", "sha256"}, {"filename", "talos-sum.iso"}},
		bytes: 3000000},
	"103-upload-iso-badsum": {fields: [][2]string{{"content", "iso"}, {"checksum-algorithm", "sha256"}, {"checksum", strings.Repeat("0", 64)}, {"filename", "bad.iso"}},
		bytes: 3000000},
	"105-upload-bad-ext":        file("iso", "x.txt"),
	"106-upload-bad-content":    file("bogus", "x.iso"),
	"107-upload-storage-no-iso": file("iso", "x.iso"),
	"108-upload-snippet":        file("snippets", "user.yaml"),
	"109-upload-import-qcow2":   {fields: [][2]string{{"content", "import"}, {"filename", "disk.qcow2"}}, bytes: 393216, qcow2: 64 << 20},
	"110-upload-again":          {fields: [][2]string{{"content", "iso"}, {"filename", "talos-v1.iso"}}, bytes: 3000000},
	"111-upload-weak-token":     file("iso", "weak.iso"),
	"858-lp-upload":             file("iso", "lp.iso"),
	"859-lp-upload-tpl":         file("iso", "lp.iso"),
}

// sumOfTiny is the SHA-256 of three million zero bytes.
const sumOfTiny = "35bce4eae54ec8e6cc2868baa8d157914d6ae2858811b4cc0c078c94460fa26f"

// direction is what happened on the recorded host before an exchange without
// being recorded: requests, and deeds at the console.
type direction struct {
	folder string // "" means every folder
	file   string
	do     func(*stage)
}

const (
	root        = "root@pam!lab"
	agent       = "talos@pve!agent"
	goldenToken = "talos-agent@pve!agent"
)

var directions = []direction{
	// An earlier run had left the image behind, which nobody could delete, and
	// tasks about the VM.
	{"golden-9.2", "g27-import-list-empty", func(st *stage) {
		const image = "talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2"
		st.addToken(st.server.Token("talos@pve", "agent", false))
		st.server.Grant("talos@pve", "Administrator", "/")
		st.send(agent, "POST", "/nodes/pve/qemu", "vmid=410&scsi0=vmdata:0,import-from=local:import/"+image)
		st.send(agent, "POST", "/nodes/pve/qemu/410/status/start", "")
		st.send(agent, "PUT", "/nodes/pve/qemu/410/resize", "disk=scsi0&size=10G")
		for range 2 {
			st.send(goldenToken, "POST", "/nodes/pve/qemu", "vmid=410&pool=talos-dev&tags=talos")
		}
		st.must(st.server.AddFile("pve", "local", "import/"+image, 196632, world.Image{}))
	}},
	{"golden-9.2", "g45-resources", nextStatistics},
	{"golden-8.4", "g44-resources", nextStatistics},
	{"golden-9.2", "g50-create-outside-pool", foreign900},
	{"golden-8.4", "g49-create-outside-pool", foreign900},
	{"golden-9.2", "g54-config-after-hand-edit", handEdit},
	{"golden-8.4", "g53-config-after-hand-edit", handEdit},
	{"", "120-dl-iso-log", func(st *stage) { st.download(agent, "content=iso&filename=dl.iso", "tiny.iso") }},
	{"", "125-dl-import-raw-zst", func(st *stage) {
		st.must(st.server.AddFile("pve", "local", "iso/disk.img", 64<<20, world.Image{}))
	}},
	{"", "126-dl-import-raw-xz-log", func(st *stage) { st.download(root, "content=import&filename=diskx.raw&compression=zst", "disk.raw.xz") }},
	{"", "130-dl-sum-log", func(st *stage) {
		st.download(root, "content=iso&filename=gs.iso&checksum-algorithm=sha256&checksum="+sumOfTiny, "tiny.iso")
	}},
	{"", "212-create-existing-log", func(st *stage) { st.send(agent, "POST", "/nodes/pve/qemu", "vmid=100") }},
	{"recorded-9.2", "199-create-startup-needs-sys-modify", func(st *stage) { st.send(agent, "DELETE", "/nodes/pve/qemu/100", "") }},
	{"recorded-9.2", "206-resources-vm", nextStatistics},
	{"", "337-eject", func(st *stage) { st.put(100, "boot=order=scsi0") }},
	{"", "400-start", func(st *stage) {
		st.put(100, "protection=0&agent=enabled=1&net0=virtio=BC:24:11:AA:BB:01,bridge=vmbr1")
	}},
	{"", "404-start-again-log", func(st *stage) { st.power(agent, 100, "start", "") }},
	{"", "420-post-memory-running-log", func(st *stage) { st.send(agent, "POST", "/nodes/pve/qemu/100/config", "memory=2048") }},
	{"", "432-reboot-timeout-log", func(st *stage) { st.power(agent, 100, "reboot", "timeout=5") }},
	{"", "444-log", func(st *stage) { st.power(agent, 999, "start", "") }},
	{"recorded-8.4", "500-template-log", nextStatistics},
	{"", "500-template-log", func(st *stage) { st.send(agent, "POST", "/nodes/pve/qemu/104/template", "") }},
	{"", "504-start-template-log", func(st *stage) { st.power(root, 104, "start", "") }},
	{"", "512-clone-linked-log", func(st *stage) { st.send(agent, "POST", "/nodes/pve/qemu/104/clone", "newid=111&name=clone-linked") }},
	{"", "532-config-locked", func(st *stage) { st.must(st.server.Lock(110, "backup")) }},
	{"", "541-put-flock-timeout", func(st *stage) {
		st.must(st.server.Unlock(110))
		release, err := st.server.HoldFile(st.server.ctx, 110)
		st.must(err)
		st.release = release
	}},
	{"", "550-delete-protected", func(st *stage) {
		st.release()
		st.put(100, "protection=1")
	}},
	{"", "551-detach", func(st *stage) { st.put(100, "protection=0") }},
	{"", "559-delete-linked-log", func(st *stage) { st.send(agent, "DELETE", "/nodes/pve/qemu/111", "") }},
	{"", "601-start-warn-log", func(st *stage) { st.power(agent, 130, "start", "") }},
	{"", "610-stop-while-shutdown-log", func(st *stage) { st.power(agent, 130, "stop", "") }},
	{"", "611-stop-overrule", func(st *stage) {
		st.power(agent, 130, "start", "")
		st.sendOnly(agent, "POST", "/nodes/pve/qemu/130/status/shutdown", "timeout=60")
		time.Sleep(time.Second)
	}},
	{"", "651-ticket", func(st *stage) { st.send(root, "POST", "/access/users", "userid=pw@pve&password=secret123") }},
	{"", "663-user-disabled", func(st *stage) {
		st.send(root, "PUT", "/access/users/talos@pve/token/weak", "expire=0")
		st.send(root, "PUT", "/access/users/talos@pve", "enable=0")
	}},
	{"", "665-token-delete-missing", func(st *stage) { st.send(root, "PUT", "/access/users/talos@pve", "enable=1") }},
	{"", "700-put-on-vm-with-args", func(st *stage) {
		st.send(agent, "POST", "/nodes/pve/qemu", "vmid=140&name=guest&net0=virtio=BC:24:11:00:00:40,bridge=vmbr1&agent=1&serial0=socket&vga=serial0")
		st.must(st.server.Edit(140, "args", "-kernel /root/vmlinuz"))
	}},
	{"", "702-agent-network-get-interfaces", func(st *stage) {
		st.power(agent, 140, "start", "")
		st.guests.listens = map[int]bool{140: true}
	}},
	{"", "711-status-after-reboot", func(*stage) { time.Sleep(time.Second) }},
	{"", "831-config-clone-source-during", func(st *stage) {
		st.clear()
		st.must(st.server.AddFile("pve", "local", "import/rand.raw", 64<<20, world.Image{}))
		st.send(root, "POST", "/nodes/pve/qemu", "vmid=150&name=slow&cores=2&scsi0=local:0,import-from=local:import/rand.raw&net0=virtio,bridge=vmbr1")
		st.send(root, "POST", "/nodes/pve/qemu/150/template", "")
	}},
	{"", "832-start-clone-during", func(st *stage) {
		st.slow("POST /nodes/{node}/qemu/{vmid}/clone", "150")
		st.sendOnly(root, "POST", "/nodes/pve/qemu/150/clone", "newid=180&full=1")
	}},
	{"", "840-lp-nothing", func(st *stage) {
		st.send(root, "POST", "/access/users", "userid=lp@pve")
		st.send(root, "POST", "/access/users/lp@pve/token/tok", "privsep=1")
	}},
	{"", "841-lp-pool-only", func(st *stage) {
		st.server.Role("LP", strings.Split("VM.Allocate,VM.Audit,VM.Clone,VM.PowerMgmt,"+roles.VMConfigPrivileges, ",")...)
		st.grantLP("LP", "/pool/talos")
	}},
	{"", "842-lp-plus-storage", func(st *stage) { st.grantLP("PVEDatastoreUser", "/storage/local") }},
	{"", "843-lp-plus-sdn", func(st *stage) {
		st.server.Role("LPNet", "SDN.Use")
		st.grantLP("LPNet", "/sdn/zones/localnetwork/vmbr1")
	}},
	{"recorded-8.4", "852-lp-list", func(*stage) { time.Sleep(time.Second) }},
	{"", "859-lp-upload-tpl", func(st *stage) {
		st.server.Role("LPTemplate", "Datastore.AllocateTemplate")
		st.grantLP("LPTemplate", "/storage/local")
	}},
	{"", "861-lp-dlurl-net", func(st *stage) {
		st.server.Role("LPDownload", "Sys.AccessNetwork")
		st.grantLP("LPDownload", "/nodes/pve")
	}},
	{"", "800-create-slow", func(st *stage) {
		st.clear()
		st.slow("POST /nodes/{node}/qemu", "150")
	}},
	{"", "810-create-slow2", func(st *stage) { st.slow("POST /nodes/{node}/qemu", "151") }},
	{"", "820-create-slow3", func(st *stage) { st.slow("POST /nodes/{node}/qemu", "152") }},
	{"", "821-task-killed", func(st *stage) {
		tasks := st.server.Tasks()
		st.must(st.server.KillTask(tasks[len(tasks)-1].UPID))
	}},
	{"", "826-delete-after-unlock", func(st *stage) { st.must(st.server.Unlock(152)) }},
	{"", "900-delete-lock-agent", func(st *stage) {
		st.clear()
		st.send(agent, "POST", "/nodes/pve/qemu", "vmid=100&name=a&ostype=l26&agent=1&scsi0=local:1&net0=virtio,bridge=vmbr1")
		st.must(st.server.Lock(100, "backup"))
	}},
	{"", "904-delete-lock-root-ticket", func(st *stage) {
		st.server.SetPassword("root@pam", "secret")
		st.login("root@pam", "secret")
	}},
	{"", "910-net0-running", func(st *stage) { st.must(st.server.Start(100)) }},
	{"", "917-pending-after-stop", func(st *stage) { st.must(st.server.Stop(100)) }},
	{"", "918-pending-after-start", func(st *stage) { st.must(st.server.Start(100)) }},
	{"", "920-content-after-delete", func(st *stage) { st.clear() }},
	{"", "921-delete-no-flags", func(st *stage) { st.send(agent, "POST", "/nodes/pve/qemu", "vmid=101") }},
	{"", "923-delete-destroy-unref", func(st *stage) { st.send(agent, "POST", "/nodes/pve/qemu", "vmid=101") }},
	{"", "x08-node-status-without-sys-audit", func(st *stage) {
		st.send(root, "PUT", "/access/acl", "path=/nodes/pve&roles=TalosAgentHost&tokens=talos-agent@pve!agent&delete=1")
	}},
}

func foreign900(st *stage) {
	st.must(st.server.CreateForeign(900, Foreign{Config: map[string]string{"name": "foreign"}}))
}

func handEdit(st *stage) {
	st.send(root, "POST", "/nodes/pve/qemu/410/config", "cores=1&memory=4096&description=hands+off")
}

func (st *stage) download(who, form, file string) {
	st.send(who, "POST", "/nodes/pve/storage/local/download-url", form+"&url=http://127.0.0.1:8099/"+file)
}

func (st *stage) put(id int, form string) {
	st.send(agent, "PUT", fmt.Sprintf("/nodes/pve/qemu/%d/config", id), form)
}

func (st *stage) power(who string, id int, what, form string) {
	st.send(who, "POST", fmt.Sprintf("/nodes/pve/qemu/%d/status/%s", id, what), form)
}

// slow makes the next task of a call about a VM take as long as a large image.
func (st *stage) slow(op, subject string) {
	st.world.Inject(world.Fault{System: "pve", Op: op, Subject: subject, Kind: world.HangTask, Delay: 6 * time.Second, Times: 1})
}

func (st *stage) grantLP(role, path string) {
	st.server.Grant("lp@pve", role, path)
	st.server.Grant("lp@pve!tok", role, path)
}

// clear removes every VM: the recorded host was tidied up, or another one.
func (st *stage) clear() {
	for _, v := range st.server.VMs() {
		st.must(st.server.Remove(v.VMID))
	}
}

// nextStatistics lets a round of statistics go by.
func nextStatistics(*stage) { time.Sleep(statisticsEvery) }

func (st *stage) must(err error) {
	st.t.Helper()
	if err != nil {
		st.t.Fatal(err)
	}
}

// reasons are the exchanges in which the lab answers otherwise than the
// recorded host, and why that is as it should be.
var reasons = []struct{ folder, pattern, why string }{
	{"golden-8.4", "g21-nodes", notSetUp},
	{"recorded-8.4", "043-resources", notSetUp},
	{"recorded-8.4", "070-nodes-noacl", notSetUp},
	{"recorded-8.4", "615-tasks-131", "the recorded start took longer"},
	{"", "030-storage", storageOptions},
	{"recorded-9.2", "870-lp-storage", storageOptions},
	{"", "049-cpus", "which processors QEMU knows is left out: nothing the lab makes depends on it"},
	{"", "122-dl-404-log", "the words are the web server's"},
	{"", "124-dl-img-zst-log", "decompressing downloads is left out"},
	{"recorded-9.2", "399-start-vlan-tag-on-portless-bridge-log", firmware},
	{"recorded-8.4", "400-start-log", firmware},
	{"", "427-status-suspended", idle},
	{"", "431-status-after-shutdown-timeout", idle},
	{"recorded-9.2", "500-template-log", noChattr},
	{"recorded-9.2", "576-task-log-limit", noChattr},
}

const (
	storageOptions = "the lab's storages have no options beyond those that say what they are"
	firmware       = "the lab's machines have no TPM to be set up and no QEMU to complain"
	idle           = "the counter is there once a guest has read from a disk; the lab's do not"
	noChattr       = "the recorded host lacked the command chattr"
)

// notSetUp is about the recorded 8.4, which lacked what gathers statistics.
const notSetUp = "the recorded 8.4 was not fully set up: it knew nothing of its own host"
