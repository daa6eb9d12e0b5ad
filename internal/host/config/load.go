package config

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
	"github.com/talos-agent/talos-agent/sources/secrets/transit"
)

// Settings are the host's config and policy, checked, with defaults filled in
// and every file read that they name. Whoever holds them needs to read nothing
// more.
type Settings struct {
	Path       string // of config.yaml
	PolicyPath string
	Used       []UsedFile // in the order in which they were read
	// CredentialsGiven reports that systemd has handed some of the files over.
	CredentialsGiven bool
	Hidden           []string // fields whose key or credential may be there and cannot be seen by this program

	Owner    string
	Clusters []string // empty: all in the repository
	Policy   cluster.Policy
	// policyNow is the policy in force, which a reload may replace while an
	// agent runs with the rest.
	PolicyNow *atomic.Pointer[cluster.Policy]

	// repository is what to read: Dir when it is a directory of this host, else
	// URL, without a place for the store.
	Repository git.Config
	Folder     string // of the repository: where the clusters' folders are
	Interval   time.Duration
	Identities *secrets.Identities
	Vault      *transit.Config // nil: none is asked

	Proxmox        proxmox.Config
	ImageDatastore string
	Forge          *forge.Config // nil: none
	Factory        string        // URL; the mirror, where there is one
	ownFactory     string        // URL; "" where there is a mirror, which no policy bounds
	Charts         map[string]string
	Registries     map[string]string
	CA             []byte // PEM; empty: the system's authorities only
	Metrics        Metrics
	Webhook        Webhook
	Notifications  []Notification

	Socket, StateDir, CacheDir string
	KeepRuns                   int // of each cluster's history
	Snapshots                  Snapshots
	Reservations               string // the directory of those for a DHCP server; "": none
	Election                   Election
	Forwards                   string   // the directory of those of ports of the host; "": none
	Leases                     []string // files of DHCP servers
}

// Format implements fmt.Formatter: settings hold secrets, some of them in fields
// of other rooms that do not know how they want to be printed.
func (s Settings) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "settings of %s", s.Path) }

// MarshalText implements encoding.TextMarshaler: nor is it shown as JSON what
// the files hold.
func (s Settings) MarshalText() ([]byte, error) { return fmt.Append(nil, s), nil }

// LogValue implements slog.LogValuer.
func (s Settings) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }

// Directory is the directory of this host that is the repository, or "".
func (s Settings) Directory() string { return s.Repository.Dir }

// Source names the repository for people.
func (s Settings) Source() string {
	if dir := s.Directory(); dir != "" {
		return dir
	}
	return fmt.Sprintf("%s of %s", s.Repository.Branch, PublicURL(s.Repository.URL))
}

// PublicURL is a URL without the password that should not be in it.
func PublicURL(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	return s // the short form of ssh has no room for a password
}

// EqualButPolicy reports whether settings differ in the policy at most, so that what
// runs with the others needs not be started again. Files that hold the same are
// the same, whenever they were written.
func (s Settings) EqualButPolicy(other Settings) bool {
	s.Used, other.Used = nil, nil
	s.Policy, other.Policy = cluster.Policy{}, cluster.Policy{}
	s.PolicyNow, other.PolicyNow = nil, nil
	return reflect.DeepEqual(s, other)
}

// WithoutHidden leaves out what is wrong with credentials that this program cannot see:
// what systemd-creds has encrypted only the daemon gets opened.
func (s Settings) WithoutHidden(problems cluster.Problems) cluster.Problems {
	return slices.DeleteFunc(slices.Clone(problems), func(p cluster.Problem) bool { return slices.Contains(s.Hidden, p.Field) })
}

// Load reads the host's config, its policy and every file they name. It
// finds all that is wrong at once; with an error among the problems the
// settings are not to be used, and have only which files were looked at.
// Nothing is asked of anybody, and of the
// environment only where systemd has put the credentials. Who runs a command by
// hand has none from systemd, and takes them from where systemd would.
func Load(path string) (Settings, cluster.Problems) { return Reload(path, "") }

// Reload is Load for who has loaded the config before. The settings
// have the policy in any case, and in it what is wrong with it: one that
// does not name the policy leaves it at the one of before.
func Reload(path, policyPath string) (Settings, cluster.Problems) {
	from := FromStore(CredentialStore)
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		from = FromSystemd(dir)
	}
	return load(path, policyPath, from)
}

func LoadFrom(path string, from Credentials) (Settings, cluster.Problems) {
	return load(path, "", from)
}

func load(path, policyPath string, from Credentials) (Settings, cluster.Problems) {
	l := &loader{Report: yamlschema.NewReport(), credentials: from, paths: map[string]string{}, absent: map[string]string{}}
	l.Where[""] = cluster.Position{File: path}
	l.out = Settings{Path: path, PolicyPath: policyPath, PolicyNow: &atomic.Pointer[cluster.Policy]{}}
	whole := l.decode(path)
	l.loadPolicyFile(whole)
	if !whole {
		return l.out, l.Finish()
	}
	l.loadGeneral()
	l.loadRepository()
	l.loadProxmox()
	l.loadForge()
	l.loadVault()
	l.loadSources()
	l.loadMetrics()
	l.loadWebhook()
	l.loadNotifications()
	l.loadSnapshots()
	l.loadDHCP()
	l.loadElection()
	l.loadForwards()
	l.hintRestart()
	l.out.PolicyNow.Store(&l.out.Policy)
	return l.out, l.Finish()
}

// loader is one run of Load.
type loader struct {
	*yamlschema.Report
	dir         string // of config.yaml; relative paths begin there
	credentials Credentials
	file        configFile
	paths       map[string]string // of the files that were read, by field
	absent      map[string]string // credentials that are not there, by field
	out         Settings
}

// decode reads config.yaml itself.
func (l *loader) decode(path string) bool {
	whole := func(message, hint string) bool {
		l.Add(cluster.Problem{Severity: cluster.Error, File: path, Message: message, Hint: hint})
		return false
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return whole("cannot be found: "+err.Error(), "")
	}
	l.dir = filepath.Dir(abs)
	l.recordUse(abs, doctor.ConfigFile)
	data, _, err := ReadFile(abs, OthersMayNotWrite)
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
	language.Decode(d, n, "", &l.file)
	return true
}

// Check checks a config by itself, without the files it names.
func Check(path string, data []byte) cluster.Problems {
	d := yamlschema.Document{File: path, Report: yamlschema.NewReport()}
	d.Where[""] = cluster.Position{File: path}
	if n := d.Single(data); n != nil {
		var f configFile
		language.Decode(d, n, "", &f)
	}
	return d.Finish()
}

// loadGeneral fills in what stands at the top of the file.
func (l *loader) loadGeneral() {
	f := l.file
	l.out.Owner = cmp.Or(f.Owner, inventory.DefaultOwner)
	l.out.Clusters = f.Clusters
	for i, name := range f.Clusters {
		if slices.Contains(f.Clusters[:i], name) && name != "" {
			l.Wrong(yamlschema.Element("clusters", i), "remove one", "%s is listed twice", name)
		}
	}
	l.out.Socket = cmp.Or(f.Socket, DefaultSocket)
	l.out.KeepRuns = cmp.Or(f.History.Keep, history.DefaultKeep)
	l.out.StateDir = filepath.Clean(cmp.Or(f.StateDir, "/var/lib/talos-agent"))
	l.out.CacheDir = filepath.Clean(cmp.Or(f.CacheDir, "/var/cache/talos-agent"))
	if isBelow(l.out.CacheDir, l.out.StateDir) {
		l.Wrong("state_dir", "choose another place for one of them", "lies in cache_dir, which may be deleted; what the agent must remember may not")
	}
	// The path of a socket has 107 bytes at most.
	if len(l.out.Socket) > 107 {
		l.Wrong("socket", "choose a shorter path", "is longer than the 107 bytes that a socket's path can have")
	}
	l.out.CA = l.readAuthorities("ca_file", f.CAFile)
	l.loadIdentities()
}

// isBelow reports whether a path is a folder, or lies below it.
func isBelow(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// readAuthorities reads a file of certificates.
func (l *loader) readAuthorities(field, written string) []byte {
	data, ok := l.readFile(field, written, "", OthersMayNotWrite)
	if ok && !x509.NewCertPool().AppendCertsFromPEM(data) {
		l.Wrong(field, "give certificates in PEM, which begin with -----BEGIN CERTIFICATE-----", "%s holds no certificate", l.nameFile(field))
		return nil
	}
	return data
}

func (l *loader) loadIdentities() {
	const field = "age_key_file"
	data, ok := l.readFile(field, l.file.AgeKeyFile, "age.key", OthersMayNotRead)
	switch {
	case !ok && !hasError(l.Report, field):
		l.Wrong(field, "`talos-agent init` makes a key; or age-keygen -o age.key; its public half belongs into .sops.yaml of the repository", "is missing: nothing opens the secrets of the clusters")
		return
	case !ok:
		return
	}
	ids, err := secrets.ParseIdentities(data)
	if err != nil {
		l.Wrong(field, fault.HintOf(err), "%s cannot be used: %s", l.nameFile(field), err)
		return
	}
	l.out.Identities = ids
}

// DefaultSocket is where the daemon listens unless the config names another socket.
const DefaultSocket = "/run/talos-agent/agent.sock"

// leastInterval keeps an agent from hammering its forge.
const leastInterval = 5 * time.Second

func (l *loader) loadRepository() {
	const field = "repository"
	f := l.file.Repository
	l.out.Interval = cmp.Or(f.Interval, time.Minute)
	if l.out.Interval < leastInterval {
		l.Wrong(field+".interval", "write 5s or more; a trigger asks at once anyway", "%s is too short", f.Interval)
	}
	l.out.Folder = cmp.Or(f.Path, "inventory")
	if !fs.ValidPath(filepath.Clean(l.out.Folder)) {
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

func (l *loader) loadDirectory(f repositoryFile) {
	for _, key := range []string{"branch", "ssh_key_file", "known_hosts_file", "token_file"} {
		if at := "repository." + key; l.Has(at) {
			l.Wrong(at, "remove it", "has no use with directory, which is read as it is")
		}
	}
	if f.Directory == "" {
		return
	}
	l.recordUse(f.Directory, "")
	l.out.Repository = git.Config{Dir: f.Directory}
	d, err := git.OpenDir(l.out.Repository)
	if err != nil {
		l.reportRefused("repository", err)
		return
	}
	if err := d.Close(); err != nil {
		l.Wrong("repository.directory", "", "cannot be closed: %s", err)
	}
}

// loadRemote reads what a remote repository needs. What it needs only the room
// that speaks Git knows, so it is asked.
func (l *loader) loadRemote(f repositoryFile) {
	if f.URL == "" {
		return
	}
	c := git.Config{URL: f.URL, Branch: cmp.Or(f.Branch, "main"), CA: l.out.CA}
	// A credential that lies there unasked is used where it has a use.
	ssh, https := "", ""
	switch {
	case strings.HasPrefix(f.URL, "https://"):
		https = "git.token"
	case !strings.Contains(f.URL, "://") && !filepath.IsAbs(f.URL), strings.HasPrefix(f.URL, "ssh://"):
		ssh = "ssh.key"
	}
	c.SSHKey, _ = l.readFile("repository.ssh_key_file", f.SSHKeyFile, ssh, OthersMayNotRead)
	if ssh != "" {
		ssh = "known_hosts"
	}
	c.KnownHosts, _ = l.readFile("repository.known_hosts_file", f.KnownHostsFile, ssh, OthersMayNotWrite)
	token, _ := l.readSecret("repository.token_file", f.TokenFile, https)
	c.Token = token.RevealString()
	l.out.Repository = c
	s, err := git.Open(c) // in memory: nothing is asked, nothing is written
	if err != nil {
		l.reportRefused("repository", err)
		return
	}
	if err := s.Close(); err != nil {
		l.Wrong("repository.url", "", "cannot be closed: %s", err)
	}
}

// reportRefused records what a room has against its config: the fields it names, as
// far as no error is reported for them yet.
func (l *loader) reportRefused(block string, err error) {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range all.Unwrap() {
			l.reportRefused(block, e)
		}
		return
	}
	field, text := block, err.Error()
	if key, rest, ok := strings.Cut(text, ": "); ok && l.isFieldError(err) {
		field, text = block+"."+key, rest
		if key == "ca_file" {
			field = key
		}
	}
	if !hasError(l.Report, field) {
		l.Wrong(field, fault.HintOf(err), "%s", text)
	}
}

// hasError reports whether something is known to be wrong with a field.
func hasError(r *yamlschema.Report, field string) bool {
	return slices.ContainsFunc(r.Problems, func(p cluster.Problem) bool { return p.Field == field && p.Severity == cluster.Error })
}

// isFieldError reports whether an error is about one field.
func (l *loader) isFieldError(err error) bool {
	_, fromGit := errors.AsType[*git.FieldError](err)
	_, fromForge := errors.AsType[*forge.FieldError](err)
	return fromGit || fromForge
}

func (l *loader) loadProxmox() {
	const field = "proxmox"
	f := l.file.Proxmox
	c := proxmox.Config{URL: strings.TrimSuffix(cmp.Or(f.URL, "https://127.0.0.1:8006"), "/"), Fingerprint: f.Fingerprint, Pool: l.out.Policy.Pool, AccessLog: f.AccessLog}
	l.out.ImageDatastore = cmp.Or(f.ImageDatastore, "local")
	c.CA = l.readAuthorities(field+".ca_file", f.CAFile)
	if f.Fingerprint != "" && f.CAFile != "" {
		l.Warn(field+".ca_file", "remove one of them", "has no effect beside fingerprint")
	}
	token, ok := l.readSecret(field+".token_file", f.TokenFile, "proxmox.token")
	_, wellFormed := cluster.ParseToken(token)
	switch {
	case ok && !wellFormed:
		l.Wrong(field+".token_file", "put one line into it, user@realm!name=secret: the full-tokenid and the value that `pveum user token add` prints", "%s holds no API token", l.nameFile(field+".token_file"))
	case !ok && !hasError(l.Report, field) && !hasError(l.Report, field+".token_file"):
		l.Wrong(field+".token_file", "`talos-agent init` makes a token; or `pveum user token add`, and name the file that holds it", "is missing")
	}
	c.Token = token
	l.out.Proxmox = c
}

func (l *loader) loadForge() {
	const field = "forge"
	f := l.file.Forge
	if !l.Has(field) || f.Kind == "" || f.Repository == "" {
		return // none, or reported
	}
	token, _ := l.readSecret(field+".token_file", f.TokenFile, "forge.token")
	c := forge.Config{Kind: forge.Kind(f.Kind), URL: f.URL, Repository: f.Repository, Token: token.RevealString(), CA: l.out.CA}
	if _, err := forge.New(c); err != nil {
		l.reportRefused(field, err)
	}
	if l.out.Directory() != "" {
		l.Warn(field, "remove it, or follow the repository by url", "has no use with repository.directory: there is no commit to send a status for")
	}
	l.out.Forge = &c
}

// loadSources fills in where images, charts and what the nodes pull come from.
func (l *loader) loadSources() {
	f := l.file
	l.refusePlainHTTP("factory.url", f.Factory.URL)
	l.refusePlainHTTP("mirrors.factory", f.Mirrors.Factory)
	factory := cmp.Or(f.Factory.URL, "https://factory.talos.dev")
	if f.Mirrors.Factory == "" {
		l.out.ownFactory = factory
	}
	if message, hint := l.out.checkFactory(); message != "" {
		l.Wrong("factory.url", hint, "%s", message)
	}
	l.out.Factory = strings.TrimSuffix(cmp.Or(f.Mirrors.Factory, factory), "/")
	l.out.Charts = f.Mirrors.Charts
	for from, to := range f.Mirrors.Charts {
		at := yamlschema.Join("mirrors.charts", from)
		if !language.Formats["chartsource"].Pattern.MatchString(from) {
			l.Wrong(at, "write the beginning of its address, like https://helm.cilium.io", "the key is not the address of a chart repository or registry")
		}
		if !language.Formats["chartsource"].Pattern.MatchString(to) && !language.Formats["weburl"].Pattern.MatchString(to) {
			l.Wrong(at, "write one like https://mirror.example.org/cilium", "is not a web or oci address without user, query, fragment or escapes")
		}
		l.refusePlainHTTP(at, to)
	}
	l.out.Registries = f.Mirrors.Registries
	registry := inventory.Format("registry").Pattern
	for from, to := range f.Mirrors.Registries {
		at := yamlschema.Join("mirrors.registries", from)
		if !registry.MatchString(from) {
			l.Wrong(at, "write a host, like docker.io", "the key is not the name of a registry")
		}
		switch {
		case !registry.MatchString(to) && !language.Formats["weburl"].Pattern.MatchString(to):
			l.Wrong(at, "write one like https://mirror.example.org", "is not the address of a registry")
		case isPlainHTTP(to):
			l.Warn(at, "use https where you can", "is plain http: whoever is between it and the nodes chooses what they run")
		}
	}
}

// refusePlainHTTP refuses plain http to another machine.
func (l *loader) refusePlainHTTP(field, address string) {
	if isPlainHTTP(address) {
		l.Wrong(field, "use https; plain http is for loopback addresses", "is plain http: whoever is between could change what comes over it")
	}
}

// isPlainHTTP reports whether an address is one of plain http on another machine.
func isPlainHTTP(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" {
		return false
	}
	ip, _ := netip.ParseAddr(u.Hostname()) // of a name there is none, which is no loopback address
	return u.Hostname() != "localhost" && !ip.IsLoopback()
}
