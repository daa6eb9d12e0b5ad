package forwards

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster/forward"
	"github.com/talos-agent/talos-agent/internal/daemon/publicfiles"
)

// Rule is a port of the host with the nodes that it leads to now.
type Rule struct {
	forward.Forward
	Nodes []netip.Addr // IPv4, in order
}

// Directory is where the files are. For one cluster one call at a time is made.
type Directory struct {
	owner string
	files *publicfiles.Directory
}

// New returns the directory at a path, which is opened when it is needed: it may come later.
func New(path, owner string) *Directory {
	return &Directory{owner: owner, files: publicfiles.New(path, owner)}
}

// Set makes the file of a cluster that of its rules; without any there is none. A file
// that is right already is not touched. An error names the path that could not be changed.
func (d *Directory) Set(cluster string, rules []Rule) error {
	text := d.file(cluster, rules)
	if text == nil {
		return d.files.Set(cluster, nil, true)
	}
	return d.files.Set(cluster, []publicfiles.File{{
		Name: "nft", What: "the port forwards of " + cluster, Data: text, IsRight: func(have []byte) bool { return bytes.Equal(have, text) },
	}}, true)
}

// Table is the name of the table of a cluster, which begins with a letter as nftables
// demands.
func Table(owner, cluster string) string { return "talos_" + owner + "." + cluster }

// file is what the file of a cluster holds; nil where no rule leads anywhere. Loaded again
// it replaces the table: that is made first, so that it can be deleted where it was not
// there (nft 1.0).
func (d *Directory) file(cluster string, rules []Rule) []byte {
	var lines []string
	for _, r := range rules {
		if len(r.Nodes) > 0 {
			lines = append(lines, r.line())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	table := Table(d.owner, cluster)
	return fmt.Appendf(nil, `# port forwards of the cluster %s, written by talos-agent
table ip %[2]s
delete table ip %[2]s
table ip %[2]s {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		%[3]s
	}
}
`, cluster, table, strings.Join(lines, "\n\t\t"))
}

// line is the rule for packets to an address of the host. A client stays with its node
// as long as the nodes are the same.
func (r Rule) line() string {
	match := fmt.Sprintf("fib daddr type local %s dport %d ", r.Protocol, r.Port)
	if len(r.Nodes) == 1 {
		return match + fmt.Sprintf("dnat to %s:%d", r.Nodes[0], r.To)
	}
	var to []string
	for i, node := range r.Nodes {
		to = append(to, fmt.Sprintf("%d : %s . %d", i, node, r.To))
	}
	return match + fmt.Sprintf("dnat ip to jhash ip saddr mod %d map { %s }", len(r.Nodes), strings.Join(to, ", "))
}
