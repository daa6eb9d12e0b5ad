package setup

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// installed is a host as the installer of Proxmox VE leaves it.
func installed() Facts {
	return Facts{
		Version: "9.2.11", Host: "pve1", Hosts: []string{"pve1"},
		Pools: map[string]string{}, Roles: map[string][]string{"PVEAuditor": {"Sys.Audit"}}, Users: map[string]Account{"root@pam": {}},
		Storages: []Storage{
			{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup"}, Digest: "d1"},
			{Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}, Digest: "d1"},
		},
		Bridges:     []Bridge{{Name: "vmbr0", Address: "10.0.0.2/24"}, {Name: "vmbr1"}},
		Files:       map[string]File{},
		ServiceUser: true, Unit: Unit{Installed: true},
	}
}

// ours is the token of that host.
const ours = User + "!pve1"

// wished are the defaults of a host, with a repository.
func wished(f Facts) Wishes {
	w := Defaults(f)
	w.Repository.URL, w.Import = "ssh://git@git.example.org/ours.git", true
	return w
}

// packaged are the files of the package, and what else a run is given.
func packaged(t rapid.TB) Given {
	t.Helper()
	g := Given{RootCA: []byte("ca\n"), KnownHosts: []byte("git.example.org ssh-ed25519 AAAA\n")}
	for name, to := range map[string]*[]byte{"config.yaml": &g.Config, "policy.yaml": &g.Policy} {
		text, err := os.ReadFile("../../../packaging/deb/" + name)
		if err != nil {
			t.Fatal(err)
		}
		*to = text
	}
	return g
}

// carryOut does to facts and a record what the steps do to a host.
func carryOut(f Facts, r Record, steps []Step) (Facts, Record) {
	for _, s := range steps {
		r = r.Before(s)
		var content []byte
		file := s.File
		switch {
		case s.Call != nil:
			f = called(f, *s.Call)
			if file = s.Call.SecretTo; file != nil {
				content = []byte(f.token() + "=secret\n")
			}
		case s.Dir != nil:
			f.Files[s.Dir.Path] = File{Mode: s.Dir.Mode}
		case s.Remove != "":
			delete(f.Files, s.Remove)
		case s.Run != nil:
			f.Unit.Active = s.Run[1] != "disable"
		}
		if file != nil {
			if content == nil {
				content = append([]byte(file.Origin), file.Content...)
			}
			f.Files[file.Path] = File{Data: content, Mode: file.Mode}
		}
		r = r.After(s, content)
	}
	return f, r
}

// called is what a call of the API leads to.
func called(f Facts, c Call) Facts {
	o := map[string]string{}
	for _, option := range c.Options {
		o[option.Name] = option.Value
	}
	name := c.Path[strings.LastIndexByte(c.Path, '/')+1:]
	switch c.Verb + " " + strings.TrimSuffix(c.Path, "/"+name) {
	case "create ":
		f.Pools[o["poolid"]] = o["comment"]
	case "delete ":
		delete(f.Pools, o["poolid"])
		f.ACL = slices.DeleteFunc(f.ACL, func(e Entry) bool { return e.Path == "/pool/"+o["poolid"] })
	case "create /access":
		if id := o["userid"]; id != "" {
			f.Users[id] = Account{Comment: o["comment"]}
		} else {
			f.Roles[o["roleid"]] = strings.Split(o["privs"], ",")
		}
	case "set /access/roles":
		f.Roles[name] = strings.Split(o["privs"], ",")
	case "delete /access/roles":
		delete(f.Roles, name)
		f.ACL = slices.DeleteFunc(f.ACL, func(e Entry) bool { return e.Role == name })
	case "delete /access/users":
		delete(f.Users, name)
		f.ACL = slices.DeleteFunc(f.ACL, func(e Entry) bool { return e.Who == name || strings.HasPrefix(e.Who, name+"!") })
	case "set /access/users":
		a := f.Users[name]
		if o["enable"] == "1" {
			a.Disabled = false
		}
		if o["comment"] != "" {
			a.Comment = o["comment"]
		}
		f.Users[name] = a
	case "create /access/users/" + User + "/token", "delete /access/users/" + User + "/token":
		a := f.Users[User]
		a.Tokens = slices.DeleteFunc(slices.Clone(a.Tokens), func(t string) bool { return t == name })
		if c.Verb == "create" {
			a.Tokens = append(a.Tokens, name)
		}
		f.Users[User] = a
		f.ACL = slices.DeleteFunc(f.ACL, func(e Entry) bool { return e.Who == User+"!"+name })
	case "set /access":
		for _, who := range []string{o["users"], o["tokens"]} {
			e := Entry{o["path"], who, o["roles"], o["propagate"] == "1"}
			f.ACL = slices.DeleteFunc(f.ACL, func(x Entry) bool { return x.Path == e.Path && x.Who == e.Who && x.Role == e.Role })
			user, token, isToken := strings.Cut(who, "!")
			if a, there := f.Users[user]; who != "" && (!there || isToken && !slices.Contains(a.Tokens, token)) {
				panic(who + " is not there")
			}
			if who != "" && o["delete"] == "" {
				f.ACL = append(f.ACL, e)
			}
		}
	case "set /storage":
		i := slices.IndexFunc(f.Storages, func(s Storage) bool { return s.Name == name })
		f.Storages[i].Content = strings.Split(o["content"], ",")
	default:
		panic(fmt.Sprintf("%s %s: nobody knows what comes of it", c.Verb, c.Path))
	}
	return f
}

// shown are the steps as people read them.
func shown(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(s.Shown() + "\n")
	}
	return b.String()
}

// TestMakeConverges: from a host of any kind, once the steps are done there are
// none left.
func TestMakeConverges(t *testing.T) {
	for name, change := range map[string]func(*Facts, *Wishes, *Record, *Options){
		"fresh":           func(*Facts, *Wishes, *Record, *Options) {},
		"started":         func(_ *Facts, _ *Wishes, _ *Record, o *Options) { o.Start = true },
		"a pool is there": func(f *Facts, _ *Wishes, _ *Record, _ *Options) { f.Pools["talos"] = "mine" },
		"roles differ": func(f *Facts, _ *Wishes, _ *Record, _ *Options) {
			f.Roles[RoleVM], f.Roles[RoleHost] = []string{"VM.Audit"}, []string{"Sys.Audit", "Sys.Modify"}
		},
		"the user is disabled": func(f *Facts, _ *Wishes, _ *Record, _ *Options) { f.Users[User] = Account{Disabled: true} },
		"a token was under way": func(f *Facts, _ *Wishes, r *Record, _ *Options) {
			f.Users[User], r.Token = Account{Tokens: []string{"pve1"}}, true
			f.ACL = []Entry{{"/pool/talos", ours, RoleVM, true}, {"/pool/talos", User, RoleVM, true}}
		},
		"the user has rights, and the token not": func(f *Facts, _ *Wishes, _ *Record, _ *Options) {
			f.ACL = []Entry{{"/pool/talos", User, RoleVM, true}}
		},
		"quorum goes for all that is below": func(f *Facts, _ *Wishes, _ *Record, _ *Options) {
			f.ACL = []Entry{{"/", User, RoleHost, true}, {"/", ours, RoleHost, true}}
		},
		"rights on another bridge": func(f *Facts, _ *Wishes, r *Record, _ *Options) {
			r.Made = []string{"access /sdn/zones/localnetwork/vmbr9 " + RoleBridge + " " + User, "access /sdn/zones/localnetwork/vmbr9 " + RoleBridge + " " + ours}
			f.Users[User], f.Files[Credential(ProxmoxToken)] = Account{Tokens: []string{"pve1"}}, File{Mode: 0o600}
			f.ACL = []Entry{{"/sdn/zones/localnetwork/vmbr9", User, RoleBridge, true}, {"/sdn/zones/localnetwork/vmbr9", ours, RoleBridge, true}}
		},
		"a file is open": func(f *Facts, _ *Wishes, _ *Record, _ *Options) {
			f.Files[Credential(AgeKey)] = File{Data: []byte("key"), Mode: 0o644}
		},
		"several machines":    func(f *Facts, _ *Wishes, _ *Record, _ *Options) { f.Hosts = []string{"pve1", "pve2", "pve3"} },
		"an encrypted token":  func(f *Facts, _ *Wishes, _ *Record, _ *Options) { f.Files[encryptedPath(AgeKey)] = File{Mode: 0o600} },
		"disks beside images": func(_ *Facts, w *Wishes, _ *Record, _ *Options) { w.Datastores = []string{"local", "local-lvm"} },
	} {
		t.Run(name, func(t *testing.T) {
			f, o, r, g := installed(), Options{}, Record{Version: 1}, packaged(t)
			w := wished(f)
			change(&f, &w, &r, &o)
			plan := Make(f, w, g, r, o)
			if len(plan.Conflicts) > 0 || len(plan.Steps) == 0 {
				t.Fatalf("%v", plan)
			}
			r.Wishes = w
			f, r = carryOut(f, r, plan.Steps)
			if again := Make(f, w, g, r, o); len(again.Steps) > 0 || len(again.Conflicts) > 0 {
				t.Errorf("first\n%sthen\n%s%v", shown(plan.Steps), shown(again.Steps), again.Conflicts)
			}
			for _, grant := range Grants(w.Scope(f.Hosts)) {
				for _, who := range []string{User, ours} {
					if !slices.Contains(f.ACL, Entry{grant.Path, who, grant.Role, grant.Propagate}) {
						t.Errorf("%s lacks %s at %s", who, grant.Role, grant.Path)
					}
				}
			}
			if want := 2 * len(Grants(w.Scope(f.Hosts))); len(f.ACL) != want {
				t.Errorf("%d entries, want %d: %v", len(f.ACL), want, f.ACL)
			}
			if r.Token {
				t.Error("the record thinks that a token is under way")
			}
		})
	}
}

// TestUndoIsTheWayBack: what init made goes, and what was there before stays.
func TestUndoIsTheWayBack(t *testing.T) {
	made := func(change func(*Facts)) (Facts, Record) {
		f := installed()
		if change != nil {
			change(&f)
		}
		w := wished(f)
		r := Record{Version: 1, Wishes: w}
		return carryOut(f, r, Make(f, w, packaged(t), r, Options{Start: true}).Steps)
	}
	for name, c := range map[string]struct {
		before func(*Facts)       // on the fresh host
		since  func(*Facts)       // since init
		leave  bool               // the VMs
		stays  []string           // in words
		left   func(f Facts) bool // holds in the end
		refuse string
	}{
		"all of it": {left: func(f Facts) bool {
			return len(f.Pools) == 0 && len(f.ACL) == 0 && len(f.Users) == 1 && len(f.Roles) == 1 && !f.Unit.Active
		}, stays: []string{"talos-agent.age.key stays", "deploy key is known to the forge", "storage local goes on"}},
		"a pool from before": {before: func(f *Facts) { f.Pools["talos"] = "mine" }, stays: []string{"pool talos stays: it was there before"},
			left: func(f Facts) bool { return len(f.Pools) == 1 }},
		"a role that somebody uses": {since: func(f *Facts) { f.ACL = append(f.ACL, Entry{"/vms/100", "me@pve", RoleVM, true}) },
			stays: []string{"role TalosAgentVM stays: me@pve has it at /vms/100"}, left: func(f Facts) bool { return len(f.ACL) == 1 && len(f.Roles) == 2 }},
		"a token of somebody else's": {before: func(f *Facts) {
			f.Users[User] = Account{Tokens: []string{"pve1"}}
			f.ACL = []Entry{{"/pool/theirs", User, RoleVM, true}, {"/pool/theirs", ours, RoleVM, true}}
			f.Files[Credential(ProxmoxToken)] = File{Data: []byte("theirs"), Mode: 0o600}
		}, stays: []string{"token talos-agent@pve!pve1 stays: it was there before", "user talos-agent@pve and the roles stay: the agent of pve1 needs them"},
			left: func(f Facts) bool {
				return f.hasToken() && slices.Contains(f.ACL, Entry{"/pool/theirs", User, RoleVM, true})
			}},
		"another token": {since: func(f *Facts) {
			f.Users[User] = Account{Comment: f.Users[User].Comment, Tokens: []string{"pve1", "mine"}}
		},
			stays: []string{"user talos-agent@pve and the roles stay: whoever has the token talos-agent@pve!mine needs them"}, left: func(f Facts) bool { return len(f.Users) == 2 && len(f.ACL) == 0 }},
		"a changed file": {since: func(f *Facts) { f.Files[ConfigFile] = File{Data: []byte("mine"), Mode: 0o640} },
			stays: []string{ConfigFile + " stays: it was changed"}, left: func(f Facts) bool { return string(f.Files[ConfigFile].Data) == "mine" }},
		"VMs":       {since: func(f *Facts) { f.VMs = []VM{{ID: 401, Name: "dev-cp-1", Pool: "talos"}} }, refuse: "the pool talos has 1 VMs: 401 dev-cp-1"},
		"VMs, left": {since: func(f *Facts) { f.VMs = []VM{{ID: 401, Name: "dev-cp-1", Pool: "talos"}} }, leave: true, stays: []string{"pool talos stays: it has 1 VMs"}, left: func(f Facts) bool { return len(f.Pools) == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := made(c.before)
			if c.since != nil {
				c.since(&f)
			}
			plan, problems := Undo(f, r, c.leave)
			if c.refuse != "" {
				if len(plan.Steps) > 0 || !strings.Contains(problems.Error(), c.refuse) {
					t.Fatalf("%v %v", shown(plan.Steps), problems)
				}
				return
			}
			if problems.HasErrors() {
				t.Fatal(problems)
			}
			f, _ = carryOut(f, r, plan.Steps)
			for _, words := range c.stays {
				if !strings.Contains(strings.Join(plan.Notes, "\n"), words) {
					t.Errorf("%q is not said: %q", words, plan.Notes)
				}
			}
			if !c.left(f) {
				t.Errorf("left are %+v", f)
			}
			if _, there := f.Files[Credential(AgeKey)]; !there {
				t.Error("the age key is gone")
			}
		})
	}
}

// TestUndoWithoutARecord: user, token and roles are of the whole Proxmox VE
// cluster. On a host that was never set up they are another host's, whose agent
// works with them.
func TestUndoWithoutARecord(t *testing.T) {
	f := installed()
	w := wished(f)
	r := Record{Version: 1, Wishes: w}
	f, _ = carryOut(f, r, Make(f, w, packaged(t), r, Options{Start: true}).Steps)
	f.Files, f.Unit = map[string]File{}, Unit{Installed: true}
	plan, problems := Undo(f, Record{Version: 1}, false)
	if problems.HasErrors() || len(plan.Steps) > 0 {
		t.Errorf("%v\n%s", problems, shown(plan.Steps))
	}
	if !strings.Contains(strings.Join(plan.Notes, "\n"), "the token "+ours+" stays") {
		t.Errorf("nothing is said of the token: %q", plan.Notes)
	}
}

// TestFilesOfPeople: what people wrote or changed is not replaced unasked.
func TestFilesOfPeople(t *testing.T) {
	g := packaged(t)
	begin := func() (Facts, Wishes, Record) {
		f := installed()
		w := wished(f)
		r := Record{Version: 1, Wishes: w}
		f, r = carryOut(f, r, Make(f, w, g, r, Options{}).Steps)
		return f, w, r
	}
	const mine = "# mine\n"
	for name, c := range map[string]struct {
		change    func(*Facts, *Wishes, *Record, *Given)
		force     bool
		conflicts []string
		steps     string
		notes     string
	}{
		"changed, and nothing else is wanted": {change: func(f *Facts, _ *Wishes, _ *Record, _ *Given) {
			f.Files[ConfigFile] = File{Data: []byte(mine), Mode: 0o640}
		}, notes: ConfigFile + " was changed by hand since"},
		"changed, and another branch is wanted": {change: func(f *Facts, w *Wishes, _ *Record, _ *Given) {
			f.Files[ConfigFile] = File{Data: []byte(mine), Mode: 0o640}
			w.Repository.Branch = "prod"
		}, conflicts: []string{ConfigFile}, notes: ""},
		"the same, forced": {change: func(f *Facts, w *Wishes, _ *Record, _ *Given) {
			f.Files[ConfigFile] = File{Data: []byte(mine), Mode: 0o640}
			w.Repository.Branch = "prod"
		}, force: true, steps: "file " + ConfigFile},
		"unchanged, and another branch is wanted": {change: func(_ *Facts, w *Wishes, _ *Record, _ *Given) { w.Repository.Branch = "prod" }, steps: "file " + ConfigFile},
		"the record is lost": {change: func(f *Facts, w *Wishes, r *Record, _ *Given) {
			*r = Record{Version: 1}
			w.Repository.Branch = "prod"
		}, conflicts: []string{ConfigFile}},
		"the file of the package": {change: func(f *Facts, _ *Wishes, r *Record, g *Given) {
			*r = Record{Version: 1}
			f.Files[ConfigFile] = File{Data: g.Config, Mode: 0o640}
		}, steps: "file " + ConfigFile},
		"another age key": {change: func(_ *Facts, _ *Wishes, _ *Record, g *Given) { g.AgeKey = []byte("other") }, conflicts: []string{Credential(AgeKey)}},
		"its mode is wider": {change: func(f *Facts, _ *Wishes, _ *Record, _ *Given) {
			f.Files[PolicyFile] = File{Data: f.Files[PolicyFile].Data, Mode: 0o666}
		}, steps: "file " + PolicyFile},
	} {
		t.Run(name, func(t *testing.T) {
			f, w, r := begin()
			given := g
			c.change(&f, &w, &r, &given)
			plan := Make(f, w, given, r, Options{Force: c.force})
			var conflicts []string
			for _, conflict := range plan.Conflicts {
				conflicts = append(conflicts, conflict.Path)
				if conflict.Secret != strings.HasPrefix(conflict.Path, CredentialDir) {
					t.Errorf("%s would be shown, or not", conflict.Path)
				}
			}
			if !slices.Equal(conflicts, c.conflicts) || !strings.Contains(strings.Join(plan.Notes, "\n"), c.notes) {
				t.Errorf("conflicts %v, notes %q", conflicts, plan.Notes)
			}
			if got := strings.TrimSpace(strings.SplitN(shown(plan.Steps)+" ", " (", 2)[0]); got != c.steps {
				t.Errorf("steps\n%s\nwant %s", shown(plan.Steps), c.steps)
			}
		})
	}
}

// TestChangedConfigAndAnotherBridge: a config that somebody has changed stands in
// the way of nothing that it does not say.
func TestChangedConfigAndAnotherBridge(t *testing.T) {
	f, g := installed(), packaged(t)
	w := wished(f)
	r := Record{Version: 1, Wishes: w}
	f, r = carryOut(f, r, Make(f, w, g, r, Options{}).Steps)
	f.Files[ConfigFile] = File{Data: []byte("# mine\n"), Mode: 0o640}
	w.Bridges = []string{"vmbr0", "vmbr1"}
	plan := Make(f, w, g, r, Options{})
	if len(plan.Conflicts) > 0 || len(plan.Steps) != 2 || !strings.Contains(shown(plan.Steps), PolicyFile) || !strings.Contains(fmt.Sprint(plan.Notes), ConfigFile+" was changed by hand") {
		t.Errorf("%s%v %q", shown(plan.Steps), plan.Conflicts, plan.Notes)
	}
}

// TestCheck: each thing that is wrong is said with the flag that fixes it.
func TestCheck(t *testing.T) {
	for want, change := range map[string]func(*Facts, *Wishes, *Options){
		"this is Proxmox VE 8.3.5 (the agent works with":                     func(f *Facts, _ *Wishes, _ *Options) { f.Version = "8.3.5" },
		"there are no user and group talos-agent":                            func(f *Facts, _ *Wishes, _ *Options) { f.ServiceUser = false },
		"--start: there is no unit talos-agent.service":                      func(f *Facts, _ *Wishes, o *Options) { f.Unit, o.Start = Unit{}, true },
		"--pool: \"a b\" is not the name of a pool":                          func(_ *Facts, w *Wishes, _ *Options) { w.Pool = "a b" },
		"--bridge: there is no bridge vmbr7 on pve1 (there is vmbr0, vmbr1)": func(_ *Facts, w *Wishes, _ *Options) { w.Bridges = []string{"vmbr7"} },
		"warning: --bridge: this host has no address on vmbr1":               func(_ *Facts, w *Wishes, _ *Options) { w.Bridges = []string{"vmbr1"} },
		"--datastore: there is no storage nfs (there is local-lvm)":          func(_ *Facts, w *Wishes, _ *Options) { w.Datastores = []string{"nfs"} },
		"--datastore: storage local takes no disks":                          func(_ *Facts, w *Wishes, _ *Options) { w.Datastores = []string{"local"} },
		"--image-datastore: storage local-lvm is of type lvmthin":            func(_ *Facts, w *Wishes, _ *Options) { w.Images = "local-lvm" },
		"--vmids: no VMIDs are given":                                        func(_ *Facts, w *Wishes, _ *Options) { w.VMIDs = nil },
		"warning: --repository: nothing protects what comes over http": func(_ *Facts, w *Wishes, _ *Options) {
			w.Repository.URL = "http://git.example.org/infra.git"
		},
		"warning: --vmids: of 100-199 others have 101 already": func(f *Facts, w *Wishes, _ *Options) {
			f.VMs = []VM{{ID: 101, Name: "mail"}, {ID: 102, Name: "dev-cp-1", Pool: "talos"}}
			w.VMIDs = []cluster.Range{{First: 100, Last: 199}}
		},
		"--repository: which repository":                                                              func(_ *Facts, w *Wishes, _ *Options) { w.Repository.URL = "" },
		"--forge-token-file: there is no token for the f":                                             func(_ *Facts, w *Wishes, _ *Options) { w.Forge = &Forge{Kind: "gitlab", Repository: "a/b"} },
		"--rotate-token: the token talos-agent@pve!pve1 is there, and its secret is not on this host": func(f *Facts, _ *Wishes, _ *Options) { f.Users[User] = Account{Tokens: []string{"pve1"}} },
		"there is a role TalosAgentHost with Permissions.Modify, Sys.Modify, which the agent never asks for: it is somebody else's (make a role of another name in its place (`pveum role add NAME --privs 'Sys.Modify Sys.Audit Permissions.Modify'`)": func(f *Facts, _ *Wishes, _ *Options) {
			f.Roles[RoleHost] = []string{"Sys.Modify", "Sys.Audit", "Permissions.Modify"}
		},
		"there is a role TalosAgentVM that me@pve at /vms has, with other privileges than the agent needs: it is somebody else's": func(f *Facts, _ *Wishes, _ *Options) {
			f.Roles[RoleVM], f.ACL = []string{"VM.Audit"}, append(f.ACL, Entry{"/vms", "me@pve", RoleVM, true})
		},
		"": func(f *Facts, _ *Wishes, o *Options) {
			f.Roles[RoleVM] = []string{"VM.Audit"} // made by hand, and nobody else's
			f.Users[User] = Account{Tokens: []string{"pve1"}}
			o.RotateToken = true
		},
	} {
		f, o := installed(), Options{}
		w := wished(f)
		change(&f, &w, &o)
		if got := Check(f, w, Record{}, packaged(t), o).Error(); (got == "") != (want == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%q\nwant\n%q", got, want)
		}
	}
	f := installed()
	f.Roles[RoleHost] = []string{"Sys.Modify"}
	if got := Check(f, wished(f), Record{Made: []string{roleStep(RoleHost)}}, packaged(t), Options{}).Error(); got != "" {
		t.Errorf("a role that init made: %q", got)
	}
	f = installed()
	if got := Check(f, wished(f), Record{}, Given{}, Options{}).Error(); !strings.HasPrefix(got, "--known-hosts-file: nothing proves the ssh server") {
		t.Errorf("without host keys: %q", got)
	}
}
