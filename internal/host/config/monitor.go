package config

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// Metrics is where the agent's numbers go; both may be empty.
type Metrics struct {
	Listen   string // address and port
	Textfile string // path
}

func (l *loader) loadMetrics() {
	f := l.file.Metrics
	l.out.Metrics = Metrics{Textfile: f.Textfile}
	if l.checkListen("metrics.listen", f.Listen) {
		l.out.Metrics.Listen = f.Listen
	}
	switch {
	case !l.Has("metrics") || f.Listen != "" || f.Textfile != "" || hasError(l.Report, "metrics.listen") || hasError(l.Report, "metrics.textfile"):
	default:
		l.Wrong("metrics", "write listen: for Prometheus to ask, or textfile: for node_exporter to read", "sets neither where to listen nor which file to write")
	}
	if f.Textfile != "" && !strings.HasSuffix(f.Textfile, ".prom") {
		l.Wrong("metrics.textfile", "node_exporter reads files whose names end in .prom", "does not end in .prom")
	}
}

// Webhook is where forges report pushes.
type Webhook struct {
	Listen string // address and port; empty: nowhere
	Secret cluster.Secret
}

// leastSecret is how many characters a secret of a webhook has at least: what it
// signs can be seen, so that a short one could be found by trying.
const leastSecret = 16

func (l *loader) loadWebhook() {
	const field = "webhook"
	f := l.file.Webhook
	if !l.Has(field) {
		return
	}
	if l.checkListen(field+".listen", f.Listen) {
		l.out.Webhook.Listen = f.Listen
	}
	if f.Listen != "" && f.Listen == l.file.Metrics.Listen {
		l.Wrong(field+".listen", "choose another port for one of them", "metrics.listen is the same")
	}
	secret, ok := l.readSecret(field+".secret_file", f.SecretFile, "webhook.secret")
	switch n := len(secret.RevealString()); {
	case !ok && !hasError(l.Report, field+".secret_file"):
		l.Wrong(field+".secret_file", "make one with `openssl rand -hex 32`, write it into "+FromStore(CredentialStore).path("webhook.secret")+", restart the agent, and give the same to the forge", "is missing: anybody could pretend to be the forge")
	case ok && n < leastSecret:
		l.Wrong(field+".secret_file", "make one with `openssl rand -hex 32`, and give the same to the forge", "%s holds %d characters, and at least %d are needed", l.nameFile(field+".secret_file"), n, leastSecret)
	}
	l.out.Webhook.Secret = secret
	if l.out.Directory() != "" {
		l.Warn(field, "remove it: a directory is watched", "has no use with repository.directory")
	}
}

// checkListen checks an address to listen at. Its form is known to be right.
func (l *loader) checkListen(field, address string) bool {
	if address == "" {
		return false
	}
	at, err := netip.ParseAddrPort(address)
	switch {
	case err != nil:
		l.Wrong(field, "write one like 127.0.0.1:9477", "%s is not an IP address and a port", address)
		return false
	case at.Port() == 0:
		l.Wrong(field, "write one like 127.0.0.1:9477", "the port must not be 0: nobody would know which one it is")
		return false
	}
	return true
}

// Notification is where one target is, and what it gets.
type Notification struct {
	Name     string
	To       notify.Config
	Clusters []string // empty: all
	On       []cluster.Condition
}

func (l *loader) loadNotifications() {
	for i, f := range l.file.Notifications {
		at := yamlschema.Element("notifications", i)
		if f.Name == "" || f.Kind == "" {
			continue // reported already
		}
		if slices.ContainsFunc(l.out.Notifications, func(n Notification) bool { return n.Name == f.Name }) {
			l.Wrong(yamlschema.Join(at, "name"), "choose another", "another target is called %s", f.Name)
		}
		n := Notification{Name: f.Name, To: notify.Config{Kind: notify.Kind(f.Kind), CA: l.out.CA}, Clusters: f.Clusters}
		for j, name := range f.Clusters {
			if len(l.out.Clusters) > 0 && !slices.Contains(l.out.Clusters, name) && name != "" {
				l.Wrong(yamlschema.Element(yamlschema.Join(at, "clusters"), j), "this host manages "+strings.Join(l.out.Clusters, ", "), "%s is not among the clusters of this host", name)
			}
		}
		for _, c := range f.On {
			n.On = append(n.On, cluster.Condition(c))
		}
		if len(n.On) == 0 {
			n.On = []cluster.Condition{cluster.Ready, cluster.Stalled, cluster.Unknown}
		}
		field := yamlschema.Join(at, "url_file")
		address, ok := l.readSecret(field, f.URLFile, "notify-"+f.Name)
		key, _ := l.readSecret(yamlschema.Join(at, "secret_file"), f.SecretFile, "notify-"+f.Name+".secret")
		n.To.URL, n.To.Secret = address.RevealString(), key.RevealString()
		if !ok {
			if !hasError(l.Report, field) {
				l.Wrong(field, "put the address into a file that nobody else can read, and name it here", "is missing: there is no address to send to")
			}
		} else if _, err := notify.New(n.To); err != nil {
			l.Wrong(field, fault.HintOf(err), "the address in %s cannot be used: %s", l.nameFile(field), err)
		} else if service := n.To.BeyondCA(); service != "" {
			l.Warn(at, "if ca_file vouches for its server, make it one of the host's authorities: copy it to /usr/local/share/ca-certificates/talos-agent.crt, run `update-ca-certificates`, take ca_file out of the config and restart the agent",
				"ca_file is not for %s://, which trusts the authorities of the host alone", service)
		}
		l.out.Notifications = append(l.out.Notifications, n)
	}
}
