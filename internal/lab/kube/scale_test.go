package kube_test

import (
	"fmt"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

func TestScale(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		d := set.AppsV1().Deployments("default")
		_, err := d.Create(ctx, deployment("web", 2), metav1.CreateOptions{})
		must(t, err)
		eventually(t, "two", time.Minute, func() error { return deploymentReady(set, "default", "web", 2) })
		scale, err := d.GetScale(ctx, "web", metav1.GetOptions{})
		must(t, err)
		if scale.Spec.Replicas != 2 || scale.Status.Replicas != 2 || scale.Status.Selector != "app=web" || scale.Name != "web" || scale.UID == "" || scale.CreationTimestamp.IsZero() {
			t.Errorf("scale %+v", scale)
		}
		scale.Spec.Replicas = 3
		after, err := d.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{})
		if err != nil || after.Spec.Replicas != 3 || after.ResourceVersion == scale.ResourceVersion {
			t.Errorf("scale %+v, %v", after, err)
		}
		eventually(t, "three", time.Minute, func() error { return deploymentReady(set, "default", "web", 3) })
		_, err = d.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{})
		mustReason(t, err, metav1.StatusReasonConflict)
		_, err = d.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}, "scale")
		must(t, err)
		eventually(t, "one", time.Minute, func() error { return deploymentReady(set, "default", "web", 1) })
		_, err = d.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "scale")
		must(t, err)
		if scale, err := d.GetScale(ctx, "web", metav1.GetOptions{}); err != nil || scale.Spec.Replicas != 1 {
			t.Errorf("after a dry run: %+v, %v", scale, err)
		}
		_, err = d.Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":-1}}`), metav1.PatchOptions{}, "scale")
		mustReason(t, err, metav1.StatusReasonInvalid)
		_, err = set.AppsV1().StatefulSets("default").GetScale(ctx, "web", metav1.GetOptions{})
		mustReason(t, err, metav1.StatusReasonNotFound)
	})
}

// TestAccessReviews: everybody may ask what he may.
func TestAccessReviews(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		admin := l.running(apiAddr)
		config := l.config(apiAddr)
		config.CertData, config.KeyData = l.client("jane")
		jane, err := kubernetes.NewForConfig(config)
		must(t, err)
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "nodes"},
		}}
		for name, c := range map[string]struct {
			set  kubernetes.Interface
			want bool
		}{"admin": {admin, true}, "jane": {jane, false}} {
			got, err := c.set.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil || got.Status.Allowed != c.want || got.Spec.ResourceAttributes.Resource != "nodes" {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		err = admin.AuthorizationV1().RESTClient().Get().Resource("selfsubjectaccessreviews").Do(ctx).Error()
		mustReason(t, err, metav1.StatusReasonMethodNotAllowed)
		_, err = jane.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		mustReason(t, err, metav1.StatusReasonForbidden)
	})
}

// TestEndpointSlices: a service leads to the pods it selects, as they come and go.
func TestEndpointSlices(t *testing.T) {
	bubble(t, func(t *testing.T, l *lab) {
		set := l.flat(1)
		_, err := set.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}, {Name: "metrics", Port: 9090},
			}},
		}, metav1.CreateOptions{})
		must(t, err)
		slice := func() *discoveryv1.EndpointSlice {
			t.Helper()
			list, err := set.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
			must(t, err)
			if len(list.Items) != 1 {
				t.Fatalf("%d slices", len(list.Items))
			}
			return &list.Items[0]
		}
		time.Sleep(time.Second)
		if s := slice(); len(s.Endpoints) != 0 || s.OwnerReferences[0].Name != "web" {
			t.Errorf("without pods: %+v", s)
		}
		web := barePod("web-1", "web")
		web.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}
		web.Spec.Containers[0].Image = "registry.stubborn.test/web:1"
		l.runPods(set, web, barePod("other", "other"))
		s, p := slice(), getPod(t, set, "web-1")
		if len(s.Endpoints) != 1 || s.Endpoints[0].Addresses[0] != p.Status.PodIP || !*s.Endpoints[0].Conditions.Ready || *s.Endpoints[0].NodeName != "wk-1" || s.Endpoints[0].TargetRef.UID != p.UID {
			t.Errorf("endpoints %+v", s.Endpoints)
		}
		if len(s.Ports) != 2 || *s.Ports[0].Port != 8080 || *s.Ports[1].Port != 9090 || *s.Ports[0].Name != "http" {
			t.Errorf("ports %+v", s.Ports)
		}
		must(t, evict(set, "default", "web-1"))
		eventually(t, "terminating", time.Second, func() error {
			if e := slice().Endpoints; len(e) != 1 || *e[0].Conditions.Ready || !*e[0].Conditions.Serving || !*e[0].Conditions.Terminating {
				return fmt.Errorf("endpoints %+v", e)
			}
			return nil
		})
		time.Sleep(time.Minute)
		if e := slice().Endpoints; len(e) != 0 {
			t.Errorf("endpoints %+v", e)
		}
		must(t, set.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}))
		time.Sleep(time.Second)
		list, err := set.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "kubernetes" {
			t.Errorf("slices without their service: %+v, %v", list.Items, err)
		}
	})
}
