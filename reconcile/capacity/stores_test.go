package capacity

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestJudgeStores: what is not seen is waited for, and what has to be corrected is named with the field of the inventory.
func TestJudgeStores(t *testing.T) {
	n := cluster.Node{Name: "wk-1"}
	n.Datastore, n.CloudInitDatastore, n.ImageDatastore = "thin", "thin", "files"
	thin := cluster.Storage{Active: true, Thin: true, Content: []string{"images"}, Volumes: cluster.Saw(map[int]int64{})}
	files := cluster.Storage{Active: true, Content: []string{"import"}}
	for name, c := range map[string]struct {
		edit func(all map[string]cluster.Storage)
		want string
	}{
		"all there":      {func(map[string]cluster.Storage) {}, ""},
		"one is missing": {func(all map[string]cluster.Storage) { delete(all, "files") }, `block StorageMissing proxmox.image_datastore: host pve1 shows no storage "files"`},
		"not for that": {func(all map[string]cluster.Storage) {
			all["files"] = cluster.Storage{Active: true, Content: []string{"iso"}}
		}, `block StorageContent storage files on pve1 does not allow content type "import"`},
		"not active": {func(all map[string]cluster.Storage) { all["files"] = cluster.Storage{} }, "wait StorageInactive storage files on pve1 is not active"},
		"volumes are unknown": {func(all map[string]cluster.Storage) {
			st := thin
			st.Volumes = cluster.Unseen[map[int]int64]("denied")
			all["thin"] = st
		}, "wait StorageUnknown cannot see the volumes on storage thin of pve1: denied"},
	} {
		all := map[string]cluster.Storage{"thin": thin, "files": files}
		c.edit(all)
		waits, blocks := JudgeStores("dev", n, "pve1", cluster.Host{Storages: cluster.Saw(all)}, NeedsOf(cluster.Spec{}, n), map[string]int64{"thin": 1})
		got := ""
		for _, w := range waits {
			got = "wait " + string(w.Reason) + " " + w.Message
		}
		for _, b := range blocks {
			got = "block " + string(b.Reason) + " " + b.Message
		}
		if got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
	waits, _ := JudgeStores("dev", n, "pve1", cluster.Host{Storages: cluster.Unseen[map[string]cluster.Storage]("denied")}, NeedsOf(cluster.Spec{}, n), nil)
	if len(waits) != 1 || waits[0].Message != "cannot see the storages of pve1: denied" {
		t.Errorf("%+v", waits)
	}
}
