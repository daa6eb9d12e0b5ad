package pve

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// rootUser is the user that may do everything.
const rootUser = "root@pam"

// defaultAgent is the token regarded as the agent's.
const defaultAgent = "talos-agent@pve!pve1"

// identity is who asks.
type identity struct {
	id    string // root@pam, or talos@pve!agent for a token
	user  string // talos@pve
	token string // agent; "" with a ticket
}

// isRoot reports whether it is root, logged in with the password. No
// token is root, not even one of root's own with all privileges.
func (i identity) isRoot() bool { return i.id == rootUser }

// user is an account.
type user struct {
	id, comment, email, password string
	enabled                      bool
	expire                       int64
	tokens                       map[string]*token
}

// token is an API token of an account.
type token struct {
	secret, comment string
	privsep         bool
	expire          int64
}

// ticket is a login with a password.
type ticket struct {
	user, csrf string
	issued     time.Time
}

// ticketLife is how long a login lasts.
const ticketLife = 2 * time.Hour

// refuseLogin is what pveproxy answers to whom it does not know.
func refuseLogin(text string) error {
	return &failure{status: http.StatusUnauthorized, text: text, body: emptyBody, slow: true}
}

// authenticateRequest finds out who asks.
func (s *Server) authenticateRequest(r *http.Request, rt *route) (identity, error) {
	if rt != nil && rt.path == "/access/ticket" {
		return identity{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "PVEAPIToken="); ok {
		return s.authenticateToken(text)
	}
	cookie, err := r.Cookie("PVEAuthCookie")
	if err != nil {
		return identity{}, refuseLogin("No ticket")
	}
	t, ok := s.tickets[cookie.Value]
	if !ok || time.Since(t.issued) > ticketLife || !s.canLogIn(s.users[t.user]) {
		return identity{}, refuseLogin("Authentication failed!")
	}
	if r.Method != http.MethodGet && r.Header.Get("CSRFPreventionToken") != t.csrf {
		return identity{}, refuseLogin("Permission denied - invalid csrf token")
	}
	return identity{id: t.user, user: t.user}, nil
}

func (s *Server) authenticateToken(text string) (identity, error) {
	id, secret, _ := strings.Cut(text, "=")
	userID, name, _ := strings.Cut(id, "!")
	u := s.users[userID]
	if !s.canLogIn(u) || u.tokens[name] == nil {
		return identity{}, refuseLogin("Authentication failed!")
	}
	t := u.tokens[name]
	if t.secret != secret || t.expire != 0 && t.expire <= time.Now().Unix() {
		return identity{}, refuseLogin("Authentication failed!")
	}
	return identity{id: id, user: userID, token: name}, nil
}

// canLogIn reports whether an account may log in at all.
func (s *Server) canLogIn(u *user) bool {
	return u != nil && u.enabled && (u.expire == 0 || u.expire > time.Now().Unix())
}

// answerLogin answers POST /access/ticket.
func (s *Server) answerLogin(c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.users[c.str("username")]
	if !s.canLogIn(u) || u.password == "" || u.password != c.str("password") {
		return nil, &failure{status: http.StatusUnauthorized, text: "authentication failure", slow: true}
	}
	now := time.Now()
	stamp := fmt.Sprintf("%08X", now.Unix())
	value := "PVE:" + u.id + ":" + stamp + "::" + base64.StdEncoding.EncodeToString(randomBytes(256))
	csrf := stamp + ":" + base64.RawStdEncoding.EncodeToString(randomBytes(32))
	s.tickets[value] = ticket{user: u.id, csrf: csrf, issued: now}
	capabilities := row{}
	for _, k := range []string{"access", "dc", "mapping", "nodes", "sdn", "storage", "vms"} {
		capabilities[k] = row{}
	}
	return row{"username": u.id, "ticket": value, "CSRFPreventionToken": csrf, "cap": capabilities}, nil
}

// randomBytes returns n random bytes.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// newUUID returns a random UUID.
func newUUID() string {
	b := randomBytes(16)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
