package kube_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	asMerge = "application/strategic-merge-patch+json"
)

// everyday are the requests behind commands of kubectl that people type every day, in
// the order in which the test makes them. POD is a pod of the Deployment web.
var everyday = []struct {
	command, method, path, body, media string
	code                               int
	want                               string // in the answer
}{
	{"version", "GET", "/version", "", "", 200, `"gitVersion":"v1.36.1"`},
	{"get --raw /readyz?verbose", "GET", "/readyz?verbose", "", "", 200, "[+]etcd ok"},
	{"api-resources", "GET", "/apis", "", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", 200, `"resource":"deployments"`},
	{"api-resources", "GET", "/api", "", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", 200, `{"subresource":"log","responseKind":{"group":"","version":"v1","kind":"Pod"},"verbs":["get"]}`},
	{"api-versions", "GET", "/apis", "", "", 200, `"groupVersion":"apps/v1"`},
	{"cluster-info", "GET", "/api/v1/namespaces/kube-system/services?labelSelector=kubernetes.io%2Fcluster-service%3Dtrue", "", "", 200, `"name":"kube-dns"`},
	{"get nodes -o wide", "GET", "/api/v1/nodes?limit=500", "", asTable, 200, `"wk-1","Ready"`},
	{"get pods -A", "GET", "/api/v1/pods?limit=500", "", asTable, 200, `"kube-apiserver-cp-1","1/1","Running"`},
	{"get pods -w", "GET", "/api/v1/namespaces/default/pods?limit=500&watch=true&timeoutSeconds=1", "", asTable, 200, `"type":"ADDED"`},
	{"get deployments", "GET", "/apis/apps/v1/namespaces/default/deployments?limit=500", "", asTable, 200, `"web","1/1"`},
	{"get events -A", "GET", "/api/v1/events?limit=500", "", asTable, 200, `,"Normal","Scheduled","pod/POD","","default-scheduler, default-scheduler-cp-1","Successfully assigned default/POD to wk-1",`},
	{"get events -w", "GET", "/api/v1/namespaces/default/events?watch=true&timeoutSeconds=1", "", asTable, 200, `,"Normal","ScalingReplicaSet","deployment/web","","deployment-controller","Scaled up replica set web-`},
	{"get events --types=Warning", "GET", "/api/v1/namespaces/default/events?fieldSelector=type%3DWarning", "", "", 200, `"message":"no nodes available to schedule pods"`},
	{"get events --field-selector reason=Killing", "GET", "/api/v1/events?fieldSelector=reason%3DKilling", "", "", 200, `"items":[]`},
	{"describe pod POD", "GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind%3DPod%2CinvolvedObject.name%3DPOD%2CinvolvedObject.namespace%3Ddefault%2Csource%3Dkubelet", "", "", 200, `"message":"Container started"`},
	{"describe node wk-1", "GET", "/api/v1/nodes/wk-1", "", "", 200, `"kubeletVersion":"v1.36.1"`},
	{"describe node wk-1", "GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/wk-1", "", "", 200, `"holderIdentity":"wk-1"`},
	{"describe node wk-1", "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dwk-1%2Cstatus.phase%21%3DFailed%2Cstatus.phase%21%3DSucceeded&limit=500", "", "", 200, `"app":"web"`},
	{"describe node wk-1", "GET", "/api/v1/events?fieldSelector=involvedObject.uid%3Dwk-1%2CinvolvedObject.name%3Dwk-1%2CinvolvedObject.namespace%3D%2CinvolvedObject.kind%3DNode&limit=500", "", "", 200, `"items":[]`},
	{"describe node wk-1", "GET", "/api/v1/events?fieldSelector=involvedObject.name%3Dwk-1%2CinvolvedObject.namespace%3D%2CinvolvedObject.kind%3DNode&limit=500", "", "", 200, `"message":"Node wk-1 event: Registered Node wk-1 in Controller"`},
	{"top nodes", "GET", "/apis/metrics.k8s.io/v1beta1/nodes", "", "", 404, "404 page not found"},
	{"logs POD", "GET", "/api/v1/namespaces/default/pods/POD", "", "", 200, `"phase":"Running"`},
	{"logs POD", "GET", "/api/v1/namespaces/default/pods/POD/log?container=main", "", "", 200, `container "main" of image "web:1" on the lab`},
	{"logs POD --tail=0", "GET", "/api/v1/namespaces/default/pods/POD/log?tailLines=0", "", "", 200, ""},
	{"logs POD --timestamps", "GET", "/api/v1/namespaces/default/pods/POD/log?timestamps=true", "", "", 200, `000000000Z container "main"`},
	{"logs POD --previous", "GET", "/api/v1/namespaces/default/pods/POD/log?previous=true", "", "", 400, `previous terminated container \"main\" in pod \"POD\" not found`},
	{"logs POD -c side", "GET", "/api/v1/namespaces/default/pods/POD/log?container=side", "", "", 400, "container side is not valid for pod POD"},
	{"logs nosuch", "GET", "/api/v1/namespaces/default/pods/nosuch/log", "", "", 404, `pods \"nosuch\" not found`},
	{"logs POD --tail=1", "GET", "/api/v1/namespaces/default/pods/POD/log?tailLines=1", "", "", 200, "no program runs in it"},
	{"logs POD --since=1s", "GET", "/api/v1/namespaces/default/pods/POD/log?sinceSeconds=1", "", "", 200, ""},
	{"logs POD --limit-bytes=9", "GET", "/api/v1/namespaces/default/pods/POD/log?limitBytes=9", "", "", 200, "container"},
	{"logs POD --tail=-5", "GET", "/api/v1/namespaces/default/pods/POD/log?tailLines=-5", "", "", 422, `tailLines: Invalid value: -5: must be greater than or equal to 0`},
	{"exec POD -- sh, without a connection", "GET", "/api/v1/namespaces/default/pods/POD/exec?command=sh&container=main&stdin=true&stdout=true", "", "", 400, "Upgrade request required"},
	{"exec POD -c side -- sh", "POST", "/api/v1/namespaces/default/pods/POD/exec?command=sh&container=side", "", "", 400, "container side is not valid for pod POD"},
	{"port-forward POD 80, without a connection", "POST", "/api/v1/namespaces/default/pods/POD/portforward", "", "", 400, "Upgrade request required"},
	{"a method that logs do not have", "DELETE", "/api/v1/namespaces/default/pods/POD/log", "", "", 405, "does not allow this method"},
	{"auth can-i delete nodes", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"verb":"delete","resource":"nodes"}}}`, "", 201, `"allowed":true`},
	{"auth can-i --list", "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"kind":"SelfSubjectRulesReview","apiVersion":"authorization.k8s.io/v1","spec":{"namespace":"default"}}`, "", 201, `"resourceRules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}`},
	{"auth whoami", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`, "", 201, `"userInfo":{"groups":["system:masters","system:authenticated"],"username":"admin"}`},
	{"scale deployment web --replicas=2", "PATCH", "/apis/apps/v1/namespaces/default/deployments/web/scale", `{"spec":{"replicas":2}}`, "application/merge-patch+json", 200, `"kind":"Scale"`},
	{"scale deployment web --replicas=1", "PATCH", "/apis/apps/v1/namespaces/default/deployments/web/scale", `{"spec":{"replicas":1}}`, "application/merge-patch+json", 200, `"replicas":1`},
	{"rollout restart deployment web", "PATCH", "/apis/apps/v1/namespaces/default/deployments/web?fieldManager=kubectl-rollout", `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-01-01T00:00:00Z"}}}}}`, asMerge, 200, `"kubectl.kubernetes.io/restartedAt":"2026-01-01T00:00:00Z"`},
	{"cordon wk-1", "PATCH", "/api/v1/nodes/wk-1", `{"spec":{"unschedulable":true}}`, asMerge, 200, `"unschedulable":true`},
	{"drain wk-1 --dry-run=server", "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dwk-1&limit=500", "", "", 200, `"app":"web"`},
	{"drain wk-1 --dry-run=server", "GET", "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy", "", "", 200, `"kind":"DaemonSet"`},
	{"drain wk-1 --dry-run=server", "POST", "/api/v1/namespaces/default/pods/POD/eviction?dryRun=All", `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"POD","namespace":"default"},"deleteOptions":{"dryRun":["All"]}}`, "", 201, `"status":"Success"`},
	{"uncordon wk-1", "PATCH", "/api/v1/nodes/wk-1", `{"spec":{"unschedulable":null}}`, asMerge, 200, `"name":"wk-1"`},
}

// TestEverydayRequests makes the requests of everyday commands of kubectl.
func TestEverydayRequests(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := bringWeb(t, l)
		config := l.config(apiAddr)
		http, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		defer http.CloseIdleConnections()
		for _, e := range everyday {
			pod := webPod(t, set)
			code, text := send(t, http, e.method, config.Host+strings.ReplaceAll(e.path, "POD", pod), strings.ReplaceAll(e.body, "POD", pod), e.media)
			if code != e.code || !strings.Contains(text, strings.ReplaceAll(e.want, "POD", pod)) {
				t.Errorf("kubectl %s: %s %s: %d, want %d with %q\n%.600s", e.command, e.method, e.path, code, e.code, e.want, text)
			}
			if e.method != "GET" {
				time.Sleep(time.Minute) // for what follows from it
			}
		}
	})
}

// TestImpersonation asks as others, which only who may do everything can.
func TestImpersonation(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		l.running(apiAddr)
		for name, tc := range map[string]struct {
			as   rest.ImpersonationConfig
			org  string
			want string
		}{
			"without impersonation":    {org: "system:masters"},
			"somebody":                 {rest.ImpersonationConfig{UserName: "somebody"}, "system:masters", `nodes is forbidden: User "somebody" cannot list resource "nodes" in API group "" at the cluster scope`},
			"another administrator":    {rest.ImpersonationConfig{UserName: "somebody", Groups: []string{"system:masters"}}, "system:masters", ""},
			"a user, as another user":  {rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}}, "strangers", `users "admin" is forbidden: User "caller" cannot impersonate resource "users" in API group "" at the cluster scope`},
			"an account, likewise":     {rest.ImpersonationConfig{UserName: "system:serviceaccount:a:b"}, "strangers", `serviceaccounts "b" is forbidden: User "caller" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "a"`},
			"an account of the system": {rest.ImpersonationConfig{UserName: "system:serviceaccount:a:b"}, "system:masters", `nodes is forbidden: User "system:serviceaccount:a:b" cannot list resource "nodes" in API group "" at the cluster scope`},
		} {
			config := l.config(apiAddr)
			config.CertData, config.KeyData = l.client("caller", tc.org)
			config.Impersonate = tc.as
			client, err := rest.HTTPClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			set, err := kubernetes.NewForConfigAndClient(config, client)
			if err != nil {
				t.Fatal(err)
			}
			_, err = set.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if got := fmt.Sprint(err); tc.want == "" && err != nil || tc.want != "" && got != tc.want {
				t.Errorf("%s: %s, want %q", name, got, tc.want)
			}
			client.CloseIdleConnections()
		}
	})
}

// bringWeb brings up a cluster of two nodes with the Deployment web.
func bringWeb(t *testing.T, l *lab) kubernetes.Interface {
	t.Helper()
	set := l.running(apiAddr)
	ready := newReadiness()
	l.kube.RunKubelet(l.id, controlKubelet("cp-1", "10.0.0.11", 401), ready.call)
	l.kube.RunKubelet(l.id, kubelet("wk-1", "10.0.0.21", 501), ready.call)
	makeWeb(t, set)
	time.Sleep(5 * time.Minute)
	return set
}

func makeWeb(t *testing.T, set kubernetes.Interface) {
	t.Helper()
	web := deployment("web", 1)
	web.Spec.Template.Spec.Containers[0].Image = "web:1"
	if _, err := set.AppsV1().Deployments("default").Create(ctx, web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// webPod is the name of the one pod of the Deployment web that is not being deleted.
func webPod(t *testing.T, set kubernetes.Interface) string {
	t.Helper()
	pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			return p.Name
		}
	}
	t.Fatal("no pod of web")
	return ""
}

func send(t *testing.T, client *http.Client, method, url, body, media string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		req.Header.Set("Accept", media)
	} else {
		req.Header.Set("Content-Type", "application/json")
		if media != "" {
			req.Header.Set("Content-Type", media)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
