package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/talos-agent/talos-agent/internal/listen"
	"github.com/talos-agent/talos-agent/sources/webhook"
)

// leastBetweenHints is how far apart webhooks have the repository fetched at
// least: so much costs a stolen secret, and no more.
const leastBetweenHints = 5 * time.Second

// openHooks listens for forges that say that something was pushed. wake is
// filled then.
func (s settings) openHooks(wake chan<- struct{}, count func(string), log *slog.Logger) (*listen.Server, error) {
	if s.webhook.listen == "" {
		return nil, nil
	}
	l := webhook.New(webhook.Config{
		Secret: s.webhook.secret.RevealString(), Branch: s.repository.Branch, Repository: s.repository.URL,
		Hint: func() { nudge(wake) }, Count: func(r webhook.Result) { count(string(r)) }, Log: log,
	})
	server, err := listen.TCP(s.webhook.listen, l, log)
	if err != nil {
		return nil, &hinted{fmt.Errorf("webhook.listen: %w", err), takenHint}
	}
	return server, nil
}

// takenHint is what to do about an address that cannot be listened at.
const takenHint = "choose an address of this host, and a port that nobody else listens at"
