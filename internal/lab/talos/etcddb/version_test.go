package etcddb_test

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/talos/etcddb"
)

// TestRaise: an etcd has the version of its oldest member, when all are known, and keeps it.
func TestRaise(t *testing.T) {
	for _, c := range []struct {
		now   string
		talos []string
		want  string
	}{
		{"", []string{"v1.10.9"}, "3.5.0"}, {"", []string{"v1.14.1", "", ""}, "3.7.0"},
		{"3.5.0", []string{"v1.11.6", "v1.10.9", "v1.10.9"}, "3.5.0"}, {"3.5.0", []string{"v1.11.6", "v1.11.6", ""}, "3.5.0"},
		{"3.5.0", []string{"v1.11.6", "v1.12.11", "v1.11.6"}, "3.6.0"}, {"3.6.0", []string{"v1.10.9", "v1.11.6"}, "3.6.0"},
		{"3.6.0", []string{"v1.13.9", "v1.14.1", "v1.14.1"}, "3.6.0"}, {"3.6.0", []string{"v1.14.1"}, "3.7.0"}, {"3.6.0", nil, "3.6.0"},
	} {
		var servers []string
		for _, talos := range c.talos {
			servers = append(servers, etcddb.ServerOf(talos))
		}
		if got := etcddb.Raise(c.now, servers); got != c.want {
			t.Errorf("%s with members of %q: %s, want %s", c.now, c.talos, got, c.want)
		}
	}
}

// TestPinnedIn: the version is in the tag.
func TestPinnedIn(t *testing.T) {
	for image, want := range map[string]string{
		"": "", "gcr.io/etcd-development/etcd:v3.5.20": "3.5.20", "registry.lab:5000/etcd": "", "registry.lab:5000/etcd:3.6.4-0@sha256:0011": "3.6.4-0", "etcd@sha256:0011": "",
	} {
		if got := etcddb.PinnedIn(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}
