package webhook

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Judge reports what a request is, and why in words for the forge's
// administrator. Pure.
func (l *Listener) Judge(h http.Header, body []byte, now time.Time) (Result, string) {
	if why := l.authentic(h, body, now); why != "" {
		return Refused, why
	}
	p, ok := parseBody(h, body)
	if !ok {
		return Invalid, "the body is not the JSON of a webhook"
	}
	event := cmp.Or(h.Get("X-Forgejo-Event"), h.Get("X-Gitea-Event"), h.Get("X-Gitlab-Event"), h.Get("X-GitHub-Event"))
	switch {
	case event == "":
		return Invalid, "no header names the event"
	case event != "push" && event != "Push Hook" && (event != "System Hook" || p.Kind != "push"):
		return Ignored, "it is not a push"
	case l.c.Branch != "" && p.Ref != "refs/heads/"+l.c.Branch:
		return Ignored, "the branch is not the one that is followed"
	}
	if name := cmp.Or(p.Project.Path, p.Repository.FullName); !l.isOurs(name) {
		return Ignored, "the repository is not the one that is followed"
	}
	return Accepted, "the repository is being fetched"
}

// isOurs compares names as forges do, without regard to case. A forge below a
// path of its host has that path in the repository's address, and not in its name.
func (l *Listener) isOurs(name string) bool {
	ours, theirs := strings.ToLower(l.path), strings.ToLower(strings.Trim(name, "/"))
	return ours == "" || ours == theirs || theirs != "" && strings.HasSuffix(ours, "/"+theirs)
}

// payload is the little that is read of a push.
type payload struct {
	Ref        string `json:"ref"`
	Kind       string `json:"object_kind"` // GitLab
	Repository struct {
		FullName string `json:"full_name"` // GitHub, Gitea, Forgejo
	} `json:"repository"`
	Project struct {
		Path string `json:"path_with_namespace"` // GitLab
	} `json:"project"`
}

// parseBody reads a body of JSON, or a form that holds it, as GitHub sends by
// default.
func parseBody(h http.Header, body []byte) (payload, bool) {
	if kind, _, err := mime.ParseMediaType(h.Get("Content-Type")); err == nil && kind == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return payload{}, false
		}
		body = []byte(form.Get("payload"))
	}
	var p payload
	err := json.Unmarshal(body, &p)
	return p, err == nil
}

// signingPrefix begins a signing token of GitLab (Standard Webhooks); the rest is
// the key in base64.
const signingPrefix = "whsec_"

// tolerance is how far the clock of a forge that signs the time may be from ours,
// as Standard Webhooks wants it.
const tolerance = 5 * time.Minute

// authentic explains why a request does not prove that its sender knows the
// secret; "" when it does, in any of the ways.
func (l *Listener) authentic(h http.Header, body []byte, now time.Time) string {
	if l.c.Secret == "" {
		return "there is no secret to check it with"
	}
	if signed := h.Get("Webhook-Signature"); signed != "" {
		return l.standard(h, body, now)
	}
	proofs := 0
	for _, header := range []string{"X-Hub-Signature-256", "X-Forgejo-Signature", "X-Gitea-Signature"} {
		value := strings.TrimPrefix(h.Get(header), "sha256=")
		if value == "" {
			continue
		}
		proofs++
		sum, err := hex.DecodeString(value)
		if err == nil && hmac.Equal(sum, signParts([]byte(l.c.Secret), body)) {
			return ""
		}
	}
	if token := h.Get("X-Gitlab-Token"); token != "" {
		proofs++
		// Of their sums, so that not even the length can be found out.
		have, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(l.c.Secret))
		if hmac.Equal(have[:], want[:]) {
			return ""
		}
	}
	if proofs == 0 {
		return "it carries no signature"
	}
	return "its signature was made with another secret"
}

// standard checks a signature of Standard Webhooks, which GitLab makes with a
// signing token.
func (l *Listener) standard(h http.Header, body []byte, now time.Time) string {
	encoded, ok := strings.CutPrefix(l.c.Secret, signingPrefix)
	if !ok {
		return "it is signed with a signing token, and the secret here is none (whsec_...)"
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) == 0 { // with an empty key everybody could sign
		return "the signing token here is not of the form whsec_ and base64"
	}
	at, err := strconv.ParseInt(h.Get("Webhook-Timestamp"), 10, 64)
	if err != nil {
		return "it does not say when it was signed"
	}
	want := signParts(key, []byte(h.Get("Webhook-Id")+"."+h.Get("Webhook-Timestamp")+"."), body)
	for _, one := range strings.Fields(h.Get("Webhook-Signature")) {
		version, value, _ := strings.Cut(one, ",")
		sum, err := base64.StdEncoding.DecodeString(value)
		if version != "v1" || err != nil || !hmac.Equal(sum, want) {
			continue
		}
		if now.Sub(time.Unix(at, 0)).Abs() > tolerance {
			return "it was signed at another time than now; check the clocks"
		}
		return ""
	}
	return "its signature was made with another secret"
}

func signParts(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}
