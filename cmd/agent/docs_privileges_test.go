package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestDocsPrivileges: what a page has an administrator type into Proxmox VE gives
// the agent what init gives it, and lets it bring a cluster up, scale it and tear
// it down, on either version.
func TestDocsPrivileges(t *testing.T) {
	commands := pveumCommands(t, "TestDocsPrivileges")
	asInitDoes(t, commands)
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { grantedWorld(t, flavour, commands) })
		})
	}
}

// asInitDoes holds the commands against the roles and the access of init.
func asInitDoes(t *testing.T, commands [][]string) {
	t.Helper()
	roles, access := map[string]string{}, map[string]bool{}
	for _, c := range commands {
		line := strings.Join(c, " ")
		switch {
		case strings.HasPrefix(line, "role add "):
			names := strings.Fields(c[len(c)-1])
			slices.Sort(names)
			roles[c[2]] = strings.Join(names, " ")
		case strings.HasPrefix(line, "acl modify "):
			access[line] = true
		}
	}
	for _, r := range setup.Roles() {
		if want := strings.Join(r.Names(), " "); roles[r.Name] != want {
			t.Errorf("the role %s is shown with %q, and init gives it %q", r.Name, roles[r.Name], want)
		}
	}
	wanted := 0
	for _, g := range setup.Grants(setup.Scope{Pool: "talos", Datastores: []string{"local", "local-lvm"}, Images: "local", Bridges: []string{"vmbr1"}, Hosts: []string{"pve1"}}) {
		for _, who := range []string{"--users " + setup.User, "--tokens " + string(setup.Token("pve1"))} {
			line := "acl modify " + g.Path + " " + who + " --roles " + g.Role
			if !g.Propagate {
				line += " --propagate 0"
			}
			if wanted++; !access[line] {
				t.Errorf("no page shows `pveum %s`, which init does", line)
			}
		}
	}
	if len(roles) != len(setup.Roles()) || len(access) != wanted {
		t.Errorf("pages show %d roles and %d entries of access, and init makes %d and %d", len(roles), len(access), len(setup.Roles()), wanted)
	}
}

// TestDocsHA: what a page has an administrator type gives the agent's token the rights to HA that are needed, on / alone, and takes them
// away again.
func TestDocsHA(t *testing.T) {
	commands := pveumCommands(t, "TestDocsHA")
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, size{ControlPlanes: 1}, lab.Config{})
		defer s.Close()
		root := administrator{t: t, lab: s.Lab, token: s.Lab.PVE.AdminToken()}
		root.forget()
		root.pveum([]string{"user", "add", setup.User})
		agent := administrator{t: t, lab: s.Lab, token: root.pveum([]string{"user", "token", "add", setup.User, setup.TokenName("pve1")})}
		wantRights := func(what string, want ...string) {
			t.Helper()
			var has map[string]map[string]int
			if err := json.Unmarshal(agent.call("GET", "/access/permissions", nil), &has); err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(has["/"])); !slices.Equal(got, want) || len(has["/nodes"]) > 0 {
				t.Errorf("%s: %v, want %v on / alone", what, has, want)
			}
		}
		wantRights("before")
		for _, c := range commands {
			if c[1] == "delete" {
				continue
			}
			root.pveum(c)
		}
		wantRights("granted", setup.Grant{Role: availability.Role}.Needs().Names()...)
		for _, c := range commands {
			if c[1] == "delete" {
				root.pveum(c)
			}
		}
		wantRights("taken away")
		s.Halt()
	})
}

// pveumCommands runs the blocks of pages that a test checks with a pveum that only notes
// its arguments.
func pveumCommands(t *testing.T, test string) [][]string {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	script := fmt.Sprintf("#!/bin/sh\nprintf '%%s\\037' \"$@\" >> %q\nprintf '\\036' >> %q\n", log, log)
	if err := os.WriteFile(filepath.Join(dir, "pveum"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			if b.checked != "by "+test {
				continue
			}
			blocks++
			cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", b.text)
			cmd.Env = append(os.Environ(), "PATH="+dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", b.at(), err, out)
			}
		}
	}
	if blocks == 0 {
		t.Fatal("no page grants anything")
	}
	noted, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]string
	for record := range strings.SplitSeq(strings.TrimSuffix(string(noted), "\036"), "\036") {
		out = append(out, strings.Split(strings.TrimSuffix(record, "\037"), "\037"))
	}
	return out
}

// grantedWorld is a host on which somebody has typed the commands, and an agent
// with the token that came of it. It must be called in a bubble.
func grantedWorld(t *testing.T, flavour string, commands [][]string) {
	sz := size{ControlPlanes: 1, Workers: 1}
	s := newSim(t, sz, lab.Config{Flavour: flavour})
	defer s.Close()
	root := administrator{t: t, lab: s.Lab, token: s.Lab.PVE.AdminToken()}
	root.forget()
	for _, c := range commands {
		if secret := root.pveum(c); secret != "" {
			s.Lab.Token = secret
		}
	}
	s.Boot()
	s.UntilReady(20 * time.Minute)
	sz.Workers++
	s.Push(sz.Files(), "add a worker")
	s.UntilReady(20 * time.Minute)
	s.CheckRules(sz)
	if err := s.Cluster().Destroy(nil, nil); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Minute); len(s.Lab.PVE.VMs()) > 0; time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("%d VMs are left of the cluster", len(s.Lab.PVE.VMs()))
		}
	}
	st, err := s.Agent.Status("dev")
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Blocked) > 0 {
		t.Errorf("blocked: %v", st.Blocked)
	}
	s.Halt()
}

// administrator is root of the host at its API.
type administrator struct {
	t     *testing.T
	lab   *lab.Lab
	token string
}

func (a administrator) call(method, path string, form url.Values) json.RawMessage {
	a.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.lab.CA())
	c := http.Client{Transport: &http.Transport{DialContext: a.lab.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.lab.PVE.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Authorization", "PVEAPIToken="+a.token)
	if len(form) > 0 {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := c.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		a.t.Fatalf("%s %s: %s %s", method, path, resp.Status, body)
	}
	var answer struct{ Data json.RawMessage }
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&answer); err != nil {
		a.t.Fatal(err)
	}
	return answer.Data
}

// pveum does what the command line tool does with these arguments. It returns
// the token when they make one.
func (a administrator) pveum(args []string) string {
	a.t.Helper()
	form, rest := url.Values{}, []string{}
	for i := 0; i < len(args); i++ {
		if name, ok := strings.CutPrefix(args[i], "--"); ok && i+1 < len(args) {
			form.Set(name, args[i+1])
			i++
		} else {
			rest = append(rest, args[i])
		}
	}
	is := func(n int, words ...string) bool { return len(rest) == n && slices.Equal(rest[:len(words)], words) }
	switch {
	case is(3, "pool", "add"):
		form.Set("poolid", rest[2])
		a.call("POST", "/pools", form)
	case is(3, "role", "add"):
		form.Set("roleid", rest[2])
		a.call("POST", "/access/roles", form)
	case is(3, "user", "add"):
		form.Set("userid", rest[2])
		a.call("POST", "/access/users", form)
	case is(5, "user", "token", "add"):
		var made struct {
			ID    string `json:"full-tokenid"`
			Value string `json:"value"`
		}
		if err := json.Unmarshal(a.call("POST", "/access/users/"+rest[3]+"/token/"+rest[4], form), &made); err != nil {
			a.t.Fatal(err)
		}
		return made.ID + "=" + made.Value
	case is(3, "acl", "modify"), is(3, "acl", "delete"):
		if rest[1] == "delete" {
			form.Set("delete", "1")
		}
		form.Set("path", rest[2])
		a.call("PUT", "/access/acl", form)
	default:
		a.t.Fatalf("pveum %s: this test does not know it", strings.Join(args, " "))
	}
	return ""
}
