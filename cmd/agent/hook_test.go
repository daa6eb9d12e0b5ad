package main

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab"
	labforge "github.com/talos-agent/talos-agent/internal/lab/forge"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestWebhooks: a push is applied at once, although the repository is asked for
// something new once a day only; so is the first cluster of a repository that had
// none. Each forge sends what it sends.
func TestWebhooks(t *testing.T) {
	for name, c := range map[string]struct {
		kind   labforge.Kind
		secret string
	}{
		"github":         {labforge.GitHub, "canary-hook-of-github"},
		"gitea":          {labforge.Gitea, "canary-hook-of-gitea"},
		"gitlab":         {labforge.GitLab, "canary-hook-of-gitlab"},
		"gitlab, signed": {labforge.GitLab, "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, lab.Config{Forge: c.kind})
			address := r.base + "200:9478"
			r.file("webhook.secret", c.secret+"\n")
			r.config["webhook"] = map[string]any{"listen": address, "secret_file": "webhook.secret"}
			r.config["metrics"] = map[string]any{"listen": r.base + "200:9477"}
			r.config["forge"].(map[string]any)["kind"] = string(c.kind)
			delete(r.config, "clusters")
			r.repository(map[string]any{"interval": "24h"})
			r.lab.Forge.AddHook(labforge.Hook{URL: "http://" + address + "/hooks/lab", Secret: c.secret})
			r.lab.Forge.AddHook(labforge.Hook{URL: "http://" + address, Secret: "another secret than that"})
			r.push(map[string][]byte{"README.md": []byte("nothing yet\n")})
			r.until("it was tried to deliver that", func() bool { return len(r.lab.Forge.Deliveries()) == 2 })
			r.start()
			r.until("the repository was read", func() bool {
				return len(r.calls(func(c world.CallRecord) bool { return c.System == "git" && strings.Contains(c.Op, "POST") })) > 0
			})

			r.untilReady(r.push(r.inventory(0)))
			// What does not matter here, and what is not meant.
			_, err := r.lab.Repo.Commit("next", r.inventory(2), "not yet")
			must(err)
			r.until("all was delivered", func() bool { return len(r.lab.Forge.Deliveries()) == 6 })
			for _, d := range r.lab.Forge.Deliveries() {
				good := strings.HasSuffix(d.URL, "/lab")
				want := "refused: "
				switch {
				case good && d.Ref == "refs/heads/next":
					want = "ignored: the branch"
				case good:
					want = "accepted: "
				}
				// The first were sent before there was a daemon.
				if d.Status != 0 && !strings.HasPrefix(d.Answer, want) {
					t.Errorf("%+v, want %s", d, want)
				}
			}
			commit := r.push(r.inventory(1))
			if s := r.untilReady(commit); len(s.Nodes) != 2 {
				t.Errorf("%d nodes", len(s.Nodes))
			}
			r.until("all was delivered", func() bool { return len(r.lab.Forge.Deliveries()) == 8 })
			seen := r.scrape(r.base + "200:9477")
			if seen[`talos_agent_webhook_requests_total{result="accepted"}`] != 2 || seen[`talos_agent_webhook_requests_total{result="refused"}`] != 3 ||
				seen[`talos_agent_webhook_requests_total{result="ignored"}`] != 1 {
				t.Errorf("counted: %v", seen)
			}
			if r.log.has(c.secret) {
				t.Error("the secret is in the log")
			}
			// A new secret is in force after a reload, the old one no more.
			r.file("webhook.secret", "canary-hook-that-is-new")
			r.write()
			r.until("the old secret is refused", func() bool {
				req, err := http.NewRequest(http.MethodPost, "http://"+address, strings.NewReader("{}"))
				must(err)
				req.Header.Set("X-Gitlab-Token", c.secret)
				req.Close = true
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					return false
				}
				_ = res.Body.Close()
				return res.StatusCode == http.StatusUnauthorized
			})
		})
	}
}

// TestSlowWebhooks: thousands who say nothing, or half of something, delay
// neither a pass nor a command, and eat no memory to speak of.
func TestSlowWebhooks(t *testing.T) {
	r := newRig(t, lab.Config{})
	address := r.base + "200:9478"
	r.file("webhook.secret", "canary-hook-of-github")
	r.config["webhook"] = map[string]any{"listen": address, "secret_file": "webhook.secret"}
	r.config["metrics"] = map[string]any{"listen": r.base + "200:9477"}
	r.write()
	r.start()
	for i := range 2000 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			break // the kernel's queue is full: the others wait outside
		}
		defer func() { _ = c.Close() }()
		if i%2 == 0 {
			_, _ = c.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nX-Gitlab-Token: x\r\n\r\n{"))
		}
	}
	commit := r.push(r.inventory(0))
	r.run(exitOK, do("reconcile"))
	r.untilReady(commit)
	if rss := r.scrape(r.base + "200:9477")["process_resident_memory_bytes"]; rss <= 0 || rss > 512<<20 {
		t.Errorf("%v bytes of memory", rss)
	}
}
