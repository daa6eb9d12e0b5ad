package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Config is what a server has.
type Config struct {
	Service httpservice.Config
	// Namespace is where the keys and tokens are; "" is the root's.
	Namespace string
	// Keys are the keys, each as ENGINE/NAME.
	Keys []string
	// Tokens are the keys that the holder of a token may encrypt and decrypt with.
	Tokens map[string][]string
}

// Server is a server of Vault or OpenBao.
type Server struct {
	*httpservice.Server
	namespace string

	mu     sync.Mutex
	keys   map[string]*key
	tokens map[string][]string
	sealed bool
}

// key has versions, of which the first is v1.
type key struct {
	versions []cipher.AEAD
	least    int // the oldest version that decrypts; 0: all do
}

// New opens a server.
func New(c Config) (*Server, error) {
	server, err := httpservice.Open(c.Service)
	if err != nil {
		return nil, fmt.Errorf("open vault: %w", err)
	}
	s := &Server{Server: server, namespace: c.Namespace, keys: map[string]*key{}, tokens: maps.Clone(c.Tokens)}
	for _, name := range c.Keys {
		s.keys[name] = &key{versions: []cipher.AEAD{newVersion()}}
	}
	t := &httpservice.Routes{World: c.Service.World, System: "vault", Refuse: refuse}
	for _, method := range []string{"POST", "PUT"} { // the API's own clients write with PUT
		t.Handle(method+" /v1/{path...}", false, httpservice.PathValue("path"), s.answer)
	}
	t.HandleRest("")
	s.Serve(t)
	return s, nil
}

func newVersion() cipher.AEAD {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // does not fail: crypto/rand
	block, err := aes.NewCipher(b)
	if err != nil {
		panic(err) // it has 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block has 16 bytes
	}
	return aead
}

// Seal has the server refuse everything until it is unsealed.
func (s *Server) Seal(sealed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = sealed
}

// Revoke ends a token.
func (s *Server) Revoke(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tokens, token)
}

// Retire makes a new version of a key, and has no older one decrypt.
func (s *Server) Retire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[name]
	k.versions = append(k.versions, newVersion())
	k.least = len(k.versions)
}

// Encrypt is what the holder of a token that may do it gets for a plaintext.
func (s *Server) Encrypt(name string, plain []byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[name].encrypt(plain)
}

func (k *key) encrypt(plain []byte) string {
	aead := k.versions[len(k.versions)-1]
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce)
	return fmt.Sprintf("vault:v%d:%s", len(k.versions), base64.StdEncoding.EncodeToString(aead.Seal(nonce, nonce, plain, nil)))
}

// refuse answers as Vault does: a list of errors, which is empty where it knows none.
func refuse(rw http.ResponseWriter, status int, text string) {
	errors := []string{}
	if text != "" {
		errors = append(errors, text)
	}
	httpservice.WriteJSON(rw, status, map[string][]string{"errors": errors})
}

func (s *Server) answer(rw http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	engine, name, isDecrypt := strings.Cut(r.PathValue("path"), "/decrypt/")
	isEncrypt := false
	if !isDecrypt {
		engine, name, isEncrypt = strings.Cut(r.PathValue("path"), "/encrypt/")
	}
	may, known := s.tokens[r.Header.Get("X-Vault-Token")]
	asked := engine + "/" + name
	switch {
	case s.sealed:
		refuse(rw, http.StatusServiceUnavailable, "Vault is sealed")
		return
	// Where a token ends, and what it may do, is judged before whether there is such a
	// path: a token learns nothing of what it may not use.
	case !known, r.Header.Get("X-Vault-Namespace") != s.namespace, !slices.Contains(may, asked):
		refuse(rw, http.StatusForbidden, "permission denied")
		return
	case !isDecrypt && !isEncrypt || !s.hasEngine(engine):
		refuse(rw, http.StatusNotFound, fmt.Sprintf("no handler for route %q. route entry not found.", r.PathValue("path")))
		return
	}
	var body struct{ Ciphertext, Plaintext string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		refuse(rw, http.StatusBadRequest, "failed to parse JSON input: "+err.Error())
		return
	}
	k := s.keys[asked]
	if k == nil {
		refuse(rw, http.StatusBadRequest, "encryption key not found")
		return
	}
	if isEncrypt {
		plain, err := base64.StdEncoding.DecodeString(body.Plaintext)
		if err != nil {
			refuse(rw, http.StatusBadRequest, "failed to base64-decode plaintext")
			return
		}
		httpservice.WriteJSON(rw, http.StatusOK, map[string]any{"data": map[string]any{"ciphertext": k.encrypt(plain), "key_version": len(k.versions)}})
		return
	}
	plain, wrong := k.decrypt(body.Ciphertext)
	if wrong != "" {
		refuse(rw, http.StatusBadRequest, wrong)
		return
	}
	httpservice.WriteJSON(rw, http.StatusOK, map[string]any{"data": map[string]string{"plaintext": base64.StdEncoding.EncodeToString(plain)}})
}

// hasEngine reports whether a transit engine is mounted there.
func (s *Server) hasEngine(path string) bool {
	for name := range s.keys {
		if strings.HasPrefix(name, path+"/") {
			return true
		}
	}
	return false
}

// decrypt returns a plaintext, or what is wrong with a ciphertext.
func (k *key) decrypt(ciphertext string) (plain []byte, wrong string) {
	rest, ok := strings.CutPrefix(ciphertext, "vault:v")
	if !ok {
		return nil, "invalid ciphertext: no prefix"
	}
	number, encoded, ok := strings.Cut(rest, ":")
	if !ok {
		return nil, "invalid ciphertext: wrong number of fields"
	}
	version, err := strconv.Atoi(number)
	if err != nil || version < 1 {
		return nil, "invalid ciphertext: version number could not be decoded"
	}
	if version > len(k.versions) {
		return nil, "invalid ciphertext: version is too new"
	}
	if version < k.least {
		return nil, "ciphertext or signature version is disallowed by policy (too old)"
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, "invalid ciphertext: could not decode base64"
	}
	aead := k.versions[version-1]
	if len(raw) < aead.NonceSize() {
		return nil, "invalid ciphertext: wrong number of fields"
	}
	if plain, err = aead.Open(nil, raw[:aead.NonceSize()], raw[aead.NonceSize():], nil); err != nil {
		return nil, "invalid ciphertext: unable to decrypt"
	}
	return plain, ""
}

// CountDecrypts is how many requests were made of a key.
func CountDecrypts(w *world.World, name string) int {
	i := strings.LastIndexByte(name, '/')
	path := name[:i] + "/decrypt" + name[i:]
	return w.CountCalls(func(r world.CallRecord) bool { return r.System == "vault" && r.Subject == path })
}
