package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// gate is an admission webhook that holds back the writing of one Deployment,
// so that a test can let things die while they wait, or refuses it.
type gate struct {
	server *httptest.Server
	known  chan struct{} // the API server has begun to ask

	mu      sync.Mutex
	name    string // of the Deployment; "": none is held
	refusal string // instead of holding
	arrived chan struct{}
	opened  chan struct{}
}

// newGate registers a gate for all Deployments of a namespace. Close it when
// nobody asks it any more.
func newGate(t *testing.T, set *kubernetes.Clientset, namespace string) *gate {
	t.Helper()
	g := &gate{known: make(chan struct{}, 1)}
	g.server = httptest.NewTLSServer(http.HandlerFunc(g.review))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fail, exact, none := admissionregistrationv1.Fail, admissionregistrationv1.Exact, admissionregistrationv1.SideEffectClassNone
	within := int32(30)
	_, err := set.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "gate"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "gate.example.org", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail, MatchPolicy: &exact, TimeoutSeconds: &within,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &g.server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.server.Certificate().Raw})},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The API server takes a registration in when it gets to it: ask until it
	// asks back.
	for {
		list, err := set.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			t.Fatalf("there is no Deployment to try the gate with: %v", err)
		}
		if _, err := set.AppsV1().Deployments(namespace).Update(ctx, &list.Items[0], metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Logf("try the gate: %v", err)
		}
		select {
		case <-g.known:
			return g
		case <-ctx.Done():
			t.Fatal("the API server does not ask the gate")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// hold holds back the next writing of a Deployment; arrived is closed when it
// has begun to wait.
func (g *gate) hold(name string) (arrived <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.name, g.arrived, g.opened = name, make(chan struct{}), make(chan struct{})
	return g.arrived
}

// refuse refuses every writing of a Deployment, with these words.
func (g *gate) refuse(name, words string) {
	g.hold(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusal = words
}

// open lets everything through, what waits too.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.name != "" {
		g.name, g.refusal = "", ""
		close(g.opened)
	}
}

func (g *gate) close() {
	g.open()
	g.server.Close()
}

// review answers the API server.
func (g *gate) review(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no admission review", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if review.Request.DryRun != nil && *review.Request.DryRun {
		select {
		case g.known <- struct{}{}:
		default:
		}
	} else if refusal := g.pass(r.Context(), review.Request.Name); refusal != "" {
		review.Response.Allowed, review.Response.Result = false, &metav1.Status{Message: refusal}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // who asked may have died
}

// pass waits until the gate is open for a Deployment, or nobody waits for the
// answer any more; what it returns is the refusal.
func (g *gate) pass(ctx context.Context, name string) (refusal string) {
	g.mu.Lock()
	if name != g.name || g.refusal != "" {
		defer g.mu.Unlock()
		if name == g.name {
			return g.refusal
		}
		return ""
	}
	opened := g.opened
	select {
	case <-g.arrived:
	default:
		close(g.arrived)
	}
	g.mu.Unlock()
	select {
	case <-opened:
	case <-ctx.Done():
	}
	return ""
}
