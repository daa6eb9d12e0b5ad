package doctor

import (
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Agent is what an agent sees with its own credentials.
type Agent struct {
	Now   time.Time
	Wants Wants
	// Machine is the name of the machine that the agent runs on, which need not be
	// one of Hosts.
	Machine string
	// Doubt is why the agent does not know what its host allows; "": it does.
	Doubt string
	API   API
	// AccessLog is the path of the access log that is to be read; nil: none is. InPlace is
	// true when another user than the agent's looks.
	AccessLog *Fact[string]
	InPlace   bool
	// Granted is what the token may do, by every path where it was given
	// something; Held is what it may do at the path of each need.
	Granted Fact[map[string][]string]
	Held    map[string]Fact[[]string]

	Pool    Fact[bool] // it exists
	Quorum  Fact[bool]
	Hosts   []Machine
	VMs     Fact[map[int]string] // the pool, "" for none, of each VM the token sees
	HA      Fact[[]string]
	Backups Fact[[]Backup]

	Repository Fact[string] // the revision
	// Vacant: it answers the agent, and nothing was pushed to it yet.
	Vacant      bool
	Inventories []Inventory
	Forge       *Fact[string] // its repository; nil: none is configured
	Sources     []Source
}

// Need is a role's privileges at a path.
type Need struct {
	Path       string   `json:"path"`
	Role       string   `json:"role"`
	Privileges []string `json:"privileges"`
	// Optional privileges only make something visible.
	Optional []string `json:"optional"`
	Why      string   `json:"why"`
}

// API is how the API of Proxmox VE was reached.
type API struct {
	URL   string
	Door  Fact[Door]
	Fault Fault // when Door is not known
	// Names are those of the certificate that was refused for its name.
	Names []string
}

// Door is an answer of the API.
type Door struct {
	Version string
	// Skew is how far its clock is ahead of ours, within Blur.
	Skew, Blur time.Duration
	// NotAfter is when its certificate ends; zero when a fingerprint is pinned
	// and it does not matter.
	NotAfter time.Time
}

// Fault is what kept the API from being reached, by how far one came.
type Fault string

// The faults, in the order in which they are met.
const (
	FaultAddress   Fault = "address"   // the name is unknown, or nothing listens
	FaultSilent    Fault = "silent"    // no answer in time
	FaultNotTLS    Fault = "not-tls"   // something else than TLS answers
	FaultAuthority Fault = "authority" // the certificate is signed by nobody we trust
	FaultName      Fault = "name"      // it is for another name
	FaultExpired   Fault = "expired"   // or not valid yet
	FaultPin       Fault = "pin"       // it is not the pinned one
	FaultToken     Fault = "token"     // the token is refused
	FaultOther     Fault = "other"
)

// Machine is one host as its API shows it.
type Machine struct {
	Name string
	// Token is the name of the token that its agent has, if it was set up by init:
	// accounts are there once for a whole Proxmox VE cluster, and only that is one
	// host's alone.
	Token    cluster.TokenID
	Storages Fact[map[string]Storage]
	Bridges  Fact[map[string]Bridge]
}

// Storage is a storage of a host.
type Storage struct {
	Type           string // dir, lvmthin, zfspool, ...
	Active, Shared bool
	Content        []string
	Total, Free    int64 // bytes
}

// Bridge is a bridge of a host, or a vnet.
type Bridge struct {
	Active    bool
	Address   string // with its prefix length; "" : none
	Ports     string
	VLANAware bool
	// Vnet is true when it belongs to a zone of Proxmox VE's SDN, which cares for
	// ports and VLANs itself.
	Vnet bool
}

// Backup is a job that backs guests up.
type Backup struct {
	ID      string
	Enabled bool
	Mode    string // snapshot, suspend, stop
	All     bool
	Exclude []int
	VMIDs   []int
	Pool    string
	Host    string // "" : all
}

// Inventory is one cluster of the repository, or the list of them.
type Inventory struct {
	Cluster string
	Problem string // "" : valid
	Hint    string
}

// Source is a place that something is fetched from.
type Source struct {
	What    string // "image factory", "chart repository", ...
	Address string
	Seen    Fact[string] // what was found there, in words
	// Guests is true when it is the nodes that fetch from it, over a way of their
	// own: the host shows only whether the place is there.
	Guests bool
}
