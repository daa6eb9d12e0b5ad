package httpservice_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/talos-agent/talos-agent/internal/lab/charts"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServiceReportsABadAddress(t *testing.T) {
	servicetest.OnLoopback(t, func(b *servicetest.Bench) {
		for _, addr := range []string{"nowhere", ":0"} {
			if f, err := charts.NewRepository(charts.RepositoryConfig{Service: httpservice.Config{World: b.World, Addr: addr}}); err == nil {
				_ = f.Close()
				t.Errorf("a service opened at %q", addr)
			}
		}
	})
	if _, err := httpservice.Open(httpservice.Config{Addr: "127.0.0.1:0"}); err == nil {
		t.Error("a service opened without a world")
	}
}

func TestServiceServesPlainHTTPAndClosesTwice(t *testing.T) {
	servicetest.Everywhere(t, func(b *servicetest.Bench) {
		c := b.Config("charts")
		c.Plain = true
		repo := servicetest.Opened[*charts.Repository](b)(charts.NewRepository(charts.RepositoryConfig{Service: c}))
		if !strings.HasPrefix(repo.URL(), "http://") {
			b.Fatalf("URL is %s", repo.URL())
		}
		b.Want(b.Must("GET", repo.URL()+"/index.yaml", ""), 200, "apiVersion: v1")
		if err := repo.Close(); err != nil {
			b.Fatal(err)
		}
		if _, err := b.Do("GET", repo.URL()+"/index.yaml", ""); err == nil {
			b.Error("a closed service answers")
		}
	})
}

// A service that closes while it sends breaks the connection and comes back at
// once.
func TestServiceCloseBreaksWhatIsUnderWay(t *testing.T) {
	servicetest.InMemory(t, func(b *servicetest.Bench) {
		repo := servicetest.Opened[*charts.Repository](b)(charts.NewRepository(charts.RepositoryConfig{Service: b.Config("charts")}))
		failed := make(chan error)
		go func() {
			_, err := b.Do("GET", repo.URL()+"/cilium-1.19.3.tgz", "")
			failed <- err
		}()
		synctest.Wait() // the service sleeps over the archive
		if err := repo.Close(); err != nil {
			b.Fatal(err)
		}
		if err := <-failed; err == nil || errors.Is(err, context.Canceled) {
			b.Errorf("the download ended with %v", err)
		}
	})
}
