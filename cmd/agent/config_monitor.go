package main

import (
	"net/netip"
	"strings"
)

// monitoring says where the agent's numbers go; both may be empty.
type monitoring struct {
	listen   string // address and port
	textfile string // path
}

func (l *configLoader) loadMetrics() {
	f := l.file.Metrics
	l.out.metrics = monitoring{textfile: f.Textfile}
	if l.listens("metrics.listen", f.Listen) {
		l.out.metrics.listen = f.Listen
	}
	switch {
	case !l.Has("metrics") || f.Listen != "" || f.Textfile != "" || said(l.Report, "metrics.listen") || said(l.Report, "metrics.textfile"):
	default:
		l.Wrong("metrics", "write listen: for Prometheus to ask, or textfile: for node_exporter to read", "says neither where to listen nor which file to write")
	}
	if f.Textfile != "" && !strings.HasSuffix(f.Textfile, ".prom") {
		l.Wrong("metrics.textfile", "node_exporter reads files whose names end in .prom", "does not end in .prom")
	}
}

// listens checks an address to listen at. Its form is known to be right.
func (l *configLoader) listens(field, address string) bool {
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
