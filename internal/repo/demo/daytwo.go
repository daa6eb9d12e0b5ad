package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// What the second story changes in the example repository.
const (
	webChart = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: registry.example.org/web:1, resources: {requests: {cpu: {{ .Values.cpu | quote }}}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: web}}
`
	webAddon = "name: web\nnamespace: apps\nchart: {path: charts/web}\nvalues: {cpu: 100m}\nready: {timeout: 20s}\non_failure: rollback\n"
	nodes    = "controlplane:\n  - {name: lab-cp-1, ip: %[1]s11}\n  - {name: lab-cp-2, ip: %[1]s12}\n  - {name: lab-cp-3, ip: %[1]s13}\n" +
		"workers:\n  - {name: lab-wk-1, ip: %[1]s21}\n  - {name: lab-wk-2, ip: %[1]s22}\n" + lastWorker
	lastWorker = "  - {name: lab-wk-3, ip: %[1]s23}\n"
	kubelet    = "machine: {kubelet: {extraConfig: {maxPods: 150}}}\n"
)

// chapter is a part of a story: what is done, and what has to come of it.
type chapter struct {
	title string
	do    func(ctx context.Context) error
}

// dayTwo is the story of a cluster that runs: it is changed, healed, made smaller, and a
// control plane gets a new machine.
func (d *demo) dayTwo(ctx context.Context) error {
	if err := d.play(ctx, []chapter{
		{"git push: an inventory of three control planes, three workers and an addon", d.bringUp},
		{"git push: a label on a worker", d.label},
		{"A VM is edited by hand", d.editByHand},
		{"git push: a kubelet setting for the workers, and an addon that cannot run", d.rollOut},
		{"git push: more memory for the workers, and the addon put right", d.resize},
		{"A VM is destroyed by hand", d.destroyByHand},
		{"git push: one worker less", d.removeWorker},
		{"git push: a new machine for a control plane", d.replace},
	}); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	d.print("done in %s", time.Since(d.began).Round(100*time.Millisecond))
	return nil
}

// play plays parts of a story up to the first that fails, which it names.
func (d *demo) play(ctx context.Context, chapters []chapter) error {
	for _, c := range chapters {
		d.title("%s", c.title)
		if err := c.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.title, err)
		}
		if err := d.host.Broken(); err != nil {
			return fmt.Errorf("%s: the agent broke a rule: %w", c.title, err)
		}
	}
	return nil
}

// bringUp pushes the cluster of the story.
func (d *demo) bringUp(ctx context.Context) error {
	for name, content := range map[string]string{
		"nodes.yaml":      fmt.Sprintf(nodes, d.network()),
		"addons/web.yaml": webAddon, "charts/web/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n", "charts/web/templates/all.yaml": webChart,
	} {
		if err := d.write(name, content); err != nil {
			return err
		}
	}
	if err := d.edit("cluster.yaml", "addons: [addons/cilium.yaml]", "addons: [addons/cilium.yaml, addons/web.yaml]"); err != nil {
		return err
	}
	return d.push(ctx, "bring up the lab cluster")
}

// label is a change that takes no node down.
func (d *demo) label(ctx context.Context) error {
	boots := d.boots()
	if err := d.edit("nodes.yaml", "{name: lab-wk-1, ", "{name: lab-wk-1, labels: {example.org/tier: batch}, "); err != nil {
		return err
	}
	if err := d.push(ctx, "label a worker"); err != nil {
		return err
	}
	answer, err := d.kubectl(ctx, "/api/v1/nodes?labelSelector=example.org%2Ftier%3Dbatch", "application/json")
	if err != nil {
		return err
	}
	if n := strings.Count(string(answer), `"example.org/tier":"batch"`); n != 1 {
		return fmt.Errorf("%d Node objects have the label, and one should", n)
	}
	return d.wantBoots(boots, nil)
}

// editByHand is what somebody does behind the inventory's back.
func (d *demo) editByHand(ctx context.Context) error {
	boots, vmid := d.boots(), d.vmidOf("lab-wk-1")
	before, err := d.config(vmid, "net0")
	if err != nil {
		return err
	}
	token := d.host.PVE.Token("alice@pve", "laptop", false)
	d.host.PVE.Grant("alice@pve", "PVEAdmin", "/")
	if err := d.pve(ctx, token, fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid), url.Values{"onboot": {"0"}, "description": {"mine"}}); err != nil {
		return err
	}
	var step string
	if err := waitUntil(ctx, 100*time.Millisecond, func() (bool, error) {
		onboot, err := d.config(vmid, "onboot")
		if err != nil || onboot != "1" {
			return false, err
		}
		step, err = d.startedStep(ctx, "change vm")
		return step != "", err
	}); err != nil {
		return fmt.Errorf("it is not put right: %w", err)
	}
	if !strings.Contains(step, "alice@pve") {
		return fmt.Errorf("who did it is not in %q", step)
	}
	after, err := d.config(vmid, "net0")
	if err != nil || after != before {
		return errors.Join(err, fmt.Errorf("its NIC was %s and is %s", before, after))
	}
	return errors.Join(d.untilReady(ctx), d.wantBoots(boots, nil))
}

// rollOut changes the config of every worker, one of them a minute before the others,
// while an upgrade of an addon fails.
func (d *demo) rollOut(ctx context.Context) error {
	if err := errors.Join(
		d.write("patches/kubelet.yaml", kubelet),
		d.edit("cluster.yaml", "addons: [", "patches: {worker: [patches/kubelet.yaml]}\naddons: ["),
		d.edit("addons/web.yaml", "cpu: 100m", "cpu: \"64\""),
	); err != nil {
		return err
	}
	boots := d.boots()
	if err := d.commitAndPush(ctx, "allow more pods a node, and ask too much"); err != nil {
		return err
	}
	if err := d.until(ctx, "is rolled back", func(s cluster.Status) (bool, error) {
		rolled := slices.ContainsFunc(s.Blocked, func(b cluster.Block) bool { return b.Reason == cluster.ReleaseRolledBack })
		return rolled && len(s.Running)+len(s.Waiting) == 0, nil
	}); err != nil {
		return err
	}
	for _, node := range []string{"lab-wk-1", "lab-wk-2", "lab-wk-3", "lab-cp-1"} {
		isWorker := strings.HasPrefix(node, "lab-wk-")
		if running, saved := d.host.Talos.ConfigsOf(d.vmidOf(node)); strings.Contains(running, "maxPods: 150") != isWorker || running != saved {
			return fmt.Errorf("%s: its kubelet allows 150 pods: %v, and is to: %v", node, !isWorker, isWorker)
		}
	}
	return errors.Join(d.wantRelease(ctx, 3), d.wantBoots(boots, nil))
}

// wantRelease wants the addon to have that revision deployed: the first was installed, the
// second asked for too much, and the third is the first again.
func (d *demo) wantRelease(ctx context.Context, revision int) error {
	answer, err := d.kubectl(ctx, "/api/v1/secrets?labelSelector=owner%3Dhelm%2Cname%3Dweb%2Cstatus%3Ddeployed", "application/json")
	if err != nil {
		return err
	}
	if want := fmt.Sprintf(`"name":"sh.helm.release.v1.web.v%d"`, revision); !strings.Contains(string(answer), want) {
		return fmt.Errorf("revision %d of the addon is not the one that is deployed", revision)
	}
	d.print("deployed: revision %d of the addon", revision)
	return nil
}

// resize takes each worker down once, one at a time.
func (d *demo) resize(ctx context.Context) error {
	boots, began := d.boots(), d.eventsSoFar()
	if err := errors.Join(
		d.edit("cluster.yaml", "worker: {cpu: 2, ram: 4096", "worker: {cpu: 2, ram: 6144"),
		d.edit("addons/web.yaml", "cpu: \"64\"", "cpu: 200m"),
	); err != nil {
		return err
	}
	if err := d.push(ctx, "give the workers more memory"); err != nil {
		return err
	}
	for _, name := range []string{"lab-wk-1", "lab-wk-2", "lab-wk-3"} {
		if memory, err := d.config(d.vmidOf(name), "memory"); err != nil || memory != "6144" {
			return errors.Join(err, fmt.Errorf("%s has %s MiB", name, memory))
		}
	}
	return errors.Join(d.wantRelease(ctx, 4), d.wantBoots(boots, []string{"lab-wk-1", "lab-wk-2", "lab-wk-3"}),
		d.wantTurns(began, "lab-wk-1", "lab-wk-2", "lab-wk-3"))
}

// destroyByHand loses the machine of a worker.
func (d *demo) destroyByHand(ctx context.Context) error {
	boots, machine := d.boots(), d.machineOf("lab-wk-2")
	vmid := d.vmidOf("lab-wk-2")
	d.print("somebody: qm stop %[1]d && qm destroy %[1]d --purge", vmid)
	if err := errors.Join(d.host.PVE.Stop(vmid), d.host.PVE.RemoveAll(vmid)); err != nil {
		return err
	}
	if err := d.until(ctx, "is made again", func(s cluster.Status) (bool, error) {
		now := d.machineOf("lab-wk-2")
		return now != "" && now != machine && s.Condition == cluster.Ready, nil
	}); err != nil {
		return err
	}
	return d.wantBoots(boots, []string{"lab-wk-2"})
}

// removeWorker takes a worker out of the inventory.
func (d *demo) removeWorker(ctx context.Context) error {
	boots := d.boots()
	if err := d.edit("nodes.yaml", fmt.Sprintf(lastWorker, d.network()), ""); err != nil {
		return err
	}
	if err := d.push(ctx, "remove a worker"); err != nil {
		return err
	}
	if d.vmidOf("lab-wk-3") != 0 {
		return errors.New("its VM is left")
	}
	answer, err := d.kubectl(ctx, "/api/v1/nodes/lab-wk-3", "application/json")
	if err != nil || !strings.Contains(string(answer), `"NotFound"`) {
		return errors.Join(err, errors.New("its Node object is left"))
	}
	return d.wantBoots(boots, nil)
}

// replace gives a control plane a new machine.
func (d *demo) replace(ctx context.Context) error {
	boots, machine := d.boots(), d.machineOf("lab-cp-2")
	name := "{name: lab-cp-2, "
	if err := d.edit("nodes.yaml", name, name+"replace: \"1\", "); err != nil {
		return err
	}
	if err := d.push(ctx, "replace lab-cp-2"); err != nil {
		return err
	}
	if now := d.machineOf("lab-cp-2"); now == "" || now == machine {
		return errors.New("lab-cp-2 has the machine that it had")
	}
	voters := 0
	for _, m := range d.host.Talos.Machines() {
		if m.Etcd != "" && !m.Learner && m.Healthy {
			voters++
		}
	}
	if voters != 3 {
		return fmt.Errorf("etcd has %d healthy voters, and 3 are wanted", voters)
	}
	d.print("lab-cp-2 has a new machine, and etcd 3 healthy voters")
	return d.wantBoots(boots, []string{"lab-cp-2"})
}

// push commits what was edited, pushes it and waits until the cluster is Ready with it.
func (d *demo) push(ctx context.Context, message string) error {
	if err := d.commitAndPush(ctx, message); err != nil {
		return err
	}
	return d.untilReady(ctx)
}

// write makes a file of the cluster.
func (d *demo) write(file, content string) error {
	path := filepath.Join(d.work, "inventory", Cluster, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	d.print("write %s", file)
	return os.WriteFile(path, []byte(content), 0o644)
}

// edit replaces what stands once in a file of the cluster.
func (d *demo) edit(file, old, new string) error {
	path := filepath.Join(d.work, "inventory", Cluster, file)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := bytes.Count(b, []byte(old)); n != 1 {
		return fmt.Errorf("%s has %q %d times, and once is expected", path, old, n)
	}
	d.print("%s: %s -> %s", file, text.OneLine(old), cmp.Or(text.OneLine(new), "nothing"))
	return os.WriteFile(path, bytes.Replace(b, []byte(old), []byte(new), 1), 0o644)
}

// until waits for something of the cluster's status.
func (d *demo) until(ctx context.Context, what string, is func(cluster.Status) (bool, error)) error {
	var last cluster.Status
	err := waitUntil(ctx, 100*time.Millisecond, func() (bool, error) {
		s, err := d.client.Status(ctx, Cluster)
		if err != nil {
			return false, err
		}
		last = s
		d.showProgress(s)
		return is(s)
	})
	d.line.Clear()
	if err != nil {
		return fmt.Errorf("until it %s: %w; last seen: %s: %s", what, err, last.Condition, last.Message)
	}
	return nil
}

// startedStep is the last action of the newest run that begins so, "" without one.
func (d *demo) startedStep(ctx context.Context, prefix string) (string, error) {
	runs, err := d.client.History(ctx, Cluster)
	if err != nil {
		return "", err
	}
	for _, r := range runs {
		for _, o := range slices.Backward(r.Actions) {
			if strings.HasPrefix(o.Text, prefix) {
				return o.Text, nil
			}
		}
	}
	return "", nil
}

// network is what the addresses of the lab begin with.
func (d *demo) network() string {
	a := d.host.Prefix.Addr().String()
	return a[:strings.LastIndexByte(a, '.')+1]
}

// vmidOf is the VMID of a node's VM, 0 when there is none.
func (d *demo) vmidOf(node string) int {
	for _, vm := range d.host.PVE.VMs() {
		if vm.Config["name"] == node {
			return vm.VMID
		}
	}
	return 0
}

// machineOf identifies the VM of a node, "" when there is none: another one has another id.
func (d *demo) machineOf(node string) string {
	vm, _ := d.host.PVE.VM(d.vmidOf(node))
	return vm.Config["vmgenid"]
}

// config is a key of a VM's config.
func (d *demo) config(vmid int, key string) (string, error) {
	vm, ok := d.host.PVE.VM(vmid)
	if !ok {
		return "", fmt.Errorf("there is no VM %d", vmid)
	}
	return vm.Config[key], nil
}

// boots counts how often the machine of each node was switched on.
func (d *demo) boots() map[string]int {
	out := map[string]int{}
	for _, e := range d.host.World.Events() {
		if node, ok := strings.CutSuffix(e.Text, ") runs"); ok && strings.HasPrefix(e.Text, "vm ") {
			out[node[strings.LastIndexByte(node, '(')+1:]]++
		}
	}
	return out
}

// wantBoots wants these nodes, and no others, to have been switched on once since.
func (d *demo) wantBoots(since map[string]int, want []string) error {
	var have []string
	for node, n := range d.boots() {
		for range n - since[node] {
			have = append(have, node)
		}
	}
	slices.Sort(have)
	if !slices.Equal(have, want) {
		return fmt.Errorf("these machines were switched on: %v, want %v", have, want)
	}
	d.print("switched on: %s", strings.Join(append(have, "no other machine"), ", "))
	return nil
}

// pve is a request of a person to the API of Proxmox VE.
func (d *demo) pve(ctx context.Context, token, path string, values url.Values) error {
	ca, err := os.ReadFile(filepath.Join(d.host.Dir, "ca.pem"))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.host.PVE.URL()+"/api2/json"+path, strings.NewReader(values.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "PVEAPIToken="+token)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, body, err := request(req, ca)
	if err != nil || status != "200 OK" {
		return errors.Join(err, fmt.Errorf("%s: %s %s", path, status, bytes.TrimSpace(body)))
	}
	d.print("alice@pve: pvesh create %s %s", path, strings.ReplaceAll(values.Encode(), "&", " "))
	return nil
}
