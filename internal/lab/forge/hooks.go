package forge

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Hook is a webhook that somebody has set up at the forge, for pushes.
type Hook struct {
	URL string
	// Secret signs what is sent; GitLab sends it along, unless it is a signing
	// token (whsec_...).
	Secret string
}

// Delivery is a webhook that was sent.
type Delivery struct {
	URL, Ref string
	Status   int    // 0: there was no answer
	Answer   string // the body, or the error
}

// AddHook sets up a webhook.
func (f *Forge) AddHook(h Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooks = append(f.hooks, h)
}

// Deliveries returns the webhooks sent so far, in the order of their ends.
func (f *Forge) Deliveries() []Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.deliveries)
}

// Pushed notifies every webhook of a reference that was moved. A forge does so
// beside its work, once, and gives up after ten seconds.
func (f *Forge) Pushed(repository, url, ref, before, after string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hooks {
		f.sending.Go(func() {
			d := Delivery{URL: h.URL, Ref: ref}
			var err error
			if d.Status, d.Answer, err = f.deliverHook(h, f.buildPushEvent(repository, url, ref, before, after)); err != nil {
				d.Answer = err.Error()
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.deliveries = append(f.deliveries, d)
			f.world.Report("forge", "webhook for %s: %d %s", ref, d.Status, strings.TrimSpace(d.Answer))
		})
	}
}

// buildPushEvent is the body of a push, with the fields that receivers read.
func (f *Forge) buildPushEvent(repository, url, ref, before, after string) map[string]any {
	if f.config.Kind == GitLab {
		return map[string]any{
			"object_kind": "push", "event_name": "push", "before": before, "after": after, "ref": ref, "checkout_sha": after, "user_name": "Lab User",
			"project":             map[string]any{"id": 1, "name": "infra", "path_with_namespace": repository, "default_branch": "main", "git_http_url": url},
			"commits":             []any{map[string]any{"id": after, "message": "a change"}},
			"total_commits_count": 1,
			"repository":          map[string]any{"name": "infra", "url": url, "git_http_url": url},
		}
	}
	return map[string]any{
		"ref": ref, "before": before, "after": after,
		"commits":    []any{map[string]any{"id": after, "message": "a change"}},
		"repository": map[string]any{"id": 1, "name": "infra", "full_name": repository, "private": true, "default_branch": "main", "clone_url": url},
		"pusher":     map[string]any{"name": "lab"}, "sender": map[string]any{"login": "lab"},
	}
}

// deliverHook sends one webhook in the way of the forge. Headers are those of
// GitHub's "Webhook events and payloads", GitLab's "Webhook requests" and Gitea's
// services/webhook/deliver.go.
func (f *Forge) deliverHook(h Hook, event map[string]any) (status int, answer string, err error) {
	body, err := json.Marshal(event)
	if err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(f.ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	id := rand.Text()
	r.Header.Set("Content-Type", "application/json")
	switch f.config.Kind {
	case GitHub:
		r.Header.Set("User-Agent", "GitHub-Hookshot/lab")
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-GitHub-Delivery", id)
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(signHook([]byte(h.Secret), body)))
	case Gitea:
		r.Header.Set("X-Gitea-Event", "push")
		r.Header.Set("X-Gitea-Delivery", id)
		r.Header.Set("X-Gitea-Signature", hex.EncodeToString(signHook([]byte(h.Secret), body)))
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(signHook([]byte(h.Secret), body)))
	case GitLab:
		r.Header.Set("User-Agent", "GitLab/lab")
		r.Header.Set("X-Gitlab-Event", "Push Hook")
		r.Header.Set("X-Gitlab-Event-UUID", id)
		key, signing := strings.CutPrefix(h.Secret, "whsec_")
		if !signing {
			r.Header.Set("X-Gitlab-Token", h.Secret)
			break
		}
		raw, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			return 0, "", fmt.Errorf("the signing token: %w", err)
		}
		stamp := fmt.Sprint(time.Now().Unix())
		r.Header.Set("webhook-id", id)
		r.Header.Set("webhook-timestamp", stamp)
		r.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(signHook(raw, []byte(id+"."+stamp+"."+string(body)))))
	}
	client := &http.Client{Transport: &http.Transport{DialContext: f.world.Net.DialContext, DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	var text bytes.Buffer
	_, err = text.ReadFrom(http.MaxBytesReader(nil, res.Body, 64<<10))
	_ = res.Body.Close()
	return res.StatusCode, text.String(), err
}

func signHook(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return mac.Sum(nil)
}
