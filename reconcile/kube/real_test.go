package kube

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/kubeapi"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestRealAPI looks at a real kube-apiserver with a real etcd, the program
// built from internal/lab/apiserver and named by TALOS_AGENT_APISERVER, until
// it dies.
func TestRealAPI(t *testing.T) {
	program := os.Getenv("TALOS_AGENT_APISERVER")
	if program == "" {
		t.Skip("TALOS_AGENT_APISERVER does not name the program built from internal/lab/apiserver")
	}
	prefix, release, err := world.FreePrefix()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	net24 := strings.TrimSuffix(prefix.Addr().String(), ".0")
	b := newBench(t, world.Config{Network: world.Loopback{}}, net24, 1)
	dir := t.TempDir()
	for name, content := range map[string][]byte{"ca.crt": b.ca.PEM, "ca.key": b.ca.KeyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := exec.Command(program, "serve", "--dir", dir, "--address", net24+".11")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	dead := make(chan error, 1)
	go func() { dead <- server.Wait() }()
	kill := func() {
		_ = server.Process.Kill()
		<-dead
		dead <- nil
	}
	t.Cleanup(kill)

	b.soon("ready", func(o cluster.Observed) bool { return o.APIs["cp-1"].Value && o.Nodes.Known })
	conn, err := kubeapi.Connect(b.desired.Access.Kube, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := corev1client.NewForConfigAndClient(&rest.Config{
		Host: serverOf(b.desired.Spec.Nodes[0].IP), ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON},
	}, &http.Client{Transport: conn})
	if err != nil {
		t.Fatal(err)
	}
	n, err := client.Nodes().Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cp-1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.soon("registered", func(o cluster.Observed) bool {
		return reflect.DeepEqual(withoutTimes(o.Nodes.Value["cp-1"]), cluster.KubeNode{Name: "cp-1", Why: "its kubelet has not reported yet"})
	})
	changes := b.changes.Load()
	n.Status.NodeInfo.KubeletVersion = "v1.36.1"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := client.Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.soon("ready", func(o cluster.Observed) bool {
		return reflect.DeepEqual(withoutTimes(o.Nodes.Value["cp-1"]), cluster.KubeNode{Name: "cp-1", Ready: true, Kubelet: "v1.36.1"})
	})
	b.soon("told", func(cluster.Observed) bool { return b.changes.Load() != changes })
	kill()
	b.soon("dead", func(o cluster.Observed) bool { return !o.Nodes.Known && !o.APIs["cp-1"].Value })
}

// withoutTimes is a Node without when it was made and became what it is, which the server
// chooses.
func withoutTimes(n cluster.KubeNode) cluster.KubeNode {
	n.Created, n.ReadySince, n.NotReadySince = time.Time{}, time.Time{}, time.Time{}
	return n
}
