package callgate

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHTTP(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/400":
			w.WriteHeader(400)
		case "/501":
			w.WriteHeader(501)
		case "/cut":
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	g := New(ctx)
	client := &http.Client{Transport: g.HTTP("pve")(http.DefaultTransport)}
	defer client.CloseIdleConnections()
	for _, path := range []string{"/", "/400", "/501", "/cut", "/"} {
		resp, err := client.Get(srv.URL + path)
		if err == nil {
			_ = resp.Body.Close()
		}
	}
	want := []Count{{"pve", Failed, 1}, {"pve", Lost, 1}, {"pve", OK, 2}, {"pve", Refused, 1}}
	if got := g.Counts(); !slices.Equal(got, want) {
		t.Errorf("counts %v, want %v", got, want)
	}

	cancel()
	body := &closer{Reader: strings.NewReader("x")}
	req, err := http.NewRequest("POST", srv.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Do(req); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if !body.closed {
		t.Error("the body was not closed")
	}
	if got := g.Counts(); !slices.Equal(got, want) {
		t.Errorf("a call that was not made is counted: %v", got)
	}
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	h := health.NewServer()
	healthv1.RegisterHealthServer(srv, h)
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()

	ctx, cancel := context.WithCancel(t.Context())
	g := New(ctx)
	conn, err := grpc.NewClient(l.Addr().String(), append(g.GRPC("talos"), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := healthv1.NewHealthClient(conn)
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	watching, stop := context.WithCancel(t.Context())
	w, err := client.Watch(watching, &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); err != nil {
		t.Error(err)
	}
	stop()
	if _, err := w.Recv(); err == nil {
		t.Error("the watch goes on")
	}
	want := []Count{{"talos", OK, 2}, {"talos", Refused, 1}}
	if got := g.Counts(); !slices.Equal(got, want) {
		t.Errorf("counts %v, want %v", got, want)
	}

	cancel()
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := client.Watch(t.Context(), &healthv1.HealthCheckRequest{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
