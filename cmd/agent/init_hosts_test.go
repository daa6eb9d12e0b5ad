package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/host/probe"
	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// TestInitOnTwoHosts: of two hosts of one cluster of Proxmox VE each gets a token
// of its own and leaves the other's alone, whatever is done on it; what they share
// stays as long as one of them needs it, and goes with the last.
func TestInitOnTwoHosts(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) {
			hosts := newFreshCluster(t, flavour, "pve1", "2nd")
			first, second := hosts[0], hosts[1]
			shared := []string{"/pools", "/access/roles", "/access/users --full 1", "/access/acl"}
			before := first.says(shared...)

			first.done()
			kept := first.credential("pve1")
			if said := second.done(); !strings.Contains(said.out, "note: besides this one there is the agent of pve1: where they follow one repository") {
				t.Errorf("the second is not told of the first: %v", said)
			} else if strings.Contains(said.out, "make the role") || strings.Contains(said.out, "make the user") {
				t.Errorf("what is there is made again: %v", said)
			}
			second.credential("host_2nd")
			second.worksIn("talos-2nd", "pve1", "2nd")
			for _, tc := range []struct {
				host       *fresh
				works, see string
			}{{first, "pve1", "the agent of 2nd"}, {second, "2nd", "the agent of pve1"}, {first, "2nd", ""}} {
				seen := probe.Inspector{Host: probe.Host{Root: tc.host.dir, Run: tc.host.run}}.Inspect(t.Context(), doctor.Wants{Token: setup.Token(tc.works)})
				if others := seen.Others; !others.Known || others.Value != tc.see {
					t.Errorf("with the token of %s doctor sees %+v, want %q", tc.works, others, tc.see)
				}
			}
			// Of an agent whose config nobody could read it is not known what it lacks.
			unread := probe.Inspector{Host: probe.Host{Root: first.dir, Run: first.run}}.Inspect(t.Context(), doctor.Wants{})
			if c := find(unread.Judge(), "agents", ""); len(c) != 1 || c[0].Level != doctor.Skipped {
				t.Errorf("without a config doctor says %+v", c)
			}
			if a := first.done(); !strings.Contains(a.out, "nothing to do") {
				t.Errorf("the first host has something to do because there is a second: %v", a)
			}

			old := second.credential("host_2nd")
			if second.done("--rotate-token"); second.credential("host_2nd") == old {
				t.Error("the token of the second host is the old one still")
			}
			second.worksIn("talos-2nd", "pve1", "2nd")
			first.worksIn("talos", "pve1", "2nd")
			second.names("pve1")

			undone := first.bare(t.Context(), "--undo", "--yes")
			if undone.err != nil || !strings.Contains(undone.out, "the user talos-agent@pve and the roles stay: the agent of 2nd needs them") {
				t.Errorf("%v", undone)
			}
			second.worksIn("talos-2nd", "pve1", "2nd")
			if says := first.says("/access/users --full 1"); strings.Contains(says, `"tokenid":"pve1"`) {
				t.Errorf("the token of the first host is there still: %s", says)
			}

			if first.done(); first.credential("pve1") == kept {
				t.Error("the token is one that undo has deleted")
			}
			first.worksIn("talos", "pve1", "2nd")
			first.names("host_2nd")
			// The first host made what they share, and the second takes it away.
			for _, h := range hosts {
				if a := h.bare(t.Context(), "--undo", "--yes"); a.err != nil {
					t.Errorf("%v", a)
				}
			}
			if after := first.says(shared...); after != before {
				t.Errorf("there was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

// TestInitWithACopiedToken: the token of another host, copied to this one, is not
// taken for its own.
func TestInitWithACopiedToken(t *testing.T) {
	hosts := newFreshCluster(t, "9.2", "pve1", "pve2")
	hosts[0].done()
	path := setup.Credential(setup.ProxmoxToken)
	must(os.MkdirAll(hosts[1].dir+setup.CredentialDir, 0o700))
	hosttest.Write(t, hosts[1].dir+path, hosts[0].file(path), 0o600)
	if a := hosts[1].init(t.Context(), "--yes"); a.err == nil || !strings.Contains(a.err.Error(), path+": somebody else wrote or changed it") || len(hosts[1].pveshs) > 0 {
		t.Errorf("%v; %v", a, hosts[1].pveshs)
	}
	hosts[1].done("--force")
	hosts[1].credential("pve2")
	hosts[0].worksIn("talos", "pve1", "pve2")
}

// TestInitWithoutQuorum: where too few hosts are up for Proxmox VE to change
// anything, that is told before anything is begun.
func TestInitWithoutQuorum(t *testing.T) {
	h := newFreshCluster(t, "9.2", "pve1", "pve2")[0]
	var out bytes.Buffer
	cmd := newInitWith(&environment{stdin: strings.NewReader(""), stdout: &out, stderr: &out}, func(ctx context.Context, name string, args ...string) ([]byte, error) {
		text, err := h.run(ctx, name, args...)
		return bytes.ReplaceAll(text, []byte(`"quorate":1`), []byte(`"quorate":0`)), err
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(h.InitFlags(), "--root", h.dir, "--yes"))
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "cluster of pve1 has no quorum") || !strings.Contains(err.Error(), "pvecm status") || len(h.pveshs) > 0 {
		t.Errorf("%v; %v", err, h.pveshs)
	}
	if _, err := os.Stat(h.dir + setup.ConfigDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was begun: %v", err)
	}
}

// credential is the stored token of Proxmox VE, which must have a name.
func (h *fresh) credential(name string) string {
	h.t.Helper()
	token := strings.TrimSpace(h.file(setup.Credential(setup.ProxmoxToken)))
	if !strings.HasPrefix(token, setup.User+"!"+name+"=") {
		id, _, _ := strings.Cut(token, "=")
		h.t.Errorf("the token is %s, want %s", id, name)
	}
	return token
}

// names complains of changes by pvesh that are about a token.
func (h *fresh) names(token string) {
	h.t.Helper()
	for _, args := range h.pveshs {
		if slices.ContainsFunc(args, func(a string) bool { return strings.HasSuffix(a, "/token/"+token) || strings.HasSuffix(a, "!"+token) }) {
			h.t.Errorf("another host's token was touched: pvesh %v", args)
		}
	}
}
