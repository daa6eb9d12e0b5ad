package config

import "path/filepath"

// loadDHCP fills in where reservations for a DHCP server are written.
func (l *loader) loadDHCP() {
	const field = "dhcp.directory"
	written := l.file.DHCP.Directory
	if written == "" {
		return
	}
	l.out.Reservations = filepath.Clean(written)
	for _, own := range []struct{ key, path string }{{"state_dir", l.out.StateDir}, {"cache_dir", l.out.CacheDir}} {
		if isBelow(own.path, l.out.Reservations) {
			l.Wrong(field, "choose another place, such as /var/lib/talos-agent-dhcp", "lies in %s, which only the agent may read: the DHCP server could not", own.key)
		}
	}
}
