package gitserver

import (
	"bytes"
	"compress/gzip"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"sync"

	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// Config sizes a git server.
type Config struct {
	Service httpservice.Config
	// Dir keeps the repositories on disk, bare, where real git can work with
	// them; empty: in memory.
	Dir string
	// Token, when set, is the password every request must bring (Basic
	// authentication with any user name).
	Token string
}

// Server is a git server over smart HTTP, protocol version 0, which every client
// falls back on. Nothing is executed: packs are read and written in process,
// so that it lives in a bubble of virtual time too. There are no shallow and no
// partial clones.
type Server struct {
	*httpservice.Server
	world *world.World
	dir   string
	token string

	mu    sync.Mutex
	repos map[string]*Repo
}

// The services of the protocol.
const (
	uploadPack  = "git-upload-pack"  // a client fetches
	receivePack = "git-receive-pack" // a client pushes
)

// maxPack bounds what a push may send.
const maxPack = 256 << 20

// New opens a git server without repositories.
func New(c Config) (*Server, error) {
	server, err := httpservice.Open(c.Service)
	if err != nil {
		return nil, fmt.Errorf("open git server: %w", err)
	}
	g := &Server{Server: server, world: c.Service.World, dir: c.Dir, token: c.Token, repos: map[string]*Repo{}}
	g.Serve(http.HandlerFunc(g.routeRequest))
	return g, nil
}

// Repository returns the repository of that name ("org/infra"), made when
// there is none yet, with main as its default branch.
func (g *Server) Repository(name string) (*Repo, error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, fmt.Errorf("open repository %q: not a name like org/infra", name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.repos[name]; r != nil {
		return r, nil
	}
	dir := ""
	if g.dir != "" {
		dir = filepath.Join(g.dir, filepath.FromSlash(name)+".git")
	}
	r, err := openRepo(g.world, name, g.URL()+"/"+name+".git", dir)
	if err != nil {
		return nil, err
	}
	g.repos[name] = r
	return r, nil
}

// findRepo returns a repository by the path in a URL, with or without ".git".
func (g *Server) findRepo(path string) *Repo {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.repos[repoName(path)]
}

// repoName is the repository a path in a URL means.
func repoName(path string) string { return strings.TrimSuffix(strings.Trim(path, "/"), ".git") }

// gitRequest is what a URL asks for.
type gitRequest struct {
	repo      string
	op        string // "GET info/refs git-upload-pack", "POST git-upload-pack"
	service   string // uploadPack, receivePack, or neither
	advertise bool
}

func parseGitRequest(r *http.Request) gitRequest {
	if repo, ok := strings.CutSuffix(r.URL.Path, "/info/refs"); ok {
		service := r.URL.Query().Get("service")
		return gitRequest{repo: repo, op: r.Method + " info/refs " + service, service: service, advertise: true}
	}
	for _, service := range []string{uploadPack, receivePack} {
		if repo, ok := strings.CutSuffix(r.URL.Path, "/"+service); ok {
			return gitRequest{repo: repo, op: r.Method + " " + service, service: service}
		}
	}
	return gitRequest{repo: r.URL.Path, op: r.Method + " " + r.URL.Path}
}

// routeRequest puts the world in front of a request, named by what it asks.
func (g *Server) routeRequest(rw http.ResponseWriter, r *http.Request) {
	q := parseGitRequest(r)
	name := func(*http.Request) (world.Call, bool) {
		return world.Call{System: "git", Op: q.op, Subject: repoName(q.repo)}, q.service == receivePack && !q.advertise
	}
	g.world.HTTP(name, httpservice.RefuseText, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		g.answerRequest(rw, r, q)
	})).ServeHTTP(rw, r)
}

func (g *Server) answerRequest(rw http.ResponseWriter, r *http.Request, q gitRequest) {
	if g.token != "" {
		_, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(password), []byte(g.token)) != 1 {
			rw.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
			httpservice.RefuseText(rw, http.StatusUnauthorized, "Authentication required.")
			return
		}
	}
	repo := g.findRepo(q.repo)
	switch {
	case repo == nil || q.service == "" && !q.advertise:
		httpservice.RefuseText(rw, http.StatusNotFound, "Repository not found.")
	case q.service != uploadPack && q.service != receivePack:
		httpservice.RefuseText(rw, http.StatusForbidden, "Please upgrade your git client: only smart HTTP is served.")
	case q.advertise && r.Method == http.MethodGet:
		g.sendRefs(rw, repo, q.service)
	case !q.advertise && r.Method == http.MethodPost:
		g.exchangePacks(rw, r, repo, q.service)
	default:
		httpservice.RefuseText(rw, http.StatusMethodNotAllowed, "Method not allowed.")
	}
}

func (g *Server) sendRefs(rw http.ResponseWriter, repo *Repo, service string) {
	var body bytes.Buffer
	if err := repo.advertiseRefs(&body, service, true); err != nil {
		httpservice.RefuseText(rw, http.StatusInternalServerError, err.Error())
		return
	}
	rw.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
	rw.Header().Set("Cache-Control", "no-cache")
	_, _ = rw.Write(body.Bytes())
}

func (g *Server) exchangePacks(rw http.ResponseWriter, r *http.Request, repo *Repo, service string) {
	in := io.Reader(http.MaxBytesReader(rw, r.Body, maxPack))
	if r.Header.Get("Content-Encoding") == "gzip" {
		zip, err := gzip.NewReader(in)
		if err != nil {
			httpservice.RefuseText(rw, http.StatusBadRequest, "the body is not gzip: "+err.Error())
			return
		}
		in = io.LimitReader(zip, maxPack)
	}
	// The answer is made whole before it is sent: a repository is locked while
	// packs are made, and must not wait for a slow client.
	var body bytes.Buffer
	var err error
	if service == uploadPack {
		err = repo.uploadPack(in, &body, true)
	} else {
		err = repo.receivePack(in, &body)
	}
	var bad *badRequestError
	switch {
	case errors.As(err, &bad):
		httpservice.RefuseText(rw, http.StatusBadRequest, err.Error())
		return
	case err != nil:
		httpservice.RefuseText(rw, http.StatusInternalServerError, err.Error())
		return
	}
	rw.Header().Set("Content-Type", "application/x-"+service+"-result")
	rw.Header().Set("Cache-Control", "no-cache")
	_, _ = rw.Write(body.Bytes())
}
