package kube_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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

// TestKubectl shows a cluster on loopback to a real kubectl.
func TestKubectl(t *testing.T) {
	binary, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl in PATH")
	}
	net := loopback(t)
	l := newLab(t, world.Config{Speed: 100, Network: world.Loopback{}})
	ready := newReadiness()
	l.kube.RunKubelet(l.id, controlKubelet("cp-1", net+".11", 401), ready.call)
	l.kube.RunKubelet(l.id, kubelet("wk-1", net+".21", 501), ready.call)
	l.running(net + ".11")
	<-ready.ch
	<-ready.ch

	home := t.TempDir()
	kubeconfig := filepath.Join(home, "config")
	if err := clientcmd.WriteToFile(l.kubeconfig(net+".11"), kubeconfig); err != nil {
		t.Fatal(err)
	}
	run := func(stdin string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG="+kubeconfig)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	kubectl := func(stdin string, args ...string) string {
		t.Helper()
		out, err := run(stdin, args...)
		if err != nil {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	refused := func(args ...string) string {
		t.Helper()
		out, err := run("", args...)
		if err == nil {
			t.Errorf("kubectl %s succeeds", strings.Join(args, " "))
		}
		return out
	}
	expect := func(out string, patterns ...string) {
		t.Helper()
		for _, p := range patterns {
			if !regexp.MustCompile(p).MatchString(out) {
				t.Errorf("no %q in\n%s", p, out)
			}
		}
	}
	expect(kubectl("", "get", "nodes", "-o", "wide"),
		`NAME +STATUS +ROLES +AGE +VERSION +INTERNAL-IP +EXTERNAL-IP +OS-IMAGE +KERNEL-VERSION +CONTAINER-RUNTIME`,
		`cp-1 +Ready +control-plane +\d+s +v1.36.1 +`+regexp.QuoteMeta(net)+`.11 +<none> +Talos \(v1.14.1\) +\S+-talos +containerd://\S+`,
		`wk-1 +Ready +<none> +\d+s +v1.36.1`)
	kubectl(manifests, "apply", "-f", "-")
	expect(kubectl("", "rollout", "status", "deployment/web", "--timeout=30s"), `successfully rolled out`)
	expect(kubectl(strings.Replace(manifests, "web:1", "web:2", 1), "apply", "-f", "-"), `deployment.apps/web configured`, `configmap/conf unchanged`)
	expect(kubectl("", "rollout", "status", "deployment/web", "--timeout=30s"), `successfully rolled out`)
	expect(kubectl("", "get", "deployments", "-o", "wide"), `web +1/1 +1 +1 +\d+s +main +web:2 +app=web`)
	expect(kubectl("", "get", "pods", "-A"), `default +web-\S+ +1/1 +Running +0 +\d+s`, `kube-system +kube-apiserver-cp-1 +1/1 +Running`)
	expect(kubectl("", "get", "all", "-n", "kube-system"), `daemonset.apps/kube-flannel +2 +2 +2 +2 +2 +<none> +`, `service/kube-dns +ClusterIP +10.96.0.10 +<none> +53/UDP,53/TCP`)
	expect(kubectl("", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=10s"), `node/wk-1 condition met`)
	expect(kubectl("", "get", "ns,cm,secrets,sa,crd"), `namespace/kube-system +Active`, `configmap/conf +1`, `serviceaccount/default`)
	expect(kubectl("", "api-resources"), `deployments +deploy +apps/v1 +true +Deployment`)
	expect(kubectl("", "auth", "can-i", "delete", "nodes"), `(?m)^yes$`)
	expect(kubectl("", "logs", "deployment/web"), `container "main" of image "web:2" on the lab`)
	expect(kubectl("", "auth", "can-i", "--list"), `\*\.\* +\[\] +\[\] +\[\*\]`)
	expect(kubectl("", "auth", "whoami"), `Username +admin`, `Groups +\[system:masters system:authenticated\]`)
	expect(refused("exec", "deployment/web", "--", "sh"), `exec: "sh": executable file not found in \$PATH: unknown`)
	expect(refused("exec", "-it", "deployment/web", "--", "/bin/sh"), `exec: "/bin/sh": stat /bin/sh: no such file or directory`)
	expect(kubectl("", "describe", "node", "wk-1"), `Non-terminated Pods: +\(\d+ in total\)`, `Normal +RegisteredNode +\d+s +node-controller +Node wk-1 event: Registered Node wk-1 in Controller`)
	expect(kubectl("", "describe", "pod", "-l", "app=web"),
		`Normal +Scheduled +\d+s +default-scheduler +Successfully assigned default/web-\S+ to wk-1`,
		`Normal +Pulling +\d+s +kubelet +Pulling image "web:2"`, `Normal +Started +\d+s +kubelet +Container started`)
	expect(kubectl("", "get", "events", "--sort-by=.metadata.creationTimestamp"),
		`\d+s +Normal +ScalingReplicaSet +deployment/web +Scaled up replica set web-\w+ from 0 to 1`,
		`\d+s +Normal +Killing +pod/web-\S+ +Stopping container main`)
	expect(kubectl("", "events", "--for", "node/wk-1"), `Normal +NodeReady +Node/wk-1 +Node wk-1 status is now: NodeReady`)
	expect(kubectl("", "scale", "deployment/web", "--replicas=2"), `deployment.apps/web scaled`)
	expect(kubectl("", "rollout", "status", "deployment/web", "--timeout=30s"), `successfully rolled out`)
	expect(kubectl("", "create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=50%"), `poddisruptionbudget.policy/web created`)
	expect(kubectl("", "wait", "pdb/web", "--for=jsonpath={.status.disruptionsAllowed}=1", "--timeout=10s"), `poddisruptionbudget.policy/web condition met`)
	expect(kubectl("", "get", "pdb"), `web +50% +N/A +1 +\d+s`)
	kubectl("", "delete", "pdb", "web") // there is one worker: a drain would never end
	expect(kubectl("", "cordon", "wk-1"), `node/wk-1 cordoned`)
	expect(kubectl("", "get", "node", "wk-1"), `Ready,SchedulingDisabled`)
	expect(kubectl("", "drain", "wk-1", "--ignore-daemonsets", "--timeout=30s"), `node/wk-1 drained`)
	expect(kubectl("", "delete", "node", "wk-1"), `node "wk-1" deleted`)
	expect(kubectl(manifests, "delete", "-f", "-"), `deployment.apps "web" deleted`)
	expect(kubectl("", "version"), `Server Version: v1.36.1`)
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
