package proxmox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	reported "github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/ha"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/usage"
)

// The methods of this file answer an examination of the host, not a pass: they
// are asked when a person wants to know what is wrong, one by one, and remember
// nothing.

// Door is what the API reports about itself.
type Door struct {
	Version string
	// Date is the clock of the API when it answered, to the second; the request
	// left at Asked and the answer was there at Answered, by our clock.
	Date, Asked, Answered time.Time
	// NotAfter is when its certificate ends; zero when a fingerprint is pinned.
	NotAfter time.Time
}

// Knock asks the API for its version. FaultOf classifies an error.
func (c *Client) Knock(ctx context.Context) (Door, error) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/version", nil)
	if err != nil {
		return Door{}, nameRequest("GET", "/version", err)
	}
	req.Header.Set("Authorization", c.header.RevealString())
	d := Door{Asked: time.Now()}
	resp, err := c.http.Do(req)
	if err != nil {
		return Door{}, nameRequest("GET", "/version", err)
	}
	d.Answered = time.Now()
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Data struct{ Version pveconf.Scalar }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Data.Version == "" {
		return Door{}, fault.WithHint(errors.New("GET /version: the answer is not that of Proxmox VE"), "is the url right? Proxmox VE speaks https on port 8006")
	}
	d.Version = string(answer.Data.Version)
	if d.Date, err = http.ParseTime(resp.Header.Get("Date")); err != nil {
		d.Date = time.Time{} // a proxy in between may drop it
	}
	if !c.pinned && resp.TLS != nil {
		d.NotAfter = resp.TLS.PeerCertificates[0].NotAfter
	}
	return d, nil
}

// Fault is how far a request came that Knock has an error for.
type Fault string

// The faults, in the order in which a connection meets them.
const (
	FaultAddress   Fault = "address"
	FaultSilent    Fault = "silent"
	FaultNotTLS    Fault = "not-tls"
	FaultAuthority Fault = "authority"
	FaultName      Fault = "name"
	FaultExpired   Fault = "expired"
	FaultPin       Fault = "pin"
	FaultToken     Fault = "token"
	FaultOther     Fault = "other"
)

// FaultOf classifies what kept a request from being answered. For a certificate
// with the wrong name, names are those it has.
func FaultOf(err error) (f Fault, names []string) {
	var pin *pinError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, &pin):
		return FaultPin, nil
	case errors.As(err, &host):
		for _, ip := range host.Certificate.IPAddresses {
			names = append(names, ip.String())
		}
		return FaultName, append(slices.Clone(host.Certificate.DNSNames), names...)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return FaultExpired, nil
	case errors.As(err, &unknown), errors.As(err, &invalid):
		return FaultAuthority, nil
	case errors.As(err, &record):
		return FaultNotTLS, nil
	case errors.Is(err, errToken):
		return FaultToken, nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.As(err, &dns):
		return FaultAddress, nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return FaultSilent, nil
	}
	return FaultOther, nil
}

// TokenID is the name of the token.
func (c *Client) TokenID() cluster.TokenID { return c.token }

// Privileges returns what the token may do: at every path where it was given
// something, or, when a path is named, at that one, whatever gave it there.
func (c *Client) Privileges(ctx context.Context, path string) (map[string][]string, error) {
	var query params
	if path != "" {
		query = params{"path": path}
	}
	// A privilege's value states whether it holds below the path too.
	var answer map[string]map[string]pveconf.Scalar
	if err := c.get(ctx, "/access/permissions", query, &answer); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for path, held := range answer {
		if len(held) > 0 {
			out[path] = slices.Sorted(maps.Keys(held))
		}
	}
	return out, nil
}

// PoolExists reports whether there is a resource pool of this name.
func (c *Client) PoolExists(ctx context.Context, name string) (bool, error) {
	var pools []struct{ PoolID pveconf.Scalar }
	err := c.get(ctx, "/pools", params{"poolid": name}, &pools)
	if errors.Is(err, errMissing) && isAnswered(err) {
		return false, nil
	}
	return len(pools) > 0, err
}

// Quorate reports whether the cluster of Proxmox VE can be written to. A host by
// itself has no one to agree with.
func (c *Client) Quorate(ctx context.Context) (bool, error) {
	var rows []struct{ Type, Quorate pveconf.Scalar }
	if err := c.get(ctx, "/cluster/status", nil, &rows); err != nil {
		return false, err
	}
	for _, r := range rows {
		if r.Type == "cluster" {
			return r.Quorate.On(), nil
		}
	}
	return true, nil
}

// Inhabitants returns the hosts there are, and the pool, "" for none, of each guest
// that the token may see, by VMID.
func (c *Client) Inhabitants(ctx context.Context) (hosts []string, guests map[int]string, err error) {
	var rows []row
	if err := c.get(ctx, "/cluster/resources", nil, &rows); err != nil {
		return nil, nil, err
	}
	guests = map[int]string{}
	for _, r := range rows {
		switch {
		case r.isGuest():
			guests[int(r.VMID.Number())] = string(r.Pool)
		case r.Type == "node":
			hosts = append(hosts, string(r.Node))
		}
	}
	slices.Sort(hosts)
	return hosts, guests, nil
}

// Room is what is left of a host for VMs, as far as the token sees.
type Room struct {
	Cores       int   // that one VM may have; 0: not known
	MemoryBytes int64 // that is not promised; 0: not known
}

// Room returns what is left of a host when so much of its memory is reserved.
func (c *Client) Room(ctx context.Context, host string, reserve int64) (Room, error) {
	var rows []row
	if err := c.get(ctx, "/cluster/resources", nil, &rows); err != nil {
		return Room{}, err
	}
	var out Room
	var has, promised int64
	for _, r := range rows {
		switch {
		case string(r.Node) != host:
		case r.isGuest() && !r.Template.On():
			if r.Status == "running" || slices.Contains(pveconf.SplitTags(string(r.Tags)), cluster.OwnTag) {
				promised += r.MaxMem.Number()
			}
		case r.Type == "node" && r.MaxMem.Number() > 0:
			out.Cores, has = int(r.MaxCPU.Number()), r.MaxMem.Number()
		}
	}
	if has > 0 {
		out.MemoryBytes = max(1<<20, has-reserve-promised)
	}
	return out, nil
}

// DiskRoom returns how large the disks may be that a storage takes, if a thin one may
// promise so many percent of its size.
func (c *Client) DiskRoom(ctx context.Context, host, store string, st StorageState, percent int) (int64, error) {
	if !pveconf.IsThin(st.Type) {
		return st.Free, nil
	}
	volumes, err := c.volumes(ctx, host, store)
	if err != nil {
		return 0, err
	}
	promised := int64(0)
	for _, bytes := range volumes {
		promised += bytes
	}
	// What others have written, whose disks are not seen, is taken as well.
	return max(0, st.Total/100*int64(percent)-max(promised, st.Total-st.Free)), nil
}

// VMIDFree reports whether no guest has a VMID, whatever the token may see.
func (c *Client) VMIDFree(ctx context.Context, vmid int) (bool, error) { return c.free(ctx, vmid) }

// StorageState is a storage as a host shows it.
type StorageState struct {
	Type           string // dir, lvmthin, zfspool, ...
	Active, Shared bool
	Content        []string
	Total, Free    int64 // bytes
}

// Storages returns the storages of a host that the token may see, by name.
func (c *Client) Storages(ctx context.Context, host string) (map[string]StorageState, error) {
	if !hardware.HostPattern.MatchString(host) {
		return nil, fmt.Errorf("%q is no name of a host", host)
	}
	var rows []struct{ Storage, Type, Active, Enabled, Shared, Content, Total, Avail pveconf.Scalar }
	if err := c.get(ctx, hostPath(host, "storage"), nil, &rows); err != nil {
		return nil, err
	}
	out := map[string]StorageState{}
	for _, r := range rows {
		out[string(r.Storage)] = StorageState{Type: string(r.Type), Active: r.Active.On() && (r.Enabled == "" || r.Enabled.On()),
			Shared: r.Shared.On(), Content: pveconf.ListContent(r.Content), Total: r.Total.Number(), Free: r.Avail.Number()}
	}
	return out, nil
}

// BridgeState is a bridge, or a vnet of Proxmox VE's SDN, as a host shows it.
type BridgeState struct {
	Active    bool
	Address   string // with its prefix length; "" : none
	Ports     string
	VLANAware bool
	Vnet      bool
	MTU       int // 0: not known, for a host shows only what is written of it
}

// Bridges returns the bridges of a host that the token may see, by name.
func (c *Client) Bridges(ctx context.Context, host string) (map[string]BridgeState, error) {
	if !hardware.HostPattern.MatchString(host) {
		return nil, fmt.Errorf("%q is no name of a host", host)
	}
	var rows []struct {
		Iface, Type, Active, CIDR, CIDR6 pveconf.Scalar
		Ports                            pveconf.Scalar `json:"bridge_ports"`
		OVSPorts                         pveconf.Scalar `json:"ovs_ports"`
		Aware                            pveconf.Scalar `json:"bridge_vlan_aware"`
		MTU                              pveconf.Scalar
	}
	if err := c.get(ctx, hostPath(host, "network"), params{"type": "any_bridge"}, &rows); err != nil {
		return nil, err
	}
	out := map[string]BridgeState{}
	for _, r := range rows {
		b := BridgeState{Active: r.Active.On(), Address: string(r.CIDR), Ports: strings.TrimSpace(string(r.Ports)), VLANAware: r.Aware.On(), Vnet: r.Type == "vnet", MTU: int(r.MTU.Number())}
		if b.Address == "" {
			b.Address = string(r.CIDR6)
		}
		// Open vSwitch knows VLANs on every bridge.
		if r.Type == "OVSBridge" {
			b.VLANAware, b.Ports = true, string(r.OVSPorts)
		}
		out[string(r.Iface)] = b
	}
	return out, nil
}

// HighlyAvailable returns the guests that high availability manages, "vm:410".
func (c *Client) HighlyAvailable(ctx context.Context) ([]string, error) {
	return ha.List(ctx, c.haRequests())
}

// BackupJob is a job that backs guests up.
type BackupJob struct {
	ID      string
	Enabled bool
	Mode    string // snapshot, suspend or stop
	All     bool
	Exclude []int
	VMIDs   []int
	Pool    string
	Host    string // "" : all
}

// BackupJobs returns the backup jobs of the cluster.
func (c *Client) BackupJobs(ctx context.Context) ([]BackupJob, error) {
	var rows []struct{ ID, Enabled, Mode, All, Exclude, VMID, Pool, Node pveconf.Scalar }
	if err := c.get(ctx, "/cluster/backup", nil, &rows); err != nil {
		return nil, err
	}
	var out []BackupJob
	for _, r := range rows {
		out = append(out, BackupJob{ID: string(r.ID), Enabled: r.Enabled == "" || r.Enabled.On(), Mode: string(r.Mode), All: r.All.On(),
			Exclude: pveconf.ParseVMIDs(string(r.Exclude)), VMIDs: pveconf.ParseVMIDs(string(r.VMID)), Pool: string(r.Pool), Host: string(r.Node)})
	}
	return out, nil
}

// Usage fills in what is in use of the hosts and the VMs that a report names.
func (c *Client) Usage(ctx context.Context, r *reported.Report) error {
	return usage.Ask(ctx, c.getQuery, r)
}
