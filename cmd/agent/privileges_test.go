package main

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// scopeOfLab is what the agent has to be let at for the cluster of the
// simulation.
var scopeOfLab = setup.Scope{Pool: "talos", Datastores: []string{"local-lvm"}, Images: "local", Bridges: []string{"vmbr1"}, Hosts: []string{"pve1"}}

// TestPrivileges: with exactly the privileges of internal/host/setup a cluster is
// brought up, scaled and torn down, on either version, and it is without every
// one that is called optional. Without any of the others it is not.
func TestPrivileges(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if why := lifeWithout(t, flavour, "", ""); why != "" {
					t.Error(why)
				}
			})
		})
	}
	nth := 0
	for _, r := range setup.Roles() {
		for _, p := range r.Privileges {
			if nth++; nth%daemontest.Thinner != 0 {
				continue
			}
			t.Run("without "+p.Name+" of "+r.Name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					why := lifeWithout(t, "9.2", r.Name, p.Name)
					switch {
					case p.Optional && why != "":
						t.Errorf("it is optional, and without it %s", why)
					case !p.Optional && why == "":
						t.Error("nothing is amiss without it: it is not needed, or optional")
					}
				})
			})
		}
	}
}

// patient is three times what a cluster of this size takes to come up.
const patient = 6 * time.Minute

// lifeWithout lives the life of a cluster with the agent's privileges but one.
// It says what did not come about, "" if everything did. It must be called in
// a bubble.
func lifeWithout(t *testing.T, flavour, role, privilege string) string {
	sz := size{ControlPlanes: 1, Workers: 1}
	s := newSim(t, sz, lab.Config{Flavour: flavour})
	defer s.Close()
	root := administrator{t: t, lab: s.Lab, token: s.Lab.PVE.AdminToken()}
	s.Lab.Token = root.allow(role, privilege)
	s.Boot()
	defer s.Halt()
	if !s.readyWithin(patient) {
		return "it does not come up"
	}
	sz.Workers++
	s.Push(sz.Files(), "add a worker")
	if !s.readyWithin(patient) {
		return "it does not grow"
	}
	s.CheckRules(sz)
	if err := s.Cluster().Destroy(nil, nil); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Minute); len(s.Lab.PVE.VMs()) > 0; time.Sleep(time.Second) {
		if time.Now().After(end) {
			return "it is not torn down"
		}
	}
	return ""
}

// readyWithin waits until the cluster is Ready at the head.
func (s *sim) readyWithin(d time.Duration) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		if st := s.Status(); st.Condition == cluster.Ready && st.Revision == st.Applied && st.Revision.Commit() == s.Head() {
			return true
		}
	}
	return false
}

// allow makes the agent's roles, user and token, and gives them what they need
// but one privilege of a role. It returns the token.
func (a administrator) allow(role, privilege string) string {
	a.t.Helper()
	a.forget()
	a.pveum(strings.Fields("pool add " + scopeOfLab.Pool))
	for _, r := range setup.Roles() {
		names := slices.DeleteFunc(r.Names(), func(p string) bool { return r.Name == role && p == privilege })
		a.call("POST", "/access/roles", url.Values{"roleid": {r.Name}, "privs": {strings.Join(names, ",")}})
	}
	a.pveum(strings.Fields("user add " + setup.User))
	token := a.pveum(strings.Fields("user token add " + setup.User + " " + setup.TokenName("pve1") + " --privsep 1"))
	for _, g := range setup.Grants(scopeOfLab) {
		form := url.Values{"path": {g.Path}, "roles": {g.Role}, "propagate": {map[bool]string{true: "1", false: "0"}[g.Propagate]}}
		for _, who := range []url.Values{{"users": {setup.User}}, {"tokens": {string(setup.Token("pve1"))}}} {
			with := maps.Clone(form)
			maps.Copy(with, who)
			a.call("PUT", "/access/acl", with)
		}
	}
	return token
}

// forget takes away what the lab comes with for the agent.
func (a administrator) forget() {
	a.t.Helper()
	for _, made := range []string{"/access/users/talos-agent@pve", "/pools/talos", "/access/roles/TalosAgentVM",
		"/access/roles/TalosAgentStore", "/access/roles/TalosAgentNet", "/access/roles/TalosAgentHost"} {
		a.call("DELETE", made, nil)
	}
}

// permissions are the privileges of the administrator's token, by path.
func (a administrator) permissions() map[string]map[string]int {
	a.t.Helper()
	var have map[string]map[string]int
	if err := json.Unmarshal(a.call("GET", "/access/permissions", nil), &have); err != nil {
		a.t.Fatal(err)
	}
	return have
}

// storages are the storages with their content types.
func (a administrator) storages() []string {
	a.t.Helper()
	var have []struct{ Storage, Content string }
	if err := json.Unmarshal(a.call("GET", "/storage", nil), &have); err != nil {
		a.t.Fatal(err)
	}
	var out []string
	for _, s := range have {
		out = append(out, s.Storage+": "+s.Content)
	}
	return out
}
