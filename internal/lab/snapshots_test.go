package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/stdpatches"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/talos-agent/talos-agent/internal/lab/kube"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// machines are Talos machines with the simulated Kubernetes on them, in a time of their own.
type machines struct {
	t       *testing.T
	world   *world.World
	fleet   *talos.Fleet
	kube    *kube.Clusters
	secrets *secrets.Bundle
}

func withMachines(t *testing.T, test func(*machines)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		bundle, err := secrets.NewBundle(secrets.NewFixedClock(time.Now()), config.TalosVersionCurrent, secrets.WithECDSAServiceAccountKey())
		if err != nil {
			t.Fatal(err)
		}
		w, err := world.New(world.Config{})
		if err != nil {
			t.Fatal(err)
		}
		m := &machines{t: t, world: w, kube: kube.New(kube.Config{World: w}), secrets: bundle}
		if m.fleet, err = talos.New(talos.Config{World: w, Kubernetes: nodes{m.kube}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // certificates are of an hour ago
		test(m)
		m.fleet.Close()
		m.kube.Close()
		w.Close()
	})
}

// address is that of the n-th machine.
func address(n int) string { return fmt.Sprintf("10.5.0.%d", 10+n) }

// describe names the n-th machine; from the eleventh on they are workers.
func describe(n int) (name string, kind machine.Type) {
	if n > 10 {
		return fmt.Sprintf("w%d", n), machine.TypeWorker
	}
	return fmt.Sprintf("cp%d", n), machine.TypeControlPlane
}

// configure makes the n-th machine and gives it its config.
func (m *machines) configure(n int) {
	m.t.Helper()
	name, kind := describe(n)
	m.fleet.PowerOn(world.Guest{
		VMID: 400 + n, Name: name, Host: "pve1", UUID: fmt.Sprintf("00000000-0000-5000-8000-%012d", n), MAC: fmt.Sprintf("bc:24:11:00:00:%02x", n),
		Cores: 2, MemoryMiB: 4096, Address: netip.MustParsePrefix(address(n) + "/24"), Gateway: netip.MustParseAddr("10.5.0.1"),
		Boot: &world.Disk{Image: world.Image{Platform: "nocloud", Version: "v1.13.9"}},
	})
	time.Sleep(m.world.Latency.Boot + time.Second)
	contract := config.TalosVersion1_13
	in, err := generate.NewInput("lab", "https://10.5.0.11:6443", "1.36.1", generate.WithVersionContract(contract), generate.WithSecretsBundle(m.secrets))
	if err != nil {
		m.t.Fatal(err)
	}
	cfg, err := in.Config(kind)
	if err != nil {
		m.t.Fatal(err)
	}
	hostname, err := stdpatches.WithStaticHostname(contract, name)
	if err != nil {
		m.t.Fatal(err)
	}
	patch, err := configpatcher.LoadPatch(hostname)
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := configpatcher.Apply(configpatcher.WithConfig(cfg), []configpatcher.Patch{patch})
	if err != nil {
		m.t.Fatal(err)
	}
	if cfg, err = out.Config(); err != nil {
		m.t.Fatal(err)
	}
	data, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := m.connect(n, &tls.Config{InsecureSkipVerify: true}).ApplyConfiguration(m.within(5*time.Second), &machineapi.ApplyConfigurationRequest{Data: data}); err != nil {
		m.t.Fatal(err)
	}
	time.Sleep(m.world.Latency.Apply + 5*time.Second)
}

// cluster brings control planes up, with everything that runs on them.
func (m *machines) cluster(count int) {
	m.t.Helper()
	m.configure(1)
	if err := m.admin(1).Bootstrap(m.within(10*time.Second), &machineapi.BootstrapRequest{}); err != nil {
		m.t.Fatal(err)
	}
	for n := 2; n <= count; n++ {
		m.configure(n)
	}
	time.Sleep(10 * time.Minute)
}

func (m *machines) connect(n int, config *tls.Config) *client.Client {
	m.t.Helper()
	c, err := client.New(m.t.Context(), client.WithTLSConfig(config), client.WithEndpoints(address(n)),
		client.WithGRPCDialOptions(grpc.WithNoProxy(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return m.world.Net.DialContext(ctx, "tcp", addr)
		})))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = c.Close() })
	return c
}

// admin is a client of the n-th control plane.
func (m *machines) admin(n int) *client.Client {
	m.t.Helper()
	return m.connect(n, m.tls())
}

// tls are an administrator's credentials.
func (m *machines) tls() *tls.Config {
	m.t.Helper()
	bundle := *m.secrets
	bundle.Clock = secrets.NewFixedClock(time.Now())
	crt, err := bundle.GenerateTalosAPIClientCertificate(role.MakeSet(role.Admin))
	if err != nil {
		m.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(crt.Crt, crt.Key)
	if err != nil {
		m.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle.Certs.OS.Crt)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

func (m *machines) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), d)
	m.t.Cleanup(cancel)
	return ctx
}

// snapshot fetches a snapshot as Talos' client does.
func (m *machines) snapshot(n int) ([]byte, error) {
	r, err := m.admin(n).EtcdSnapshot(m.within(5*time.Second), &machineapi.EtcdSnapshotRequest{})
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// status is what a member shows of itself.
func (m *machines) status(n int) *machineapi.EtcdMemberStatus {
	m.t.Helper()
	resp, err := m.admin(n).EtcdStatus(m.within(5 * time.Second))
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.GetMessages()[0].GetMemberStatus()
}

// objects is a client of the n-th control plane's kube-apiserver, whose idle connections end with
// the test.
func (m *machines) objects(n int) dynamic.Interface {
	m.t.Helper()
	file, err := m.admin(n).Kubeconfig(m.within(5 * time.Second))
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(file)
	if err != nil {
		m.t.Fatal(err)
	}
	c.Host, c.Dial, c.QPS = "https://"+address(n)+":6443", m.world.Net.DialContext, -1
	plain, err := rest.HTTPClientFor(c)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(plain.CloseIdleConnections)
	d, err := dynamic.NewForConfigAndClient(c, plain)
	if err != nil {
		m.t.Fatal(err)
	}
	return d
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// keep makes a ConfigMap with a text, or gives it another.
func (m *machines) keep(name, text string) {
	m.t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{"text": text}}}
	if _, err := m.objects(1).Resource(configMaps).Namespace("default").Apply(m.within(time.Minute), name, o, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
		m.t.Fatal(err)
	}
}

// opened is a snapshot as whoever opens its file sees it.
type opened struct {
	revision uint64
	values   map[string][]byte // by key
	deleted  []string
	members  []string // their names
	index    uint64
}

// openSnapshot checks a snapshot as etcd does, and reads it with bbolt.
func openSnapshot(t *testing.T, data []byte) (o opened) {
	t.Helper()
	if len(data) < sha256.Size || len(data)%512 != sha256.Size {
		t.Fatalf("%d bytes are no snapshot", len(data))
	}
	body := data[:len(data)-sha256.Size]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], data[len(body):]) {
		t.Fatal("the hash is another one")
	}
	path := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	o.values = map[string][]byte{}
	if err := errors.Join(db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Error(err)
		}
		o.index = binary.BigEndian.Uint64(tx.Bucket([]byte("meta")).Get([]byte("consistent_index")))
		return errors.Join(tx.Bucket([]byte("members")).ForEach(func(_, value []byte) error {
			var member struct{ Name string }
			err := json.Unmarshal(value, &member)
			o.members = append(o.members, member.Name)
			return err
		}), tx.Bucket([]byte("key")).ForEach(func(rev, value []byte) error {
			o.revision = binary.BigEndian.Uint64(rev)
			key, text := readKey(t, value)
			if len(rev) == 18 {
				o.deleted = append(o.deleted, key)
				return nil
			}
			o.values[key] = text
			return nil
		}))
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
	return o
}

// readKey reads the key and the value of an mvccpb.KeyValue.
func readKey(t *testing.T, b []byte) (key string, value []byte) {
	t.Helper()
	for len(b) > 0 {
		field, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		_, _, tag := protowire.ConsumeTag(b)
		if typ == protowire.BytesType {
			text, _ := protowire.ConsumeBytes(b[tag:])
			switch field {
			case 1:
				key = string(text)
			case 5:
				value = bytes.Clone(text)
			}
		}
		b = b[n:]
	}
	return key, value
}

// TestSnapshotHoldsTheCluster: what a control plane sends as a snapshot of its etcd is a database of
// bbolt with the objects that its kube-apiserver serves, their revisions, and the members.
func TestSnapshotHoldsTheCluster(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(2)
		m.keep("kept", "first")
		m.keep("kept", "second")
		m.keep("dropped", "first")
		if err := m.objects(1).Resource(configMaps).Namespace("default").Delete(m.within(time.Minute), "dropped", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for n := 1; n <= 2; n++ {
			data, err := m.snapshot(n)
			if err != nil {
				t.Fatal(err)
			}
			st := m.status(n)
			o := openSnapshot(t, data)
			if size := int64(len(data) - sha256.Size); st.GetDbSize() != size || st.GetRaftIndex() != o.index || st.GetRaftIndex() < o.revision {
				t.Errorf("status %v of an etcd whose file has %d bytes, of index %d and revision %d", st, size, o.index, o.revision)
			}
			if fmt.Sprint(o.members) != "[cp1 cp2]" && fmt.Sprint(o.members) != "[cp2 cp1]" {
				t.Errorf("members %v", o.members)
			}
			if !slices.Contains(o.deleted, "/registry/configmaps/default/dropped") {
				t.Errorf("deletions %v", o.deleted)
			}
			var kept struct {
				APIVersion, Kind string
				Metadata         map[string]any
				Data             map[string]string
			}
			if err := json.Unmarshal(o.values["/registry/configmaps/default/kept"], &kept); err != nil {
				t.Fatal(err)
			}
			if kept.APIVersion != "v1" || kept.Kind != "ConfigMap" || kept.Data["text"] != "second" || kept.Metadata["uid"] == "" || kept.Metadata["resourceVersion"] != nil {
				t.Errorf("object %+v", kept)
			}
			for _, want := range []string{"/registry/minions/cp1", "/registry/minions/cp2", "/registry/namespaces/kube-system", "/registry/pods/kube-system/kube-apiserver-cp1",
				"/registry/services/specs/default/kubernetes", "/registry/services/endpoints/default/kubernetes", "/registry/deployments/kube-system/coredns"} {
				if o.values[want] == nil {
					t.Errorf("no key %s", want)
				}
			}
		}
	})
}

// TestSnapshotNeedsNoQuorum, but an etcd that runs.
func TestSnapshotNeedsNoQuorum(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(2)
		m.fleet.PowerOff(402)
		time.Sleep(time.Minute)
		data, err := m.snapshot(1)
		if err != nil {
			t.Fatal(err)
		}
		if o := openSnapshot(t, data); len(o.members) != 2 || o.values["/registry/minions/cp2"] == nil {
			t.Errorf("%d keys, members %v", len(o.values), o.members)
		}
		m.configure(3) // it finds nothing to join
		if _, err := m.snapshot(3); client.StatusCode(err) != codes.DeadlineExceeded {
			t.Errorf("a snapshot where no etcd runs: %v", err)
		}
	})
}

// window is how much of a stream is under way at most, before it is read.
const window = 1 << 16

// receive fetches a snapshot of the first control plane, with what came before an error.
func (m *machines) receive(each func()) (data []byte, err error) {
	m.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(address(1), strconv.Itoa(constants.ApidPort)), grpc.WithTransportCredentials(credentials.NewTLS(m.tls())),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return m.world.Net.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	stream, err := machineapi.NewMachineServiceClient(conn).EtcdSnapshot(m.within(time.Minute), &machineapi.EtcdSnapshotRequest{})
	for err == nil {
		part, failed := stream.Recv()
		if err = failed; err == nil {
			data = append(data, part.GetBytes()...)
			each()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data, err
}

// TestFaultsOfSnapshots: what can become of a snapshot on its way.
func TestFaultsOfSnapshots(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(1)
		good, err := m.receive(func() {})
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			kind world.FaultKind
			at   int
			want func() []byte // what arrives
			code codes.Code
		}{
			{world.BreakStream, 0, func() []byte { return nil }, codes.Unavailable},
			{world.BreakStream, 10_000, func() []byte { return good[:10_000] }, codes.Unavailable},
			{world.BreakStream, 1 << 30, func() []byte { return good }, codes.Unavailable},
			{world.EndStream, 10_000, func() []byte { return good[:10_000] }, codes.OK},
			{world.EndStream, len(good) - 32, func() []byte { return good[:len(good)-32] }, codes.OK},
			{world.FlipBit, 70_000, func() []byte { bad := bytes.Clone(good); bad[70_000] ^= 1; return bad }, codes.OK},
			{world.FlipBit, -1, func() []byte { bad := bytes.Clone(good); bad[len(bad)-1] ^= 1; return bad }, codes.OK},
		} {
			m.world.Inject(world.Fault{System: "talos", Op: "machine.MachineService/EtcdSnapshot", Subject: "cp1", Kind: tc.kind, Bytes: tc.at, Nth: 1})
			got, err := m.receive(func() {})
			if client.StatusCode(err) != tc.code || !bytes.Equal(got, tc.want()) {
				t.Errorf("%s at %d: %d of %d bytes, %v", tc.kind, tc.at, len(got), len(good), err)
			}
			m.world.Heal()
		}
		if again, err := m.receive(func() {}); err != nil || !bytes.Equal(again, good) {
			t.Errorf("without a fault: %d of %d bytes, %v", len(again), len(good), err)
		}
	})
}

// TestMachineDiesInTheStream: whoever reads a snapshot gets an error, and less than all.
func TestMachineDiesInTheStream(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(1)
		good, err := m.receive(func() {})
		if err != nil {
			t.Fatal(err)
		}
		if len(good) < window*3/2 {
			t.Fatalf("%d bytes may arrive before the machine dies", len(good))
		}
		dead := false
		got, err := m.receive(func() {
			if !dead {
				dead = true
				if err := m.fleet.Kill(401); err != nil {
					t.Error(err)
				}
			}
		})
		if client.StatusCode(err) != codes.Unavailable || len(got) == 0 || len(got) >= len(good) {
			t.Errorf("%d of %d bytes, %v", len(got), len(good), err)
		}
	})
}

// upload gives the n-th control plane a file to recover from.
func (m *machines) upload(n int, file []byte) error {
	_, err := m.admin(n).EtcdRecover(m.within(10*time.Second), bytes.NewReader(file))
	return err
}

// recover asks the n-th control plane to make an etcd of it.
func (m *machines) recover(n int, skipHash bool) error {
	return m.admin(n).Bootstrap(m.within(10*time.Second), &machineapi.BootstrapRequest{RecoverEtcd: true, RecoverSkipHashCheck: skipHash})
}

// etcdService is the state of the service of the n-th control plane, and its last event.
func (m *machines) etcdService(n int) string {
	m.t.Helper()
	list, err := m.admin(n).ServiceList(m.within(5 * time.Second))
	if err != nil {
		return err.Error()
	}
	for _, s := range list.GetMessages()[0].GetServices() {
		if events := s.GetEvents().GetEvents(); s.GetId() == "etcd" && len(events) > 0 {
			return s.GetState() + ": " + events[len(events)-1].GetMsg()
		}
	}
	return ""
}

// texts are the ConfigMaps of the namespace default by their names.
func (m *machines) texts(n int) map[string]string {
	m.t.Helper()
	list, err := m.objects(n).Resource(configMaps).Namespace("default").List(m.within(time.Minute), metav1.ListOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	texts := map[string]string{}
	for _, o := range list.Items {
		if text, ok, _ := unstructured.NestedString(o.Object, "data", "text"); ok {
			texts[o.GetName()] = text
		}
	}
	return texts
}

// isReady reports whether a Node is Ready.
func (m *machines) isReady(n int, node string) bool {
	m.t.Helper()
	o, err := m.objects(n).Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Get(m.within(time.Minute), node, metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition := c.(map[string]any)
		return condition["type"] == "Ready" && condition["status"] == "True"
	})
}

// ranges are the pod networks of the nodes.
func (m *machines) ranges() (ranges []string) {
	m.t.Helper()
	list, err := m.objects(1).Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).List(m.within(time.Minute), metav1.ListOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, o := range list.Items {
		cidr, _, _ := unstructured.NestedString(o.Object, "spec", "podCIDR")
		ranges = append(ranges, cidr)
	}
	slices.Sort(ranges)
	return ranges
}

// TestRecoveredCluster: the control planes of a cluster are lost. One that is made again, and given the
// last snapshot, has what the cluster had then; others join it, and a worker that ran all the time is
// a node of it.
func TestRecoveredCluster(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(3)
		m.configure(11)
		time.Sleep(5 * time.Minute)
		m.keep("kept", "first")
		crd := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.lab.io"},
			"spec": map[string]any{"group": "lab.io", "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}}
		if _, err := m.objects(1).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Create(m.within(time.Minute), crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		widgets := schema.GroupVersionResource{Group: "lab.io", Version: "v1", Resource: "widgets"}
		widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "lab.io/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{"size": int64(3)}}}
		if _, err := m.objects(1).Resource(widgets).Namespace("default").Create(m.within(time.Minute), widget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		data, err := m.snapshot(2)
		if err != nil {
			t.Fatal(err)
		}
		saved := openSnapshot(t, data)
		m.keep("kept", "second")
		m.keep("later", "first")
		for n := 1; n <= 3; n++ {
			m.fleet.PowerOff(400 + n)
		}

		m.configure(1)
		if err := m.upload(1, data); err != nil {
			t.Fatal(err)
		}
		if err := m.recover(1, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(m.world.Latency.Etcd + 2*time.Second)
		st := m.status(1)
		if st.GetMemberId() != 11578889183172514425 || st.GetRaftTerm() != 2 || st.GetRaftIndex() != 6 || st.GetLeader() != st.GetMemberId() {
			t.Errorf("status %v", st)
		}
		again, err := m.snapshot(1)
		if err != nil {
			t.Fatal(err)
		}
		o := openSnapshot(t, again)
		if o.revision != saved.revision || len(o.values) != len(saved.values) || fmt.Sprint(o.members) != "[cp1]" {
			t.Errorf("revision %d, %d keys, members %v of a snapshot with revision %d and %d keys", o.revision, len(o.values), o.members, saved.revision, len(saved.values))
		}
		for key, value := range saved.values {
			if !bytes.Equal(o.values[key], value) {
				t.Errorf("%s is %s, was %s", key, o.values[key], value)
			}
		}
		if err := m.recover(1, false); client.StatusCode(err) != codes.AlreadyExists {
			t.Errorf("a second recovery: %v", err)
		}

		time.Sleep(5 * time.Minute)
		seen := map[string]int{}
		for _, o := range m.kube.Objects("", configMaps, "default") {
			seen[o.GetName()]++
		}
		if seen["kept"] != 1 || seen["later"] != 0 {
			t.Errorf("ConfigMaps %v: those of the etcd before are seen", seen)
		}
		if texts := m.texts(1); texts["kept"] != "first" || texts["later"] != "" {
			t.Errorf("texts %v", texts)
		}
		if w, err := m.objects(1).Resource(widgets).Namespace("default").Get(m.within(time.Minute), "w", metav1.GetOptions{}); err != nil {
			t.Error(err)
		} else if size, _, _ := unstructured.NestedInt64(w.Object, "spec", "size"); size != 3 {
			t.Errorf("widget %v", w)
		}
		if !m.isReady(1, "cp1") || m.isReady(1, "cp2") || m.isReady(1, "cp3") || !m.isReady(1, "w11") {
			t.Error("nodes are not Ready as their machines are")
		}
		m.keep("kept", "third")
		kept, err := m.objects(1).Resource(configMaps).Namespace("default").Get(m.within(time.Minute), "kept", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if rv, err := strconv.ParseUint(kept.GetResourceVersion(), 10, 64); err != nil || rv <= saved.revision {
			t.Errorf("version %s after revision %d", kept.GetResourceVersion(), saved.revision)
		}

		m.configure(2)
		m.configure(3)
		m.configure(12)
		time.Sleep(10 * time.Minute)
		if ranges := m.ranges(); len(ranges) != 5 || len(slices.Compact(slices.Clone(ranges))) != 5 {
			t.Errorf("pod networks %v", ranges)
		}
		if !m.isReady(3, "cp2") || !m.isReady(3, "cp3") || m.texts(3)["kept"] != "third" {
			t.Error("the others are no part of the cluster")
		}
		if v := m.world.Violations(); len(v) > 0 {
			t.Errorf("broken rules %v", v)
		}
	})
}

// TestBadSnapshots: a file is taken whatever it is, and what is wrong with it is in the events of the
// service alone. (Talos 1.13.9: recorded.)
func TestBadSnapshots(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(1)
		good, err := m.snapshot(1)
		if err != nil {
			t.Fatal(err)
		}
		flipped := bytes.Clone(good)
		flipped[bytes.Index(flipped, []byte("kube-root-ca.crt"))] ^= 1
		wait := m.world.Latency.Etcd + time.Second
		for _, tc := range []struct {
			what string
			file []byte // nil: nothing is uploaded
			skip bool
			want string // of the service
			left bool   // the data directory is not empty
		}{
			{"nothing", nil, false, "Failed: Failed to run pre stage: error verifying snapshot: stat /var/lib/etcd.snapshot: no such file or directory", false},
			{"no snapshot", []byte("this is no snapshot"), false, "Failed: Failed to run pre stage: error verifying snapshot: invalid database", false},
			{"no hash", good[:len(good)-32], false, "Failed: Failed to run pre stage: error recovering from the snapshot: snapshot missing hash but --skip-hash-check=false", true},
			{"a flipped bit", flipped, false, "Failed: Failed to run pre stage: error recovering from the snapshot: expected sha256 [", true},
			{"no hash, which is skipped", good[:len(good)-32], true, "Running: Health check successful", true},
			{"a flipped bit, and the hash is skipped", flipped, true, "Running: Health check successful", true},
			{"a good one", good, false, "Running: Health check successful", true},
		} {
			m.fleet.PowerOff(401)
			m.configure(1)
			if tc.file != nil {
				if err := m.upload(1, tc.file); err != nil {
					t.Errorf("%s: upload: %v", tc.what, err)
				}
			}
			if err := m.recover(1, tc.skip); err != nil {
				t.Errorf("%s: %v", tc.what, err)
			}
			time.Sleep(wait)
			if got := m.etcdService(1); !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s: %s", tc.what, got)
			}
			err := m.recover(1, tc.skip)
			if code := client.StatusCode(err); tc.left && code != codes.AlreadyExists || !tc.left && code != codes.OK {
				t.Errorf("%s, again: %v", tc.what, err)
			}
		}
	})
}

// TestRefusedSnapshotStaysInTheWay until the data directory is emptied: no upload helps, nor a reboot.
func TestRefusedSnapshotStaysInTheWay(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(1)
		good, err := m.snapshot(1)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(good)
		bad[len(bad)-1] ^= 1
		m.configure(2)
		m.fleet.PowerOff(401)
		m.fleet.PowerOff(402)
		m.configure(2)
		if err := errors.Join(m.upload(2, bad), m.recover(2, false)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := errors.Join(m.fleet.Reboot(402), m.bringBack(2)); err != nil {
			t.Fatal(err)
		}
		if got := m.etcdService(2); strings.HasPrefix(got, "Preparing") {
			t.Errorf("it looks for an etcd to join: %s", got)
		}
		if err := m.upload(2, good); err != nil {
			t.Fatal(err)
		}
		for _, in := range []*machineapi.BootstrapRequest{{RecoverEtcd: true}, {}} {
			if err := m.admin(2).Bootstrap(m.within(10*time.Second), in); client.StatusCode(err) != codes.AlreadyExists {
				t.Errorf("bootstrap %v: %v", in, err)
			}
		}
		if _, err := m.admin(2).EtcdStatus(m.within(5 * time.Second)); client.StatusCode(err) != codes.DeadlineExceeded {
			t.Errorf("etcd answers: %v", err)
		}
		wipe := &machineapi.ResetRequest{Reboot: true, SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{{Label: constants.EphemeralPartitionLabel, Wipe: true}}}
		if err := errors.Join(m.admin(2).ResetGeneric(m.within(time.Minute), wipe), m.bringBack(2)); err != nil {
			t.Fatal(err)
		}
		if err := m.recover(2, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if got := m.etcdService(2); !strings.Contains(got, "no such file") {
			t.Errorf("the upload was not wiped: %s", got)
		}
		if err := errors.Join(m.upload(2, good), m.recover(2, false)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if !m.isReady(2, "cp2") {
			t.Error("the node is not Ready")
		}
	})
}

// bringBack waits until a machine has booted again.
func (m *machines) bringBack(n int) error {
	time.Sleep(time.Minute)
	_, err := m.admin(n).Version(m.within(5 * time.Second))
	return err
}

// TestTruncatedSnapshotKillsTheMachine: the upload and Bootstrap are OK, and then nothing answers until
// the machine is power cycled.
func TestTruncatedSnapshotKillsTheMachine(t *testing.T) {
	withMachines(t, func(m *machines) {
		m.cluster(1)
		good, err := m.snapshot(1)
		if err != nil {
			t.Fatal(err)
		}
		m.fleet.PowerOff(401)
		m.configure(1)
		if err := errors.Join(m.upload(1, good[:len(good)/2]), m.recover(1, false)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if _, err := m.admin(1).Version(m.within(5 * time.Second)); client.StatusCode(err) != codes.Unavailable {
			t.Errorf("it answers: %v", err)
		}
	})
}
