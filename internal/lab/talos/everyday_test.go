//lint:file-ignore SA1019 clients of older versions of Talos make these calls, and every version of the lab answers them

package talos_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// PodsOn implements world.Containers: control planes run their static pods.
func (k *books) PodsOn(_, node string) []world.Pod {
	if n, ok := k.kubelet(node); !ok || !n.Control {
		return nil
	}
	return []world.Pod{{Namespace: "kube-system", Name: "kube-apiserver-" + node, UID: "11111111-0000-4000-8000-000000000001",
		Containers: []world.Container{{Name: "kube-apiserver", Image: "registry.k8s.io/kube-apiserver:v1.36.1"}}}}
}

// CanPull implements world.Containers.
func (k *books) CanPull(image string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !strings.HasPrefix(image, "dead.example/") && (k.closed == "" || !strings.HasPrefix(image, k.closed))
}

// closeRegistry has the registry give out nothing; "": all do, but the one that is never there.
func (k *books) closeRegistry(prefix string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = prefix
}

// receiveAll reads a stream to its end.
func receiveAll[T any](stream grpc.ServerStreamingClient[T], err error) (all []*T, _ error) {
	for err == nil {
		var m *T
		if m, err = stream.Recv(); err == nil {
			all = append(all, m)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return all, err
}

func textOf(all []*common.Data) string {
	var text strings.Builder
	for _, d := range all {
		text.Write(d.GetBytes())
	}
	return text.String()
}

// cri is the containerd that runs images.
func cri(namespace common.ContainerdNamespace) *common.ContainerdInstance {
	return &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: namespace}
}

// everydayReads are the calls behind commands of talosctl that people type every day.
// Each returns what is not as it should be on a running control plane with 2 cores
// and 2048 MiB, one hour after its boot.
var everydayReads = []struct {
	command string
	ask     func(context.Context, *client.Client) error
}{
	{"version", func(ctx context.Context, c *client.Client) error {
		r, err := c.Version(ctx)
		return expect(err, r.GetMessages()[0].GetVersion().GetTag() == "v1.13.9", r)
	}},
	{"service kubelet", func(ctx context.Context, c *client.Client) error {
		r, err := c.ServiceInfo(ctx, "kubelet")
		return expect(err, len(r) == 1 && r[0].Service.GetState() == "Running" && r[0].Service.GetHealth().GetHealthy(), r)
	}},
	{"memory", func(ctx context.Context, c *client.Client) error {
		r, err := c.Memory(ctx)
		m := r.GetMessages()[0].GetMeminfo()
		return expect(err, m.GetMemtotal() > 1900<<10 && m.GetMemtotal() < 2048<<10 && m.GetMemavailable() < m.GetMemtotal() && m.GetMemfree() < m.GetMemavailable(), m)
	}},
	{"get loadavg", func(ctx context.Context, c *client.Client) error {
		r, err := c.MachineClient.LoadAvg(ctx, nil)
		m := r.GetMessages()[0]
		return expect(err, m.GetLoad1() > 0 && m.GetLoad1() < m.GetLoad15(), m)
	}},
	{"stats", func(ctx context.Context, c *client.Client) error {
		r, err := c.Stats(ctx, constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD)
		return expect(err, len(r.GetMessages()[0].GetStats()) == 2 && r.GetMessages()[0].GetStats()[0].GetMemoryUsage() > 0, r)
	}},
	{"processes", func(ctx context.Context, c *client.Client) error {
		r, err := c.Processes(ctx)
		var names []string
		for _, p := range r.GetMessages()[0].GetProcesses() {
			names = append(names, p.GetCommand())
		}
		return expect(err, names[0] == "init" && slices.Contains(names, "etcd") && slices.Contains(names, "kubelet") && slices.Contains(names, "kube-apiserver"), names)
	}},
	{"mounts", func(ctx context.Context, c *client.Client) error {
		r, err := c.Mounts(ctx)
		i := slices.IndexFunc(r.GetMessages()[0].GetStats(), func(m *machineapi.MountStat) bool { return m.GetMountedOn() == "/var" })
		if i < 0 {
			return fmt.Errorf("no EPHEMERAL: %v", r)
		}
		m := r.GetMessages()[0].GetStats()[i]
		return expect(err, m.GetSize() > 17<<30 && m.GetSize() < 20<<30 && m.GetAvailable() < m.GetSize(), m)
	}},
	{"dmesg", func(ctx context.Context, c *client.Client) error {
		all, err := receiveAll(c.Dmesg(ctx, false, false))
		text := textOf(all)
		return expect(err, strings.Contains(text, "Brought up 1 node, 2 CPUs\n") && strings.Contains(text, "[talos] service[etcd](Running): Health check successful\n"), text)
	}},
	{"time", func(ctx context.Context, c *client.Client) error {
		r, err := c.Time(ctx)
		m := r.GetMessages()[0]
		return expect(err, m.GetServer() == "time.cloudflare.com" && m.GetLocaltime().AsTime().Equal(m.GetRemotetime().AsTime()), m)
	}},
	{"containers", func(ctx context.Context, c *client.Client) error {
		r, err := c.Containers(ctx, constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD)
		list := r.GetMessages()[0].GetContainers()
		return expect(err, len(list) == 2 && list[0].GetId() == "apid" && list[0].GetPid() == 98 && list[1].GetId() == "trustd", r)
	}},
	{"containers -k", func(ctx context.Context, c *client.Client) error {
		r, err := c.Containers(ctx, constants.K8sContainerdNamespace, common.ContainerDriver_CRI)
		list := r.GetMessages()[0].GetContainers()
		return expect(err, len(list) == 2 && list[0].GetStatus() == "SANDBOX_READY" && strings.HasPrefix(list[1].GetId(), "kube-system/kube-apiserver-cp1:kube-apiserver:"), r)
	}},
	{"image list", func(ctx context.Context, c *client.Client) error {
		return expectImages(ctx, c, common.ContainerdNamespace_NS_CRI, "registry.k8s.io/kube-apiserver:v1.36.1", "registry.k8s.io/pause:3.10.1")
	}},
	{"image list --namespace system", func(ctx context.Context, c *client.Client) error {
		return expectImages(ctx, c, common.ContainerdNamespace_NS_SYSTEM, "ghcr.io/siderolabs/kubelet:v1.36.1")
	}},
	{"image list of a client of v1.12", func(ctx context.Context, c *client.Client) error {
		all, err := receiveAll(c.ImageList(ctx, common.ContainerdNamespace_NS_SYSTEM))
		return expect(err, slices.ContainsFunc(all, func(i *machineapi.ImageListResponse) bool { return i.GetName() == "ghcr.io/siderolabs/kubelet:v1.36.1" }), all)
	}},
	{"get KIND: what a word means", func(ctx context.Context, c *client.Client) error {
		for word, want := range map[string]string{"mc": configres.MachineConfigType, "disks": block.DiskType, "members": cluster.MemberType, "Services.v1alpha1.talos.dev": v1alpha1.ServiceType} {
			var namespace string
			rd, err := c.ResolveResourceKind(ctx, &namespace, word)
			if err == nil && (rd.TypedSpec().Type != want || namespace != rd.TypedSpec().DefaultNamespace) {
				err = fmt.Errorf("%q is %s in %q", word, rd.TypedSpec().Type, namespace)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"get members", func(ctx context.Context, c *client.Client) error {
		r, err := safe.StateListAll[*cluster.Member](ctx, c.COSI)
		return expect(err, r.Len() == 1, r)
	}},
	{"get nodename", func(ctx context.Context, c *client.Client) error {
		r, err := safe.StateGetByID[*k8s.Nodename](ctx, c.COSI, k8s.NodenameID)
		if err != nil {
			return err
		}
		return expect(nil, r.TypedSpec().Nodename == "cp1", r.TypedSpec())
	}},
	{"get machinestatus", func(ctx context.Context, c *client.Client) error {
		r, err := safe.StateGetByID[*runtimeres.MachineStatus](ctx, c.COSI, runtimeres.MachineStatusID)
		if err != nil {
			return err
		}
		return expect(nil, r.TypedSpec().Stage == runtimeres.MachineStageRunning && r.TypedSpec().Status.Ready, r.TypedSpec())
	}},
	{"get disks", func(ctx context.Context, c *client.Client) error {
		r, err := safe.StateListAll[*block.Disk](ctx, c.COSI)
		if err != nil {
			return err
		}
		return expect(nil, r.Len() == 1 && r.Get(0).TypedSpec().Size == 20<<30 && r.Get(0).Metadata().ID() == "sda", r)
	}},
	{"health: disk sizes", func(ctx context.Context, c *client.Client) error {
		r, err := safe.StateGetByID[*block.VolumeStatus](ctx, c.COSI, constants.EphemeralPartitionLabel)
		if err != nil {
			return err
		}
		return expect(nil, r.TypedSpec().Phase == block.VolumePhaseReady && r.TypedSpec().Size > 17<<30, r.TypedSpec())
	}},
	{"health: diagnostics", func(ctx context.Context, c *client.Client) error {
		r, err := safe.StateListAll[*runtimeres.Diagnostic](ctx, c.COSI)
		return expect(err, r.Len() == 0, r)
	}},
	{"health: whether Talos brings the CNI", func(ctx context.Context, c *client.Client) error {
		r, err := safe.StateGetByID[*k8s.BootstrapManifestsConfig](ctx, c.COSI, k8s.BootstrapManifestsConfigID)
		if err != nil {
			return err
		}
		return expect(nil, r.TypedSpec().CNIName == "flannel" && r.TypedSpec().ProxyEnabled, r.TypedSpec())
	}},
	{"disks of a client of v1.7", func(ctx context.Context, c *client.Client) error {
		r, err := c.Disks(ctx)
		return expect(err, len(r.GetMessages()[0].GetDisks()) == 1 && r.GetMessages()[0].GetDisks()[0].GetSize() == 20<<30, r)
	}},
	{"etcd members", func(ctx context.Context, c *client.Client) error {
		r, err := c.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
		return expect(err, len(r.GetMessages()[0].GetMembers()) == 1, r)
	}},
	{"etcd status", func(ctx context.Context, c *client.Client) error {
		r, err := c.EtcdStatus(ctx)
		return expect(err, r.GetMessages()[0].GetMemberStatus().GetLeader() != 0, r)
	}},
	{"list /", func(ctx context.Context, c *client.Client) error {
		all, err := receiveAll(c.LS(ctx, &machineapi.ListRequest{Root: "/"}))
		var names []string
		for _, f := range all {
			names = append(names, f.GetRelativeName())
		}
		return expect(err, names[0] == "." && slices.Contains(names, "proc") && slices.Contains(names, "var") && !slices.Contains(names, "proc/cmdline"), names)
	}},
	{"read /proc/cmdline", func(ctx context.Context, c *client.Client) error {
		r, err := c.Read(ctx, "/proc/cmdline")
		if err != nil {
			return err
		}
		defer r.Close()
		text, err := io.ReadAll(r)
		return expect(err, strings.HasPrefix(string(text), "talos.platform=nocloud "), string(text))
	}},
	{"logs kubelet", func(ctx context.Context, c *client.Client) error {
		all, err := receiveAll(c.Logs(ctx, constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD, "kubelet", false, -1))
		return expect(err, strings.Contains(textOf(all), `"Kubelet version" kubeletVersion="v1.36.1"`), textOf(all))
	}},
	{"logs", func(ctx context.Context, c *client.Client) error {
		r, err := c.LogsContainers(ctx)
		return expect(err, slices.Contains(r.GetMessages()[0].GetIds(), "etcd"), r)
	}},
	{"dashboard", func(ctx context.Context, c *client.Client) error {
		stat, err := c.MachineClient.SystemStat(ctx, nil)
		if err := expect(err, len(stat.GetMessages()[0].GetCpu()) == 2, stat); err != nil {
			return err
		}
		total := stat.GetMessages()[0].GetCpuTotal()
		up := time.Since(time.Unix(int64(stat.GetMessages()[0].GetBootTime()), 0)).Seconds()
		if spent := total.GetUser() + total.GetSystem() + total.GetIdle() + total.GetIowait() + total.GetSoftIrq(); spent < 2*up-4 || spent > 2*up+4 {
			return fmt.Errorf("2 cores have spent %v s in %v s", spent, up)
		}
		info, err := c.MachineClient.CPUInfo(ctx, nil)
		if err := expect(err, len(info.GetMessages()[0].GetCpuInfo()) == 2, info); err != nil {
			return err
		}
		freq, err := c.MachineClient.CPUFreqStats(ctx, nil)
		if err := expect(err, len(freq.GetMessages()[0].GetCpuFreqStats()) == 2, freq); err != nil {
			return err
		}
		disks, err := c.MachineClient.DiskStats(ctx, nil)
		if err := expect(err, disks.GetMessages()[0].GetTotal().GetWriteSectors() > 0 && disks.GetMessages()[0].GetDevices()[0].GetName() == "sda", disks); err != nil {
			return err
		}
		links, err := c.MachineClient.NetworkDeviceStats(ctx, nil)
		if err := expect(err, len(links.GetMessages()[0].GetDevices()) == 2, links); err != nil {
			return err
		}
		name, err := c.MachineClient.Hostname(ctx, nil)
		return expect(err, name.GetMessages()[0].GetHostname() == "cp1", name)
	}},
}

// expect is nil when a call went well and its answer is as it should be.
func expect(err error, right bool, got any) error {
	if err == nil && !right {
		err = fmt.Errorf("unexpected answer: %v", got)
	}
	return err
}

func expectImages(ctx context.Context, c *client.Client, namespace common.ContainerdNamespace, want ...string) error {
	all, err := receiveAll(c.ImageClient.List(ctx, &machineapi.ImageServiceListRequest{Containerd: cri(namespace)}))
	for _, ref := range want {
		if err == nil && !slices.ContainsFunc(all, func(i *machineapi.ImageServiceListResponse) bool { return i.GetName() == ref && i.GetSize() > 0 }) {
			err = fmt.Errorf("%s is not among %v", ref, all)
		}
	}
	return err
}

// bringEveryday brings up a control plane that runs for an hour.
func bringEveryday(l *lab) node {
	g := cp(1).guest("v1.13.9")
	g.Boot.Bytes = 20 << 30
	l.fleet.PowerOn(g)
	time.Sleep(l.world.Latency.Boot + time.Second)
	l.apply(cp(1), l.config(cp(1), "v1.13.9"))
	time.Sleep(l.world.Latency.Apply + 3*time.Second)
	l.bootstrap(cp(1))
	time.Sleep(time.Hour)
	return cp(1)
}

// TestEverydayReads asks a running machine whatever people ask every day, as an
// administrator and, but for what only that one may, as a reader.
func TestEverydayReads(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		n := bringEveryday(l)
		for name, c := range map[string]*client.Client{"admin": l.admin(n), "reader": l.connect(n.ip, l.tls(role.Reader))} {
			for _, r := range everydayReads {
				err := r.ask(within(time.Minute), c)
				if name == "reader" && strings.HasPrefix(r.command, "read ") {
					if grpcstatus.Code(err) != codes.PermissionDenied {
						t.Errorf("talosctl %s as a reader: %v", r.command, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("talosctl %s as %s: %v", r.command, name, err)
				}
			}
		}
	})
}

// TestEverydayConfigs asks what the kubelet and the static pods are to be, as talosctl health
// does.
func TestEverydayConfigs(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		n := bringEveryday(l)
		ctx, admin := within(time.Minute), l.admin(n)
		images := map[string]string{}
		if r, err := safe.StateGetByID[*k8s.APIServerConfig](ctx, admin.COSI, k8s.APIServerConfigID); err == nil {
			images["kube-apiserver"] = r.TypedSpec().Image
		}
		if r, err := safe.StateGetByID[*k8s.ControllerManagerConfig](ctx, admin.COSI, k8s.ControllerManagerConfigID); err == nil && r.TypedSpec().Enabled {
			images["kube-controller-manager"] = r.TypedSpec().Image
		}
		if r, err := safe.StateGetByID[*k8s.SchedulerConfig](ctx, admin.COSI, k8s.SchedulerConfigID); err == nil && r.TypedSpec().Enabled {
			images["kube-scheduler"] = r.TypedSpec().Image
		}
		for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			if images[name] != "registry.k8s.io/"+name+":v1.36.1" {
				t.Errorf("image of %s: %q", name, images[name])
			}
		}
		kubelet, err := safe.StateGetByID[*k8s.KubeletConfig](ctx, admin.COSI, k8s.KubeletID)
		if err != nil {
			t.Fatal(err)
		}
		if k := kubelet.TypedSpec(); k.Image != "ghcr.io/siderolabs/kubelet:v1.36.1" || k.ClusterDomain != "cluster.local" || !slices.Equal(k.ClusterDNS, []string{"10.96.0.10"}) {
			t.Errorf("kubelet: %+v", k)
		}
		if _, err := safe.StateListAll[*k8s.KubeletConfig](ctx, l.connect(n.ip, l.tls(role.Reader)).COSI); grpcstatus.Code(err) != codes.PermissionDenied {
			t.Errorf("a reader sees the arguments of the kubelet: %v", err)
		}
	})
}

// TestEverydayMaintenance asks a machine without a config: its containerd for images
// does not run, and files are for administrators.
func TestEverydayMaintenance(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.fleet.PowerOn(wk(1).guest("v1.13.9"))
		time.Sleep(l.world.Latency.Boot + time.Second)
		c := l.insecure(wk(1))
		mounts, err := c.Mounts(within(time.Minute))
		if err != nil || slices.ContainsFunc(mounts.GetMessages()[0].GetStats(), func(m *machineapi.MountStat) bool { return m.GetMountedOn() == "/var" }) {
			t.Errorf("mounts in maintenance mode: %v %v", mounts, err)
		}
		list, err := c.Containers(within(time.Minute), constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD)
		if err != nil || len(list.GetMessages()[0].GetContainers()) != 1 {
			t.Errorf("containers in maintenance mode: %v %v", list, err)
		}
		for name, tc := range map[string]struct {
			err  error
			want codes.Code
		}{
			"image list, 8 s":  {second(receiveAll(c.ImageList(within(8*time.Second), common.ContainerdNamespace_NS_CRI))), codes.DeadlineExceeded},
			"image list, 60 s": {second(receiveAll(c.ImageList(within(time.Minute), common.ContainerdNamespace_NS_CRI))), codes.Unavailable},
			"containers -k":    {second(c.Containers(within(time.Minute), constants.K8sContainerdNamespace, common.ContainerDriver_CRI)), codes.Unavailable},
			"restart":          {second(c.ServiceRestart(within(time.Minute), "apid")), codes.PermissionDenied},
			"image pull":       {c.ImagePull(within(time.Minute), common.ContainerdNamespace_NS_CRI, "x"), codes.PermissionDenied},
		} {
			if got := grpcstatus.Code(tc.err); got != tc.want {
				t.Errorf("%s in maintenance mode: %v, want %v", name, tc.err, tc.want)
			}
		}
		if _, err := c.ServiceInfo(within(time.Minute), "cri"); err != nil {
			t.Error(err)
		}
		if v := l.view(wk(1)); v.Stage != maintenance {
			t.Errorf("reading made it %s", v.Stage)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestEverydayPulls pulls images: what was pulled is listed, survives a reboot, and
// is not pulled again.
func TestEverydayPulls(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		n := bringEveryday(l)
		c := l.admin(n)
		pull := func(ref string, in *common.ContainerdInstance) (int, error) {
			all, err := receiveAll(c.ImageClient.Pull(within(20*time.Second), &machineapi.ImageServicePullRequest{Containerd: in, ImageRef: ref}))
			if err == nil && !strings.HasPrefix(all[len(all)-1].GetName(), "docker.io/library/nginx@sha256:") {
				t.Errorf("pulled %v", all)
			}
			return len(all), err
		}
		system := cri(common.ContainerdNamespace_NS_SYSTEM)
		for i, want := range []int{3, 1} { // two messages of its layer and its name, then the name alone
			if got, err := pull("nginx:1.29", system); err != nil || got != want {
				t.Errorf("pull %d: %d messages, %v, want %d", i, got, err, want)
			}
		}
		for ref, want := range map[string]codes.Code{"registry.k8s.io/nosuch:v1": codes.NotFound, "dead.example/a:1": codes.DeadlineExceeded, "": codes.Unknown} {
			if _, err := pull(ref, system); grpcstatus.Code(err) != want {
				t.Errorf("pull %q: %v, want %v", ref, err, want)
			}
		}
		if _, err := pull("nginx:1.29", &common.ContainerdInstance{Namespace: common.ContainerdNamespace_NS_CRI}); grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("pull to the CRI's namespace of the system's containerd: %v", err)
		}
		if err := c.Reboot(within(time.Minute)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(l.world.Latency.Boot + time.Minute)
		if err := expectImages(within(time.Minute), l.admin(n), common.ContainerdNamespace_NS_SYSTEM, "docker.io/library/nginx:1.29"); err != nil {
			t.Errorf("after a reboot: %v", err)
		}
	})
}

// eventText is one event in a line.
func eventText(e client.Event) string {
	switch p := e.Payload.(type) {
	case *machineapi.SequenceEvent:
		return fmt.Sprintf("%s %s %s", p.GetSequence(), p.GetAction(), p.GetError().GetCode())
	case *machineapi.MachineStatusEvent:
		return fmt.Sprintf("%s %v", p.GetStage(), p.GetStatus().GetReady())
	case *machineapi.ServiceStateEvent:
		return fmt.Sprintf("%s %s: %s", p.GetService(), p.GetAction(), p.GetMessage())
	case *machineapi.PhaseEvent:
		return fmt.Sprintf("phase %s %s", p.GetPhase(), p.GetAction())
	case *machineapi.TaskEvent:
		return fmt.Sprintf("task %s %s", p.GetTask(), p.GetAction())
	}
	return fmt.Sprintf("%T", e.Payload)
}

// TestEverydayEvents watches a machine reboot: events of its past come first, what
// happens follows, and the stream ends with the machine.
func TestEverydayEvents(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		n := bringEveryday(l)
		c := l.admin(n)
		watch := func(options ...client.EventsOptionFunc) <-chan client.EventResult {
			ch := make(chan client.EventResult, 200)
			if err := c.EventsWatchV2(within(time.Minute), ch, options...); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			return ch
		}
		all, tail := watch(client.WithTailEvents(-1)), watch(client.WithTailEvents(2))
		if len(tail) != 2 {
			t.Fatalf("the last 2 events are %d", len(tail))
		}
		past := make([]client.Event, len(all))
		for i := range past {
			past[i] = (<-all).Event
		}
		if first := eventText(past[0]); first != "initialize START FATAL" {
			t.Errorf("the first event is %q", first)
		}
		last := past[len(past)-1]
		if got := (<-tail).Event.ID; got != past[len(past)-2].ID {
			t.Errorf("the last but one event is %s, want %s", got, past[len(past)-2].ID)
		}
		if (<-tail).Event.ID != last.ID {
			t.Error("the tail does not end with the last event")
		}
		if since := watch(client.WithTailID(past[3].ID)); len(since) != len(past)-4 {
			t.Errorf("%d events since the fourth of %d", len(since), len(past))
		}
		fresh := watch()
		if len(fresh) != 0 {
			t.Errorf("%d events without anything happening", len(fresh))
		}
		for i := range 2 {
			if err := c.Reboot(within(time.Minute)); err != nil {
				t.Fatalf("reboot %d: %v", i, err)
			}
		}
		var got []string
		var end error
		for end == nil {
			r := <-fresh
			if end = r.Error; end == nil {
				got = append(got, eventText(r.Event))
			}
		}
		want := []string{"reboot START FATAL", "phase cleanup START", "task stopAllPods START",
			"kubelet STOPPING: Sending SIGTERM to task kubelet (PID 239, container kubelet)", "REBOOTING true", "reboot NOOP LOCKED",
			"kubelet FINISHED: Service finished successfully", "task stopAllPods STOP", "phase cleanup STOP",
			"phase dbus START", "task stopDBus START", "task stopDBus STOP", "phase dbus STOP",
			"phase stopServices START", "task stopServicesForUpgrade START",
			"trustd STOPPING: Sending SIGTERM to task trustd (PID 400, container trustd)", "etcd STOPPING: Sending SIGTERM to task etcd (PID 400, container etcd)",
			"trustd FINISHED: Service finished successfully", "etcd FINISHED: Service finished successfully",
			`cri STOPPING: Sending SIGTERM to Process(["/bin/containerd" "--address" "/run/containerd/containerd.sock" "--config" "/etc/cri/containerd.toml"])`,
			"cri FINISHED: Service finished successfully", "task stopServicesForUpgrade STOP", "phase stopServices STOP",
			"phase stopEverything START", "task stopAllServices START"}
		if !slices.Equal(got, want) {
			t.Errorf("events of a reboot asked for twice:\n%s", strings.Join(got, "\n"))
		}
		if !errors.Is(end, io.EOF) {
			t.Errorf("the stream ends with %v", end)
		}
	})
}

// TestEverydayEventsOfSeveral asks two machines through one of them.
func TestEverydayEventsOfSeveral(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1), cp(2))
		ctx, cancel := context.WithTimeout(client.WithNodes(context.Background(), cp(1).ip, cp(2).ip), time.Minute)
		defer cancel()
		stream, err := l.admin(cp(1)).Events(ctx, client.WithTailEvents(1))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for range 4 {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			seen[e.GetMetadata().GetHostname()]++
		}
		if seen[cp(1).ip] != 2 || seen[cp(2).ip] != 2 {
			t.Errorf("events of %v", seen)
		}
	})
}

// TestEverydayRestart restarts services: the kubelet comes back with another process
// and its node stays, etcd is not restarted for a caller.
func TestEverydayRestart(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		n := bringEveryday(l)
		c := l.admin(n)
		r, err := c.ServiceRestart(within(time.Minute), "kubelet")
		if err != nil || r.GetMessages()[0].GetResp() != `Service "kubelet" restarted` {
			t.Fatalf("restart kubelet: %v %v", r, err)
		}
		if status(t, c).Status.Ready {
			t.Error("ready while the kubelet starts")
		}
		time.Sleep(10 * time.Second)
		info, err := c.ServiceInfo(within(time.Minute), "kubelet")
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, e := range info[0].Service.GetEvents().GetEvents() {
			texts = append(texts, e.GetMsg())
		}
		for _, want := range []string{"Sending SIGTERM to task kubelet (PID 239, container kubelet)", "Started task kubelet (PID 329) for container kubelet"} {
			if !slices.Contains(texts, want) {
				t.Errorf("no event %q in\n%s", want, strings.Join(texts, "\n"))
			}
		}
		if s := status(t, c); !s.Status.Ready || s.Stage != runtimeres.MachineStageRunning {
			t.Errorf("status after the restart: %+v", s)
		}
		if v := l.view(n); !v.NodeReady {
			t.Error("the node was taken away")
		}
		for id, want := range map[string]string{
			"etcd": `service "etcd" doesn't support restart operation via API`, "nosuch": `service "nosuch" not defined`,
		} {
			if _, err := c.ServiceRestart(within(time.Minute), id); grpcstatus.Convert(err).Message() != want {
				t.Errorf("restart %s: %v", id, err)
			}
		}
		if _, err := c.ServiceStop(within(time.Minute), "kubelet"); grpcstatus.Convert(err).Message() != `service "kubelet" doesn't support stop operation via API` {
			t.Errorf("stop kubelet: %v", err)
		}
	})
}

// TestEverydayExtension stops and starts the service of an extension.
func TestEverydayExtension(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		g := cp(1).guest("v1.13.9", "siderolabs/qemu-guest-agent")
		g.Agent = true
		l.fleet.PowerOn(g)
		time.Sleep(l.world.Latency.Boot + time.Second)
		l.apply(cp(1), l.config(cp(1), "v1.13.9"))
		time.Sleep(l.world.Latency.Apply + 3*time.Second)
		c, id := l.admin(cp(1)), "ext-qemu-guest-agent"
		state := func() string {
			info, err := c.ServiceInfo(within(time.Minute), id)
			if err != nil || len(info) != 1 {
				t.Fatalf("service %s: %v %v", id, info, err)
			}
			return info[0].Service.GetState()
		}
		for _, step := range []struct {
			do   func() error
			want string
		}{
			{func() error { return second(c.ServiceStop(within(time.Minute), id)) }, "Finished"},
			{func() error { return second(c.ServiceStop(within(time.Minute), id)) }, "Finished"}, // it is so already
			{func() error { return second(c.ServiceStart(within(time.Minute), id)) }, "Running"},
			{func() error { return second(c.ServiceRestart(within(time.Minute), id)) }, "Running"},
		} {
			if err := step.do(); err != nil || state() != step.want {
				t.Errorf("%v, %s is %s, want %s", err, id, state(), step.want)
			}
		}
	})
}

// TestDiskCopies boots a machine from a copy of what it kept, after a wipe.
func TestDiskCopies(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		g := wk(1).guest("v1.13.9")
		boot := func() string {
			l.fleet.PowerOn(g)
			time.Sleep(l.world.Latency.Boot + time.Minute)
			return l.stage(wk(1))
		}
		boot()
		l.apply(wk(1), l.config(wk(1), "v1.13.9"))
		time.Sleep(time.Minute)
		copied := l.fleet.CopyContents(g.Boot)
		l.fleet.PowerOff(wk(1).vmid)
		g.Boot.Contents = nil
		if got := boot(); got != maintenance {
			t.Errorf("without contents: %s", got)
		}
		l.fleet.PowerOff(wk(1).vmid)
		g.Boot.Contents = copied
		if boot(); !l.view(wk(1)).Configured {
			t.Error("it does not know its config")
		}
	})
}

// TestEverydayTime asks a machine that has lost its time server.
func TestEverydayTime(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		if err := l.fleet.Desync(cp(1).vmid, true); err != nil {
			t.Fatal(err)
		}
		_, err := l.admin(cp(1)).Time(within(time.Minute))
		if grpcstatus.Code(err) != codes.Unknown || !strings.Contains(err.Error(), `error querying NTP server "time.cloudflare.com"`) {
			t.Errorf("time of a machine without a time server: %v", err)
		}
	})
}
