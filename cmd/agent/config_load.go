package main

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/history"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
	"github.com/talos-agent/talos-agent/sources/forge"
	"github.com/talos-agent/talos-agent/sources/git"
	"github.com/talos-agent/talos-agent/sources/inventory"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// settings are the host's config and policy, checked, with defaults filled in
// and every file read that they name. Whoever holds them needs to read nothing
// more.
type settings struct {
	path       string // of config.yaml
	policyPath string
	used       []usedFile // in the order in which they were read
	// credentials says that systemd has handed some of the files over.
	credentials bool
	hidden      []string // fields whose key or credential may be there and cannot be seen by this program

	owner    string
	clusters []string // empty: all in the repository
	policy   cluster.Policy
	// policyNow is the policy in force, which a reload may replace while an
	// agent runs with the rest.
	policyNow *atomic.Pointer[cluster.Policy]

	// repository is what to read: Dir when it is a directory of this host, else
	// URL, without a place for the store.
	repository git.Config
	folder     string // of the repository: where the clusters' folders are
	interval   time.Duration
	identities *secrets.Identities

	proxmox        proxmox.Config
	imageDatastore string
	forge          *forge.Config // nil: none
	factory        string        // URL; the mirror, where there is one
	ownFactory     string        // URL; "" where there is a mirror, which no policy bounds
	charts         map[string]string
	registries     map[string]string
	ca             []byte // PEM; empty: the system's authorities only
	metrics        monitoring
	webhook        hooks
	notifications  []notification

	socket, stateDir, cacheDir string
	keepRuns                   int // of each cluster's history
}

// Format implements fmt.Formatter: settings hold secrets, and fmt does not ask
// what lies in unexported fields how it wants to be printed.
func (s settings) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "settings of %s", s.path) }

// LogValue implements slog.LogValuer.
func (s settings) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }

// directory is the directory of this host that is the repository, or "".
func (s settings) directory() string { return s.repository.Dir }

// source names the repository for people.
func (s settings) source() string {
	if dir := s.directory(); dir != "" {
		return dir
	}
	return fmt.Sprintf("%s of %s", s.repository.Branch, shownURL(s.repository.URL))
}

// shownURL is a URL without the password that should not be in it.
func shownURL(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	return s // the short form of ssh has no room for a password
}

// sameBut reports whether settings differ in the policy at most, so that what
// runs with the others needs not be started anew. Files that hold the same are
// the same, whenever they were written.
func (s settings) sameBut(other settings) bool {
	s.used, other.used = nil, nil
	s.policy, other.policy = cluster.Policy{}, cluster.Policy{}
	s.policyNow, other.policyNow = nil, nil
	return reflect.DeepEqual(s, other)
}

// loadConfig reads the host's config, its policy and every file they name. It
// finds all that is wrong at once; with an error among the problems the
// settings are not to be used, and tell only which files were looked at.
// Nothing is asked of anybody, and of the
// environment only where systemd has put the credentials. Who runs a command by
// hand has none from systemd, and takes them from where systemd would.
func loadConfig(path string) (settings, cluster.Problems) { return loadConfigAnew(path, "") }

// loadConfigAnew is loadConfig for who has loaded the config before. The settings
// have the policy in any case, and tell in it what is wrong with it: one that
// cannot say which file the policy is leaves it at the one of before.
func loadConfigAnew(path, policyPath string) (settings, cluster.Problems) {
	from := inStore(credentialStore)
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		from = bySystemd(dir)
	}
	return loadSettings(path, policyPath, from)
}

func loadConfigFrom(path string, from credentialSource) (settings, cluster.Problems) {
	return loadSettings(path, "", from)
}

func loadSettings(path, policyPath string, from credentialSource) (settings, cluster.Problems) {
	l := &configLoader{Report: yamlschema.NewReport(), credentials: from, paths: map[string]string{}, absent: map[string]string{}}
	l.Where[""] = cluster.Position{File: path}
	l.out = settings{path: path, policyPath: policyPath, policyNow: &atomic.Pointer[cluster.Policy]{}}
	whole := l.decode(path)
	l.loadPolicy(whole)
	if !whole {
		return l.out, l.Finish()
	}
	l.general()
	l.loadRepository()
	l.loadProxmox()
	l.loadForge()
	l.loadSources()
	l.loadMetrics()
	l.loadWebhook()
	l.loadNotifications()
	l.afterStart()
	l.out.policyNow.Store(&l.out.policy)
	return l.out, l.Finish()
}

// configLoader is one run of loadConfig.
type configLoader struct {
	*yamlschema.Report
	dir         string // of config.yaml; relative paths begin there
	credentials credentialSource
	file        configFile
	paths       map[string]string // of the files that were read, by field
	absent      map[string]string // credentials that are not there, by field
	out         settings
}

// decode reads config.yaml itself.
func (l *configLoader) decode(path string) bool {
	whole := func(message, hint string) bool {
		l.Add(cluster.Problem{Severity: cluster.Error, File: path, Message: message, Hint: hint})
		return false
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return whole("cannot be found: "+err.Error(), "")
	}
	l.dir = filepath.Dir(abs)
	l.uses(abs, doctor.ConfigFile)
	data, _, err := readHostFile(abs, othersMayNotWrite)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return whole("there is no config", "`talos-agent init` writes it; or name another with --config")
	case err != nil:
		return whole(err.Error(), fault.HintOf(err))
	}
	d := yamlschema.Document{File: path, Report: l.Report}
	n := d.Single(data)
	if n == nil {
		return false
	}
	hostLanguage.Decode(d, n, "", &l.file)
	return true
}

// parseConfig checks a config by itself, without the files it names.
func parseConfig(path string, data []byte) cluster.Problems {
	d := yamlschema.Document{File: path, Report: yamlschema.NewReport()}
	d.Where[""] = cluster.Position{File: path}
	if n := d.Single(data); n != nil {
		var f configFile
		hostLanguage.Decode(d, n, "", &f)
	}
	return d.Finish()
}

// general fills in what stands at the top of the file.
func (l *configLoader) general() {
	f := l.file
	l.out.owner = cmp.Or(f.Owner, inventory.DefaultOwner)
	l.out.clusters = f.Clusters
	for i, name := range f.Clusters {
		if slices.Contains(f.Clusters[:i], name) && name != "" {
			l.Wrong(yamlschema.Element("clusters", i), "remove one", "%s is listed twice", name)
		}
	}
	l.out.socket = cmp.Or(f.Socket, defaultSocket)
	l.out.keepRuns = cmp.Or(f.History.Keep, history.DefaultKeep)
	l.out.stateDir = filepath.Clean(cmp.Or(f.StateDir, "/var/lib/talos-agent"))
	l.out.cacheDir = filepath.Clean(cmp.Or(f.CacheDir, "/var/cache/talos-agent"))
	if rel, err := filepath.Rel(l.out.cacheDir, l.out.stateDir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
		l.Wrong("state_dir", "choose another place for one of them", "lies in cache_dir, which may be deleted; what the agent must remember may not")
	}
	// The path of a socket has 107 bytes at most.
	if len(l.out.socket) > 107 {
		l.Wrong("socket", "choose a shorter path", "is longer than the 107 bytes that a socket's path can have")
	}
	l.out.ca = l.authorities("ca_file", f.CAFile)
	l.loadIdentities()
}

// authorities reads a file of certificates.
func (l *configLoader) authorities(field, written string) []byte {
	data, ok := l.read(field, written, "", othersMayNotWrite)
	if ok && !x509.NewCertPool().AppendCertsFromPEM(data) {
		l.Wrong(field, "give certificates in PEM, which begin with -----BEGIN CERTIFICATE-----", "%s holds no certificate", l.inFile(field))
		return nil
	}
	return data
}

func (l *configLoader) loadIdentities() {
	const field = "age_key_file"
	data, ok := l.read(field, l.file.AgeKeyFile, "age.key", othersMayNotRead)
	switch {
	case !ok && !said(l.Report, field):
		l.Wrong(field, "`talos-agent init` makes a key; or age-keygen -o age.key; its public half belongs into .sops.yaml of the repository", "is missing: nothing opens the secrets of the clusters")
		return
	case !ok:
		return
	}
	ids, err := secrets.ParseIdentities(data)
	if err != nil {
		l.Wrong(field, fault.HintOf(err), "%s cannot be used: %s", l.inFile(field), err)
		return
	}
	l.out.identities = ids
}

// leastInterval keeps an agent from hammering its forge.
const leastInterval = 5 * time.Second

func (l *configLoader) loadRepository() {
	const field = "repository"
	f := l.file.Repository
	l.out.interval = cmp.Or(f.Interval, time.Minute)
	if l.out.interval < leastInterval {
		l.Wrong(field+".interval", "write 5s or more; a trigger asks at once anyway", "%s is too short", f.Interval)
	}
	l.out.folder = cmp.Or(f.Path, "inventory")
	if !fs.ValidPath(filepath.Clean(l.out.folder)) {
		l.Wrong(field+".path", "write the path from the top of the repository, like inventory", "%s leaves the repository", yamlschema.Quote(f.Path))
	}
	url, dir := l.Has(field+".url"), l.Has(field+".directory")
	switch {
	case !l.Has(field):
	case url && dir:
		l.Wrong(field+".directory", "keep one of them", "url and directory are both written")
	case dir:
		l.loadDirectory(f)
	case url:
		l.loadRemote(f)
	default:
		l.Wrong(field+".url", "write url: for a Git repository, or directory: for one of this host", "is missing")
	}
}

func (l *configLoader) loadDirectory(f repositoryFile) {
	for _, key := range []string{"branch", "ssh_key_file", "known_hosts_file", "token_file"} {
		if at := "repository." + key; l.Has(at) {
			l.Wrong(at, "remove it", "has no use with directory, which is read as it is")
		}
	}
	if f.Directory == "" {
		return
	}
	l.uses(f.Directory, "")
	l.out.repository = git.Config{Dir: f.Directory}
	d, err := git.OpenDir(l.out.repository)
	if err != nil {
		l.refused("repository", err)
		return
	}
	if err := d.Close(); err != nil {
		l.Wrong("repository.directory", "", "cannot be closed: %s", err)
	}
}

// loadRemote reads what a remote repository needs. What it needs only the room
// that speaks Git knows, so it is asked.
func (l *configLoader) loadRemote(f repositoryFile) {
	if f.URL == "" {
		return
	}
	c := git.Config{URL: f.URL, Branch: cmp.Or(f.Branch, "main"), CA: l.out.ca}
	// A credential that lies there unasked is used where it has a use.
	ssh, https := "", ""
	switch {
	case strings.HasPrefix(f.URL, "https://"):
		https = "git.token"
	case !strings.Contains(f.URL, "://") && !filepath.IsAbs(f.URL), strings.HasPrefix(f.URL, "ssh://"):
		ssh = "ssh.key"
	}
	c.SSHKey, _ = l.read("repository.ssh_key_file", f.SSHKeyFile, ssh, othersMayNotRead)
	if ssh != "" {
		ssh = "known_hosts"
	}
	c.KnownHosts, _ = l.read("repository.known_hosts_file", f.KnownHostsFile, ssh, othersMayNotWrite)
	token, _ := l.secret("repository.token_file", f.TokenFile, https)
	c.Token = token.RevealString()
	l.out.repository = c
	s, err := git.Open(c) // in memory: nothing is asked, nothing is written
	if err != nil {
		l.refused("repository", err)
		return
	}
	if err := s.Close(); err != nil {
		l.Wrong("repository.url", "", "cannot be closed: %s", err)
	}
}

// refused records what a room has against its config: the fields it names, as
// far as nothing is said about them yet.
func (l *configLoader) refused(block string, err error) {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range all.Unwrap() {
			l.refused(block, e)
		}
		return
	}
	field, text := block, err.Error()
	if key, rest, ok := strings.Cut(text, ": "); ok && l.names(err) {
		field, text = block+"."+key, rest
		if key == "ca_file" {
			field = key
		}
	}
	if !said(l.Report, field) {
		l.Wrong(field, fault.HintOf(err), "%s", text)
	}
}

// said reports whether something is known to be wrong with a field.
func said(r *yamlschema.Report, field string) bool {
	return slices.ContainsFunc(r.Problems, func(p cluster.Problem) bool { return p.Field == field && p.Severity == cluster.Error })
}

// names reports whether an error is about one field.
func (l *configLoader) names(err error) bool {
	_, fromGit := errors.AsType[*git.FieldError](err)
	_, fromForge := errors.AsType[*forge.FieldError](err)
	return fromGit || fromForge
}

// tokenForm is what pveum prints, and what the API takes.
var tokenForm = regexp.MustCompile(`^[^\s:/@!=]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]*=[!-~]+$`)

func (l *configLoader) loadProxmox() {
	const field = "proxmox"
	f := l.file.Proxmox
	c := proxmox.Config{URL: strings.TrimSuffix(cmp.Or(f.URL, "https://127.0.0.1:8006"), "/"), Fingerprint: f.Fingerprint, Pool: l.out.policy.Pool}
	l.out.imageDatastore = cmp.Or(f.ImageDatastore, "local")
	c.CA = l.authorities(field+".ca_file", f.CAFile)
	if f.Fingerprint != "" && f.CAFile != "" {
		l.Warn(field+".ca_file", "remove one of them", "has no effect beside fingerprint")
	}
	token, ok := l.secret(field+".token_file", f.TokenFile, "proxmox.token")
	switch {
	case ok && !tokenForm.MatchString(token.RevealString()):
		l.Wrong(field+".token_file", "put one line into it, user@realm!name=secret: the full-tokenid and the value that `pveum user token add` prints", "%s holds no API token", l.inFile(field+".token_file"))
	case !ok && !said(l.Report, field) && !said(l.Report, field+".token_file"):
		l.Wrong(field+".token_file", "`talos-agent init` makes a token; or `pveum user token add`, and name the file that holds it", "is missing")
	}
	c.Token = token
	l.out.proxmox = c
}

func (l *configLoader) loadForge() {
	const field = "forge"
	f := l.file.Forge
	if !l.Has(field) || f.Kind == "" || f.Repository == "" {
		return // none, or said to be wrong
	}
	token, _ := l.secret(field+".token_file", f.TokenFile, "forge.token")
	c := forge.Config{Kind: forge.Kind(f.Kind), URL: f.URL, Repository: f.Repository, Token: token.RevealString(), CA: l.out.ca}
	if _, err := forge.New(c); err != nil {
		l.refused(field, err)
	}
	if l.out.directory() != "" {
		l.Warn(field, "remove it, or follow the repository by url", "has no use with repository.directory: there is no commit to send a status for")
	}
	l.out.forge = &c
}

// loadSources fills in where images, charts and what the nodes pull come from.
func (l *configLoader) loadSources() {
	f := l.file
	l.guarded("factory.url", f.Factory.URL)
	l.guarded("mirrors.factory", f.Mirrors.Factory)
	factory := cmp.Or(f.Factory.URL, "https://factory.talos.dev")
	if f.Mirrors.Factory == "" {
		l.out.ownFactory = factory
	}
	if message, hint := l.out.factoryRefused(); message != "" {
		l.Wrong("factory.url", hint, "%s", message)
	}
	l.out.factory = strings.TrimSuffix(cmp.Or(f.Mirrors.Factory, factory), "/")
	l.out.charts = f.Mirrors.Charts
	for from, to := range f.Mirrors.Charts {
		at := yamlschema.Join("mirrors.charts", from)
		if !hostLanguage.Formats["chartsource"].Pattern.MatchString(from) {
			l.Wrong(at, "write the beginning of its address, like https://helm.cilium.io", "the key is not the address of a chart repository or registry")
		}
		if !hostLanguage.Formats["chartsource"].Pattern.MatchString(to) && !hostLanguage.Formats["weburl"].Pattern.MatchString(to) {
			l.Wrong(at, "write one like https://mirror.example.org/cilium", "is not a web or oci address without user, query, fragment or escapes")
		}
		l.guarded(at, to)
	}
	l.out.registries = f.Mirrors.Registries
	registry := inventory.Format("registry").Pattern
	for from, to := range f.Mirrors.Registries {
		at := yamlschema.Join("mirrors.registries", from)
		if !registry.MatchString(from) {
			l.Wrong(at, "write a host, like docker.io", "the key is not the name of a registry")
		}
		switch {
		case !registry.MatchString(to) && !hostLanguage.Formats["weburl"].Pattern.MatchString(to):
			l.Wrong(at, "write one like https://mirror.example.org", "is not the address of a registry")
		case plainHTTP(to):
			l.Warn(at, "use https where you can", "is plain http: whoever is between it and the nodes chooses what they run")
		}
	}
}

// guarded refuses plain http to another machine.
func (l *configLoader) guarded(field, address string) {
	if plainHTTP(address) {
		l.Wrong(field, "use https; plain http is for loopback addresses", "is plain http: whoever is between could change what comes over it")
	}
}

// plainHTTP reports whether an address is one of plain http on another machine.
func plainHTTP(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback())
}
