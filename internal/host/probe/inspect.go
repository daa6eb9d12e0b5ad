//go:build linux

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/beevik/ntp"
	"golang.org/x/sys/unix"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// Inspector looks at what doctor judges on the host itself.
type Inspector struct {
	ConfigPath string
	Used       []config.UsedFile // config, policy and what the config names
	Store      string            // root's credential store
	Given      string            // where systemd lays what it has handed to the daemon
	Host       Host
	Settings   config.Settings // of the agent; zero: they could not be loaded
}

// inspectTimeout bounds what is waited for on the host's network. Programs have the
// bound of one of them, all together.
const inspectTimeout = 15 * time.Second

func (v Inspector) Inspect(parent context.Context, w doctor.Wants) doctor.Host {
	ctx, cancel := context.WithTimeout(parent, inspectTimeout)
	defer cancel()
	programs, stop := limitPrograms(parent, runTimeout)
	defer stop()
	h := doctor.Host{Wants: w, Files: v.listFiles(), Credentials: v.compareCredentials(), Clock: readClock(), DHCP: findDHCPListeners("/proc/net/udp"), Addresses: listAddresses(),
		Snapshots: doctor.Look(findSnapshots(v.Settings)), Reservations: doctor.Look(findReservations(v.Settings)), TimeServers: map[string]doctor.Fact[time.Duration]{}, Ways: map[netip.Addr]doctor.Fact[doctor.Way]{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	wg.Go(func() { h.Separation = doctor.Look(v.askSeparation(programs, w.Token)) })
	wg.Go(func() { h.ThinPools = doctor.Look(v.listThinPools(programs)) })
	wg.Go(func() { h.Others = doctor.Look(v.findOthers(programs, w.Token)) })
	look := func(ip netip.Addr) {
		if _, done := h.Ways[ip]; done || !ip.IsValid() {
			return
		}
		h.Ways[ip] = doctor.Fact[doctor.Way]{}
		wg.Go(func() {
			f := doctor.Look(findWay(ctx, w, ip))
			mu.Lock()
			defer mu.Unlock()
			h.Ways[ip] = f
		})
	}
	mu.Lock() // until everything is asked for
	for _, c := range w.Clusters {
		look(c.Gateway)
		look(c.VIP)
		for _, n := range c.Nodes {
			look(n.IP)
		}
	}
	h.NotAsked = w.NotAsked(findRoute)
	for server, why := range h.NotAsked {
		if why != "" {
			continue
		}
		wg.Go(func() {
			f := doctor.Look(queryTime(ctx, server))
			mu.Lock()
			defer mu.Unlock()
			h.TimeServers[server] = f
		})
	}
	mu.Unlock()
	wg.Wait()
	h.Seen = doctor.Look(listNeighbours())
	return h
}

// asRoot is how to see what only root of the host sees.
const asRoot = "run `talos-agent doctor` as root on the Proxmox VE host"

// askSeparation asks Proxmox VE, as its root, what the agent's token and its user
// may do.
func (v Inspector) askSeparation(ctx context.Context, token cluster.TokenID) (doctor.Separation, error) {
	var out doctor.Separation
	if token.Name() == "" {
		return out, errors.New("the agent's token is unknown")
	}
	if err := v.Host.Verify(); err != nil {
		return out, fault.Errorf(asRoot, "it takes root of the Proxmox VE host to see what user and token were given")
	}
	for id, into := range map[string]*doctor.Grants{token.User(): &out.User, string(token): &out.Token} {
		// A privilege's value reports whether it holds below the path too: 1, or "1".
		var answer map[string]map[string]json.RawMessage
		if err := v.Host.Pvesh(ctx, &answer, "get", "/access/permissions", "--userid", id); err != nil {
			return out, err
		}
		*into = doctor.Grants{}
		for path, held := range answer {
			(*into)[path] = map[string]bool{}
			for privilege, below := range held {
				(*into)[path][privilege] = strings.Trim(string(below), `"`) != "0"
			}
		}
	}
	return out, nil
}

// findOthers asks Proxmox VE, as its root, who has a token of the agents' user besides
// the one that this agent works with.
func (v Inspector) findOthers(ctx context.Context, token cluster.TokenID) (string, error) {
	if token == "" { // whose config was not read
		return "", errors.New("the agent's token, and which clusters are its own, are unknown")
	}
	if err := v.Host.Verify(); err != nil {
		return "", fault.Errorf(asRoot, "it takes root of the Proxmox VE host to see whether other hosts have agents")
	}
	var f setup.Facts
	if err := errors.Join(v.Host.readHosts(ctx, &f), v.Host.readUsers(ctx, &f)); err != nil {
		return "", err
	}
	account := f.Users[setup.User]
	account.Tokens = slices.DeleteFunc(account.Tokens, func(name string) bool { return cluster.NewTokenID(setup.User, name) == token })
	f.Users[setup.User] = account
	return f.Others(), nil
}

// listThinPools asks Proxmox VE, as its root, for the host's thin pools. The agent may
// not: it takes Sys.Audit on everything (PVE 9.2: GET /nodes/{node}/disks/lvmthin).
func (v Inspector) listThinPools(ctx context.Context) ([]doctor.ThinPool, error) {
	if err := v.Host.Verify(); err != nil {
		return nil, fault.Errorf(asRoot, "it takes root of the Proxmox VE host to see the metadata of thin pools")
	}
	var f setup.Facts
	if err := v.Host.readHosts(ctx, &f); err != nil {
		return nil, err
	}
	var pools []struct {
		VG           string `json:"vg"`
		LV           string `json:"lv"`
		MetadataSize int64  `json:"metadata_size"`
		MetadataUsed int64  `json:"metadata_used"`
	}
	if err := v.Host.Pvesh(ctx, &pools, "get", "/nodes/"+f.Host+"/disks/lvmthin"); err != nil {
		return nil, err
	}
	var out []doctor.ThinPool
	for _, p := range pools {
		out = append(out, doctor.ThinPool{Name: p.VG + "/" + p.LV, MetadataBytes: p.MetadataSize, MetadataUsed: p.MetadataUsed})
	}
	return out, nil
}

// listFiles looks at the modes of the config and everything that it names, and of
// what root keeps for the agent. What is missing is for the config to report.
func (v Inspector) listFiles() []doctor.File {
	all := append([]config.UsedFile{{Path: filepath.Dir(v.ConfigPath), Kind: doctor.ConfigFile}}, v.Used...)
	var out []doctor.File
	for _, u := range all {
		if _, err := os.Stat(u.Path); u.Kind == "" || filepath.Dir(u.Path) == v.Store || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		out = append(out, statFile(u.Path, u.Kind))
	}
	return append(out, listStored(v.Store)...)
}

// listStored are the files of a credential store that are the agent's, and the store.
func listStored(dir string) []doctor.File {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	out := []doctor.File{statFile(dir, doctor.StoreFile)}
	if err != nil {
		out[0].Err = reasonOf(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), config.CredentialMark) && !isPublic(e.Name()) {
			out = append(out, statFile(filepath.Join(dir, e.Name()), doctor.StoreFile))
		}
	}
	return out
}

// isPublic recognizes a public half, which ssh-keygen lays beside the key, by its name.
func isPublic(name string) bool { return strings.HasSuffix(name, ".pub") }

// statFile looks at one file, without opening it.
func statFile(path string, kind doctor.FileKind) doctor.File {
	f := doctor.File{Path: path, Is: kind}
	info, err := os.Stat(path)
	if err != nil {
		f.Err = reasonOf(err)
		return f
	}
	f.Mode, f.Dir = info.Mode().Perm(), info.IsDir()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.Owner, f.Group = strconv.Itoa(int(st.Uid)), strconv.Itoa(int(st.Gid))
		if u, err := user.LookupId(f.Owner); err == nil {
			f.Owner = u.Username
		}
		if g, err := user.LookupGroupId(f.Group); err == nil {
			f.Group = g.Name
		}
	}
	return f
}

// MayRead reports whether this user may read a file, which need not be there.
func MayRead(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = f.Close()
	}
	return !errors.Is(err, fs.ErrPermission)
}

// reasonOf is why a file cannot be looked at, without its path.
func reasonOf(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return "this user may not look at it: run it with sudo"
	}
	return err.Error()
}

// readClock asks the kernel how sure it is of its clock (adjtimex(2)).
func readClock() doctor.Fact[doctor.Clock] {
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return doctor.Unseen[doctor.Clock](fmt.Errorf("ask the kernel for its clock: %w", err))
	}
	return doctor.Saw(doctor.Clock{Synchronised: t.Status&unix.STA_UNSYNC == 0, MaxError: time.Duration(t.Maxerror) * time.Microsecond})
}

// timeServerTimeout bounds one question to a time server.
const timeServerTimeout = 4 * time.Second

// queryTime asks a time server how far its clock is ahead of ours.
func queryTime(ctx context.Context, server string) (time.Duration, error) {
	options := ntp.QueryOptions{Timeout: timeServerTimeout, Dialer: func(_, remote string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", remote)
	}}
	answer, err := ntp.QueryWithOptions(server, options)
	if err != nil {
		if oe, ok := errors.AsType[*net.OpError](err); ok && oe.Timeout() {
			err = fmt.Errorf("no answer within %v", timeServerTimeout)
		}
		return 0, err
	}
	if err := answer.Validate(); err != nil {
		return 0, err
	}
	return answer.ClockOffset, nil
}

// dhcpPort is where DHCP servers listen.
const dhcpPort = 67

// findDHCPListeners are the addresses on which somebody on this host listens for
// DHCP requests, from the kernel's table of UDP sockets.
func findDHCPListeners(table string) doctor.Fact[[]netip.Addr] {
	b, err := os.ReadFile(table)
	if err != nil {
		return doctor.Unseen[[]netip.Addr](fmt.Errorf("read the table of sockets: %w", err))
	}
	return doctor.Look(parseListeners(string(b), dhcpPort))
}

// parseListeners reads /proc/net/udp: one socket a line, its local address as the
// hexadecimal word in memory, a colon, and the port (proc(5)).
func parseListeners(table string, port uint16) ([]netip.Addr, error) {
	var out []netip.Addr
	lines := strings.Split(strings.TrimSpace(table), "\n")
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("read the table of sockets: %q is no line of it", line)
		}
		host, at, _ := strings.Cut(fields[1], ":")
		n, err := strconv.ParseUint(host, 16, 32)
		p, err2 := strconv.ParseUint(at, 16, 16)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("read the table of sockets: %q is no address", fields[1])
		}
		if uint16(p) == port {
			out = append(out, netip.AddrFrom4([4]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}))
		}
	}
	return out, nil
}

// listAddresses are the host's own addresses, by interface.
func listAddresses() doctor.Fact[map[string][]netip.Prefix] {
	links, err := net.Interfaces()
	if err != nil {
		return doctor.Unseen[map[string][]netip.Prefix](err)
	}
	out := map[string][]netip.Prefix{}
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil {
			return doctor.Unseen[map[string][]netip.Prefix](err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out[l.Name] = append(out[l.Name], p)
			}
		}
	}
	return doctor.Saw(out)
}
