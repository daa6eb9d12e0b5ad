package setup

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Wishes are what a host is set up for. They hold no secret: the record keeps
// them, so that the next run begins with what was wanted last.
type Wishes struct {
	Pool       string          `json:"pool"`
	VMIDs      []cluster.Range `json:"vmids"`
	Datastores []string        `json:"datastores"` // for disks
	Images     string          `json:"images"`     // the storage that Talos images are uploaded to
	Bridges    []string        `json:"bridges"`
	Limits     Limits          `json:"limits"`
	Repository Repository      `json:"repository"`
	Forge      *Forge          `json:"forge,omitempty"`
	Mirrors    Mirrors         `json:"mirrors"`
	// ProxmoxURL is where the API answers; "" leaves the default.
	ProxmoxURL string `json:"proxmoxUrl,omitempty"`
	// Fingerprint of the API's certificate, in place of an authority.
	Fingerprint string `json:"fingerprint,omitempty"`
	// SystemTrust leaves the API's certificate to the system's authorities.
	SystemTrust bool `json:"systemTrust,omitempty"`
	// URLGiven and PinGiven are true when a person set what ProxmoxURL and Fingerprint
	// are. Else they follow the certificate of the host.
	URLGiven bool `json:"proxmoxUrlSaid,omitempty"`
	PinGiven bool `json:"fingerprintSaid,omitempty"`
	// Import allows the storage for images to get the content type import.
	Import bool `json:"import"`
	// Authorities is true when there are some to trust besides the system's.
	Authorities bool `json:"authorities,omitempty"`
	// Root is the folder below which the host lies; "" is the machine itself.
	Root string `json:"root,omitempty"`
}

// Limits are the policy's, as they are written there; "" and 0 are none.
type Limits struct {
	Nodes int    `json:"nodes,omitempty"`
	Cores int    `json:"cores,omitempty"`
	RAM   string `json:"ram,omitempty"`
	Disk  string `json:"disk,omitempty"`
}

// String writes limits as ParseLimits reads them.
func (l Limits) String() string {
	var parts []string
	for _, p := range []struct{ key, value string }{{"nodes", writeNumber(l.Nodes)}, {"cores", writeNumber(l.Cores)}, {"ram", l.RAM}, {"disk", l.Disk}} {
		if p.value != "" {
			parts = append(parts, p.key+"="+p.value)
		}
	}
	if len(parts) == 0 {
		return noLimits
	}
	return strings.Join(parts, ",")
}

// noLimits are none.
const noLimits = "none"

// amountForm is how the policy takes an amount.
var amountForm = pattern.New(`^[1-9][0-9]*(MiB|GiB|TiB)$`)

// ParseLimits reads limits as people write them: nodes=10,ram=64GiB, or none. An
// error describes what to write instead.
func ParseLimits(text string) (Limits, error) {
	var l Limits
	if strings.TrimSpace(text) == noLimits {
		return l, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		key, value, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(value)
		count := err == nil && n > 0
		amount := amountForm.MatchString(value)
		switch {
		case key == "nodes" && count:
			l.Nodes = n
		case key == "cores" && count:
			l.Cores = n
		case key == "ram" && amount:
			l.RAM = value
		case key == "disk" && amount:
			l.Disk = value
		case (key == "ram" || key == "disk") && count:
			return Limits{}, fmt.Errorf("%s has no unit (write %sGiB)", part, part)
		default:
			return Limits{}, fmt.Errorf("%q is no limit (write some of nodes=10,cores=32,ram=64GiB,disk=1TiB, or none)", part)
		}
	}
	return l, nil
}

// Repository is what the agent follows: URL or Directory.
type Repository struct {
	URL       string `json:"url,omitempty"`
	Directory string `json:"directory,omitempty"`
	Branch    string `json:"branch"`
	Path      string `json:"path"`
}

// SSH reports whether the repository is reached by ssh.
func (r Repository) SSH() bool {
	if strings.Contains(r.URL, "://") {
		return strings.HasPrefix(r.URL, "ssh://")
	}
	return r.URL != "" && !strings.HasPrefix(r.URL, "/")
}

// Project is what a forge calls the repository, if it is one's: org/infra. ""
// where its address does not show it.
func (r Repository) Project() string {
	address := r.URL
	if _, rest, ok := strings.Cut(address, "://"); ok {
		_, address, _ = strings.Cut(rest, "/")
	} else if _, rest, ok := strings.Cut(address, ":"); ok {
		address = rest
	} else {
		return ""
	}
	return strings.TrimSuffix(strings.Trim(address, "/"), ".git")
}

// Forge is where commit statuses go.
type Forge struct {
	Kind       string `json:"kind"`
	URL        string `json:"url,omitempty"`
	Repository string `json:"repository"`
}

// Mirrors serve what others serve.
type Mirrors struct {
	Factory string            `json:"factory,omitempty"`
	Charts  map[string]string `json:"charts,omitempty"`
}

// Scope is what the agent's token has to be let at for these wishes: whatever
// the policy allows.
func (w Wishes) Scope(hosts []string) Scope {
	return Scope{Pool: w.Pool, Datastores: w.allDatastores(), Images: w.Images, Bridges: w.Bridges, Hosts: hosts}
}

// allDatastores are the storages that the policy allows: for disks, and for
// images.
func (w Wishes) allDatastores() []string {
	out := slices.Clone(w.Datastores)
	if !slices.Contains(out, w.Images) {
		out = append(out, w.Images)
	}
	slices.Sort(out)
	return out
}

// Defaults are the wishes that fit a host: what people would mostly choose.
// What cannot be guessed, the repository, is left empty.
func Defaults(f Facts) Wishes {
	w := Wishes{Pool: "talos", Repository: Repository{Branch: "main", Path: "inventory"}}
	// Agents that share a pool could take each other's VMs for their own.
	if len(f.othersAt("/pool/"+w.Pool, "")) > 0 {
		w.Pool += "-" + f.Host
	}
	// A disk on thin volumes is there at once; in a directory it is a file.
	disks := pickFirst(f.Storages,
		func(s Storage) bool { return s.Holds("images") && (s.Type == "lvmthin" || s.Type == "zfspool") },
		func(s Storage) bool { return s.Holds("images") })
	if disks.Name != "" {
		w.Datastores = []string{disks.Name}
	}
	holdsFiles := func(s Storage) bool { return slices.Contains(fileBased, s.Type) }
	w.Images = pickFirst(f.Storages,
		func(s Storage) bool { return holdsFiles(s) && s.Holds("import") },
		func(s Storage) bool { return holdsFiles(s) && s.Name == "local" },
		holdsFiles).Name
	bridge := pickFirst(f.Bridges, func(b Bridge) bool { return b.Address != "" }, func(Bridge) bool { return true })
	if bridge.Name != "" {
		w.Bridges = []string{bridge.Name}
	}
	w.VMIDs = []cluster.Range{freeRange(f, w.Pool)}
	return w.WithCertificate(f)
}

// WithCertificate is the wishes with the way to the API that fits the certificate
// of the host, unless a person set another: one that is not Proxmox VE's own is
// not good for 127.0.0.1, and it is renewed.
func (w Wishes) WithCertificate(f Facts) Wishes {
	c := f.Certificate
	known := c != nil && c.Trusted && len(c.Names) > 0
	if !w.PinGiven {
		w.Fingerprint, w.SystemTrust = "", known
		if c != nil && !known {
			w.Fingerprint = c.Fingerprint
		}
	}
	if !w.URLGiven {
		w.ProxmoxURL = ""
		if known && w.SystemTrust {
			w.ProxmoxURL = "https://" + c.nameOf(f.Host) + ":8006"
		}
	}
	return w
}

// pickFirst returns the first of a list that is as liked most, else as liked
// next; the zero value when none is.
func pickFirst[T any](list []T, liked ...func(T) bool) T {
	for _, like := range liked {
		if i := slices.IndexFunc(list, like); i >= 0 {
			return list[i]
		}
	}
	var none T
	return none
}

// freeRange returns two hundred VMIDs, from 400 on, that nobody uses but the
// VMs of a pool. Each agent there is has been given as many, of which it may not
// have used any yet.
func freeRange(f Facts, pool string) cluster.Range {
	for at := 400 + 200*len(f.others()); ; at += 100 {
		r := cluster.Range{First: at, Last: at + 199}
		if !slices.ContainsFunc(f.VMs, func(v VM) bool { return r.Contains(v.ID) && v.Pool != pool }) {
			return r
		}
	}
}

// ParseRanges reads VMIDs as people write them: 400-599,700.
func ParseRanges(text string) ([]cluster.Range, bool) {
	var out []cluster.Range
	for part := range strings.SplitSeq(text, ",") {
		a, b, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			b = a
		}
		first, errA := strconv.Atoi(strings.TrimSpace(a))
		last, errB := strconv.Atoi(strings.TrimSpace(b))
		if errA != nil || errB != nil || first < 100 || last < first || last > 999999999 {
			return nil, false
		}
		out = append(out, cluster.Range{First: first, Last: last})
	}
	return out, true
}
