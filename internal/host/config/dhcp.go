package config

import "path/filepath"

// loadDHCP fills in where reservations for a DHCP server are written, and where its leases are read.
func (l *loader) loadDHCP() {
	for _, file := range l.file.DHCP.Leases {
		l.out.Leases = append(l.out.Leases, filepath.Clean(file))
	}
	l.out.Reservations = l.publicDirectory("dhcp.directory", l.file.DHCP.Directory, "/var/lib/talos-agent-dhcp", "the DHCP server")
}

// loadForwards fills in where ports of the host that lead to nodes are written.
func (l *loader) loadForwards() {
	l.out.Forwards = l.publicDirectory("port_forwards.directory", l.file.PortForwards.Directory, "/var/lib/talos-agent-nft", "what loads them")
	if l.out.Forwards == "" && len(l.out.Policy.Forwards) > 0 {
		l.Warn("port_forwards.directory", "name one, such as /var/lib/talos-agent-nft, and have the host load its files", "is missing: the policy allows ports of this host, and they lead nowhere (%s: port_forwards)", l.out.Policy.Line("port_forwards"))
	}
}

// publicDirectory is a directory whose files another service of the host reads; "" for none.
func (l *loader) publicDirectory(field, written, better, reader string) string {
	if written == "" {
		return ""
	}
	dir := filepath.Clean(written)
	for _, own := range []struct{ key, path string }{{"state_dir", l.out.StateDir}, {"cache_dir", l.out.CacheDir}} {
		if isBelow(own.path, dir) {
			l.Wrong(field, "choose another place, such as "+better, "lies in %s, which only the agent may read: %s could not", own.key, reader)
		}
	}
	return dir
}
