package world

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestEvents: one single event of a watch over HTTP is lost, and those after it are not; or the connection breaks in its place. A
// fault of events strikes no call, and one of calls no event.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := New(Config{Network: NewMemory()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		service := w.HTTP(func(*http.Request) (Call, bool) { return Call{System: "kube", Op: "WATCH /nodes", Subject: "x"}, false }, nil,
			http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				for _, kind := range []string{"ADDED", "MODIFIED", "MODIFIED", "DELETED"} {
					_, _ = rw.Write([]byte(`{"type":"` + kind + `"}` + "\n"))
				}
			}))
		watch := func() (body string, broken bool) {
			rw := httptest.NewRecorder()
			defer func() { broken, body = recover() != nil, rw.Body.String() }()
			service.ServeHTTP(rw, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
			return "", false
		}
		const added, modified, deleted = `{"type":"ADDED"}` + "\n", `{"type":"MODIFIED"}` + "\n", `{"type":"DELETED"}` + "\n"
		if body, broken := watch(); body != added+modified+modified+deleted || broken {
			t.Errorf("without a fault: %q, %v", body, broken)
		}
		w.Inject(Fault{System: "kube", Op: "WATCH /nodes MODIFIED", Nth: 2, Kind: DropEvent}, Fault{System: "kube", Op: "WATCH /nodes MODIFIED", Kind: LoseRequest})
		if body, broken := watch(); body != added+modified+deleted || broken {
			t.Errorf("without one event: %q, %v", body, broken)
		}
		w.Heal()
		w.Inject(Fault{Kind: BreakEvent, Op: "WATCH /nodes MODIFIED", Nth: 1}, Fault{Kind: DropEvent, Op: "WATCH /nodes"})
		if body, broken := watch(); body != added || !broken {
			t.Errorf("broken: %q, %v", body, broken)
		}
		if n := w.Delivered()[Call{System: "kube", Op: "WATCH /nodes MODIFIED"}]; n != 5 || w.Struck() != 2 {
			t.Errorf("%d events, %d struck", n, w.Struck())
		}
	})
}

// sent are the messages that arrive over a stream.
type sent struct {
	grpc.ServerStream
	all []any
}

func (s *sent) SendMsg(m any) error { s.all = append(s.all, m); return nil }

// TestEventsOverGRPC: a message is named by what it has, whatever order that comes in, and after a connection broke nothing is sent.
func TestEventsOverGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := New(Config{Network: NewMemory()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		data, err := anypb.New(&machineapi.PhaseEvent{Phase: "boot"})
		if err != nil {
			t.Fatal(err)
		}
		out := &sent{}
		s := &eventStream{ServerStream: out, w: w, c: Call{System: "talos", Op: "Events", Subject: "a"}}
		phase, empty := &machineapi.Event{Id: "1", Data: data}, &machineapi.Event{}
		w.Inject(Fault{Op: "Events data machine.PhaseEvent id", Nth: 2, Kind: DropEvent}, Fault{Op: "Events empty", Nth: 2, Kind: BreakEvent})
		var errs []bool
		for _, m := range []any{empty, phase, phase, phase, empty, phase} {
			errs = append(errs, s.SendMsg(m) != nil)
		}
		if want := []bool{false, false, false, false, true, true}; !slices.Equal(errs, want) || len(out.all) != 3 || !s.broken {
			t.Errorf("failed %v, want %v; %d arrive", errs, want, len(out.all))
		}
	})
}
