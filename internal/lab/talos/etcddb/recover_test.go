package etcddb_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/talos/etcddb"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestRecoverKeepsWhatIsLeft: of a key that changed the last revision, of one that was deleted
// nothing, and of one that was made again after that what it is then.
func TestRecoverKeepsWhatIsLeft(t *testing.T) {
	file, err := etcddb.Encode(etcddb.Contents{Registry: world.Registry{Revision: 9, Keys: []world.RegistryKey{
		{Key: "/registry/a", Value: []byte("1"), Revision: 2}, {Key: "/registry/a", Value: []byte("2"), Revision: 3},
		{Key: "/registry/b", Value: []byte("1"), Revision: 4}, {Key: "/registry/b", Revision: 5},
		{Key: "/registry/c", Revision: 6}, {Key: "/registry/c", Value: []byte{}, Revision: 7},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := etcddb.Recover(etcddb.Seal(file), false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range c.Registry.Keys {
		if strings.HasPrefix(k.Key, "/registry/") {
			got = append(got, k.Key+"="+string(k.Value))
		}
	}
	if want := []string{"/registry/a=2", "/registry/c="}; !slices.Equal(got, want) || c.Registry.Revision != 9 {
		t.Errorf("revision %d, keys %v, want %v", c.Registry.Revision, got, want)
	}
}
