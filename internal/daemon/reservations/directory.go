package reservations

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"github.com/talos-agent/talos-agent/internal/daemon/publicfiles"
)

// Reservation is the address of a node.
type Reservation struct {
	Node string     // a DNS label
	MAC  string     // "": it is not known, and the file that the node has stays
	IP   netip.Addr // invalid: likewise
	// Kept is true of a node that runs: the file that it has stays, whatever address that has. With
	// another one the node would get that as soon as it renews its lease.
	Kept bool
}

// Directory is where the files are. For one cluster one call at a time is made.
type Directory struct{ files *publicfiles.Directory }

// New returns the directory at a path, which is opened when it is needed: it may come later.
func New(path, owner string) *Directory { return &Directory{publicfiles.New(path, owner)} }

// Set makes the files of a cluster those of its reservations; whole has the others removed that it
// has. Files that are right already are not touched: dnsmasq reads each that is written. An error
// names the path that could not be changed, and what was changed before stays.
//
// There is one file a node because dnsmasq adds what it reads and drops nothing of it before it is
// reloaded: of a file with more it would refuse all lines that it has read before (dnsmasq 2.90,
// duplicate dhcp-host IP address).
func (d *Directory) Set(cluster string, all []Reservation, whole bool) error {
	var files []publicfiles.File
	for _, r := range all {
		f := publicfiles.File{Name: r.Node, What: "the reservation of " + r.Node, IsRight: func(have []byte) bool { return r.isIn(have, cluster) }}
		if r.MAC != "" && r.IP.IsValid() {
			f.Data = r.file(cluster)
		}
		files = append(files, f)
	}
	return d.files.Set(cluster, files, whole)
}

// comment is the first line of the file of a reservation.
func (r Reservation) comment(cluster string) string {
	return fmt.Sprintf("# node %s of cluster %s, written by talos-agent\n", r.Node, cluster)
}

// file is what the file of a reservation holds: a line as dnsmasq takes it behind dhcp-host=.
func (r Reservation) file(cluster string) []byte {
	return fmt.Appendf(nil, "%s%s,%s,%s\n", r.comment(cluster), strings.ToLower(r.MAC), r.IP, r.Node)
}

// isIn reports whether a file is right as it is.
func (r Reservation) isIn(file []byte, cluster string) bool {
	return bytes.Equal(file, r.file(cluster)) || r.Kept && bytes.HasPrefix(file, []byte(r.comment(cluster)))
}
