package httpserver

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// openAgain is how long an address that cannot be listened at is left alone.
const openAgain = 5 * time.Second

// Patient serves an address as soon as it can be had: whoever has it may be on
// the way out, or the interface it belongs to not be up yet.
type Patient struct {
	server *Server // nil: there is none; to be read once done is closed
	stop   context.CancelFunc
	done   chan struct{}
}

// Patiently opens addr as TCP does, and where that fails tries again until
// Close. report gets the first failure, and then success as nil; it is not
// called where the first attempt succeeds.
func Patiently(addr string, h http.Handler, log *slog.Logger, report func(error)) *Patient {
	ctx, stop := context.WithCancel(context.Background())
	p := &Patient{stop: stop, done: make(chan struct{})}
	var err error
	if p.server, err = TCP(addr, h, log); err == nil {
		close(p.done)
		return p
	}
	report(err)
	go func() {
		defer close(p.done)
		again := time.NewTicker(openAgain)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
			if p.server, err = TCP(addr, h, log); err == nil {
				report(nil)
				return
			}
		}
	}()
	return p
}

// Close stops trying, and serving.
func (p *Patient) Close() error {
	p.stop()
	<-p.done
	if p.server == nil {
		return nil
	}
	return p.server.Close()
}
