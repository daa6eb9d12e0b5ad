package talos_test

import (
	"bufio"
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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
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
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/lab/talos"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestReplay puts the recorded requests to real nodes before the lab, in the
// state and at the time they were made, and compares the answers.
func TestReplay(t *testing.T) {
	dir := golden.Recordings(t, "talos", "recorded")
	var all, agree int
	files := map[string]bool{}
	for _, sc := range scenarios {
		files[sc.file] = true
		lines := readExchanges(t, filepath.Join(dir, sc.file), sc.keep)
		if len(lines) == 0 {
			t.Errorf("%s: nothing to replay", sc.file)
		}
		t.Run(sc.name, func(t *testing.T) {
			r := &replay{name: sc.name}
			inBubbleWith(t, world.Config{Latency: sc.latency}, func(c *talos.Config) { c.Step, c.Stop = cmp.Or(sc.step, seconds(0.85)), sc.stop }, func(l *lab) {
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
	golden.CheckShown(t, fmt.Sprintf("Talos 1.13.9, %d recordings", len(files)), agree, all)
}

// exchange is one line of a recording.
type exchange struct {
	Seq         int            `json:"seq"`
	Stage       string         `json:"stage"`
	Endpoint    string         `json:"endpoint"`
	TLS         string         `json:"tls"`
	NodesHeader []string       `json:"nodes_header"`
	Method      string         `json:"method"`
	Request     map[string]any `json:"request"`
	Response    any            `json:"response"`
	Messages    []any          `json:"messages"`
	End         string         `json:"end"`
	Error       *recordedError `json:"error"`
	At          float64        `json:"at"`
	Seconds     float64        `json:"seconds"`
	Deadline    float64        `json:"deadline"`
	Note        string         `json:"note"`
	Poll        *recordedPoll  `json:"poll"`
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
// is another service's.
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
	guests map[int]world.Guest

	patches  []string // of the configs of the machines
	snapshot []byte   // of the cluster that there was before

	mu      sync.Mutex
	foreign *secrets.Bundle
	applied map[string][]byte // by address: the last config that was really applied
	before  map[string][]byte // and the one before a try
	tried   map[string][]byte
	staged  map[string][]byte
	differ  map[int]string // by line: how the lab's answer differs

	// Members of etcd, where a recording has those of more than one run: in the recording and here.
	theirs, ours *memberNames
}

func (r *replay) begin(l *lab) {
	r.lab, r.differ, r.guests = l, map[int]string{}, map[int]world.Guest{}
	r.applied, r.before, r.tried, r.staged = map[string][]byte{}, map[string][]byte{}, map[string][]byte{}, map[string][]byte{}
	var err error
	r.foreign, err = secrets.NewBundle(secrets.NewFixedClock(time.Now()), config.TalosVersionCurrent, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		l.t.Fatal(err)
	}
}

// The states a recording may begin in.

func (r *replay) booted(n node) {
	r.guests[n.vmid] = n.guest("v1.13.9")
	r.powerOn(n)
	time.Sleep(r.world.Latency.Boot + 2*time.Second)
}

// powerOn switches a machine on again, with the disk it had.
func (r *replay) powerOn(n node) { r.fleet.PowerOn(r.guests[n.vmid]) }

func (r *replay) configured(n node) {
	r.given(n)
	time.Sleep(r.world.Latency.Apply + 5*time.Second)
}

// given is a node that has just been given its config.
func (r *replay) given(n node) {
	r.booted(n)
	data := r.config(n, "v1.13.9", r.patches...)
	r.applied[n.ip] = data
	r.apply(n, data)
}

func (r *replay) founded(n node) {
	r.configured(n)
	r.bootstrap(n)
	time.Sleep(r.world.Latency.Etcd + r.world.Latency.ImagePull + r.world.Latency.API + 3*time.Second)
	r.kube.setReady(n.name, true)
	time.Sleep(20 * time.Second)
}

// run makes every recorded call at its time.
func (r *replay) run(lines []exchange, meanwhile map[float64]func(*replay)) {
	if r.name >= "I" && r.name != "M1" { // it was not asked for its members
		r.theirs, r.ours = newMemberNames(), newMemberNames()
		for _, x := range lines {
			r.theirs.learn(x.Response)
		}
		for _, n := range []node{cp(1), cp(2), cp(3)} {
			resp, err := r.admin(n).EtcdMemberList(within(time.Second), &machineapi.EtcdMemberListRequest{})
			if err == nil {
				r.ours.learn(toJSON(r.t, resp))
			}
		}
	}
	r.origin = time.Now()
	start := lines[0].first()
	for _, x := range lines {
		start = min(start, x.first())
	}
	if start > 100 {
		r.origin = r.origin.Add(-seconds(start - 0.01)) // the later part of a recording
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
	if slices.Contains([]string{"Reboot", "Reset", "Bootstrap", "ApplyConfiguration", "EtcdLeaveCluster", "EtcdRemoveMemberByID", "Upgrade"}, x.Method[strings.LastIndexByte(x.Method, '/')+1:]) {
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

// copyValue copies what was read from JSON.
func copyValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = copyValue(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = copyValue(e)
		}
		return out
	}
	return v
}

// ask makes one call and returns how the answer differs, "" when it agrees.
func (r *replay) ask(x exchange) string {
	got := r.call(x)
	// The first and the last call of a poll are compared with one recording.
	want := answer{Response: copyValue(x.Response), End: x.End}
	for _, m := range copyValue(x.Messages).([]any) {
		if mm, ok := m.(map[string]any); ok && mm["message"] != nil {
			m = mm["message"]
		}
		want.Messages = append(want.Messages, m)
	}
	if x.Error != nil {
		want.Code, want.Message = x.Error.Code, x.Error.Message
	}
	if r.theirs != nil {
		r.ours.learn(got.Response)
		want, got = r.theirs.renameAnswer(want), r.ours.renameAnswer(got)
	}
	if x.Note == "size only" {
		got.Messages = []any{map[string]any{"summary": got.Messages}} // the recorded one is in words
	} else if strings.HasSuffix(x.Method, "/EtcdSnapshot") {
		forget(want.Messages, "bytes", "chunks", "1024") // the recorded etcd held other keys
	}
	if strings.HasSuffix(x.Method, "/Events") {
		want.Messages, got.Messages = sortEvents(want.Messages), sortEvents(got.Messages)
	}
	if strings.HasSuffix(x.Method, "LifecycleService/Upgrade") {
		want.Messages, got.Messages = cutOutput(want.Messages), cutOutput(got.Messages)
	}
	want, got = normal(want), normal(got)
	if x.Poll != nil && strings.HasSuffix(x.Method, "/ServiceList") {
		forget(got.Response, "events") // so were the recorded ones
	}
	if r.name >= "H" && r.name < "J" && r.name != "H2" || r.name >= "M" && r.name < "N" {
		// On those nodes the image of the kubelet could not be pulled.
		forgetService(want.Response, "kubelet")
		forgetService(got.Response, "kubelet")
	}
	if r.name == "L2" {
		keepPod(want.Response, "kube-scheduler")
		keepPod(got.Response, "kube-scheduler")
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
	var got answer
	file, uploads := r.uploaded(x)
	if uploads {
		x.Request = map[string]any{}
	}
	req, resp, stream := r.request(x)
	if uploads {
		err = r.upload(ctx, conn, x, file, resp)
		if err == nil {
			got.Response = toJSON(r.t, resp)
		}
	} else if stream {
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
	// A server that refuses closes the stream before it has read: what it answers
	// is in RecvMsg.
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return got, err
	}
	if err := s.CloseSend(); err != nil {
		return got, err
	}
	var snapshot parts
	for {
		m := resp.ProtoReflect().New().Interface()
		err := s.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			got.End, got.Messages = "EOF", append(got.Messages, snapshot.sumUp()...)
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if part, ok := m.(*common.Data); ok && strings.HasSuffix(x.Method, "/EtcdSnapshot") {
			snapshot = append(snapshot, part.GetBytes())
			continue
		}
		if _, ok := m.(*machineapi.Event); ok {
			got.Messages = append(got.Messages, r.recordEvent(m))
			continue
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
	if id, ok := x.Request["memberId"].(string); ok && r.theirs != nil {
		x.Request["memberId"] = r.ours.idOf(r.theirs, id)
	}
	data, err := json.Marshal(x.Request)
	if err != nil {
		r.t.Error(err)
	}
	if err := protojson.Unmarshal(data, req); err != nil {
		r.t.Errorf("%s/%d: %v", r.name, x.Seq, err)
	}
	if a, ok := req.(*machineapi.ResetRequest); ok && a.Mode == machineapi.ResetRequest_ALL && len(a.SystemPartitionsToWipe) == 0 {
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
