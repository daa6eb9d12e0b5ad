package talos_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestReplay puts the recorded requests to real nodes before the lab, in the
// state and at the time they were made, and compares the answers.
func TestReplay(t *testing.T) {
	dir := os.Getenv("TALOS_AGENT_RECORDINGS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared")
	}
	dir = filepath.Join(dir, "talos", "recorded")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no recordings of real Talos: %v (set TALOS_AGENT_RECORDINGS to their folder)", err)
	}
	var all, agree int
	for _, sc := range scenarios {
		lines := readExchanges(t, filepath.Join(dir, sc.file), sc.keep)
		if len(lines) == 0 {
			t.Errorf("%s: nothing to replay", sc.file)
		}
		t.Run(sc.name, func(t *testing.T) {
			r := &replay{name: sc.name}
			inBubbleWith(t, world.Config{Latency: sc.latency}, func(c *talos.Config) { c.Step = cmp.Or(sc.step, seconds(0.85)) }, func(l *lab) {
				l.kube.byAct = true
				r.begin(l)
				sc.prepare(r)
				r.run(lines, sc.meanwhile)
			})
			all += len(lines)
			agree += len(lines) - len(r.differ)
			r.judge(t, lines)
		})
	}
	t.Logf("%d of %d recorded exchanges agree", agree, all)
	// The count is that of the lines that are gRPC and whose state the lab can
	// be brought to; see scenarios.
	const reached = 539
	if agree < reached {
		t.Errorf("%d agree, %d did before", agree, reached)
	}
}

// scenario is one recording, or a part of it, with the state it begins in.
type scenario struct {
	name, file string
	keep       func(exchange) bool
	latency    world.Latencies
	step       time.Duration // of services; 0: as in most recordings
	prepare    func(*replay)
	// meanwhile lists what happens outside of the calls, by time.
	meanwhile map[float64]func(*replay)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

var scenarios = []scenario{
	{
		name: "A", file: "exchanges-A-maintenance.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(1.25), Apply: seconds(0.18)},
		prepare: func(r *replay) { r.fleet.PowerOn(cp(1).guest("v1.13.9")) },
	},
	{
		name: "B", file: "exchanges-B-after-apply.jsonl",
		latency: world.Latencies{Call: 1, Boot: seconds(1.25), Apply: seconds(0.18)},
		prepare: func(r *replay) { r.fleet.PowerOn(cp(1).guest("v1.13.9")) },
	},
	{
		name: "C", file: "exchanges-C-bootstrap.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: seconds(0.15), Etcd: seconds(4.9)},
		prepare: func(r *replay) {
			r.configured(cp(1))
			r.booted(wk(1))
		},
		meanwhile: map[float64]func(*replay){
			98.66:  func(r *replay) { r.kube.say("cp1", false) },
			100.44: func(r *replay) { r.kube.say("w1", false) },
			107.22: func(r *replay) { r.kube.say("w1", true) },
			109.02: func(r *replay) { r.kube.say("cp1", true) },
		},
	},
	{
		name: "D", file: "exchanges-D-second-controlplane.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: seconds(0.2), Etcd: 1, Learn: seconds(22.9)},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.booted(cp(2))
		},
		meanwhile: map[float64]func(*replay){
			6.775: func(r *replay) { r.kube.say("cp2", false) },
			7.008: func(r *replay) { r.kube.say("cp2", true) },
		},
	},
	{
		name: "E", file: "exchanges-E-configured-apply.jsonl",
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(wk(1))
		},
	},
	{
		name: "F", file: "exchanges-F-lab-reboot-reset-upgrade.jsonl",
		keep:    func(x exchange) bool { return strings.HasPrefix(x.Stage, "1") || strings.HasPrefix(x.Stage, "2") },
		latency: world.Latencies{Call: 1, Boot: seconds(13.3275), Apply: 1, Etcd: 1}, step: seconds(0.575),
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(wk(1))
			r.kube.say("w1", true)
		},
		meanwhile: map[float64]func(*replay){
			14.6:  func(r *replay) { r.kube.say("w1", false) },
			16.15: func(r *replay) { r.kube.say("w1", true) },
			37.12: func(r *replay) { r.kube.say("w1", false) },
			38.5:  func(r *replay) { r.kube.say("w1", true) },
		},
	},
	{
		name: "F6", file: "exchanges-F-lab-reboot-reset-upgrade.jsonl",
		keep:    func(x exchange) bool { return strings.HasPrefix(x.Stage, "6") },
		latency: world.Latencies{Call: 1, Boot: seconds(14.38), Apply: 1, Etcd: 1, Learn: 1},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(cp(2))
			r.kube.say("cp2", true)
			time.Sleep(5 * time.Second)
		},
	},
	{
		name: "G", file: "exchanges-G-wrong-usage.jsonl",
		keep:    func(x exchange) bool { return x.Seq <= 68 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1, Learn: 1},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.configured(cp(2))
			r.configured(wk(1))
			time.Sleep(5 * time.Second)
			r.kube.say("w1", true)
			if _, err := r.admin(cp(1)).EtcdForfeitLeadership(within(time.Second), &machineapi.EtcdForfeitLeadershipRequest{}); err != nil {
				r.t.Fatal(err)
			}
			// A host without Talos at the gateway's address, and what listens
			// on other ports.
			for _, addr := range []string{"10.5.0.1:1"} {
				ln, err := r.world.Net.Listen(addr)
				if err != nil {
					r.t.Fatal(err)
				}
				r.t.Cleanup(func() { _ = ln.Close() })
			}
		},
	},
	{
		name: "G2", file: "exchanges-G-wrong-usage.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 69 && x.Seq <= 71 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: 1, Etcd: 1},
		prepare: func(r *replay) { r.founded(cp(1)) },
	},
	{
		name: "G3", file: "exchanges-G-wrong-usage.jsonl",
		keep:    func(x exchange) bool { return x.Seq >= 72 },
		latency: world.Latencies{Call: 1, Boot: 1, Apply: seconds(0.02), Etcd: seconds(2.8)},
		prepare: func(r *replay) {
			r.founded(cp(1))
			r.booted(cp(2))
		},
		meanwhile: map[float64]func(*replay){
			3.5: func(r *replay) { r.kube.say("cp2", false) },
			5.5: func(r *replay) { r.kube.say("cp2", true) },
		},
	},
}

// exchange is one line of a recording.
type exchange struct {
	Seq         int             `json:"seq"`
	Stage       string          `json:"stage"`
	Endpoint    string          `json:"endpoint"`
	TLS         string          `json:"tls"`
	NodesHeader []string        `json:"nodes_header"`
	Method      string          `json:"method"`
	Request     map[string]any  `json:"request"`
	Response    any             `json:"response"`
	Messages    []any           `json:"messages"`
	End         string          `json:"end"`
	Error       *recordedError  `json:"error"`
	At          float64         `json:"at"`
	Seconds     float64         `json:"seconds"`
	Deadline    float64         `json:"deadline"`
	Note        string          `json:"note"`
	Poll        *recordedPoll   `json:"poll"`
	raw         json.RawMessage `json:"-"`
}

type recordedError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type recordedPoll struct {
	FirstAt float64 `json:"first_at"`
	LastAt  float64 `json:"last_at"`
	Conn    string  `json:"conn"`
}

// readExchanges reads what can be replayed of a recording: Kubernetes' own API
// is another face's.
func readExchanges(t *testing.T, file string, keep func(exchange) bool) []exchange {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []exchange
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var x exchange
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if strings.HasPrefix(x.Method, "HTTPS ") || keep != nil && !keep(x) {
			continue
		}
		out = append(out, x)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// replay is one scenario under way.
type replay struct {
	*lab
	name   string
	origin time.Time

	mu      sync.Mutex
	foreign *secrets.Bundle
	applied map[string][]byte // by address: the last config that was really applied
	before  map[string][]byte // and the one before a try
	staged  map[string][]byte
	differ  map[int]string // by line: how the lab's answer differs
}

func (r *replay) begin(l *lab) {
	r.lab, r.differ = l, map[int]string{}
	r.applied, r.before, r.staged = map[string][]byte{}, map[string][]byte{}, map[string][]byte{}
	var err error
	r.foreign, err = secrets.NewBundle(secrets.NewFixedClock(time.Now()), config.TalosVersionCurrent, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		l.t.Fatal(err)
	}
}

// The states a recording may begin in.

func (r *replay) booted(n node) {
	r.fleet.PowerOn(n.guest("v1.13.9"))
	time.Sleep(r.world.Latency.Boot + 2*time.Second)
}

func (r *replay) configured(n node) {
	r.booted(n)
	data := r.config(n, "v1.13.9")
	r.applied[n.ip] = data
	r.apply(n, data)
	time.Sleep(r.world.Latency.Apply + 5*time.Second)
}

func (r *replay) founded(n node) {
	r.configured(n)
	r.bootstrap(n)
	time.Sleep(r.world.Latency.Etcd + r.world.Latency.ImagePull + r.world.Latency.API + 3*time.Second)
	r.kube.say(n.name, true)
	time.Sleep(20 * time.Second)
}

// run makes every recorded call at its time.
func (r *replay) run(lines []exchange, meanwhile map[float64]func(*replay)) {
	r.origin = time.Now()
	if start := lines[0].first(); start > 100 {
		r.origin = r.origin.Add(-seconds(start)) // the later part of a recording
	}
	var wg sync.WaitGroup
	for at, act := range meanwhile {
		wg.Go(func() {
			time.Sleep(time.Until(r.origin.Add(seconds(at))))
			act(r)
		})
	}
	for _, x := range lines {
		for i, at := range []float64{x.first(), x.last()} {
			if i > 0 && x.last() == x.first() {
				break
			}
			wg.Go(func() {
				time.Sleep(time.Until(r.origin.Add(seconds(at))))
				if diff := r.ask(x); diff != "" {
					r.mu.Lock()
					r.differ[x.Seq] = fmt.Sprintf("at %v: %s", at, diff)
					r.mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
}

func (x exchange) first() float64 {
	if x.Poll != nil {
		return x.Poll.FirstAt
	}
	if slices.Contains([]string{"Reboot", "Reset", "Bootstrap", "ApplyConfiguration"}, x.Method[strings.LastIndexByte(x.Method, '/')+1:]) {
		return x.At - 0.0005 // ahead of the polls of the same millisecond
	}
	return x.At
}

func (x exchange) last() float64 {
	// When a client gets through again on a connection it kept is a matter of
	// its own back-off.
	if x.Poll != nil && x.Poll.Conn != "one connection" {
		return x.Poll.LastAt
	}
	if x.Poll != nil {
		return x.Poll.FirstAt
	}
	return x.first()
}

// judge reports every line that differs and is not excused, and every excuse
// that is needed no more.
func (r *replay) judge(t *testing.T, lines []exchange) {
	for _, x := range lines {
		key := fmt.Sprintf("%s/%d", r.name, x.Seq)
		diff, why := r.differ[x.Seq], excused(key)
		switch {
		case diff != "" && why == "":
			t.Errorf("%s %s %s (%s) %s: %s", key, x.TLS, x.Method, x.Stage, x.Note, diff)
		case diff != "":
			t.Logf("%s %s differs: %s", key, x.Method, why)
		case why != "":
			t.Errorf("%s %s agrees, although it is listed: %s", key, x.Method, why)
		}
	}
}

// ask makes one call and returns how the answer differs, "" when it agrees.
func (r *replay) ask(x exchange) string {
	got := r.call(x)
	want := answer{Response: x.Response, End: x.End}
	for _, m := range x.Messages {
		if mm, ok := m.(map[string]any); ok && mm["message"] != nil {
			m = mm["message"]
		}
		want.Messages = append(want.Messages, m)
	}
	if x.Error != nil {
		want.Code, want.Message = x.Error.Code, x.Error.Message
	}
	want, got = normal(want), normal(got)
	if x.Poll != nil && strings.HasSuffix(x.Method, "/ServiceList") {
		forget(got.Response, "events") // so were the recorded ones
	}
	if strings.HasPrefix(x.Note, "only memberId") {
		forget(got.Response, "protocolVersion", "storageVersion")
	}
	if r.name == "G3" && x.Endpoint == "10.5.0.12:50000" && strings.HasSuffix(x.Method, "/EtcdMemberList") && x.Request["queryLocal"] == nil && got.Response != nil {
		// Which of the two clusters answers is chance.
		forget(want.Response, "legacyMembers", "members")
		forget(got.Response, "legacyMembers", "members")
	}
	return gocmp.Diff(want, got)
}

// forget removes fields wherever they are.
func forget(v any, fields ...string) {
	switch v := v.(type) {
	case map[string]any:
		for _, f := range fields {
			delete(v, f)
		}
		for _, e := range v {
			forget(e, fields...)
		}
	case []any:
		for _, e := range v {
			forget(e, fields...)
		}
	}
}

// answer is what came back, in the form of the recording.
type answer struct {
	Code, Message string
	Response      any
	Messages      []any
	End           string
}

// call makes the call of a line.
func (r *replay) call(x exchange) answer {
	patience := seconds(x.Deadline)
	if x.Error != nil && x.Error.Code == codes.Canceled.String() {
		patience = seconds(x.Seconds)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch len(x.NodesHeader) {
	case 0:
	case 1:
		ctx = metadata.AppendToOutgoingContext(ctx, "node", x.NodesHeader[0])
	default:
		for _, n := range x.NodesHeader {
			ctx = metadata.AppendToOutgoingContext(ctx, "nodes", n)
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+x.Endpoint, grpc.WithTransportCredentials(credentials.NewTLS(r.credentials(x.TLS))),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return r.world.Net.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		r.t.Error(err)
		return answer{}
	}
	defer conn.Close()
	req, resp, stream := r.request(x)
	var got answer
	if stream {
		got, err = r.stream(ctx, conn, x, req, resp)
	} else {
		err = conn.Invoke(ctx, "/"+x.Method, req, resp)
		if err == nil {
			got.Response = toJSON(r.t, resp)
		}
	}
	if err != nil {
		st := grpcstatus.Convert(err)
		got.Code, got.Message = st.Code().String(), st.Message()
	} else if x.Method == "machine.MachineService/ApplyConfiguration" {
		r.remember(x, req)
	}
	return got
}

func (r *replay) stream(ctx context.Context, conn *grpc.ClientConn, x exchange, req, resp proto.Message) (answer, error) {
	var got answer
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+x.Method)
	if err != nil {
		return got, err
	}
	// A server that refuses closes the stream before it has read: what it says
	// is in RecvMsg.
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return got, err
	}
	if err := s.CloseSend(); err != nil {
		return got, err
	}
	for {
		m := resp.ProtoReflect().New().Interface()
		err := s.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			got.End = "EOF"
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got.Messages = append(got.Messages, toJSON(r.t, m))
	}
}

func toJSON(t *testing.T, m proto.Message) any {
	data, err := protojson.Marshal(m)
	if err != nil {
		t.Error(err)
		return nil
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Error(err)
	}
	return v
}

// request makes the request message of a line.
func (r *replay) request(x exchange) (req, resp proto.Message, stream bool) {
	service, method, _ := strings.Cut(x.Method, "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	var md protoreflect.MethodDescriptor
	if err == nil {
		md = d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	}
	if md == nil {
		return &emptypb.Empty{}, &emptypb.Empty{}, false
	}
	message := func(name protoreflect.FullName) proto.Message {
		t, err := protoregistry.GlobalTypes.FindMessageByName(name)
		if err != nil {
			r.t.Error(err)
			return &emptypb.Empty{}
		}
		return t.New().Interface()
	}
	req, resp = message(md.Input().FullName()), message(md.Output().FullName())
	if a, ok := req.(*machineapi.ApplyConfigurationRequest); ok {
		r.applyRequest(x, a)
		return req, resp, false
	}
	data, err := json.Marshal(x.Request)
	if err != nil {
		r.t.Error(err)
	}
	if err := protojson.Unmarshal(data, req); err != nil {
		r.t.Errorf("%s/%d: %v", r.name, x.Seq, err)
	}
	if a, ok := req.(*machineapi.ResetRequest); ok {
		// The recorded node was a container: what it wiped were its config and
		// its data, not the disk Talos is on.
		for _, label := range []string{constants.StatePartitionLabel, constants.EphemeralPartitionLabel} {
			a.SystemPartitionsToWipe = append(a.SystemPartitionsToWipe, &machineapi.ResetPartitionSpec{Label: label, Wipe: true})
		}
	}
	return req, resp, md.IsStreamingServer()
}

// credentials are those of the client a line was recorded with.
func (r *replay) credentials(kind string) *tls.Config {
	switch kind {
	case "insecure":
		return &tls.Config{InsecureSkipVerify: true}
	case "mtls":
		return r.tls(role.Admin)
	case "mtls (os:reader)":
		return r.tls(role.Reader)
	case "mtls-skipverify":
		c := r.tls(role.Admin)
		c.InsecureSkipVerify = true
		return c
	case "wrong-ca":
		return clientTLS(r.t, r.foreign, role.Admin)
	case "wrong-ca-skipverify":
		c := clientTLS(r.t, r.foreign, role.Admin)
		c.InsecureSkipVerify, c.RootCAs = true, x509.NewCertPool()
		return c
	}
	r.t.Errorf("unknown kind of client %q", kind)
	return &tls.Config{}
}

// Machine configs were removed from the recordings; what each was is said in
// words.

func (r *replay) applyRequest(x exchange, a *machineapi.ApplyConfigurationRequest) {
	words, _ := x.Request["data"].(string)
	a.DryRun, _ = x.Request["dryRun"].(bool)
	mode, _ := x.Request["mode"].(string)
	a.Mode = machineapi.ApplyConfigurationRequest_Mode(machineapi.ApplyConfigurationRequest_Mode_value[mode])
	if s, ok := x.Request["tryModeTimeout"].(string); ok {
		d, err := time.ParseDuration(s)
		if err != nil {
			r.t.Error(err)
		}
		a.TryModeTimeout = durationpb.New(d)
	}
	a.Data = r.data(x, words)
}

func (r *replay) data(x exchange, words string) []byte {
	if text, ok := strings.CutPrefix(words, "text: "); ok {
		return []byte(text)
	}
	ip, _, _ := net.SplitHostPort(x.Endpoint)
	nodes := []node{cp(1), cp(2), wk(1)}
	n := nodes[slices.IndexFunc(nodes, func(n node) bool { return n.ip == ip })]
	fresh := r.config(n, "v1.13.9")
	r.mu.Lock()
	current, before, staged := r.applied[ip], r.before[ip], r.staged[ip]
	r.mu.Unlock()
	if current == nil {
		current = fresh
	}
	has := func(s string) bool { return strings.Contains(words, s) }
	patch := func(p string) []byte { return r.patched(current, p) }
	switch {
	case has("valid worker machine config"):
		return r.config(wk(1), "v1.13.9")
	case has("plus a second HostnameConfig"):
		return append(bytes.Clone(fresh), "---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: other\n"...)
	case has(`endpoint is "https://"`):
		return bytes.Replace(fresh, []byte("endpoint: https://10.5.0.11:6443"), []byte("endpoint: https://"), 1)
	case has("valid control plane machine config"):
		return fresh
	case has("the staged config"):
		return staged
	case has("before the try"):
		return before
	case has("the same"), has("the active config"):
		return current
	case has("machine.nodeLabels"):
		return patch(fmt.Sprintf("machine: {nodeLabels: {changed: line-%d}}", x.Seq))
	case has("machine.install.disk"):
		return patch("machine: {install: {disk: /dev/sdz}}")
	case has("machine.install.image"):
		return patch("machine: {install: {image: example.org/installer:v1}}")
	case has("machine.kubelet.image"):
		return patch("machine: {kubelet: {image: example.org/kubelet:v1.36.2}}")
	case has("cluster.clusterName"):
		return patch("cluster: {clusterName: other}")
	case has("cluster.apiServer.image"):
		return patch("cluster: {apiServer: {image: example.org/kube-apiserver:v1.36.2}}")
	case has("machine.env"):
		return patch("machine: {env: {CHANGED: yes}}")
	case has("machine.token"):
		return patch("machine: {token: abcdef.0123456789abcdef}")
	case has("machine.type"):
		return bytes.Replace(current, []byte("type: worker"), []byte("type: controlplane"), 1)
	}
	r.t.Errorf("%s/%d: what is %q?", r.name, x.Seq, words)
	return nil
}

func (r *replay) patched(data []byte, patch string) []byte {
	p, err := configpatcher.LoadPatch([]byte(patch))
	if err != nil {
		r.t.Error(err)
		return nil
	}
	out, err := configpatcher.Apply(configpatcher.WithBytes(data), []configpatcher.Patch{p})
	if err != nil {
		r.t.Error(err)
		return nil
	}
	b, err := out.Bytes()
	if err != nil {
		r.t.Error(err)
	}
	return b
}

// remember keeps what was applied for later lines to refer to.
func (r *replay) remember(x exchange, req proto.Message) {
	a := req.(*machineapi.ApplyConfigurationRequest)
	if a.DryRun {
		return
	}
	ip, _, _ := net.SplitHostPort(x.Endpoint)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch a.Mode {
	case machineapi.ApplyConfigurationRequest_STAGED:
		r.staged[ip] = a.Data
	case machineapi.ApplyConfigurationRequest_TRY:
		r.before[ip] = r.applied[ip]
	default:
		r.applied[ip] = a.Data
	}
}

// normal takes out of an answer what must differ between two worlds: times,
// numbers that grow, secrets, and what is said of the platform.
func normal(a answer) answer {
	a.Message = normalText(a.Message)
	a.Response = normalValue(a.Response)
	for i := range a.Messages {
		a.Messages[i] = normalValue(a.Messages[i])
	}
	if a.Code == codes.DeadlineExceeded.String() || a.Code == codes.Canceled.String() {
		a.Code, a.Message = "<the caller gave up>", ""
	}
	if resp, ok := a.Response.(map[string]any); ok {
		if list, ok := resp["messages"].([]any); ok {
			// Answers of several machines come in any order.
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(hostOf(a), hostOf(b)) })
		}
	}
	return a
}

func hostOf(v any) string {
	m, _ := v.(map[string]any)
	md, _ := m["metadata"].(map[string]any)
	host, _ := md["hostname"].(string)
	return host
}

// rewrites make texts comparable. Each says why it may.
var rewrites = []struct {
	re  *regexp.Regexp
	to  string
	why string
}{
	{regexp.MustCompile(`(?s)(Config diff:\n\n|\ndiff:\n)(---|<diff>).*`), "$1<diff>", "diffs were cut"},
	{regexp.MustCompile(`(?s).*Error while dialing: dial tcp (\S+?):\d*:?.*(connection refused|no route to host).*`), "<cannot dial>", "the network in memory knows hosts only by what listens on them"},
	{regexp.MustCompile(`(?s).*(error reading server preface|broken pipe|closed pipe|connection reset by peer|closed network|EOF).*`), "<cut off by the server>", "which of these a client sees is chance, also in life"},
	{regexp.MustCompile(`\t\* feature HostDNS [^\n]*container mode[^\n]*\n`), "", "the recorded node was a container"},
	{regexp.MustCompile(`\d+ errors? occurred`), "N errors occurred", "because of those two"},
	{regexp.MustCompile(`\(line \d+\)`), "(line N)", "another config"},
	{regexp.MustCompile(`PID \d+`), "PID N", "process ids"},
	{regexp.MustCompile(`dns: .*`), "dns: <error>", "there is no DNS in the lab"},
	{regexp.MustCompile(`decode error: .*(did not find expected .*)`), "decode error: $1", "another version of the YAML library"},
	{regexp.MustCompile(`fe80:[0-9a-f:]+`), "<link-local>", "other hardware addresses"},
	{regexp.MustCompile(`\beth0\b`), "ens18", "the recorded node was a container"},
}

func normalText(s string) string {
	for _, rw := range rewrites {
		s = rw.re.ReplaceAllString(s, rw.to)
	}
	return s
}

// dropped are fields that no two runs share.
var dropped = []string{"created", "updated", "version:metadata", "protoSpec", "bookmark", "ts", "lastChange", "actorId", "dbSize", "dbSizeInUse",
	"raftIndex", "raftAppliedIndex", "raftTerm", "sha", "goVersion", "nodeId"}

func normalValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["summary"]; ok {
			return map[string]any{"bytes": "<bytes>"}
		}
		if _, ok := v["text"]; ok {
			return map[string]any{"bytes": "<bytes>"}
		}
		out := map[string]any{}
		for k, e := range v {
			_, isResource := v["namespace"]
			switch {
			case slices.Contains(dropped, k), k == "version" && isResource:
			case k == "bytes", k == "ca", k == "crt", k == "key", k == "talosconfig":
				out[k] = "<bytes>"
			case k == "platform":
				out[k] = "<platform>"
			case k == "memberId", k == "leader", k == "id" && isDecimal(e):
				out[k] = memberName(e)
			case k == "yamlSpec":
				out[k] = normalSpec(e)
			default:
				out[k] = normalValue(e)
			}
		}
		if md, ok := out["metadata"].(map[string]any); ok {
			switch md["type"] {
			case "MachineConfigs.config.talos.dev", "OSRootSecrets.secrets.talos.dev":
				out["spec"] = "<secret>"
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = normalValue(e)
		}
		return out
	case string:
		return normalText(v)
	}
	return v
}

func isDecimal(v any) bool {
	s, ok := v.(string)
	return ok && len(s) > 15 && strings.Trim(s, "0123456789") == ""
}

// memberName tells etcd members apart: the founder's id follows from its
// address, others' from the time too.
func memberName(v any) string {
	if v == "15953761862159307578" {
		return "the founder at 10.5.0.11"
	}
	return "another"
}

var (
	specMAC    = regexp.MustCompile(`[0-9a-f]{2}(:[0-9a-f]{2}){5}`)
	specMember = regexp.MustCompile(`memberID: [0-9a-f]+`)
	specPlat   = regexp.MustCompile(`platform: \w+`)
	specNode   = regexp.MustCompile(`nodeId: \S+`)
)

func normalSpec(v any) any {
	s, ok := v.(string)
	if !ok {
		return v
	}
	s = normalText(s)
	s = specMAC.ReplaceAllString(s, "<mac>")
	s = strings.NewReplacer(`"<mac>"`, "<mac>", `'<mac>'`, "<mac>").Replace(s)
	s = specMember.ReplaceAllString(s, "memberID: <id>")
	s = specPlat.ReplaceAllString(s, "platform: <platform>")
	return specNode.ReplaceAllString(s, "nodeId: <id>")
}

// excuses are the lines whose answer differs, with the reason. They are looked
// at anew when one of them agrees.
var excuses = []struct {
	why   string
	lines []string
}{
	{"a container has no SMBIOS; the lab's machines are virtual machines", []string{"A/8", "C/68"}},
	{"the recorded link was a veth pair's end, the lab's is a virtio network card", []string{"A/15", "C/75"}},
	{"the recorded link had come up a moment ago and its IPv6 address was tentative", []string{"A/14"}},
	{"the lab validates with the library of v1.14.1, which no longer asks for the endpoint in this place", []string{"A/57", "A/60", "E/57", "E/59"}},
	{"the lab validates with the library of v1.14.1, which finds one more error", []string{"E/45", "E/46", "E/47", "E/48", "E/49"}},
	{"the recorded node spoke as a configured one for a moment before it asked for certificates; the lab's goes from one to the other", []string{"B/4", "B/5"}},
	{"the recorded proxy kept a connection and backed off; the lab's dials anew", []string{"F/30", "F/67"}},
	{"not possible in a container, not played by the lab", []string{"G/36", "G/37"}},
	{"the lab does not play image pulls", []string{"G/40"}},
	{"the network in memory refuses an address nobody has at once", []string{"G/58", "G/60"}},
	{"another program on another port, which this face does not play", []string{"G/66", "G/67", "G/68"}},
}

// excused says why a line differs, "" when it should not.
func excused(key string) string {
	for _, e := range excuses {
		if slices.Contains(e.lines, key) {
			return e.why
		}
	}
	return ""
}
