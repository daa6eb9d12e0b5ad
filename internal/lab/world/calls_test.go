package world

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
)

// TestCallsThatAreLost: of a call whose sender hung up before it was carried out
// it is reported, and of no other; and faults are taken from one system alone.
func TestCallsThatAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := New(Config{Network: NewMemory()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		done := 0
		service := w.HTTP(func(r *http.Request) (Call, bool) { return Call{System: r.URL.Path[1:], Op: r.Method}, true },
			func(rw http.ResponseWriter, status int, _ string) { rw.WriteHeader(status) },
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { done++ }))
		ask := func(ctx context.Context, system string) (status int) {
			defer func() { _ = recover() }() // how a service breaks a connection
			rw := httptest.NewRecorder()
			service.ServeHTTP(rw, httptest.NewRequestWithContext(ctx, http.MethodPost, "/"+system, nil))
			return rw.Code
		}
		hungUp, cancel := context.WithCancel(t.Context())
		cancel()
		ask(t.Context(), "pve")
		ask(hungUp, "pve")
		ask(t.Context(), "pve")
		var lost []bool
		for _, c := range w.Calls() {
			lost = append(lost, c.Lost)
		}
		if want := []bool{false, true, false}; !slices.Equal(lost, want) || done != 2 {
			t.Errorf("lost %v, want %v, and %d carried out", lost, want, done)
		}

		w.Inject(Fault{System: "pve", Kind: Answer, Status: 596}, Fault{System: "git", Kind: Answer, Status: 503})
		w.HealOnly("git")
		if pve, git := ask(t.Context(), "pve"), ask(t.Context(), "git"); pve != 596 || git != http.StatusOK {
			t.Errorf("answered %d and %d", pve, git)
		}
	})
}
