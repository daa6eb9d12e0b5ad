package proxmox

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWhatIsTaken: what a host's memory and a storage's space are promised to, as far
// as the token sees it: guests of the agent's pool, and the disks of those. Storages are
// looked at only while a VM has to be made.
func TestWhatIsTaken(t *testing.T) {
	for _, flavour := range flavours {
		t.Run(flavour, func(t *testing.T) {
			onStand(t, flavour, func(t *testing.T, s *stand) {
				d, image := desired(2), s.imageBytes()
				one := d
				one.Spec.Nodes = slices.Clone(d.Spec.Nodes[:1])
				one.Spec.Nodes[0].Disks = []cluster.Disk{{Name: "data", Bytes: 20 << 30, Datastore: "local-lvm", Serial: "talos-data"}}
				c := s.drive("one node", func(c *Client) (bool, error) { return s.next(c, one, image) }, nil)
				// Somebody else's, which the token does not see.
				root := s.wide()
				defer root.Close()
				s.must(root.post(t.Context(), "/nodes/"+testHost+"/qemu", params{"vmid": "900", "memory": "4096", "scsi0": "local-lvm:8"}, nil))
				time.Sleep(time.Minute) // the list is a little old

				n := one.Spec.Nodes[0]
				h := observe(c, one).Hosts[testHost]
				if st := h.Storages.Value["local-lvm"]; st.Volumes.Known || !st.Thin || st.TotalBytes != 1<<40 {
					t.Errorf("while nothing has to be made: %+v", st)
				}
				if want := []cluster.Guest{{VMID: n.VMID, MemoryBytes: n.MemoryMiB << 20, Running: true, Agent: true}}; !reflect.DeepEqual(h.Guests, want) {
					t.Errorf("guests %+v, want %+v", h.Guests, want)
				}
				d.Spec.Nodes[0] = n
				h = observe(c, d).Hosts[testHost]
				st := h.Storages.Value["local-lvm"]
				if !st.Volumes.Known || !st.Thin || st.TotalBytes != 1<<40 || len(st.Volumes.Value) != 1 {
					t.Errorf("while one has to be made: %+v", st)
				}
				// So are those of a disk that is to grow, or to be added.
				for what, change := range map[string]func(*cluster.Node){
					"the system disk": func(n *cluster.Node) { n.DiskBytes++ },
					"a disk":          func(n *cluster.Node) { n.Disks[0].Bytes++ },
					"a new disk": func(n *cluster.Node) {
						n.Disks = append(n.Disks, cluster.Disk{Name: "more", Bytes: 1 << 30, Datastore: "local-lvm", Serial: "talos-more"})
					},
				} {
					grown := one
					grown.Spec.Nodes = slices.Clone(one.Spec.Nodes)
					grown.Spec.Nodes[0].Disks = slices.Clone(n.Disks)
					change(&grown.Spec.Nodes[0])
					if h := observe(c, grown).Hosts[testHost]; !h.Storages.Value["local-lvm"].Volumes.Known || h.Images.Known || h.Images.Why != "" {
						t.Errorf("while %s has to grow: %+v, images %v", what, h.Storages.Value["local-lvm"], h.Images)
					}
				}
				// And those of a machine in whose place another one is to be made.
				for what, change := range map[string]func(*cluster.Node, *cluster.Observed){
					"its own":                  func(n *cluster.Node, _ *cluster.Observed) { n.Replace = "again" },
					"one under another name":   func(n *cluster.Node, _ *cluster.Observed) { n.Name, n.Replace = "wk-9", "again" },
					"its own, because it died": func(n *cluster.Node, o *cluster.Observed) { o.DeadSince = map[string]time.Time{n.Name: time.Now()} },
				} {
					next, o := one, cluster.Observed{}
					next.Spec.Nodes = slices.Clone(one.Spec.Nodes)
					change(&next.Spec.Nodes[0], &o)
					observeLater(t.Context(), c, next, &o)
					if h := o.Hosts[testHost]; !h.Storages.Value["local-lvm"].Volumes.Known || !h.Images.Known {
						t.Errorf("while %s is made: %+v, images %v", what, h.Storages.Value["local-lvm"], h.Images)
					}
				}
				// The drive with its address is a volume as well.
				if got := st.Volumes.Value[n.VMID]; got < n.DiskBytes+20<<30 || got > n.DiskBytes+21<<30 {
					t.Errorf("the disks of %d have %d bytes", n.VMID, got)
				}
				// As whoever begins a repository asks, who has no node there yet.
				room, err := c.Room(t.Context(), testHost, 2<<30)
				s.must(err)
				if want := (Room{Cores: 16, MemoryBytes: 62<<30 - n.MemoryMiB<<20}); room != want {
					t.Errorf("room %+v, want %+v", room, want)
				}
				states, err := c.Storages(t.Context(), testHost)
				s.must(err)
				left, err := c.DiskRoom(t.Context(), testHost, "local-lvm", states["local-lvm"], 50)
				s.must(err)
				if want := int64(1<<40)/100*50 - st.Volumes.Value[n.VMID]; left != want {
					t.Errorf("%d bytes of disks are left, want %d", left, want)
				}
				thick := states["local-lvm"]
				thick.Type = "lvm"
				if left, err = c.DiskRoom(t.Context(), testHost, "local-lvm", thick, 50); err != nil || left != thick.Free {
					t.Errorf("%d bytes of disks are left of %d, %v", left, thick.Free, err)
				}
				all := observe(root, d).Hosts[testHost]
				if got := fmt.Sprint(len(all.Guests), len(all.Storages.Value["local-lvm"].Volumes.Value)); got != "2 2" {
					t.Errorf("who sees everything sees %s", got)
				}
			})
		})
	}
}
