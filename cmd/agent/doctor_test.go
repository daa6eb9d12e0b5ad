package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/world"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// newPatient makes a host with a cluster of one control plane and one worker in
// its repository, Cilium among its addons. No daemon runs on it.
func newPatient(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, lab.Config{Bridges: []string{"vmbr1"}})
	r.config["mirrors"].(map[string]any)["registries"] = map[string]any{
		"ghcr.io": r.lab.Registry.URL(), "registry.k8s.io": r.lab.Registry.URL(), "factory.talos.dev": r.lab.Registry.URL()}
	r.write()
	if os.Geteuid() == 0 {
		_, stop, err := hosttest.ServeTime(r.timeServer()+":123", 0)
		must(err)
		t.Cleanup(stop)
	}
	if c := find(r.examine(), "repository", ""); len(c) != 1 || c[0].Level != doctor.Warn || !strings.Contains(c[0].Hint, "push a first commit") {
		t.Errorf("before the first push: %+v", c)
	}
	r.push(r.settled())
	return r
}

// timeServer is the address of a patient's time server.
func (r *rig) timeServer() string { return r.base + "9" }

// settled is the inventory of a patient.
func (r *rig) settled(more ...string) map[string][]byte {
	files := with(r.inventory(1), "inventory/dev/addons/cilium.yaml",
		"name: cilium\nnamespace: kube-system\nchart: {repository: https://helm.cilium.io, name: cilium, version: 1.19.3}\n")
	files["inventory/dev/cluster.yaml"] = append(files["inventory/dev/cluster.yaml"], "cni: cilium\naddons: [addons/cilium.yaml]\n"...)
	// Only root can serve at the port of NTP.
	if os.Geteuid() == 0 {
		text := strings.Replace(string(files["inventory/dev/cluster.yaml"]), "network: {", "network: {time_servers: ["+r.timeServer()+"], ", 1)
		files["inventory/dev/cluster.yaml"] = []byte(text)
	}
	for _, line := range more {
		files["inventory/dev/cluster.yaml"] = append(files["inventory/dev/cluster.yaml"], line...)
	}
	return files
}

// examine looks at the host as the daemon would, without one; again where the machine was so
// busy that the inventory could not be read in the time that an examination has for it.
func (r *rig) examine() []doctor.Check {
	r.t.Helper()
	s, problems := config.Load(filepath.Join(r.dir, "config.yaml"))
	if err := problems.Err(); err != nil {
		r.t.Fatal(err)
	}
	for tries := 1; ; tries++ {
		exam, err := daemon.Examine(r.t.Context(), s)
		if err != nil {
			r.t.Fatal(err)
		}
		late := slices.ContainsFunc(append(find(exam.Checks, "inventory", ""), find(exam.Checks, "repository", "")...), func(c doctor.Check) bool {
			return strings.Contains(c.Message, context.DeadlineExceeded.Error())
		})
		if !late || tries == 5 {
			return exam.Checks
		}
	}
}

// find returns the checks of a kind that are about a subject.
func find(checks []doctor.Check, name, subject string) (out []doctor.Check) {
	for _, c := range checks {
		if c.Name == name && strings.Contains(c.Subject, subject) {
			out = append(out, c)
		}
	}
	return out
}

// TestDoctorSees: on a host where all is well everything passes; and whatever is
// made wrong on it, over the real protocols, is found, and passes again when it
// was mended.
func TestDoctorSees(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newPatient(t)
	host := r.lab.PVE
	for _, c := range r.examine() {
		if c.Level != doctor.Pass {
			t.Errorf("on a healthy host: %+v", c)
		}
	}
	if t.Failed() {
		return
	}
	stranger, err := world.New(world.Config{})
	must(err)
	defer stranger.Close()
	proxmox := r.config["proxmox"].(map[string]any)
	url := proxmox["url"]
	set := func(key string, value any) { proxmox[key] = value; r.write() }
	present := func(cert tls.Certificate, err error) { must(err); host.Present(cert) }
	mine := strings.TrimSuffix(strings.TrimPrefix(r.lab.PVE.URL(), "https://"), ":8006")
	images, disks := []string{"import", "iso", "vztmpl", "snippets", "backup"}, []string{"images", "rootdir"}
	policy := func(pool string) {
		r.file("policy.yaml", "pool: "+pool+"\nvmids: [400-599]\nbridges: [vmbr1]\n")
	}
	both := func(role, path string) {
		host.Grant("talos-agent@pve", role, path)
		host.Grant("talos-agent@pve!pve1", role, path)
	}
	store := []string{"Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}
	for _, tc := range []struct {
		what       string
		name, at   string // the check, and what its subject holds
		level      doctor.Level
		words      string // of its message or cure
		wrong, not func()
	}{
		{"connection refused", "api", "", doctor.Fail, "connection refused", func() { set("url", "https://127.0.0.1:1") }, func() { set("url", url) }},
		{"another authority", "certificate", "", doctor.Fail, "proxmox.ca_file", func() { r.file("ca.pem", string(stranger.PKI.PEM)); r.write() }, func() { r.file("ca.pem", string(r.lab.CA())) }},
		{"another name", "certificate", "", doctor.Fail, "pve1.example.org", func() { present(r.lab.World.PKI.Server("pve1.example.org")) }, func() { present(r.lab.World.PKI.Server(mine)) }},
		{"expired", "certificate", "", doctor.Fail, "renew", func() { present(r.lab.World.PKI.ServerUntil(time.Now().Add(-time.Hour), mine)) }, func() { present(r.lab.World.PKI.Server(mine)) }},
		{"about to expire", "certificate", "", doctor.Warn, "only until", func() { present(r.lab.World.PKI.ServerUntil(time.Now().Add(72*time.Hour), mine)) }, func() { present(r.lab.World.PKI.Server(mine)) }},
		{"an old Proxmox VE", "version", "", doctor.Fail, "8.2.4", func() { host.SetVersion("8.2.4") }, func() { host.SetVersion("") }},
		{"a clock that is ahead", "skew", "", doctor.Fail, "ahead of ours", func() { host.SetClock(time.Hour) }, func() { host.SetClock(0) }},
		{"a token that is refused", "token", "", doctor.Fail, "pveum user token list", func() { r.file("proxmox.token", "talos-agent@pve!pve1=wrong") }, func() { r.file("proxmox.token", r.lab.Token) }},
		{"a token without privileges of its own", "token", "", doctor.Fail, "pveum user token permissions talos-agent@pve bare",
			func() { r.file("proxmox.token", host.Token("talos-agent@pve", "bare", true)) }, func() { r.file("proxmox.token", r.lab.Token) }},
		{"a role that lacks one", "privileges", "/storage/local", doctor.Fail, "missing: Datastore.AllocateTemplate", func() { host.Role("TalosAgentStore", "Datastore.AllocateSpace", "Datastore.Audit") }, func() { host.Role("TalosAgentStore", store...) }},
		{"a role that shows nothing", "privileges", "/nodes/pve1", doctor.Warn, "Sys.Audit", func() { host.Role("TalosAgentHost", "Sys.Syslog") }, func() { host.Role("TalosAgentHost", "Sys.Audit") }},
		{"quorum out of sight", "quorum", "", doctor.Skipped, "Sys.Audit on /", func() { host.Role("TalosAgentHost", "Sys.Syslog") }, func() { host.Role("TalosAgentHost", "Sys.Audit") }},
		{"too many privileges", "excess", "", doctor.Warn, "Sys.PowerMgmt", func() { host.Role("TalosAgentHost", "Sys.Audit", "Sys.PowerMgmt") }, func() { host.Role("TalosAgentHost", "Sys.Audit") }},
		{"no pool", "pool", "gone", doctor.Fail, "pveum pool add gone", func() { both("TalosAgentVM", "/pool/gone"); policy("gone") }, func() { policy("talos") }},
		{"HA", "ha", "", doctor.Warn, "dev-wk-1", func() { host.Manage("vm:522", "vm:100") }, func() { host.Manage() }},
		{"backups that stop", "backup", "", doctor.Warn, "mode stop", func() { host.Backup(pve.BackupJob{"id": "b", "all": 1, "mode": "stop"}) }, func() { host.Backup() }},
		{"a storage that is away", "storage", "local-lvm", doctor.Fail, "not active", func() { host.ChangeStorage("pve1", "local-lvm", disks, false, 0) }, func() { host.ChangeStorage("pve1", "local-lvm", disks, true, 0) }},
		{"no images are taken", "storage", "pve1/local", doctor.Fail, "`pvesm set local --content backup,iso,import`", func() { host.ChangeStorage("pve1", "local", []string{"iso", "backup"}, true, 0) }, func() { host.ChangeStorage("pve1", "local", images, true, 0) }},
		{"no room", "space", "local-lvm", doctor.Warn, "I/O errors", func() { host.ChangeStorage("pve1", "local-lvm", disks, true, 1<<40-10<<30) }, func() { host.ChangeStorage("pve1", "local-lvm", disks, true, 0) }},
		{"a bridge that is down", "bridge", "", doctor.Fail, "ifup vmbr1", func() { host.ChangeBridge("pve1", "vmbr1", pve.Bridge{Down: true}) }, func() { host.ChangeBridge("pve1", "vmbr1", pve.Bridge{Address: "10.78.0.1/24"}) }},
		{"a bridge without an address", "bridge", "", doctor.Warn, "no address", func() { host.ChangeBridge("pve1", "vmbr1", pve.Bridge{Ports: "nic1"}) }, func() { host.ChangeBridge("pve1", "vmbr1", pve.Bridge{Address: "10.78.0.1/24"}) }},
		{"the VLAN trap", "vlan", "", doctor.Fail, "bridge-vlan-aware", func() {
			r.push(with(r.settled(), "inventory/dev/cluster.yaml", strings.Replace(string(r.settled()["inventory/dev/cluster.yaml"]), "network: {", "network: {vlan: 20, ", 1)))
		}, func() { host.ChangeBridge("pve1", "vmbr1", pve.Bridge{VLANAware: true, Address: "10.78.0.1/24"}) }},
		{"a repository that is refused", "repository", "", doctor.Fail, "token", func() { r.file("git.token", "wrong") }, func() { r.file("git.token", lab.GitToken) }},
		{"an invalid inventory", "inventory", "dev", doctor.Fail, "cluster.yaml:", func() { r.push(r.settled("nonsense: 1\n")) }, func() { r.push(r.settled()) }},
		{"more than the policy allows", "inventory", "dev", doctor.Fail, "sources.charts", func() {
			r.file("policy.yaml", "pool: talos\nvmids: [400-599]\nbridges: [vmbr1]\nsources: {charts: [\"https://charts.example.org\"]}\n")
		}, func() { policy("talos") }},
		{"a forge that refuses", "forge", "", doctor.Fail, "Commit statuses: write", func() { r.file("forge.token", "wrong") }, func() { r.file("forge.token", lab.ForgeToken) }},
		{"no factory", "source", "", doctor.Fail, "image factory", func() { r.lab.World.Inject(world.Fault{System: "factory", Kind: world.LoseRequest}) }, r.lab.World.Heal},
		{"no charts", "source", "", doctor.Fail, "chart cilium", func() { r.lab.World.Inject(world.Fault{System: "charts", Kind: world.LoseRequest}) }, r.lab.World.Heal},
		{"no registry", "source", "", doctor.Warn, "it is the nodes that need it", func() { r.lab.World.Inject(world.Fault{System: "registry", Kind: world.LoseRequest}) }, r.lab.World.Heal},
	} {
		tc.wrong()
		checks := r.examine()
		if !slices.ContainsFunc(find(checks, tc.name, tc.at), func(c doctor.Check) bool {
			return c.Level == tc.level && strings.Contains(c.Message+" -> "+c.Hint, tc.words)
		}) {
			t.Errorf("%s: want %s %s with %q of %+v", tc.what, tc.name, tc.level, tc.words, checks)
		}
		// One cluster is not told to be valid and invalid.
		for _, c := range find(checks, "inventory", "") {
			if c.Level == doctor.Pass && slices.ContainsFunc(checks, func(o doctor.Check) bool { return o.Name == c.Name && o.Subject == c.Subject && o.Level != c.Level }) {
				t.Errorf("%s: %s passes and does not: %+v", tc.what, c.Subject, checks)
			}
		}
		tc.not()
		after := find(r.examine(), tc.name, "")
		if len(after) == 0 || slices.ContainsFunc(after, func(c doctor.Check) bool { return c.Level != doctor.Pass }) {
			t.Errorf("%s, mended: %+v", tc.what, after)
		}
	}
}

// TestDoctorTellsABorrowedToken: an agent that works with the token of another host
// of its Proxmox VE cluster is told so, on the host that bears its machine's name.
func TestDoctorTellsABorrowedToken(t *testing.T) {
	name, err := os.Hostname()
	must(err)
	here, _, _ := strings.Cut(name, ".")
	other := here + "-2"
	r := newRig(t, lab.Config{Hosts: []pve.Host{{Name: here}, {Name: other}}})
	with := func(token string) doctor.Check {
		t.Helper()
		r.file("proxmox.token", r.lab.PVE.Token(setup.User, token, false))
		c := find(r.examine(), "token", setup.User+"!"+token)
		if len(c) != 1 {
			t.Fatalf("with the token %s: %+v", token, c)
		}
		return c[0]
	}
	if c := with(setup.TokenName(other)); c.Level != doctor.Warn || !strings.Contains(c.Message, "the token of the host "+other+", and this is "+here) {
		t.Errorf("another's token: %+v", c)
	}
	for _, token := range []string{setup.TokenName(here), "by-hand"} {
		if c := with(token); c.Level != doctor.Pass {
			t.Errorf("not another's: %+v", c)
		}
	}
}

// TestDoctorCommand: with a daemon the command has it look, without one it looks
// in its place; a failure is exit code 1; the JSON has the documented shape; and
// who may only read is told what takes root.
func TestDoctorCommand(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newPatient(t)
	config := filepath.Join(r.dir, "config.yaml")
	ask := func(want int) doctor.Report {
		t.Helper()
		a := r.run(want, do("doctor", "--config", config, "-o", "json"))
		var report struct {
			Kind       string
			APIVersion string
			Data       doctor.Report
		}
		if err := json.Unmarshal([]byte(a.out), &report); err != nil || report.Kind != "Doctor" || report.APIVersion != "v1" {
			t.Fatalf("%v: %v", err, a)
		}
		return report.Data
	}
	level := func(rep doctor.Report, name string) doctor.Level {
		if c := find(rep.Checks, name, ""); len(c) > 0 {
			return c[0].Level
		}
		return "not told"
	}
	without := ask(0)
	r.start()
	with := ask(0)
	if level(without, "daemon") != doctor.Warn || level(with, "daemon") != doctor.Pass {
		t.Errorf("the daemon: %s without, %s with", level(without, "daemon"), level(with, "daemon"))
	}
	for _, k := range doctor.Catalogue {
		if a, b := level(without, k.Name), level(with, k.Name); a != b && k.Name != "daemon" && k.Name != "space" {
			t.Errorf("%s: %s without the daemon, %s with it", k.Name, a, b)
		}
	}
	if os.Geteuid() == 0 && level(with, "timeserver") != doctor.Pass {
		t.Errorf("the time server: %+v", find(with.Checks, "timeserver", ""))
	}
	if r.enterable() {
		must(os.Chmod(r.socket(), 0o666)) // as if they were in its group
		a := r.as(&syscall.Credential{Uid: 65534, Gid: 65534}, "doctor", "--config", config)
		if a.code != exitOK || !a.has("this user may not read it") || !a.has("-> run it with sudo") || !a.has("  pass    api ") {
			t.Errorf("as somebody who may read the socket: %v", a)
		}
	}
	r.lab.PVE.SetVersion("7.4")
	a := r.run(exitFailed, do("doctor", "--config", config), "fail    version", "-> upgrade the host to 8.4 or 9", "1 failed")
	if !strings.Contains(a.out, "Proxmox VE\n  pass    api ") {
		t.Errorf("no groups: %v", a)
	}
	r.lab.PVE.SetVersion("")
	r.file("config.yaml", "owner: 7\n")
	r.run(exitFailed, do("doctor", "--config", config), "fail    config", "config.yaml:1:", "pass    daemon", "pass    api")
}

// TestStatusPointsAtDoctor: only where something is off.
func TestStatusPointsAtDoctor(t *testing.T) {
	for condition, points := range map[cluster.Condition]bool{cluster.Ready: false, cluster.Reconciling: false, cluster.Suspended: false, cluster.Stalled: true, cluster.Unknown: true} {
		var b strings.Builder
		terminal.NewPlain(&b).PrintDoctorHint([]cluster.Status{{Condition: cluster.Ready}, {Condition: condition}}, nil)
		if strings.Contains(b.String(), "talos-agent doctor") != points {
			t.Errorf("%s: %q", condition, b.String())
		}
	}
	for _, reason := range []cluster.Reason{cluster.InventoryInvalid, cluster.NodeProtected, cluster.VMProtected} {
		var b strings.Builder
		named := cluster.Status{Condition: cluster.Stalled, Reason: reason}
		if terminal.NewPlain(&b).PrintDoctorHint([]cluster.Status{named}, nil); b.Len() > 0 {
			t.Errorf("%s has its cause in the status: %q", reason, b.String())
		}
		if terminal.NewPlain(&b).PrintDoctorHint([]cluster.Status{named, {Condition: cluster.Stalled}}, nil); b.Len() == 0 {
			t.Errorf("%s hides what else is off", reason)
		}
	}
	var b strings.Builder
	terminal.NewPlain(&b).PrintDoctorHint(nil, []string{"config.yaml:1: no"})
	if !strings.Contains(b.String(), "talos-agent doctor") {
		t.Error("trouble with the daemon's files does not point at doctor")
	}
}
