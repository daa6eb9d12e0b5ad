package account

import (
	"slices"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/host/setup"
)

// facts are a host with the pool talos and no account.
func facts() setup.Facts {
	return setup.Facts{Host: "pve1", Pools: map[string]string{"talos": ""}, Roles: map[string][]string{}, Users: map[string]setup.Account{},
		Storages: []setup.Storage{{Name: "local-lvm", Content: []string{"images"}}, {Name: "local", Content: []string{"iso"}}}}
}

func wish(k Kind) Wish {
	w := Wish{Kind: k, Cluster: "dev", Pool: "talos"}
	if k.Storage {
		w.Datastores = []string{"local-lvm"}
	}
	return w
}

// made are the facts once an account is made.
func made(f setup.Facts, w Wish) setup.Facts {
	for _, role := range w.Kind.roles {
		f.Roles[role.Name] = role.Names()
	}
	user := w.Kind.User(w.Cluster)
	f.Users[user] = setup.Account{Comment: w.Kind.comment(w), Tokens: []string{w.Kind.Name}}
	for _, g := range w.Kind.grants(w) {
		f.ACL = append(f.ACL, setup.Entry{Path: g.Path, Who: user, Role: g.Role, Propagate: g.Propagate})
	}
	return f
}

func shown(p Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, s.Shown())
	}
	if p.Token != nil {
		out = append(out, p.Token.Shown())
	}
	return out
}

// TestMakeConverges: what is there is not made again, and what is more is taken back.
func TestMakeConverges(t *testing.T) {
	for _, k := range []Kind{CCM, CSI} {
		w := wish(k)
		first, problems := Make(facts(), w)
		if problems.HasErrors() || first.Token == nil || len(first.Steps) != len(k.Roles())+1+len(k.grants(w)) {
			t.Errorf("%s: %v %v", k.Name, shown(first), problems)
		}
		w.Stored = k.Token("dev")
		if second, problems := Make(made(facts(), w), w); problems.HasErrors() || len(shown(second)) > 0 {
			t.Errorf("%s: there is something to do: %v %v", k.Name, shown(second), problems)
		}
		w.Rotate = true
		if again, problems := Make(made(facts(), w), w); problems.HasErrors() || !slices.Equal(shown(again), []string{
			"pvesh delete /access/users/talos-" + k.Name + "-dev@pve/token/" + k.Name, "pvesh create /access/users/talos-" + k.Name + "-dev@pve/token/" + k.Name + " --privsep 0"}) {
			t.Errorf("%s: %v %v", k.Name, shown(again), problems)
		}
	}
	w := wish(CSI)
	w.Stored = CSI.Token("dev")
	f := made(facts(), w)
	f.ACL = append(f.ACL, setup.Entry{Path: "/storage/local", Who: "talos-csi-dev@pve", Role: "TalosCSIStorage", Propagate: true}, setup.Entry{Path: "/", Who: "root@pam", Role: "Administrator"})
	f.ACL[0].Propagate = false // which setting it replaces
	f.Roles["TalosCSI"] = append(f.Roles["TalosCSI"], "VM.PowerMgmt")
	a := f.Users["talos-csi-dev@pve"]
	a.Disabled = true
	f.Users["talos-csi-dev@pve"] = a
	got, problems := Make(f, w)
	want := []string{
		"pvesh set /access/roles/TalosCSI --privs VM.Audit,VM.Config.Disk",
		"pvesh set /access/users/talos-csi-dev@pve --enable 1",
		"pvesh set /access/acl --path /pool/talos --roles TalosCSI --users talos-csi-dev@pve --propagate 1",
		"pvesh set /access/acl --path /storage/local --roles TalosCSIStorage --users talos-csi-dev@pve --delete 1",
	}
	if problems.HasErrors() || !slices.Equal(shown(got), want) {
		t.Errorf("%v\n%s", problems, strings.Join(shown(got), "\n"))
	}
}

// TestMakeRefuses: what is somebody else's is not changed.
func TestMakeRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*setup.Facts, *Wish)
		want   string
	}{
		{"no quorum", func(f *setup.Facts, _ *Wish) { f.NoQuorum = true }, "has no quorum"},
		{"no pool", func(_ *setup.Facts, w *Wish) { w.Pool = "other" }, "there is no pool other"},
		{"a role of others", func(f *setup.Facts, _ *Wish) {
			f.Roles["TalosCCM"] = []string{"VM.Audit", "VM.PowerMgmt"}
			f.ACL = []setup.Entry{{Path: "/", Who: "ops@pve!x", Role: "TalosCCM"}}
		}, "there is a role TalosCCM with other privileges, which ops@pve!x has at /"},
		{"a user of others", func(f *setup.Facts, _ *Wish) { f.Users["talos-ccm-dev@pve"] = setup.Account{Comment: "mine"} }, "there is a user talos-ccm-dev@pve that talos-agent init ccm did not make"},
		{"a cluster of this name", func(f *setup.Facts, w *Wish) {
			other := *w
			other.Pool = "talos-pve2"
			f.Users["talos-ccm-dev@pve"] = setup.Account{Comment: CCM.comment(other)}
		}, "is for another cluster of this name: the cloud controller manager of the cluster dev in the pool talos-pve2"},
		{"another token", func(_ *setup.Facts, w *Wish) { w.Stored = "kubernetes@pve!ccm" }, "hold the token kubernetes@pve!ccm, which is not this account's"},
		{"a lost secret", func(f *setup.Facts, w *Wish) { *f = made(*f, *w) }, "--rotate-token: the token talos-ccm-dev@pve!ccm is there"},
	} {
		f, w := facts(), wish(CCM)
		c.change(&f, &w)
		plan, problems := Make(f, w)
		if !problems.HasErrors() || !strings.Contains(problems.Err().Error(), c.want) || len(shown(plan)) > 0 {
			t.Errorf("%s: %v %v", c.name, problems, shown(plan))
		}
	}
	// A role that only accounts of ours have is corrected.
	f, w := facts(), wish(CCM)
	f = made(f, w)
	f.Roles["TalosCCM"] = []string{"VM.Monitor"}
	w.Stored = CCM.Token("dev")
	if plan, problems := Make(f, w); problems.HasErrors() || !slices.Equal(shown(plan), []string{"pvesh set /access/roles/TalosCCM --privs VM.Audit"}) {
		t.Errorf("%v %v", problems, shown(plan))
	}
}

// TestUndo: the user goes, the roles with the last account that has them, and what is
// somebody else's stays.
func TestUndo(t *testing.T) {
	dev, prod := wish(CCM), wish(CCM)
	prod.Cluster = "prod"
	f := made(made(facts(), dev), prod)
	if plan, problems := Undo(f, dev); problems.HasErrors() || !slices.Equal(shown(plan), []string{"pvesh delete /access/users/talos-ccm-dev@pve"}) {
		t.Errorf("%v %v", problems, shown(plan))
	}
	want := []string{"pvesh delete /access/users/talos-ccm-dev@pve", "pvesh delete /access/roles/TalosCCM", "pvesh delete /access/roles/TalosCCMCluster"}
	if plan, problems := Undo(made(facts(), dev), dev); problems.HasErrors() || !slices.Equal(shown(plan), want) {
		t.Errorf("%v %v", problems, shown(plan))
	}
	if plan, problems := Undo(facts(), dev); problems.HasErrors() || len(shown(plan)) > 0 {
		t.Errorf("%v %v", problems, shown(plan))
	}
	f.Users["talos-ccm-dev@pve"] = setup.Account{Comment: "mine"}
	if plan, problems := Undo(f, dev); !problems.HasErrors() || len(shown(plan)) > 0 {
		t.Errorf("a user of others is deleted: %v", shown(plan))
	}
}
