package kube_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// loopback takes a network of 127.0.0.0/8 for a test, and returns its first
// three bytes.
func loopback(t *testing.T) string {
	t.Helper()
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(release)
	return strings.TrimSuffix(prefix.Addr().String(), ".0")
}

// kubectl is a real kubectl at a cluster of the lab.
type kubectl struct {
	t       *testing.T
	program []string
	env     []string
}

// findKubectl is that of the program that .ci/e2e builds, or else the one in PATH.
func findKubectl(t *testing.T) []string {
	t.Helper()
	if program := os.Getenv("TALOS_AGENT_APISERVER"); program != "" {
		return []string{program, "kubectl"}
	}
	binary, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl in PATH, and TALOS_AGENT_APISERVER does not name the program built from internal/lab/apiserver; .ci/e2e builds it")
	}
	return []string{binary}
}

// command prepares a command, which is ended after longer than any should take.
func (k *kubectl) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(k.t.Context(), 2*time.Minute)
	k.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, k.program[0], slices.Concat(k.program[1:], args)...)
	cmd.Env = k.env
	return cmd
}

func (k *kubectl) run(stdin string, args ...string) (string, error) {
	cmd := k.command(args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ok runs a command line that succeeds and prints what matches the patterns.
func (k *kubectl) ok(line string, patterns ...string) {
	k.t.Helper()
	k.okWith("", line, patterns...)
}

func (k *kubectl) okWith(stdin, line string, patterns ...string) {
	k.t.Helper()
	out, err := k.run(stdin, strings.Fields(line)...)
	if err != nil {
		k.t.Errorf("kubectl %s: %v\n%s", line, err, out)
	}
	k.expect(line, out, patterns)
}

// fails runs a command line that fails.
func (k *kubectl) fails(line string, patterns ...string) {
	k.t.Helper()
	out, err := k.run("", strings.Fields(line)...)
	if err == nil {
		k.t.Errorf("kubectl %s succeeds", line)
	}
	k.expect(line, out, patterns)
}

func (k *kubectl) expect(line, out string, patterns []string) {
	k.t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(out) {
			k.t.Errorf("kubectl %s: no %q in\n%s", line, p, out)
		}
	}
}

// begun is a command that goes on.
type begun struct {
	k    *kubectl
	line string
	cmd  *exec.Cmd
	out  *bufio.Scanner
	seen strings.Builder
}

func (k *kubectl) begin(line string) *begun {
	k.t.Helper()
	b := &begun{k: k, line: line, cmd: k.command(strings.Fields(line)...)}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	b.cmd.Stderr = b.cmd.Stdout
	b.out = bufio.NewScanner(out)
	if err := b.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	return b
}

// until reads what the command prints to a line that matches.
func (b *begun) until(pattern string) {
	b.k.t.Helper()
	for b.out.Scan() {
		fmt.Fprintln(&b.seen, b.out.Text())
		if regexp.MustCompile(pattern).MatchString(b.out.Text()) {
			return
		}
	}
	b.k.t.Fatalf("kubectl %s: ended without %q\n%s", b.line, pattern, &b.seen)
}

// ends reads to the end of a command that ends by itself and succeeds.
func (b *begun) ends(patterns ...string) {
	b.k.t.Helper()
	for b.out.Scan() {
		fmt.Fprintln(&b.seen, b.out.Text())
	}
	if err := b.cmd.Wait(); err != nil {
		b.k.t.Errorf("kubectl %s: %v\n%s", b.line, err, &b.seen)
	}
	b.k.expect(b.line, b.seen.String(), patterns)
}

// stop ends a command that would go on.
func (b *begun) stop() {
	_ = b.cmd.Process.Kill() // it may have ended
	_ = b.cmd.Wait()         // as it was made to
}

// TestRealKubectl types everyday commands of a real kubectl at a cluster on loopback.
func TestRealKubectl(t *testing.T) {
	program := findKubectl(t)
	net := loopback(t)
	l := newLab(t, world.Config{Speed: 100, Network: world.Loopback{}})
	ready := newReadiness()
	l.kube.RunKubelet(l.id, controlKubelet("cp-1", net+".11", 401), ready.call)
	l.kube.RunKubelet(l.id, kubelet("wk-1", net+".21", 501), ready.call)
	l.kube.RunKubelet(l.id, kubelet("wk-2", net+".22", 502), ready.call)
	l.running(net + ".11")
	for range 3 {
		<-ready.ch
	}
	home := t.TempDir()
	kubeconfig := filepath.Join(home, "config")
	if err := clientcmd.WriteToFile(l.kubeconfig(net+".11"), kubeconfig); err != nil {
		t.Fatal(err)
	}
	k := &kubectl{t: t, program: program, env: append(os.Environ(), "HOME="+home, "KUBECONFIG="+kubeconfig, "KUBE_EDITOR=sed -i s/web:2/web:3/")}
	k.lookAround(net)
	k.changeWorkloads()
	k.lookInside()
	k.changeNodes()
	k.takeNodesDown()
	k.askWhoMay()
	k.clearUp()
}

// lookAround looks at a cluster that has come up.
func (k *kubectl) lookAround(net string) {
	k.ok("get nodes -o wide",
		`NAME +STATUS +ROLES +AGE +VERSION +INTERNAL-IP +EXTERNAL-IP +OS-IMAGE +KERNEL-VERSION +CONTAINER-RUNTIME`,
		`cp-1 +Ready +control-plane +\d+s +v1.36.1 +`+regexp.QuoteMeta(net)+`.11 +<none> +Talos \(v1.14.1\) +\S+-talos +containerd://\S+`,
		`wk-1 +Ready +<none> +\d+s +v1.36.1`)
	k.ok("wait --for=condition=Ready nodes --all --timeout=1m", `node/wk-1 condition met`)
	k.ok("get --raw /version", `"gitVersion":"v1.36.1"`)
	k.ok("cluster-info", `control plane\S* is running at \S*https://`+regexp.QuoteMeta(net)+`.11:6443`, `CoreDNS\S* is running at`)
	k.ok("api-resources", `deployments +deploy +apps/v1 +true +Deployment`)
	k.ok("api-versions", `(?m)^apps/v1$`)
	k.ok("explain pod.spec", `KIND: +Pod`, `FIELD: spec <PodSpec>`, `containers\t<\[\]Container> -required-\n +List of containers belonging to the pod`, `nodeSelector\t<map\[string\]string>`)
	k.ok("explain deployment.spec.strategy.rollingUpdate.maxSurge", `GROUP: +apps`, `FIELD: maxSurge <IntOrString>`, `The maximum number of pods that can be scheduled above`)
	k.ok("explain customresourcedefinition --recursive", `openAPIV3Schema\t<JSONSchemaProps>`)
	k.fails("explain pod.spec.nosuch", `field "nosuch" does not exist`)
	k.ok("get --raw /readyz?verbose", `readyz check passed`)
	k.ok("get ns,cm,secrets,sa,crd", `namespace/kube-system +Active`, `serviceaccount/default`)
	k.ok("get all -n kube-system", `daemonset.apps/kube-flannel +3 +3 +3 +3 +3 +<none> +`, `service/kube-dns +ClusterIP +10.96.0.10 +<none> +53/UDP,53/TCP`)
	k.ok("get pods -A", `kube-system +kube-apiserver-cp-1 +1/1 +Running`)
	k.fails("top nodes", `Metrics API not available`)
	k.fails("top pods", `Metrics API not available`)
	k.fails("get nonsense", `the server doesn't have a resource type "nonsense"`)
	k.fails("get pod nosuch", `Error from server \(NotFound\): pods "nosuch" not found`)
}

// changeWorkloads applies, changes and rolls out a workload.
func (k *kubectl) changeWorkloads() {
	const rolledOut = "rollout status deployment/web --timeout=1m"
	second := strings.Replace(manifests, "web:1", "web:2", 1)
	k.okWith(manifests, "apply -f -", `configmap/conf created`, `deployment.apps/web created`)
	k.ok(rolledOut, `successfully rolled out`)
	k.okWith(manifests, "diff -f -")
	if out, err := k.run(second, "diff", "-f", "-"); err == nil || !strings.Contains(out, "+      - image: web:2") {
		k.t.Errorf("kubectl diff: %v\n%s", err, out)
	}
	k.okWith(second, "apply -f -", `deployment.apps/web configured`, `configmap/conf unchanged`)
	k.ok(rolledOut, `successfully rolled out`)
	k.okWith(second, "apply -f - --server-side --force-conflicts", `deployment.apps/web serverside-applied`)
	if out, err := k.run(strings.Replace(second, "data: {a", "datum: {a", 1), "apply", "-f", "-"); err == nil || !strings.Contains(out, `unknown field "datum"`) {
		k.t.Errorf("kubectl apply of a field that there is not: %v\n%s", err, out)
	}
	k.ok("get deployments -o wide", `web +1/1 +1 +1 +\d+s +main +web:2 +app=web`)
	k.ok("get rs -l app=web -o jsonpath={.items[*].spec.replicas}", `^(1 0|0 1)$`)
	k.ok("edit deployment web", `deployment.apps/web edited`)
	k.ok("rollout history deployment/web", `(?m)^3 +`)
	k.ok("rollout undo deployment/web", `deployment.apps/web rolled back`)
	k.ok(rolledOut, `successfully rolled out`)
	k.ok("get deployment web -o jsonpath={..image}", `^web:2$`)
	k.ok("rollout restart deployment/web", `deployment.apps/web restarted`)
	k.ok(rolledOut, `successfully rolled out`)
	k.ok("set image deployment/web main=web:4", `deployment.apps/web image updated`)
	k.ok(rolledOut, `successfully rolled out`)

	k.fails("scale deployment/web --replicas=2 --current-replicas=7", `Expected replicas to be 7, was 1`)
	watch := k.begin("get pods -l app=web -w")
	watch.until(`web-\S+ +1/1 +Running`)
	k.ok("scale deployment/web --replicas=2", `deployment.apps/web scaled`)
	watch.until(`web-\S+ +0/1 +Pending`)
	watch.stop()
	k.ok(rolledOut, `successfully rolled out`)
	k.ok(`patch deployment web -p {"spec":{"paused":true}}`, `deployment.apps/web patched`)
	k.ok("rollout resume deployment/web", `deployment.apps/web resumed`)
	k.ok("expose deployment web --port=80", `service/web exposed`)
	k.ok("wait endpointslice -l kubernetes.io/service-name=web --for=jsonpath={.endpoints[1].conditions.ready}=true --timeout=1m", `condition met`)
	k.ok("get endpointslices -l kubernetes.io/service-name=web", `NAME +ADDRESSTYPE +PORTS +ENDPOINTS +AGE`, `web-\S+ +IPv4 +80 +[\d.]+,[\d.]+ +\d+s`)
	k.ok("get endpoints web", `Warning: v1 Endpoints is deprecated in v1.33\+; use discovery.k8s.io/v1 EndpointSlice`, `NAME +ENDPOINTS +AGE`, `web +[\d.]+:80,[\d.]+:80 +\d+s`)
	k.ok("get ep kubernetes", `kubernetes +[\d.]+:6443 +`)
	k.ok("describe service web", `Endpoints: +[\d.]+:80,[\d.]+:80`)
	k.ok("create ingress web --rule=web.example/=web:80", `ingress.networking.k8s.io/web created`)
	k.ok("get ingress", `NAME +CLASS +HOSTS +ADDRESS +PORTS +AGE`, `web +<none> +web.example +80 +\d+s`)

	k.ok("create job once --image=busybox", `job.batch/once created`)
	k.ok("wait --for=condition=Complete job/once --timeout=1m", `job.batch/once condition met`)
	k.ok("delete pod -l job-name=once", `deleted`)
	k.ok("get jobs", `once +Complete +1/1`)
	k.ok("get pods -l job-name=once", `No resources found`)
}

// lookInside looks at pods, and into them, in which no program runs.
func (k *kubectl) lookInside() {
	k.ok("logs deployment/web --tail=1", `no program runs in it`)
	k.ok("logs deployment/web", `container "main" of image "web:4" on the lab`)
	k.fails("logs deployment/web --previous", `previous terminated container "main" in pod "web-\S+" not found`)
	out, err := k.run("", "get", "pods", "-l", "app=web", "-o", "name")
	if err != nil {
		k.t.Fatalf("kubectl get pods -o name: %v\n%s", err, out)
	}
	pod, _, _ := strings.Cut(out, "\n")
	follow := k.begin("logs -f " + pod)
	follow.until(`no program runs in it`)
	k.ok("delete "+pod, `deleted`)
	follow.ends(`container "main" (ended|was killed)`)
	k.ok("rollout status deployment/web --timeout=1m", `successfully rolled out`)

	k.fails("exec deployment/web -- sh", `exec: "sh": executable file not found in \$PATH: unknown`)
	k.fails("exec -it deployment/web -- /bin/sh", `exec: "/bin/sh": stat /bin/sh: no such file or directory`)
	k.fails("port-forward deployment/web :80", `error dialing backend: dial tcp \S+:10250: connect: connection refused`)
	k.fails("attach deployment/web", `error dialing backend: dial tcp \S+:10250: connect: connection refused`)
	k.ok("describe pod -l app=web",
		`Normal +Scheduled +\d+s +default-scheduler +Successfully assigned default/web-\S+ to wk-\d`,
		`Normal +Pulling +\d+s +kubelet +(\S+: )?Pulling image "web:4"`, `Normal +Started +\d+s +kubelet +(\S+: )?Container started`)
	k.ok("describe deployment web", `Replicas: +2 desired \| 2 updated \| 2 total \| 2 available`, `Normal +ScalingReplicaSet`)
	k.ok("get events --sort-by=.metadata.creationTimestamp",
		`\d+s +Normal +ScalingReplicaSet +deployment/web +Scaled up replica set web-\w+ from 0 to 1`,
		`\d+s +Normal +Killing +pod/web-\S+ +Stopping container main`)
	k.ok("events --for node/wk-1", `Normal +NodeReady +Node/wk-1 +Node wk-1 status is now: NodeReady`)
}

// changeNodes labels, annotates and taints nodes.
func (k *kubectl) changeNodes() {
	k.ok("describe node wk-1", `Non-terminated Pods: +\(\d+ in total\)`, `Normal +RegisteredNode +\d+s +node-controller +Node wk-1 event: Registered Node wk-1 in Controller`)
	k.ok("label node wk-1 zone=a", `node/wk-1 labeled`)
	k.fails("label node wk-1 zone=b", `already has a value \(a\), and --overwrite is false`)
	k.ok("label node wk-1 zone=b --overwrite", `node/wk-1 labeled`)
	k.ok("get nodes -l zone=b -L zone", `ZONE`, `wk-1 +Ready +<none> +\d+s +v1.36.1 +b`)
	k.ok("label node wk-1 zone-", `node/wk-1 unlabeled`)
	k.ok("annotate node wk-1 note=seen", `node/wk-1 annotated`)
	k.ok("taint node wk-1 dedicated=gpu:NoSchedule", `node/wk-1 tainted`)
	k.ok("describe node wk-1", `note: seen`, `Taints: +dedicated=gpu:NoSchedule`)
	k.ok("taint node wk-1 dedicated-", `node/wk-1 untainted`)
	k.ok("get lease -n kube-node-lease", `NAME +HOLDER +AGE`, `wk-1 +wk-1 +\d+s`)
}

// takeNodesDown drains nodes, also against a disruption budget.
func (k *kubectl) takeNodesDown() {
	k.ok("cordon wk-1", `node/wk-1 cordoned`)
	k.ok("get node wk-1", `Ready,SchedulingDisabled`)
	k.ok("delete pod -l app=web", `deleted`)
	k.ok("rollout status deployment/web --timeout=1m", `successfully rolled out`)
	k.ok("get pods -l app=web -o jsonpath={.items[*].spec.nodeName}", `^wk-2 wk-2$`)
	k.ok("uncordon wk-1", `node/wk-1 uncordoned`)

	k.ok("create poddisruptionbudget web --selector=app=web --min-available=50%", `poddisruptionbudget.policy/web created`)
	k.ok("wait pdb/web --for=jsonpath={.status.disruptionsAllowed}=1 --timeout=1m", `poddisruptionbudget.policy/web condition met`)
	k.ok("get pdb", `web +50% +N/A +1 +\d+s`)
	k.ok(`patch pdb web -p {"spec":{"minAvailable":2}}`, `poddisruptionbudget.policy/web patched`)
	k.ok("wait pdb/web --for=jsonpath={.status.disruptionsAllowed}=0 --timeout=1m", `poddisruptionbudget.policy/web condition met`)
	k.fails("drain wk-2", `cannot delete DaemonSet-managed Pods`)
	drain := k.begin("drain wk-2 --ignore-daemonsets --timeout=2m")
	drain.until(`Cannot evict pod as it would violate the pod's disruption budget`)
	k.ok("delete pdb web", `deleted`)
	drain.ends(`evicting pod default/web-`, `pod/web-\S+ evicted`, `node/wk-2 drained`)
	k.ok("rollout status deployment/web --timeout=1m", `successfully rolled out`)
	k.ok("get pods -l app=web -o jsonpath={.items[*].spec.nodeName}", `^wk-1 wk-1$`)
	k.ok("delete node wk-2", `node "wk-2" deleted`)
}

// askWhoMay asks who one is, and what one and others may do.
func (k *kubectl) askWhoMay() {
	k.ok("auth whoami", `Username +admin`, `Groups +\[system:masters system:authenticated\]`)
	k.ok("auth can-i delete nodes", `(?m)^yes$`)
	k.ok("auth can-i --list", `\*\.\* +\[\] +\[\] +\[\*\]`)
	k.fails("auth can-i delete nodes --as=somebody", `(?m)^no$`)
	k.ok("auth can-i delete nodes --as=somebody --as-group=system:masters", `(?m)^yes$`)
	k.fails("get pods --as=somebody", `Error from server \(Forbidden\): pods is forbidden: User "somebody" cannot list resource "pods" in API group "" in the namespace "default"`)
	k.ok("auth whoami --as=system:serviceaccount:default:default", `Username +system:serviceaccount:default:default`, `Groups +\[system:serviceaccounts system:serviceaccounts:default system:authenticated\]`)
}

// clearUp deletes what there is.
func (k *kubectl) clearUp() {
	k.ok("delete pod -l app=web --force --grace-period=0", `force deleted`)
	k.okWith(manifests, "delete -f -", `deployment.apps "web" deleted`)
	k.ok("create namespace old", `namespace/old created`)
	k.ok("delete namespace old --timeout=1m", `namespace "old" deleted`)
	k.ok("delete service,ingress web", `service "web" deleted`)
	k.ok("get all", `service/kubernetes +ClusterIP`)
}

const manifests = `
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: b}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "web:1"}]}
`

// kubeconfig is an administrator's, as a file would have it.
func (l *lab) kubeconfig(addr string) clientcmdapi.Config {
	c := l.config(addr)
	out := clientcmdapi.NewConfig()
	out.Clusters["lab"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	out.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	out.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "admin"}
	out.CurrentContext = "lab"
	return *out
}
