package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/talos-agent/talos-agent/internal/daemon/outbox"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/httpserver"
	"github.com/talos-agent/talos-agent/sources/webhook"
)

// openHooks listens for forges that report that something was pushed. wake is
// filled then.
func openHooks(s config.Settings, wake chan<- struct{}, count func(string), missing missingFunc, log *slog.Logger) (io.Closer, error) {
	if s.Webhook.Listen == "" {
		return nil, nil
	}
	l := webhook.New(webhook.Config{
		Secret: s.Webhook.Secret.RevealString(), Branch: s.Repository.Branch, Repository: s.Repository.URL,
		Hint: func() { outbox.Wake(wake) }, Count: func(r webhook.Result) { count(string(r)) }, Log: log,
	})
	return listenAt("webhook.listen", s.Webhook.Listen, l, missing, log)
}

// listenAt serves an address of the config. A config that was just changed is
// wrong where it names one that cannot be had. With missing that is no error: the
// address is tried again, so that nobody who has it keeps the agent from its
// clusters.
func listenAt(field, addr string, h http.Handler, missing missingFunc, log *slog.Logger) (io.Closer, error) {
	if missing != nil {
		return httpserver.Patiently(addr, h, log, func(err error) { missing(field, err) }), nil
	}
	server, err := httpserver.TCP(addr, h, log)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("%s: %w", field, err), takenHint)
	}
	return server, nil
}

// takenHint is what to do about an address that cannot be listened at.
const takenHint = "choose an address of this host, and a port that nobody else listens at"
