package creation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/repo/scaffold"
	"github.com/talos-agent/talos-agent/reconcile/proxmox"
)

// hostKnowledge is what is known of the host of an agent.
type hostKnowledge struct {
	settings config.Settings
	pve      *proxmox.Client // nil: it could not be asked

	host     string
	storages map[string]proxmox.StorageState
	bridges  map[string]proxmox.BridgeState
	router   netip.Addr // of the host itself; zero: none
	room     proxmox.Room
	disks    map[string]int64 // by storage: bytes that are left on it
}

func (k *hostKnowledge) close() {
	if k.pve != nil {
		k.pve.Close()
	}
}

// learnWithin bounds what is waited for of the host.
const learnWithin = 15 * time.Second

// learn reads the config of this host and asks its Proxmox VE. Where there is no
// config, which is so on every workstation, it returns nothing.
func (r *run) learn(parent context.Context) (*hostKnowledge, error) {
	path := filepath.Join(r.c.Root, r.c.HostConfig)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !r.c.Given("config") {
		return nil, nil
	}
	s, problems := config.Load(path)
	if r.c.Root != "" {
		s, problems = config.LoadFrom(path, config.FromStore(filepath.Join(r.c.Root, config.CredentialStore)))
	}
	if err := s.WithoutHidden(problems).Err(); err != nil {
		return nil, fault.WithHint(err, "correct it first; `talos-agent doctor` shows more. Elsewhere than on the agent's host flags set what is needed")
	}
	k := &hostKnowledge{settings: s, router: probe.FindRouter()}
	ctx, cancel := context.WithTimeout(parent, learnWithin)
	defer cancel()
	if err := k.ask(ctx, problems); err != nil {
		r.c.Warn(err)
		return k, parent.Err()
	}
	return k, nil
}

// recipients are those of the agent's keys; none where they cannot be seen.
func (k *hostKnowledge) recipients() []string {
	if k.settings.Identities == nil {
		return nil
	}
	return k.settings.Identities.Recipients()
}

// ask asks Proxmox VE, with the agent's token.
func (k *hostKnowledge) ask(ctx context.Context, problems cluster.Problems) error {
	if i := slices.IndexFunc(problems, func(p cluster.Problem) bool { return p.Field == "proxmox.token_file" && p.Severity == cluster.Error }); i >= 0 {
		return fault.WithHint(errors.New(problems[i].Message), "set with flags what it would provide")
	}
	pve, err := proxmox.New(k.settings.Proxmox)
	if err != nil {
		return err
	}
	if err := k.see(ctx, pve); err != nil {
		pve.Close()
		return err
	}
	k.pve = pve
	return nil
}

// see asks Proxmox VE for the host that this is, or the only one there is, and
// what is on it.
func (k *hostKnowledge) see(ctx context.Context, pve *proxmox.Client) error {
	hosts, _, err := pve.Inhabitants(ctx)
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	name, _, _ = strings.Cut(name, ".")
	switch {
	case slices.Contains(hosts, name):
		k.host = name
	case len(hosts) == 1:
		k.host = hosts[0]
	default:
		return fault.WithHint(fmt.Errorf("which of %s are the VMs for?", strings.Join(hosts, ", ")), "use --host")
	}
	if k.storages, err = pve.Storages(ctx, k.host); err != nil {
		return err
	}
	if k.bridges, err = pve.Bridges(ctx, k.host); err != nil {
		return err
	}
	return k.measure(ctx, pve)
}

// measure asks what is left of the host for VMs.
func (k *hostKnowledge) measure(ctx context.Context, pve *proxmox.Client) (err error) {
	bounds := k.settings.Policy.Capacity
	if k.room, err = pve.Room(ctx, k.host, bounds.Reserve()); err != nil {
		return err
	}
	k.disks = map[string]int64{}
	for name, st := range k.storages {
		if !st.Active || st.Total == 0 || !slices.Contains(st.Content, "images") {
			continue
		}
		left, err := pve.DiskRoom(ctx, k.host, name, st, bounds.Thin())
		if err != nil {
			continue // what cannot be seen is not known, and the sizes are the usual ones
		}
		k.disks[name] = left
	}
	return ctx.Err()
}

// fill fills in what no flag sets.
func (k *hostKnowledge) fill(w scaffold.Wishes) scaffold.Wishes {
	s := k.settings
	w.Folder, w.Host = cmp.Or(w.Folder, s.Folder), cmp.Or(w.Host, k.host)
	w.VMIDs = s.Policy.VMIDs
	if len(w.Recipients) == 0 {
		w.Recipients = k.recipients()
	}
	if w.Bridge == "" {
		if w.Bridge = first(s.Policy.Bridges); w.Bridge == "" {
			w.Bridge = k.bridgeWithAddress()
		}
	}
	w.Datastore = cmp.Or(w.Datastore, k.roomiest())
	w.Offer = k.offer()
	if p, err := netip.ParsePrefix(k.bridges[w.Bridge].Address); err == nil && !w.Network.IsValid() {
		w.Network = p.Masked()
	}
	if mine, err := netip.ParsePrefix(k.bridges[w.Bridge].Address); !w.Gateway.IsValid() && err == nil {
		// On a bridge of its own the host is the router.
		if w.Gateway = mine.Addr(); w.Network.Contains(k.router) {
			w.Gateway = k.router
		}
	}
	for from := range s.Charts {
		w.ChartMirrored = w.ChartMirrored || strings.HasPrefix(scaffold.CiliumRepository, from)
	}
	if s.Directory() == "" {
		w.Remote, w.Branch = config.PublicURL(s.Repository.URL), s.Repository.Branch
	}
	if len(w.CI) == 0 && s.Forge != nil {
		w.CI = []string{string(s.Forge.Kind)}
	}
	return w
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// bridgeWithAddress is the first bridge, by name, on which the host has an
// address.
func (k *hostKnowledge) bridgeWithAddress() string {
	var names []string
	for name, b := range k.bridges {
		if b.Address != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return first(names)
}

// offer is what the host has and the policy allows; nothing where Proxmox VE
// could not be asked.
func (k *hostKnowledge) offer() scaffold.Offer {
	if k.pve == nil {
		return scaffold.Offer{}
	}
	o := scaffold.Offer{Host: k.host, Cores: k.room.Cores, MemoryMiB: k.room.MemoryBytes >> 20, DiskGiB: map[string]int64{}}
	for name, bytes := range k.disks {
		o.DiskGiB[name] = max(1, bytes>>30) // 0 is not known
	}
	allows := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	for _, name := range slices.Sorted(maps.Keys(k.bridges)) {
		if allows(k.settings.Policy.Bridges, name) {
			o.Bridges = append(o.Bridges, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.storages)) {
		if allows(k.settings.Policy.Datastores, name) && slices.Contains(k.storages[name].Content, "images") {
			o.Datastores = append(o.Datastores, name)
		}
	}
	return o
}

// roomiest is the storage for disks with the most room, among those that the
// policy allows.
func (k *hostKnowledge) roomiest() string {
	best, room := "", int64(-1)
	for name, s := range k.storages {
		allowed := len(k.settings.Policy.Datastores) == 0 || slices.Contains(k.settings.Policy.Datastores, name)
		if allowed && s.Active && slices.Contains(s.Content, "images") && (s.Free > room || s.Free == room && name < best) {
			best, room = name, s.Free
		}
	}
	return best
}
