package setup

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// FuzzRecord: whatever a record says, undo takes away only what is the agent's by
// its name and place, and neither it nor another run comes to grief.
func FuzzRecord(f *testing.F) {
	made := installed()
	g := packaged(f)
	w := wished(made)
	r := Record{Version: 1, Wishes: w}
	made, r = carryOut(made, r, Make(made, w, g, r, Options{}).Steps)
	// What is others'.
	made.Pools["office"] = "VMs of the office"
	made.Users["me@pve"] = Account{Tokens: []string{"mine"}}
	made.ACL = append(made.ACL, Entry{"/", "me@pve", "Administrator", true}, Entry{"/vms", "me@pve", "PVEAuditor", true})
	good, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"made":["role PVEAuditor","user me@pve","user root@pam","pool office","file /etc/passwd"],"wishes":{"Pool":"office"},"files":{"/etc/passwd":""}}`))
	f.Add([]byte(`{"version":1,"wishes":{"Pool":"../access/users/me@pve","VMIDs":[{"First":9,"Last":1}]},"tokenUnderWay":true}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Record
		if json.Unmarshal(text, &r) != nil || r.Version != 1 {
			return
		}
		host := made
		host.Files, host.Users, host.Roles = maps.Clone(made.Files), maps.Clone(made.Users), maps.Clone(made.Roles)
		host.Pools, host.ACL = maps.Clone(made.Pools), slices.Clone(made.ACL)
		plan, problems := Undo(host, r, false)
		if !problems.HasErrors() {
			for _, s := range plan.Steps {
				if !agents(s, made, r) {
					t.Errorf("undo: %+v", s)
				}
			}
			carryOut(host, r, plan.Steps)
		}
		host.Files, host.Users, host.Roles = maps.Clone(made.Files), maps.Clone(made.Users), maps.Clone(made.Roles)
		host.Pools, host.ACL = maps.Clone(made.Pools), slices.Clone(made.ACL)
		if w := r.Wishes; !Check(host, w, r, g, Options{}).HasErrors() {
			carryOut(host, r, Make(host, w, g, r, Options{}).Steps)
		}
	})
}

// agents reports whether a step of undo touches only what the agent has by its name,
// or what the record or a comment says init made.
func agents(s Step, f Facts, r Record) bool {
	switch {
	case s.Remove != "":
		return slices.Contains(Files(), s.Remove)
	case s.Run != nil:
		return s.Run[0] == "systemctl" && s.Run[len(s.Run)-1] == UnitName
	case s.Call == nil:
		return false
	}
	o := fmt.Sprint(s.Call.Options)
	role, isRole := strings.CutPrefix(s.Call.Path, "/access/roles/")
	_, known := RoleNamed(role)
	switch path := s.Call.Path; {
	case isRole:
		return known
	case path == "/pools":
		pool := s.Call.Options[0].Value
		return slices.Contains(r.Made, poolStep(pool)) || f.Pools[pool] == poolComment
	case path == "/access/acl":
		return strings.Contains(o, User) && strings.Contains(o, "{delete 1}")
	default:
		return path == "/access/users/"+User || path == "/access/users/"+User+"/token/pve1"
	}
}
