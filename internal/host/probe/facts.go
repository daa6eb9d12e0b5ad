//go:build linux

package probe

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// Host is the machine that is set up, seen by its root.
type Host struct {
	// Root is the folder below which everything lies; "" is the machine itself.
	// Below another folder nobody is root: files keep the user who writes them,
	// and there is no systemd.
	Root string
	Run  Runner
}

func (h Host) Path(path string) string { return h.Root + path }

// Pvesh calls the API as root and decodes its answer into out, unless it is
// nil.
func (h Host) Pvesh(ctx context.Context, out any, args ...string) error {
	text, err := h.Run(ctx, h.Path("/usr/bin/pvesh"), append(args, "--output-format", "json")...)
	if err != nil {
		return fmt.Errorf("pvesh %s %s: %w", args[0], args[1], err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("pvesh %s %s: its answer is not what was expected", args[0], args[1]) // and may hold a secret
	}
	return nil
}

// Verify refuses a machine that is no Proxmox VE host, or whoever is not its
// root.
func (h Host) Verify() error {
	if _, err := os.Stat(h.Path("/usr/bin/pvesh")); err != nil {
		return fault.WithHint(errors.New("this is not a Proxmox VE host: there is no /usr/bin/pvesh"), "run init on the host itself; `talos-agent lab --bare` plays one")
	}
	if h.Root == "" && os.Geteuid() != 0 {
		return fault.WithHint(errors.New("only root can set up the host"), "sudo talos-agent init")
	}
	return nil
}

// ReadFacts looks at everything that the steps depend on. A call of pvesh takes a
// second on a real host, so they are made side by side: each fills in fields
// of its own.
func (h Host) ReadFacts(ctx context.Context) (setup.Facts, error) {
	var f setup.Facts
	if err := h.readHosts(ctx, &f); err != nil {
		return setup.Facts{}, err
	}
	looks := []func(context.Context, *setup.Facts) error{
		h.readPools, h.readRoles, h.readUsers, h.readACL, h.readStorages, h.readBridges, h.readVMs, h.readFiles, h.readCertificate, h.readService,
	}
	errs := make([]error, len(looks))
	var all sync.WaitGroup
	for i, look := range looks {
		all.Go(func() { errs[i] = look(ctx, &f) })
	}
	all.Wait()
	return f, errors.Join(errs...)
}

func (h Host) readHosts(ctx context.Context, f *setup.Facts) error {
	var version struct{ Version string }
	var members []struct {
		Type, Name string
		Local      flag
		Quorate    *flag // of the cluster; a host by itself has none
	}
	err := errors.Join(h.Pvesh(ctx, &version, "get", "/version"), h.Pvesh(ctx, &members, "get", "/cluster/status"))
	f.Version = version.Version
	for _, m := range members {
		if m.Type != "node" {
			f.NoQuorum = f.NoQuorum || m.Quorate != nil && !bool(*m.Quorate)
			continue
		}
		f.Hosts = append(f.Hosts, m.Name)
		if m.Local {
			f.Host = m.Name
		}
	}
	slices.Sort(f.Hosts)
	if err == nil && f.Host == "" {
		err = errors.New("pvesh get /cluster/status does not show which host this is")
	}
	return err
}

// flag is a boolean in Proxmox VE's JSON: 0, 1, or the same as text.
type flag bool

func (b *flag) UnmarshalJSON(text []byte) error {
	word := strings.Trim(string(text), `"`)
	*b = flag(word == "1" || word == "true")
	return nil
}

func (h Host) readPools(ctx context.Context, f *setup.Facts) error {
	var pools []struct{ PoolID, Comment string }
	err := h.Pvesh(ctx, &pools, "get", "/pools")
	f.Pools = map[string]string{}
	for _, p := range pools {
		f.Pools[p.PoolID] = p.Comment
	}
	return err
}

func (h Host) readRoles(ctx context.Context, f *setup.Facts) error {
	var roles []struct{ RoleID, Privs string }
	err := h.Pvesh(ctx, &roles, "get", "/access/roles")
	f.Roles = map[string][]string{}
	for _, r := range roles {
		f.Roles[r.RoleID] = strings.FieldsFunc(r.Privs, func(c rune) bool { return c == ',' || c == ' ' })
	}
	return err
}

func (h Host) readUsers(ctx context.Context, f *setup.Facts) error {
	var users []struct {
		UserID, Comment string
		Enable          *flag
		Tokens          []struct{ TokenID string }
	}
	err := h.Pvesh(ctx, &users, "get", "/access/users", "--full", "1")
	f.Users = map[string]setup.Account{}
	for _, u := range users {
		a := setup.Account{Disabled: u.Enable != nil && !bool(*u.Enable), Comment: u.Comment}
		for _, t := range u.Tokens {
			a.Tokens = append(a.Tokens, t.TokenID)
		}
		f.Users[u.UserID] = a
	}
	return err
}

func (h Host) readACL(ctx context.Context, f *setup.Facts) error {
	var entries []struct {
		Path, UGID, RoleID string
		Propagate          flag
	}
	err := h.Pvesh(ctx, &entries, "get", "/access/acl")
	for _, e := range entries {
		f.ACL = append(f.ACL, setup.Entry{Path: e.Path, Who: e.UGID, Role: e.RoleID, Propagate: bool(e.Propagate)})
	}
	return err
}

func (h Host) readStorages(ctx context.Context, f *setup.Facts) error {
	var storages []struct {
		Storage, Type, Content, Nodes, Digest string
		Disable                               flag
	}
	err := h.Pvesh(ctx, &storages, "get", "/storage")
	for _, s := range storages {
		elsewhere := s.Nodes != "" && !slices.Contains(strings.Split(s.Nodes, ","), f.Host)
		if bool(s.Disable) || elsewhere {
			continue
		}
		// "none" stands for an empty list.
		content := slices.DeleteFunc(strings.Split(s.Content, ","), func(c string) bool { return c == "none" || c == "" })
		f.Storages = append(f.Storages, setup.Storage{Name: s.Storage, Type: s.Type, Content: content, Digest: s.Digest})
	}
	slices.SortFunc(f.Storages, func(a, b setup.Storage) int { return strings.Compare(a.Name, b.Name) })
	return err
}

func (h Host) readBridges(ctx context.Context, f *setup.Facts) error {
	var bridges []struct{ Iface, CIDR string }
	err := h.Pvesh(ctx, &bridges, "get", "/nodes/"+f.Host+"/network", "--type", "any_bridge")
	for _, b := range bridges {
		f.Bridges = append(f.Bridges, setup.Bridge{Name: b.Iface, Address: b.CIDR})
	}
	slices.SortFunc(f.Bridges, func(a, b setup.Bridge) int { return strings.Compare(a.Name, b.Name) })
	return err
}

func (h Host) readVMs(ctx context.Context, f *setup.Facts) error {
	var vms []struct {
		VMID             int
		Name, Pool, Node string
	}
	err := h.Pvesh(ctx, &vms, "get", "/cluster/resources", "--type", "vm")
	for _, v := range vms {
		f.VMs = append(f.VMs, setup.VM{ID: v.VMID, Name: v.Name, Pool: v.Pool, Host: v.Node})
	}
	slices.SortFunc(f.VMs, func(a, b setup.VM) int { return a.ID - b.ID })
	return err
}

// readFiles reads what is at the paths that matter. A link, or what is no file,
// is nothing that init would write through.
func (h Host) readFiles(_ context.Context, f *setup.Facts) error {
	f.Files = map[string]setup.File{}
	for _, path := range setup.Files() {
		info, err := os.Lstat(h.Path(path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case !info.Mode().IsRegular() && !info.IsDir():
			return fault.WithHint(fmt.Errorf("%s is not a regular file", path), "remove it, or move it away")
		}
		file := setup.File{Mode: info.Mode().Perm()}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && h.Root == "" {
			file.Group = fmt.Sprint(stat.Gid)
			if g, err := user.LookupGroupId(file.Group); err == nil {
				file.Group = g.Name
			}
		}
		if !info.IsDir() {
			if file.Data, _, err = config.ReadFile(h.Path(path), 0); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		f.Files[path] = file
	}
	return nil
}

// readCertificate looks for one in the place of Proxmox VE's own: uploaded, or
// by ACME.
func (h Host) readCertificate(_ context.Context, f *setup.Facts) error {
	text, err := os.ReadFile(h.Path("/etc/pve/nodes/" + f.Host + "/pveproxy-ssl.pem"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var chain []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			chain = append(chain, cert)
		}
	}
	if len(chain) == 0 {
		return fmt.Errorf("/etc/pve/nodes/%s/pveproxy-ssl.pem holds no certificate", f.Host)
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{Intermediates: between})
	f.Certificate = &setup.Certificate{Fingerprint: fingerprintOf(chain[0].Raw), Names: chain[0].DNSNames, Trusted: err == nil}
	return nil
}

func (h Host) readService(ctx context.Context, f *setup.Facts) error {
	for _, dir := range []string{"/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/"} {
		if _, err := os.Stat(h.Path(dir + setup.UnitName)); err == nil {
			f.Unit.Installed = true
		}
	}
	if h.Root != "" {
		f.ServiceUser = true
		return nil
	}
	_, errUser := user.Lookup(setup.ServiceUser)
	_, errGroup := user.LookupGroup(setup.ServiceUser)
	f.ServiceUser = errUser == nil && errGroup == nil
	if f.Unit.Installed {
		// It fails when the unit is not active: that is the answer.
		_, err := h.Run(ctx, "systemctl", "is-active", "--quiet", setup.UnitName)
		f.Unit.Active = err == nil
	}
	return nil
}

// fingerprintOf is a certificate's SHA-256 as Proxmox VE shows it.
func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return strings.ToUpper(strings.ReplaceAll(fmt.Sprintf("% x", sum[:]), " ", ":"))
}
