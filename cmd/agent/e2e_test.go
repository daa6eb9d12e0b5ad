package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/talos-agent/talos-agent/internal/api"
	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
	labcharts "github.com/talos-agent/talos-agent/internal/lab/charts"
	"github.com/talos-agent/talos-agent/internal/lab/pvehost"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// TestRealKubernetes runs the agent, as its daemon in a process of its own,
// from a push to a Ready cluster and on, against the lab with a real
// kube-apiserver and etcd in the place of the make-believe ones. What controllers
// and kubelets would report is played; who looks in is a real kubectl.
func TestRealKubernetes(t *testing.T) {
	e := newEndToEnd(t)
	defer e.close()
	e.startAgent()
	for _, act := range []struct {
		name string
		do   func()
	}{
		{"a push becomes a Ready cluster", e.bringUp},
		{"charts come from a repository, a registry and a directory", e.sources},
		{"people look in with kubectl", e.look},
		{"a quiet pass changes nothing", e.quiet},
		{"changed values make one upgrade", e.upgrade},
		{"what is only bootstrapped is left alone", e.bootstrapOnly},
		{"an installation that was cut off is taken up", e.cutInstall},
		{"an upgrade that was cut off is taken up", e.cutUpgrade},
		{"the API is away and comes back", e.apiAway},
		{"the API dies under an upgrade", e.apiDies},
		{"what the cluster refuses is told once", e.refused},
		{"credentials that are not accepted are told", e.strangers},
		{"nothing was done that need not be", e.quiet},
	} {
		if !t.Run(act.name, func(t *testing.T) {
			e.t = t
			defer func() { e.t = e.parent }()
			act.do()
		}) {
			t.Fatal("the rest of the story needs what failed")
		}
	}
	if err := e.agent.stop(20 * time.Second); err != nil {
		t.Errorf("stop the agent: %v\n%s", err, e.agent.tail(20))
	}
	if err := e.lab.Broken(); err != nil {
		t.Error(err)
	}
}

const e2eCluster = "e2e"

// endToEnd is the stage of the test.
type endToEnd struct {
	t, parent *testing.T // t: whoever acts just now
	ctx       context.Context
	dir       string
	lab       *lab.Lab
	real      *realKubernetes
	config    string
	client    *api.Client
	agent     *child // nil: none was started
	files     map[string][]byte
	net       string // the first three numbers of all addresses
	head      string
	gate      *gate
}

// password comes encrypted and must reach the cluster.
const password = "correct horse battery staple"

func newEndToEnd(t *testing.T) *endToEnd {
	program := realProgram(t)
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	e := &endToEnd{t: t, parent: t, ctx: ctx, dir: t.TempDir(), net: strings.TrimSuffix(prefix.Addr().String(), "0")}
	e.lab, err = lab.Start(lab.Config{Speed: 50, Prefix: prefix, Kubernetes: func(w *world.World) world.Kubernetes {
		e.real = &realKubernetes{world: w, program: program, dir: filepath.Join(e.dir, "kubernetes")}
		return e.real
	}})
	if err != nil {
		t.Fatal(err)
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if e.config, err = pvehost.WriteFiles(e.lab, filepath.Join(e.dir, "host"), []byte(id.String()+"\n"), []string{e2eCluster}); err != nil {
		t.Fatal(err)
	}
	e.client = api.NewClient(filepath.Join(e.dir, "host", "agent.sock"))
	bundle, err := machineconfig.NewBundle("v1.13", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	bundle = append(bundle, "values:\n  password: "+password+"\n"...)
	encrypted, err := secrets.Encrypt(bundle, []string{id.Recipient().String()})
	if err != nil {
		t.Fatal(err)
	}
	e.files = e.inventory()
	e.files["secrets.sops.yaml"] = encrypted
	return e
}

// close ends the agent, the lab and what it runs, and tells how things stood
// if the test failed.
func (e *endToEnd) close() {
	if e.parent.Failed() {
		if s, err := e.client.Status(e.ctx, e2eCluster); err == nil {
			e.parent.Logf("the cluster:\n%s", describe(s))
		}
		if p := e.real.api(); p != nil {
			e.parent.Logf("kube-apiserver:\n%s", p.log())
		}
	}
	if e.agent != nil {
		if e.parent.Failed() {
			e.parent.Logf("the agent:\n%s", e.agent.tail(80))
		}
		e.agent.kill()
	}
	e.lab.Close()
	e.real.close()
	if e.gate != nil {
		e.gate.close()
	}
}

// inventory is one control plane and two workers with four addons, by name in
// the cluster's folder.
func (e *endToEnd) inventory() map[string][]byte {
	charts, err := labcharts.Stock()
	if err != nil {
		e.t.Fatal(err)
	}
	cilium := charts[slices.IndexFunc(charts, func(c labcharts.Chart) bool { return c.Name == "cilium" })]
	digest, err := e.lab.Registry.ManifestDigest("podinfo", "6.9.0")
	if err != nil {
		e.t.Fatal(err)
	}
	text := map[string]string{
		"cluster.yaml": `cluster_name: e2e
talos_version: v1.13.9
kubernetes_version: v1.36.1
network: {cidr: NET0/24, gateway: NET1, nameservers: [NET1], time_servers: [NET1]}
proxmox: {node: pve1, datastore: local-lvm, bridge: vmbr1, vmid_ranges: {controlplane: 900-949, worker: 950-999}}
cni: cilium
profiles:
  controlplane: {cpu: 4, ram: 4096, disk: 20G}
  worker: {cpu: 2, ram: 4096, disk: 20G}
addons: [addons/cilium.yaml, addons/store.yaml, addons/login.yaml, addons/handover.yaml]
`,
		"nodes.yaml": `controlplane:
  - {name: e2e-cp-1, ip: NET11}
workers:
  - {name: e2e-wk-1, ip: NET21}
  - {name: e2e-wk-2, ip: NET22}
`,
		"addons/cilium.yaml": `name: cilium
chart: {repository: https://helm.cilium.io, name: cilium, version: 1.19.3, sha256: ` + cilium.Digest() + `}
`,
		"addons/store.yaml": `name: store
namespace: apps
chart: {oci: ` + e.lab.Registry.Reference("podinfo") + `, version: 6.9.0, digest: "` + digest + `"}
values: {replicaCount: 2, message: first}
`,
		"addons/login.yaml": `name: login
namespace: apps
chart: {path: charts/login}
values: {password: "${values.password}", color: blue}
depends_on: [store]
`,
		"addons/handover.yaml": `name: handover
namespace: apps
chart: {path: charts/login}
values: {password: handed over, color: blue}
ownership: bootstrap-only
`,
		"charts/login/Chart.yaml": "apiVersion: v2\nname: login\nversion: 0.1.0\n",
		"charts/login/templates/login.yaml": `apiVersion: v1
kind: Secret
metadata: {name: {{ .Release.Name }}}
stringData: {password: {{ .Values.password | quote }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {color: {{ .Values.color | quote }}}
`,
	}
	files := map[string][]byte{}
	for name, content := range text {
		files[name] = []byte(strings.ReplaceAll(content, "NET", e.net))
	}
	return files
}

// edit replaces text in a file of the cluster's folder.
func (e *endToEnd) edit(name, from, to string) {
	e.t.Helper()
	if !bytes.Contains(e.files[name], []byte(from)) {
		e.t.Fatalf("%s has no %q to be replaced", name, from)
	}
	e.files[name] = bytes.ReplaceAll(e.files[name], []byte(from), []byte(to))
}

// push commits the cluster's folder and has the agent look.
func (e *endToEnd) push(message string) {
	e.t.Helper()
	files := map[string][]byte{}
	for name, content := range e.files {
		files["inventory/"+e2eCluster+"/"+name] = content
	}
	var err error
	if e.head, err = e.lab.Repo.Commit("main", files, message); err != nil {
		e.t.Fatal(err)
	}
	if e.agent != nil {
		e.nudge()
	}
}

// nudge has the agent fetch and look now.
func (e *endToEnd) nudge() {
	e.t.Helper()
	e.await("the agent takes the trigger", func() (bool, string) {
		err := e.client.Reconcile(e.ctx, e2eCluster)
		return err == nil, fmt.Sprint(err)
	})
}

// startAgent runs this program as the daemon.
func (e *endToEnd) startAgent() {
	e.t.Helper()
	program, err := exec.LookPath("talos-agent") // TestMain has put it there
	if err != nil {
		e.t.Fatal(err)
	}
	if e.agent, err = startProcess(filepath.Join(e.dir, "agent.log"), program, "run", "--verbose", "--config", e.config); err != nil {
		e.t.Fatal(err)
	}
}

// longest is how long anything may take. It is no measure of speed: what takes
// longer will not come.
const longest = 90 * time.Second

// await waits until cond holds. cond also tells how things stand.
func (e *endToEnd) await(what string, cond func() (bool, string)) {
	e.t.Helper()
	for end := time.Now().Add(longest); ; {
		ok, now := cond()
		if ok {
			return
		}
		if e.agent != nil {
			select {
			case <-e.agent.done:
				e.t.Fatalf("%s: the agent ended: %v", what, e.agent.err)
			default:
			}
		}
		if time.Now().After(end) {
			e.t.Fatalf("not %s within %v; it is: %s", what, longest, now)
		}
		if err := sleepOrStop(e.ctx, 50*time.Millisecond); err != nil {
			e.t.Fatalf("%s: %v", what, context.Cause(e.ctx))
		}
	}
}

// status waits until the agent's word on the cluster fits.
func (e *endToEnd) status(what string, fits func(cluster.Status) bool) (s cluster.Status) {
	e.t.Helper()
	e.await(what, func() (bool, string) {
		var err error
		if s, err = e.client.Status(e.ctx, e2eCluster); err != nil {
			return false, err.Error()
		}
		return fits(s), fmt.Sprintf("%s: %s", s.Condition, s.Message)
	})
	return s
}

// ready waits until the cluster is Ready at what was pushed last.
func (e *endToEnd) ready() cluster.Status {
	e.t.Helper()
	return e.status("Ready at "+e.head[:12], func(s cluster.Status) bool {
		return s.Condition == cluster.Ready && s.Revision == s.Applied && s.Revision.Commit() == e.head
	})
}

// kubectl runs a real kubectl with the kubeconfig that the agent hands out.
func (e *endToEnd) kubectl(args ...string) string {
	e.t.Helper()
	file := filepath.Join(e.dir, "kubeconfig")
	if _, err := os.Stat(file); err != nil {
		kubeconfig, err := e.client.Kubeconfig(e.ctx, e2eCluster)
		if err != nil {
			e.t.Fatal(err)
		}
		if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(e.ctx, e.real.program, append([]string{"kubectl", "--kubeconfig", file}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+e.dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		e.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// history tells the revisions of a release in the order they were made:
// "1 superseded, 2 deployed".
func (e *endToEnd) history(release string) string {
	e.t.Helper()
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(e.kubectl("get", "secrets", "-A", "-l", "owner=helm,name="+release, "-o", "json")), &list); err != nil {
		e.t.Fatal(err)
	}
	status := map[int]string{}
	for _, s := range list.Items {
		n, err := strconv.Atoi(s.Labels["version"])
		if err != nil {
			e.t.Fatalf("secret %s: %v", s.Name, err)
		}
		status[n] = s.Labels["status"]
	}
	var all []string
	for _, n := range slices.Sorted(maps.Keys(status)) {
		all = append(all, fmt.Sprintf("%d %s", n, status[n]))
	}
	return strings.Join(all, ", ")
}

// wantHistory compares it.
func (e *endToEnd) wantHistory(release, want string) {
	e.t.Helper()
	if have := e.history(release); have != want {
		e.t.Errorf("the revisions of release %s are %q, want %q", release, have, want)
	}
}

// want compares what kubectl prints.
func (e *endToEnd) want(want string, args ...string) {
	e.t.Helper()
	if have := e.kubectl(args...); have != want {
		e.t.Errorf("kubectl %s prints %q, want %q", strings.Join(args, " "), have, want)
	}
}

// changes lists what the agent has asked the API server to change, by the
// server's own record.
func (e *endToEnd) changes() []string {
	e.t.Helper()
	f, err := os.Open(filepath.Join(e.real.api().dir, "audit.log"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []string
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return out // at its end, perhaps in the middle of a line
		}
		var a struct {
			Verb, UserAgent, RequestURI string
			User                        struct{ Username string }
		}
		if err := json.Unmarshal(line, &a); err != nil {
			e.t.Fatalf("%v: %s", err, line)
		}
		if a.User.Username == "lab" || strings.HasPrefix(a.User.Username, "system:") || strings.HasPrefix(a.UserAgent, "kubectl") {
			continue
		}
		dry := strings.Contains(a.RequestURI, "dryRun=All") // which changes nothing
		if !dry && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, a.Verb) {
			out = append(out, a.Verb+" "+a.RequestURI)
		}
	}
}

// set is a client for the test itself.
func (e *endToEnd) set() *kubernetes.Clientset {
	e.t.Helper()
	config, client, err := e.real.api().connect()
	if err != nil {
		e.t.Fatal(err)
	}
	e.parent.Cleanup(client.CloseIdleConnections)
	set, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		e.t.Fatal(err)
	}
	return set
}
