package git

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/certpool"
	"github.com/talos-agent/talos-agent/internal/worker"
)

// Config names the repository to read, and how. The zero value of every field
// but URL (for Open) or Dir (for OpenDir) is useful.
type Config struct {
	// URL names the repository: ssh://git@host[:port]/path, git@host:path,
	// https://host/path, http://host/path, or an absolute path (also as
	// file:///path) of a bare or ordinary repository on this host.
	URL string
	// Branch is the one branch that is read; "main" when empty.
	Branch string
	// Dir is where Open keeps the bare store of a remote repository; empty
	// keeps it in memory. For OpenDir it is the directory to read.
	Dir string
	// SSHKey is the private deploy key (OpenSSH or PEM, without passphrase)
	// and KnownHosts the host keys to trust in the format of sshd(8). Both are
	// mandatory for ssh and refused for anything else.
	SSHKey, KnownHosts []byte
	// Token is sent as the password of basic authentication, over https only.
	// The user name is the one in the URL, or "x-access-token", which GitHub,
	// GitLab and Gitea all accept with an access token.
	Token string
	// CA holds PEM certificates to trust for https besides the system's.
	CA []byte
	// Dial opens connections; nil means the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Limits bound what is accepted.
	Limits Limits
	// Worker reads packs that were fetched; nil: worker.Run.
	Worker worker.Runner
	// Log receives what is worth knowing beyond errors; nil discards it.
	Log *slog.Logger
}

// Format implements fmt.Formatter, so that no verb prints a key or token.
func (c Config) Format(f fmt.State, _ rune) {
	l, _ := parseURL(c.URL)
	_, _ = fmt.Fprintf(f, "{URL:%s Branch:%s Dir:%s}", l, c.Branch, c.Dir)
}

// LogValue implements slog.LogValuer.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// Limits bound what a repository may make us read. A zero field means its
// default, which is generous for an inventory and small for the host.
type Limits struct {
	Timeout time.Duration // of one Head, network and unpacking; 5m

	Pack     int64 // bytes of one pack as sent; 256 MiB
	Objects  int64 // objects in one pack; 500,000
	Object   int64 // bytes of one unpacked object; 32 MiB
	Unpacked int64 // bytes of all objects of one pack, unpacked; 2 GiB

	Blob    int64 // bytes of one file that is read; 1 MiB
	Total   int64 // bytes of all files read of one commit; 16 MiB
	Entries int   // directory entries seen in one commit; 10,000
	Depth   int   // path elements of a file; 32
}

func (l Limits) withDefaults() Limits {
	l.Timeout = cmp.Or(l.Timeout, 5*time.Minute)
	l.Pack = cmp.Or(l.Pack, 256<<20)
	l.Objects = cmp.Or(l.Objects, 500_000)
	l.Object = cmp.Or(l.Object, 32<<20)
	l.Unpacked = cmp.Or(l.Unpacked, 2<<30)
	l.Blob = cmp.Or(l.Blob, 1<<20)
	l.Total = cmp.Or(l.Total, 16<<20)
	l.Entries = cmp.Or(l.Entries, 10_000)
	l.Depth = cmp.Or(l.Depth, 32)
	return l
}

func (c Config) withDefaults() Config {
	c.Branch = cmp.Or(c.Branch, "main")
	c.Limits = c.Limits.withDefaults()
	c.Dial = limitDial(c.Dial)
	if c.Worker == nil {
		c.Worker = worker.Run
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// patience is how long a server may take for each step up to its first answer:
// the connection, and the handshake.
const patience = 30 * time.Second

// answerWithin is how long a server that was asked over HTTP may be silent.
const answerWithin = 60 * time.Second

// limitDial gives up on a host that does not answer before the whole Head does.
func limitDial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return func(parent context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(parent, patience)
		defer cancel()
		conn, err := dial(ctx, network, addr)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			<-ctx.Done() // the network's clock may strike a moment before
		}
		switch {
		case err == nil || ctx.Err() == nil:
			return conn, err
		case parent.Err() != nil:
			return nil, parent.Err()
		}
		return nil, newError(ErrUnreachable, "", nil, "no connection to %s within %s", addr, patience)
	}
}

// location is a URL taken apart. It never holds a password or token, so it may
// be printed.
type location struct {
	scheme string // ssh, https, http or file
	user   string
	host   string // without brackets
	port   string // always set for ssh
	path   string
}

// String writes the location as a URL.
func (l location) String() string {
	if l.scheme == "file" {
		return l.path
	}
	host := l.host
	if l.port != "" && (l.scheme != "ssh" || l.port != "22") {
		host = net.JoinHostPort(l.host, l.port)
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	u := url.URL{Scheme: l.scheme, Host: host, Path: "/" + strings.TrimPrefix(l.path, "/")}
	if l.user != "" {
		u.User = url.User(l.user)
	}
	return u.String()
}

const urlForms = "write ssh://git@host/path, https://host/path or the absolute path of a repository on this host"

// parseURL takes a repository's address apart; the error is never a quotation
// of the address, which may hold a password.
func parseURL(s string) (location, *FieldError) {
	bad := func(hint, format string, args ...any) (location, *FieldError) {
		return location{}, &FieldError{Field: "url", text: fmt.Sprintf(format, args...), hint: hint}
	}
	switch {
	case s == "":
		return bad(urlForms, "is missing")
	case strings.ContainsFunc(s, unicode.IsControl):
		return bad(urlForms, "holds a control character")
	case strings.Contains(s, "://"):
	case filepath.IsAbs(s):
		return location{scheme: "file", path: filepath.Clean(s)}, nil
	default:
		return parseSCP(s)
	}
	u, err := url.Parse(s)
	if err != nil {
		return bad(urlForms, "is not a URL")
	}
	if _, has := u.User.Password(); has {
		return bad("put the token into token_file", "holds a password; it would show up in logs")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return bad(urlForms, "has a query or a fragment")
	}
	l := location{scheme: u.Scheme, user: u.User.Username(), host: strings.ToLower(u.Hostname()), port: u.Port(), path: u.Path}
	switch l.scheme {
	case "file":
		if l.host != "" && l.host != "localhost" || !filepath.IsAbs(l.path) {
			return bad(urlForms, "names a file on another host")
		}
		return location{scheme: "file", path: filepath.Clean(l.path)}, nil
	case "ssh":
		l.user, l.port = cmp.Or(l.user, "git"), cmp.Or(l.port, "22")
		// "/~user/x" is relative to a home directory, as git has it.
		if strings.HasPrefix(l.path, "/~") {
			l.path = l.path[1:]
		}
	case "https", "http":
		l.path = strings.TrimSuffix(l.path, "/")
	default:
		return bad(urlForms, "scheme %q is none of ssh, https, http and file", l.scheme)
	}
	if l.host == "" || strings.Trim(l.path, "/") == "" {
		return bad(urlForms, "names no host or no path")
	}
	return l, nil
}

// parseSCP reads the short ssh form, [user@]host:path.
func parseSCP(s string) (location, *FieldError) {
	host, path, ok := strings.Cut(s, ":")
	user, rest, hasUser := strings.Cut(host, "@")
	if hasUser {
		host = rest
	}
	// An @ behind the colon looks like a password; ssh:// has room for a path with one.
	if !ok || host == "" || path == "" || strings.Contains(host, "/") || strings.Contains(path, "@") || hasUser && user == "" {
		return location{}, &FieldError{Field: "url", text: "is neither a URL nor an absolute path", hint: urlForms}
	}
	if !hasUser {
		user = "git"
	}
	return location{scheme: "ssh", user: user, host: strings.ToLower(host), port: "22", path: path}, nil
}

// credentials are a Config's secrets, parsed.
type credentials struct {
	signer ssh.Signer
	pool   *x509.CertPool
}

// parse checks the fields that Open uses, all at once.
func (c Config) parse() (location, credentials, error) {
	var cred credentials
	var errs []error
	refuse := func(field, text, hint string) { errs = append(errs, &FieldError{Field: field, text: text, hint: hint}) }

	loc, bad := parseURL(c.URL)
	if bad != nil {
		errs = append(errs, bad)
	}
	if l := loc.port; l != "" {
		if n, err := strconv.ParseUint(l, 10, 16); err != nil || n == 0 {
			refuse("url", "port is not a number from 1 to 65535", urlForms)
		}
	}
	if err := plumbing.NewBranchReferenceName(c.Branch).Validate(); err != nil {
		refuse("branch", fmt.Sprintf("%q is not a branch name", c.Branch), "write the short name, such as main")
	}

	switch {
	case loc.scheme == "ssh" && len(c.SSHKey) == 0:
		refuse("ssh_key_file", "is missing; ssh needs a deploy key", "make one with ssh-keygen -t ed25519 -N '' and add its .pub at the forge as a read-only deploy key")
	case loc.scheme == "ssh":
		var err error
		if cred.signer, err = ssh.ParsePrivateKey(c.SSHKey); err != nil {
			refuse("ssh_key_file", keyProblem(err), "give the private half of a key made with ssh-keygen -t ed25519 -N ''")
		}
	case len(c.SSHKey) > 0 && bad == nil:
		refuse("ssh_key_file", "has no use with "+loc.scheme, "remove it, or use an ssh:// URL")
	}
	if loc.scheme == "ssh" && len(c.KnownHosts) == 0 {
		refuse("known_hosts_file", "is missing; a host is never trusted on first sight", scanHint(loc))
	}
	if c.Token != "" && bad == nil && loc.scheme != "https" {
		refuse("token_file", "may only be sent over https", "use an https:// URL, or remove the token")
	}
	if strings.ContainsFunc(c.Token, unicode.IsControl) {
		refuse("token_file", "holds a line break or a control character", "the file holds the token and nothing else")
	}
	var ok bool
	if cred.pool, ok = certpool.Authorities(c.CA); !ok {
		refuse("ca_file", "holds no PEM certificate", "")
	}
	return loc, cred, errors.Join(errs...)
}

func keyProblem(err error) string {
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return "is protected by a passphrase, which a daemon cannot be asked for"
	}
	return "is not a private key"
}

// scanHint is how to learn a host's keys without trusting the network.
func scanHint(l location) string {
	port := ""
	if l.port != "22" {
		port = "-p " + l.port + " "
	}
	return fmt.Sprintf("run ssh-keyscan %s%s, compare the fingerprint (ssh-keygen -lf) with the one the server's owner publishes, and add the line to known_hosts_file", port, l.host)
}

// SSHServer returns the host:port of the ssh server that a repository is behind,
// "" for one that is reached otherwise, and an error for what is no address of a
// repository. The error does not quote it.
func SSHServer(repository string) (string, error) {
	l, bad := parseURL(repository)
	switch {
	case bad != nil:
		return "", bad
	case l.scheme != "ssh":
		return "", nil
	}
	return l.server(), nil
}

// CheckKnownHosts reports whether host keys prove the ssh server of a
// repository.
func CheckKnownHosts(repository string, knownHosts []byte) error {
	l, bad := parseURL(repository)
	if bad != nil {
		return bad
	}
	_, err := knownHostsFor(l, knownHosts)
	return err
}
