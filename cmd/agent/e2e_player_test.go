package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// templateLabel tells pods of different templates apart.
const templateLabel = "lab/template"

const notReadyTaint = "node.kubernetes.io/not-ready"

// stage is one look at what the players act on.
type stage struct {
	*realKubernetes
	ctx   context.Context
	set   *kubernetes.Clientset
	nodes []corev1.Node
	pods  []corev1.Pod
}

// settle brings the cluster one step nearer to what its objects ask for.
// Nothing is written that is so already.
func (k *realKubernetes) settle(ctx context.Context, set *kubernetes.Clientset) error {
	s := &stage{realKubernetes: k, ctx: ctx, set: set}
	nodes, err := set.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := set.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	daemons, err := set.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	deployments, err := set.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	s.nodes, s.pods = nodes.Items, pods.Items
	errs := []error{s.tendNodes()}
	if !slices.ContainsFunc(deployments.Items, func(d appsv1.Deployment) bool { return d.Namespace == dns.Namespace && d.Name == dns.Name }) {
		_, err := set.AppsV1().Deployments(dns.Namespace).Create(ctx, dns.DeepCopy(), metav1.CreateOptions{})
		_, unmade := set.CoreV1().ServiceAccounts(dns.Namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: dns.Name}}, metav1.CreateOptions{})
		_, unserved := set.CoreV1().Services(dns.Namespace).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "kube-dns", Labels: map[string]string{"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Selector: map[string]string{"k8s-app": "kube-dns"},
				Ports: []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}}},
		}, metav1.CreateOptions{})
		err = errors.Join(err, unmade, unserved)
		errs = append(errs, err)
	}
	alive := map[string]bool{}
	for i := range daemons.Items {
		alive[string(daemons.Items[i].UID)] = true
		errs = append(errs, s.tendDaemonSet(&daemons.Items[i]))
	}
	for i := range deployments.Items {
		alive[string(deployments.Items[i].UID)] = true
		errs = append(errs, s.tendDeployment(&deployments.Items[i]))
	}
	for _, p := range s.pods {
		if o := metav1.GetControllerOf(&p); o != nil && !alive[string(o.UID)] {
			errs = append(errs, s.remove(&p))
		}
	}
	return errors.Join(errs...)
}

// dns is the cluster's DNS, which Talos deploys when it bootstraps Kubernetes; with one
// pod of its two, so that all of them are ready when the cluster is.
var dns = &appsv1.Deployment{
	ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns", Labels: map[string]string{"k8s-app": "kube-dns"}},
	Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(1)),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"k8s-app": "kube-dns"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "coredns", Image: "registry.k8s.io/coredns/coredns:v1.14.2"}}},
		},
	},
}

// tendNodes lets every kubelet register its node, and calls it ready once the
// network's pod on it is.
func (s *stage) tendNodes() error {
	var errs []error
	for _, k := range s.sorted() {
		i := slices.IndexFunc(s.nodes, func(n corev1.Node) bool { return n.Name == k.Node })
		if i < 0 {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.Node, Labels: map[string]string{"kubernetes.io/hostname": k.Node}}}
			if k.Control {
				n.Labels["node-role.kubernetes.io/control-plane"] = ""
			}
			_, err := s.set.CoreV1().Nodes().Create(s.ctx, n, metav1.CreateOptions{})
			s.world.Report(k.Node, "registers with Kubernetes")
			errs = append(errs, err)
			continue
		}
		errs = append(errs, s.tendNode(k, s.nodes[i].DeepCopy()))
	}
	return errors.Join(errs...)
}

func (s *stage) tendNode(k *playedKubelet, n *corev1.Node) error {
	network := slices.ContainsFunc(s.pods, func(p corev1.Pod) bool {
		return p.Namespace == "kube-system" && p.Labels["k8s-app"] == "cilium" && p.Spec.NodeName == k.Node && isPodReady(&p)
	})
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
		Message: "container runtime network not ready: cni plugin not initialized"}
	if network {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"
	}
	was := n.Status.DeepCopy()
	n.Status.NodeInfo.KubeletVersion, n.Status.NodeInfo.OSImage = k.Kubernetes, "Talos ("+k.Talos+")"
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: k.Address.String()}, {Type: corev1.NodeHostName, Address: k.Node}}
	n.Status.Conditions = []corev1.NodeCondition{ready}
	if !equality.Semantic.DeepEqual(was, &n.Status) {
		if _, err := s.set.CoreV1().Nodes().UpdateStatus(s.ctx, n, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("report node %s: %w", k.Node, err)
		}
	}
	taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return network && t.Key == notReadyTaint })
	if len(taints) != len(n.Spec.Taints) {
		fresh, err := s.set.CoreV1().Nodes().Get(s.ctx, k.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		fresh.Spec.Taints = taints
		if _, err := s.set.CoreV1().Nodes().Update(s.ctx, fresh, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("take the taint of node %s away: %w", k.Node, err)
		}
	}
	s.mu.Lock()
	tell := k.told != network
	k.told = network
	s.mu.Unlock()
	if tell {
		k.ready(network)
		s.world.Report(k.Node, "Ready: %v", network)
	}
	return nil
}

// tendDaemonSet keeps a pod on every node.
func (s *stage) tendDaemonSet(d *appsv1.DaemonSet) error {
	var places []place
	for _, n := range s.nodes {
		places = append(places, place{d.Name + "-" + n.Name, n.Name})
	}
	c, err := s.keep(d, "DaemonSet", d.Spec.Template, places)
	if err != nil {
		return err
	}
	want := int32(len(places))
	status := appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: want, CurrentNumberScheduled: c.made,
		UpdatedNumberScheduled: c.made, NumberReady: c.ready, NumberAvailable: c.ready, NumberUnavailable: want - c.ready}
	if equality.Semantic.DeepEqual(d.Status, status) {
		return nil
	}
	d.Status = status
	_, err = s.set.AppsV1().DaemonSets(d.Namespace).UpdateStatus(s.ctx, d, metav1.UpdateOptions{})
	return err
}

// tendDeployment keeps as many pods as are asked for, with no ReplicaSet in
// between, on nodes that are ready unless they bring their own network.
func (s *stage) tendDeployment(d *appsv1.Deployment) error {
	var nodes []string
	for _, n := range s.nodes {
		if isNodeReady(&n) || d.Spec.Template.Spec.HostNetwork {
			nodes = append(nodes, n.Name)
		}
	}
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	var places []place
	for i := range int(want) {
		if len(nodes) > 0 {
			places = append(places, place{fmt.Sprintf("%s-%d", d.Name, i), nodes[i%len(nodes)]})
		}
	}
	c, err := s.keep(d, "Deployment", d.Spec.Template, places)
	if err != nil {
		return err
	}
	status := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: c.made, UpdatedReplicas: c.made,
		ReadyReplicas: c.ready, AvailableReplicas: c.ready, UnavailableReplicas: want - c.ready}
	if equality.Semantic.DeepEqual(d.Status, status) {
		return nil
	}
	d.Status = status
	_, err = s.set.AppsV1().Deployments(d.Namespace).UpdateStatus(s.ctx, d, metav1.UpdateOptions{})
	return err
}

// place is where a pod should be.
type place struct{ pod, node string }

// census counts the pods of a workload that are of its newest template.
type census struct{ made, ready int32 }

// keep makes, readies and removes the pods of a workload, and counts those that
// were there before.
func (s *stage) keep(owner metav1.Object, kind string, template corev1.PodTemplateSpec, places []place) (c census, err error) {
	raw, err := json.Marshal(template)
	if err != nil {
		return c, err
	}
	sum := sha256.Sum256(raw)
	hash := hex.EncodeToString(sum[:5])
	var errs []error
	for _, p := range s.pods {
		o := metav1.GetControllerOf(&p)
		if o == nil || o.UID != owner.GetUID() {
			continue
		}
		i := slices.IndexFunc(places, func(pl place) bool { return pl.pod == p.Name && pl.node == p.Spec.NodeName })
		if i < 0 || p.Labels[templateLabel] != hash {
			errs = append(errs, s.remove(&p))
			continue
		}
		places = slices.Delete(slices.Clone(places), i, i+1)
		c.made++
		switch {
		case isPodReady(&p):
			c.ready++
		case !s.isHeld(owner.GetNamespace(), owner.GetName()):
			errs = append(errs, s.run(&p))
		}
	}
	for _, pl := range places {
		errs = append(errs, s.make(owner, kind, template, hash, pl))
	}
	return c, errors.Join(errs...)
}

func (s *stage) make(owner metav1.Object, kind string, template corev1.PodTemplateSpec, hash string, at place) error {
	yes := true
	p := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	p.Name, p.Namespace = at.pod, owner.GetNamespace()
	p.Labels[templateLabel] = hash
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: &yes}}
	p.Spec.NodeName = at.node
	_, err := s.set.CoreV1().Pods(p.Namespace).Create(s.ctx, p, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the one before it is still going
	}
	return err
}

// run calls a pod running and ready.
func (s *stage) run(p *corev1.Pod) error {
	p = p.DeepCopy()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.ContainerStatuses = nil
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}})
	}
	_, err := s.set.CoreV1().Pods(p.Namespace).UpdateStatus(s.ctx, p, metav1.UpdateOptions{})
	return err
}

func (s *stage) remove(p *corev1.Pod) error {
	now := int64(0)
	err := s.set.CoreV1().Pods(p.Namespace).Delete(s.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func isPodReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func isNodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
