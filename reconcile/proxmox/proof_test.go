package proxmox

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// TestWrongPlace: a guest can be the one only if it is a VM in the pool it belongs in, or,
// of one that is no longer a node's, in one of the cluster's.
func TestWrongPlace(t *testing.T) {
	for _, c := range []struct {
		what string
		row  row
		id   identity
		want string
	}{
		{"in its pool", row{Type: "qemu", Pool: "a"}, identity{pool: "a"}, ""},
		{"a container in its pool", row{Type: "lxc", Pool: "a"}, identity{pool: "a"}, "it is a container"},
		{"in another pool", row{Type: "qemu", Pool: "b"}, identity{pool: "a"}, "it is in pool b, not in a"},
		{"in no pool", row{Type: "qemu"}, identity{pool: "a"}, "it is not in pool a"},
		{"in a pool, and ours are in none", row{Type: "qemu", Pool: "b"}, identity{}, "it is in pool b, and ours are in none"},
		{"in none, as ours are", row{Type: "qemu"}, identity{}, ""},
		{"of no node, in another of the cluster's pools", row{Type: "qemu", Pool: "b"}, identity{pool: "a", pools: []string{"c", "b"}}, ""},
		{"of no node, in a pool of others", row{Type: "qemu", Pool: "b"}, identity{pool: "a", pools: []string{"c"}}, "it is in pool b, not in a"},
	} {
		if got := wrongPlace(c.row, c.id); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestWrongUUID: a VM is the one by its UUID alone; one without is not.
func TestWrongUUID(t *testing.T) {
	for have, ours := range map[string]bool{"u-1": true, "": false, "u-2": false} {
		if got := wrongUUID(have, identity{uuid: "u-1", node: "cp-1"}); (got == "") != ours {
			t.Errorf("%q: %q", have, got)
		}
	}
}

// TestIdentityOf: the VM of a node lies in the node's pool, and one that is no node's in any
// of the cluster's.
func TestIdentityOf(t *testing.T) {
	c := &Client{pool: "agent"}
	d := desired(2)
	d.Spec.Nodes[0].Pool, d.Spec.Nodes[1].Pool = "own", ""
	for node, want := range map[string]string{"dev-cp-1": "own []", "dev-cp-2": "agent []", "dev-wk-9": "agent [own agent]"} {
		id := c.identityOf(d, 411, node)
		if got := fmt.Sprint(id.pool, " ", id.pools); got != want || id.uuid != cluster.NodeUUID(d.Spec.ID, node) || id.vmid != 411 || id.node != node {
			t.Errorf("%s: %+v, want %s", node, id, want)
		}
	}
}

// answers has a client of a host that answers the paths that end so with a status and a
// text, and all else with a 500.
func answers(t *testing.T, of map[string]string) *Client {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		for path, answer := range of {
			if !strings.HasSuffix(r.URL.Path, path) {
				continue
			}
			status, text, _ := strings.Cut(answer, " ")
			code := http.StatusOK
			if _, err := fmt.Sscan(status, &code); err != nil {
				t.Error(err)
			}
			w.WriteHeader(code)
			_, _ = w.Write([]byte(text))
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
}

// TestFree: a VMID is free where the host answers with it, and taken where it refuses it as
// taken. All else is not known.
func TestFree(t *testing.T) {
	const taken = `{"errors":{"vmid":"VM 411 already exists"}}`
	for answer, want := range map[string]string{
		`200 {"data":"411"}`: "true <nil>",
		`200 {"data":411}`:   "true <nil>",
		`400 ` + taken:       "false <nil>",
		`200 {"data":"412"}`: "unknown",
		`200 {"data":null}`:  "unknown",
		`400 {}`:             "unknown",
		`403 ` + taken:       "unknown",
		`500 ` + taken:       "unknown",
		`500 {}`:             "unknown",
		`200 <`:              "unknown",
	} {
		free, err := answers(t, map[string]string{"/nextid": answer}).free(t.Context(), 411)
		got := fmt.Sprint(free, " ", err)
		if err != nil && !free {
			got = "unknown"
		}
		if got != want {
			t.Errorf("%s: %s, want %s", answer, got, want)
		}
	}
}

// TestProofFailsClosed: what cannot be read proves nothing, neither that a VM is ours nor
// that it is another's.
func TestProofFailsClosed(t *testing.T) {
	id := identity{vmid: 411, pool: "p", uuid: "11111111-2222-3333-4444-555555555555", node: "cp-1"}
	list := func(kind, pool string) string {
		return fmt.Sprintf(`200 {"data":[{"type":"qemu","vmid":410,"node":"pve2","pool":"p"},{"type":%q,"vmid":411,"node":"pve1","pool":%q}]}`, kind, pool)
	}
	conf := func(options string) string { return `200 {"data":{` + options + `}}` }
	ours := conf(`"smbios1":"uuid=` + id.uuid + `"`)
	for what, c := range map[string]struct {
		list, conf string
		want       string // ours, another's, unlisted, locked or unknown
		unpooled   bool
	}{
		"ours":                            {list("qemu", "p"), ours, "ours", false},
		"no list":                         {"500 {}", ours, "unknown", false},
		"a list without it":               {`200 {"data":[{"type":"qemu","vmid":410,"pool":"p"}]}`, ours, "unlisted", false},
		"no configuration":                {list("qemu", "p"), "500 {}", "unknown", false},
		"a configuration that is hidden":  {list("qemu", "p"), "403 {}", "unknown", false},
		"another UUID":                    {list("qemu", "p"), conf(`"smbios1":"uuid=11111111-2222-3333-4444-000000000000"`), "another's", false},
		"no UUID":                         {list("qemu", "p"), conf(`"name":"cp-1"`), "another's", false},
		"no UUID, while it is locked":     {list("qemu", "p"), conf(`"lock":"create"`), "locked", false},
		"a VM in no pool":                 {list("qemu", ""), ours, "another's", true},
		"a container in no pool":          {list("lxc", ""), ours, "another's", false},
		"a container in the pool":         {list("lxc", "p"), ours, "another's", false},
		"a VM in another pool, with UUID": {list("qemu", "q"), ours, "another's", false},
	} {
		p, err := answers(t, map[string]string{"/resources": c.list, "/nodes/pve1/qemu/411/config": c.conf}).prove(t.Context(), id)
		got := "unknown"
		var other *notOurs
		switch {
		case err == nil && p.host == "pve1":
			got = "ours"
		case errors.As(err, &other):
			got = "another's"
		case errors.Is(err, errNotListed):
			got = "unlisted"
		case errors.Is(err, errLocked):
			got = "locked"
		}
		if got != c.want || (other != nil && other.unpooled) != c.unpooled {
			t.Errorf("%s: %s, want %s: %v, %+v", what, got, c.want, err, other)
		}
	}
}

// TestForeignIsProven: a guest that no list shows is another's where the host refuses to show
// it to a token that sees the whole pool, or where it shows another UUID. All else is not known.
func TestForeignIsProven(t *testing.T) {
	const all = `200 {"data":{"/pool/p":{"VM.Audit":1,"Pool.Audit":1},"/vms":{"VM.Audit":1}}}`
	id := identity{vmid: 411, uuid: "11111111-2222-3333-4444-555555555555", node: "cp-1"}
	for what, c := range map[string]struct {
		pool, permissions, conf string
		want                    hiddenKind // nothing: an error
		why                     string
	}{
		"hidden from who sees the pool":         {"p", all, "403 {}", takenByOther, "outside pool p"},
		"hidden from who sees all VMs":          {"", all, "403 {}", takenByOther, "does not see"},
		"hidden from who lacks a privilege":     {"p", `200 {"data":{"/pool/p":{"VM.Audit":1}}}`, "403 {}", nothing, ""},
		"hidden from who sees no VMs":           {"", `200 {"data":{"/pool/p":{"VM.Audit":1,"Pool.Audit":1}}}`, "403 {}", nothing, ""},
		"whose privileges are not known":        {"p", "500 {}", "403 {}", nothing, ""},
		"that cannot be read":                   {"p", all, "500 {}", nothing, ""},
		"that cannot be read, with all VMs":     {"", all, "500 {}", nothing, ""},
		"that shows another UUID":               {"p", all, `200 {"data":{"smbios1":"uuid=11111111-2222-3333-4444-000000000000"}}`, takenByOther, "its SMBIOS UUID is"},
		"that shows our UUID":                   {"p", all, `200 {"data":{"smbios1":"uuid=11111111-2222-3333-4444-555555555555"}}`, movedOut, "is taken"},
		"that shows no UUID, as one being made": {"p", all, `200 {"data":{"lock":"create"}}`, movedOut, "is taken"},
	} {
		id.pool = c.pool
		h, err := answers(t, map[string]string{"/permissions": c.permissions, "/nodes/pve1/qemu/411/config": c.conf}).foreign(t.Context(), id, "pve1")
		if h.is != c.want || (err == nil) == (c.want == nothing) || !strings.Contains(h.why, c.why) {
			t.Errorf("one %s: %v (%s), want %v: %v", what, h.is, h.why, c.want, err)
		}
	}
}

// TestPrivilegesThatAreNotKnown: privileges that cannot be asked for are not reported as
// missing.
func TestPrivilegesThatAreNotKnown(t *testing.T) {
	for answer, missing := range map[string]bool{"500 {}": false, `200 {"data":{}}`: true, `200 {"data":{"/pool/p":{"VM.Audit":1}}}`: true} {
		err := answers(t, map[string]string{"/permissions": answer}).checkVisibility(t.Context(), "p")
		if err == nil || strings.Contains(err.Error(), "the agent's token has no") != missing {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// TestBehindFailsClosed: where the VMID, the tasks or the list cannot be asked for, it is not
// known what is behind a VMID.
func TestBehindFailsClosed(t *testing.T) {
	const (
		taken = `400 {"errors":{"vmid":"VM 411 already exists"}}`
		made  = `200 {"data":[{"upid":"UPID:pve1:00000001:00000001:673B0000:%s:411:%s:","node":"pve1","type":"%s","id":"411","user":"%s","starttime":1731919872,"status":"OK","endtime":1731919880}]}`
		all   = `200 {"data":{"/pool/p":{"VM.Audit":1,"Pool.Audit":1}}}`
	)
	id := identity{vmid: 411, pool: "p", uuid: "11111111-2222-3333-4444-555555555555", node: "cp-1"}
	task := func(kind string) string { return fmt.Sprintf(made, kind, "u@pve!t", kind, "u@pve!t") }
	list := func(pool string) string {
		return fmt.Sprintf(`200 {"data":[{"type":"qemu","vmid":411,"node":"pve1","pool":%q}]}`, pool)
	}
	for what, c := range map[string]struct {
		host, nextid, tasks, list, conf string
		want                            hiddenKind
		known                           bool
	}{
		"free":                         {"pve1", `200 {"data":"411"}`, "500 {}", "500 {}", "500 {}", nothing, true},
		"no answer whether it is free": {"pve1", "500 {}", task("qmcreate"), list("p"), "403 {}", nothing, false},
		"no name of a host":            {"../pve1", `200 {"data":"411"}`, task("qmcreate"), list("p"), "403 {}", nothing, false},
		"no tasks":                     {"pve1", taken, "500 {}", list("p"), "403 {}", nothing, false},
		"made by us a moment ago":      {"pve1", taken, task("qmcreate"), list("p"), "403 {}", justMade, true},
		"made by us, and the list cannot be read": {"pve1", taken, task("qmcreate"), "500 {}", "403 {}", nothing, false},
		"made by us, and not in the list":         {"pve1", taken, task("qmcreate"), `200 {"data":[]}`, "403 {}", takenByOther, true},
		"made by us, and in another pool":         {"pve1", taken, task("qmcreate"), list("q"), "403 {}", takenByOther, true},
		"removed by us, and another's since":      {"pve1", taken, task("qmdestroy"), list("p"), "403 {}", takenByOther, true},
		"started by us, and another's":            {"pve1", taken, task("qmstart"), list("p"), "403 {}", takenByOther, true},
	} {
		h, err := answers(t, map[string]string{"/nextid": c.nextid, "/tasks": c.tasks, "/resources": c.list, "/permissions": all, "/nodes/pve1/qemu/411/config": c.conf}).behind(t.Context(), id, c.host)
		if h.is != c.want || (err == nil) != c.known {
			t.Errorf("%s: %v, want %v: %v", what, h.is, c.want, err)
		}
	}
}

// TestBehindOnSeveralHosts: what a task of ours makes is found on whichever of the hosts it runs, and where one of them cannot be asked it is not
// known what is behind a VMID.
func TestBehindOnSeveralHosts(t *testing.T) {
	const (
		taken   = `400 {"errors":{"vmid":"VM 411 already exists"}}`
		none    = `200 {"data":[]}`
		running = `200 {"data":[{"upid":"UPID:pve2:00000001:00000001:673B0000:qmcreate:411:u@pve!t:","node":"pve2","type":"qmcreate","id":"411","user":"u@pve!t","starttime":1731919872}]}`
		all     = `200 {"data":{"/pool/p":{"VM.Audit":1,"Pool.Audit":1}}}`
	)
	id := identity{vmid: 411, pool: "p", uuid: "11111111-2222-3333-4444-555555555555", node: "cp-1"}
	for what, c := range map[string]struct {
		nextid, first, second, conf1, conf2 string
		want                                hiddenKind
		host                                string
		known                               bool
	}{
		"free":                            {`200 {"data":"411"}`, "500 {}", "500 {}", "500 {}", "500 {}", nothing, "", true},
		"made on the second":              {taken, none, running, "403 {}", "403 {}", beingMade, "pve2", true},
		"the first cannot be asked":       {taken, "500 {}", running, "403 {}", "403 {}", nothing, "", false},
		"the second cannot be asked":      {taken, none, "500 {}", "403 {}", "403 {}", nothing, "", false},
		"another's, on neither":           {taken, none, none, "403 {}", "403 {}", takenByOther, "", true},
		"another's, on the second":        {taken, none, none, "500 {}", "403 {}", takenByOther, "", true},
		"neither lets its config be read": {taken, none, none, "500 {}", "500 {}", nothing, "", false},
	} {
		h, err := answers(t, map[string]string{"/nextid": c.nextid, "/nodes/pve1/tasks": c.first, "/nodes/pve2/tasks": c.second, "/resources": none, "/permissions": all,
			"/nodes/pve1/qemu/411/config": c.conf1, "/nodes/pve2/qemu/411/config": c.conf2}).behind(t.Context(), id, "pve1", "pve2")
		if h.is != c.want || h.host != c.host || (err == nil) != c.known {
			t.Errorf("%s: %v on %q, want %v on %q: %v", what, h.is, h.host, c.want, c.host, err)
		}
	}
}

// TestTasksThatMove: these types of task, and no others, give a VMID to a guest or take it.
func TestTasksThatMove(t *testing.T) {
	moves := []string{"qmcreate", "qmclone", "qmrestore", "qmdestroy", "vzcreate", "vzrestore", "vzclone", "vzdestroy"}
	for _, kind := range append([]string{"qmstart", "qmstop", "vzdump", "imgcopy", ""}, moves...) {
		if makesOrRemoves(kind) != slices.Contains(moves, kind) {
			t.Errorf("%q: %v", kind, makesOrRemoves(kind))
		}
	}
	for exit, want := range map[string]bool{"OK": true, "WARNINGS: 2": true, "WARNINGS": false, "": false, "unable to": false} {
		if isSuccess(exit) != want {
			t.Errorf("%q is a success: %v", exit, !want)
		}
	}
}
