package talos

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/reconcile/talos/answers"
)

func TestWords(t *testing.T) {
	inner := status.Error(codes.Unavailable, "error reading from server: EOF")
	for _, tc := range []struct {
		err  error
		want string
	}{
		{inner, "error reading from server: EOF"},
		{fmt.Errorf("list its services: %w", inner), "list its services: error reading from server: EOF"},
		{errors.Join(fmt.Errorf("a: %w", inner), fmt.Errorf("b: %w", inner)), "a: error reading from server: EOF b: error reading from server: EOF"},
		{fmt.Errorf("ask: %w", status.Error(codes.DeadlineExceeded, "stream terminated by RST_STREAM with error code: CANCEL")), "ask: no answer in time"},
		{fmt.Errorf("ask: %w", context.DeadlineExceeded), "ask: no answer in time"},
		{status.Error(codes.DeadlineExceeded, ""), ""},
		{errors.New("plain"), "plain"},
		{fmt.Errorf("read its UUID: %w", status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: expired certificate"`)), "read its UUID: it refuses the agent's certificate as expired or not yet valid"},
		{status.Error(codes.Unavailable, "error reading from server: read tcp 10.5.0.1:43210->10.5.0.11:50000: read: connection reset by peer"), "error reading from server: read: connection reset by peer"},
		{errors.New("write tcp [fd00::1]:56780->[fd00::11]:50000: write: broken pipe"), "write: broken pipe"},
		{errors.New("dial tcp 10.5.0.11:50000: connect: connection refused"), "connect: connection refused"},
		{errors.New("a\tb\n\n c\x00d\x1b[31me\xffg"), "a b c d [31me g"},
	} {
		if got := formatError(tc.err); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	if got := sanitize(strings.Repeat("é", 1000)); len(got) > maxWords+3 || !strings.HasSuffix(got, "é...") {
		t.Errorf("%d bytes, ends in %q", len(got), got[len(got)-8:])
	}
}

// TestReadingsAreRecorded: every row that names a recorded version is found in
// the recordings.
func TestReadingsAreRecorded(t *testing.T) {
	lines := recordings(t)
	for _, r := range answers.All {
		if !strings.Contains(r.Seen, "(1.13.9)") {
			continue
		}
		found := false
		for _, l := range lines {
			if l.Error.Code == r.Code.String() && (r.Method == "" || strings.HasSuffix(l.Method, "/"+r.Method)) && strings.Contains(l.Error.Message, r.Words) {
				// One that a row before it fits as well proves nothing of this one.
				found = found || answers.Find(l.Method[strings.LastIndexByte(l.Method, '/')+1:], status.Error(r.Code, l.Error.Message)) == r
			}
		}
		if !found {
			t.Errorf("not recorded: %+v", r)
		}
	}
}

// TestRecordedErrors: no error that was ever recorded reads worse than unclear
// by accident: what means that a call was carried out, or never will be, is
// meant so.
func TestRecordedErrors(t *testing.T) {
	for _, l := range recordings(t) {
		method := l.Method[strings.LastIndexByte(l.Method, '/')+1:]
		if l.Error.Code == "" || method != "Bootstrap" && method != "ApplyConfiguration" {
			continue
		}
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(`"` + screaming(l.Error.Code) + `"`)); err != nil {
			t.Fatal(err)
		}
		got := answers.Find(method, status.Error(code, l.Error.Message)).Meaning
		switch code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			if got != answers.Unclear {
				t.Errorf("%s %s %q reads as %v", method, l.Error.Code, l.Error.Message, got)
			}
		default:
			if got == answers.Unclear {
				t.Errorf("%s %s %q is not in the table", method, l.Error.Code, l.Error.Message)
			}
		}
	}
}

// screaming turns AlreadyExists into ALREADY_EXISTS.
func screaming(code string) string {
	var b strings.Builder
	for i, r := range code {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// TestRecordedStages: what real machines reported of their stage is read.
func TestRecordedStages(t *testing.T) {
	stages := map[string]int{}
	for _, l := range recordings(t) {
		r := l.Response.Resource
		if r.Metadata.Type != "MachineStatuses.runtime.talos.dev" || r.Spec.ProtoSpec == "" {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(r.Spec.ProtoSpec)
		if err != nil {
			t.Fatal(err)
		}
		half, err := protobuf.Unmarshal(&cosi.Resource{
			Metadata: &cosi.Metadata{Namespace: runtime.NamespaceName, Type: runtime.MachineStatusType, Id: runtime.MachineStatusID, Version: "1", Phase: "running"},
			Spec:     &cosi.Spec{ProtoSpec: raw},
		})
		if err != nil {
			t.Fatal(err)
		}
		st, err := protobuf.UnmarshalResource(half)
		if err != nil {
			t.Fatal(err)
		}
		var m cluster.Machine
		readStatus(state.Event{Type: state.Updated, Resource: st}, &m)
		stages[m.Stage]++
		if want := "stage: " + m.Stage + "\n"; !strings.Contains(r.Spec.YAMLSpec, want) || strings.Contains(r.Spec.YAMLSpec, "ready: true") != m.Ready ||
			strings.Count(r.Spec.YAMLSpec, "- name: ") != len(m.Unmet) {
			t.Errorf("%q reads as %+v", r.Spec.YAMLSpec, m)
		}
	}
	if stages["maintenance"] == 0 || stages["booting"] == 0 || stages["running"] == 0 {
		t.Errorf("stages %v", stages)
	}
	var m cluster.Machine
	readStatus(state.Event{Type: state.Destroyed, Resource: resource.NewTombstone(runtime.NewMachineStatus().Metadata())}, &m)
	if m.Stage != "" || m.Ready {
		t.Errorf("a stage that is deleted reads as %+v", m)
	}
}

// line is what these tests need of a recorded exchange.
type line struct {
	Method   string
	Error    struct{ Code, Message string }
	Response struct {
		Resource struct {
			Metadata struct{ Type string }
			Spec     spec
		}
	}
	Messages []struct{ Message json.RawMessage } // of a stream
}

// spec is that of a resource; secret ones were taken out.
type spec struct{ ProtoSpec, YAMLSpec string }

func (s *spec) UnmarshalJSON(b []byte) error {
	if string(b) == `"<secret>"` {
		return nil
	}
	type bare spec
	return json.Unmarshal(b, (*bare)(s))
}

// recordings reads the exchanges with real machines.
func recordings(t *testing.T) (lines []line) {
	t.Helper()
	dir := golden.Recordings(t, "talos", "recorded")
	files, err := filepath.Glob(filepath.Join(dir, "exchanges-*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d recordings in %s: %v", len(files), dir, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		s := bufio.NewScanner(f)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			var l line
			if err := json.Unmarshal(s.Bytes(), &l); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			lines = append(lines, l)
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	return lines
}
