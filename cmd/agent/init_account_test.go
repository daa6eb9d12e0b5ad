package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/host/setup/account"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/sources/secrets"
)

// newAccountHost is a host that is set up, with a repository of the cluster dev.
func newAccountHost(t *testing.T, flavour string) (h *fresh, repo string) {
	t.Helper()
	h = newFresh(t, flavour)
	h.done()
	repo = filepath.Join(t.TempDir(), "infra")
	if a := h.bare(t.Context(), "repo", repo, "--yes", "--no-git", "--network", "10.10.0.0/24", "--gateway", "10.10.0.1"); a.err != nil {
		t.Fatal(a)
	}
	return h, repo
}

// values are those of the secrets of dev.
func (h *fresh) values(repo string) map[string]string {
	h.t.Helper()
	ids, err := secrets.ParseIdentities([]byte(h.file(setup.Credential(setup.AgeKey))))
	must(err)
	file, err := os.ReadFile(filepath.Join(repo, "inventory/dev/secrets.sops.yaml"))
	must(err)
	plain, err := secrets.Decrypt(h.t.Context(), "secrets", file, ids)
	must(err)
	var doc struct{ Values map[string]string }
	must(yaml.Unmarshal(plain, &doc))
	return doc.Values
}

// ask calls Proxmox VE with a token and returns the code and the body of its answer.
func (h *fresh) ask(token, method, path string, form url.Values) (int, string) {
	h.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(h.CA())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.PVE.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
	must(err)
	req.Header.Set("Authorization", "PVEAPIToken="+token)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := client.Do(req)
	must(err)
	defer func() { must(res.Body.Close()) }()
	body, err := io.ReadAll(res.Body)
	must(err)
	return res.StatusCode, string(body)
}

// TestInitAccount: the accounts that init makes can do what their programs do with the
// cluster's VMs, and nothing with others; a second run changes nothing, and undo
// leaves the host as it was.
func TestInitAccount(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		t.Run(flavour, func(t *testing.T) {
			h, repo := newAccountHost(t, flavour)
			before := h.state()
			url := []string{"--url", "https://pve1.example.org:8006/api2/json"}
			ccm := append([]string{"ccm", "--cluster", "dev", repo}, url...)
			csi := append([]string{"csi", "--cluster", "dev", repo, "--datastore", "local-lvm"}, url...)
			shown := h.bare(t.Context(), append(ccm, "--dry-run")...)
			if shown.err != nil || h.state() != before || h.values(repo)["proxmox_ccm_token_id"] != "" {
				t.Fatalf("a dry run changed something, or failed: %v", shown)
			}
			for _, line := range []string{"make the role TalosCCM\n", "pvesh create /access/users --userid talos-ccm-dev@pve", "--path /pool/talos --roles TalosCCM --users talos-ccm-dev@pve --propagate 1",
				"--path / --roles TalosCCMCluster --users talos-ccm-dev@pve --propagate 0", "pvesh create /access/users/talos-ccm-dev@pve/token/ccm --privsep 0"} {
				if !strings.Contains(shown.out, line) {
					t.Errorf("a dry run does not show %q:\n%s", line, shown.out)
				}
			}
			for _, args := range [][]string{ccm, csi} {
				if a := h.bare(t.Context(), append(args, "--yes")...); a.err != nil {
					t.Fatal(a)
				} else if !strings.Contains(a.out, "add to what is there:\n    addons: [addons/proxmox-") || strings.Contains(a.out, h.values(repo)["proxmox_ccm_token_secret"]) {
					t.Errorf("what is next is not printed, or a secret is:\n%s", a.out)
				}
			}
			h.accountsWork(repo)
			// A second run changes nothing, and neither do the addons, once they are listed.
			after, values := h.state(), h.values(repo)
			h.listAddons(repo)
			for _, args := range [][]string{ccm, csi} {
				calls := len(h.pveshs)
				if a := h.bare(t.Context(), args...); a.err != nil || !strings.Contains(a.out, "nothing to do") || len(h.pveshs) != calls {
					t.Errorf("a second run: %v", a)
				}
			}
			if h.state() != after || h.values(repo)["proxmox_csi_token_secret"] != values["proxmox_csi_token_secret"] {
				t.Error("a second run changed something")
			}
			for _, name := range []string{"ccm", "csi"} {
				if a := h.bare(t.Context(), name, "--cluster", "dev", "--undo", "--yes"); a.err != nil {
					t.Fatal(a)
				}
				if a := h.bare(t.Context(), name, "--cluster", "dev", "--undo"); a.err != nil || !strings.Contains(a.out, "nothing to do") {
					t.Errorf("a second undo: %v", a)
				}
			}
			if h.state() != before {
				t.Errorf("undo left the host as\n%s\nand not as\n%s", h.state(), before)
			}
		})
	}
}

// accountsWork tries what each account may do.
func (h *fresh) accountsWork(repo string) {
	h.t.Helper()
	must(h.PVE.CreateForeign(401, pve.Foreign{Host: "pve1", Pool: "talos"}))
	must(h.PVE.CreateForeign(900, pve.Foreign{Host: "pve1"}))
	values := h.values(repo)
	token := func(k account.Kind) string { return values[k.IDValue()] + "=" + values[k.SecretValue()] }
	for _, c := range []struct {
		kind         account.Kind
		method, path string
		form         url.Values
		want         int
	}{
		{account.CCM, "GET", "/cluster/status", nil, 200},
		{account.CCM, "GET", "/nodes/pve1/qemu/401/config", nil, 200},
		{account.CCM, "GET", "/nodes/pve1/qemu/900/config", nil, 403},
		{account.CCM, "GET", "/nodes/pve1/status", nil, 403},
		{account.CCM, "PUT", "/nodes/pve1/qemu/401/config", url.Values{"scsi5": {"local-lvm:1"}}, 403},
		{account.CCM, "GET", "/nodes/pve1/storage/local-lvm/status", nil, 403},
		{account.CSI, "GET", "/nodes/pve1/storage/local-lvm/status", nil, 200},
		{account.CSI, "GET", "/nodes/pve1/storage/local-lvm/content", nil, 200},
		{account.CSI, "GET", "/nodes/pve1/storage/local/status", nil, 403},
		{account.CSI, "PUT", "/nodes/pve1/qemu/401/config", url.Values{"scsi5": {"local-lvm:1"}}, 200},
		{account.CSI, "PUT", "/nodes/pve1/qemu/401/config", url.Values{"scsi6": {"local:1"}}, 403},
		{account.CSI, "PUT", "/nodes/pve1/qemu/401/config", url.Values{"memory": {"1024"}}, 403},
		{account.CSI, "PUT", "/nodes/pve1/qemu/401/config", url.Values{"delete": {"scsi5"}}, 200},
		{account.CSI, "PUT", "/nodes/pve1/qemu/900/config", url.Values{"scsi5": {"local-lvm:1"}}, 403},
		{account.CSI, "POST", "/nodes/pve1/qemu/401/status/stop", url.Values{}, 403},
		{account.CSI, "GET", "/cluster/status", nil, 403},
	} {
		if code, body := h.ask(token(c.kind), c.method, c.path, c.form); code != c.want {
			h.t.Errorf("%s: %s %s %v is answered with %d, and not %d: %s", c.kind.Name, c.method, c.path, c.form, code, c.want, body)
		}
	}
	for _, kind := range []account.Kind{account.CCM, account.CSI} {
		if _, body := h.ask(token(kind), "GET", "/cluster/resources?type=vm", nil); !strings.Contains(body, `"vmid":401`) || strings.Contains(body, `"vmid":900`) {
			h.t.Errorf("%s sees %s", kind.Name, body)
		}
	}
	must(h.PVE.RemoveAll(401))
	must(h.PVE.RemoveAll(900))
}

// listAddons writes into cluster.yaml what init prints, and validates the cluster.
func (h *fresh) listAddons(repo string) {
	h.t.Helper()
	file := filepath.Join(repo, "inventory/dev/cluster.yaml")
	text, err := os.ReadFile(file)
	must(err)
	listed := strings.Replace(string(text), "addons: [", "addons: [addons/proxmox-cloud-controller-manager.yaml, addons/proxmox-csi-plugin.yaml, ", 1)
	if listed == string(text) {
		h.t.Fatalf("no list of addons in\n%s", text)
	}
	must(os.WriteFile(file, []byte(listed+"\npatches: {all: [patches/external-cloud-provider.yaml]}\n"), 0o600))
	for name, wants := range map[string][]string{
		"addons/proxmox-cloud-controller-manager.yaml": {"url: https://pve1.example.org:8006/api2/json", "region: proxmox"},
		"addons/proxmox-csi-plugin.yaml":               {"url: https://pve1.example.org:8006/api2/json", "region: proxmox", "- name: proxmox-local-lvm\n      storage: local-lvm"},
		"patches/external-cloud-provider.yaml":         {"externalCloudProvider:"},
	} {
		text, err := os.ReadFile(filepath.Join(repo, "inventory/dev", name))
		must(err)
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				h.t.Errorf("%s has no %q:\n%s", name, want, text)
			}
		}
	}
}

// TestInitAccountLost: a secret that was lost is not made anew unasked, and what cannot
// be stored is not left behind in Proxmox VE.
func TestInitAccountLost(t *testing.T) {
	h, repo := newAccountHost(t, "9.2")
	file := filepath.Join(repo, "inventory/dev/secrets.sops.yaml")
	empty, err := os.ReadFile(file)
	must(err)
	must(os.Chmod(file, 0o600))
	args := []string{"ccm", "--cluster", "dev", repo, "--yes"}
	// Its secret gets lost: with the answer of the call, and with the commit.
	h.fault = func(args []string) pveshFault {
		switch {
		case !strings.Contains(strings.Join(args, " "), "/token/"):
			return noFault
		case args[0] == "create":
			return replyLost
		}
		return notDone // neither is it deleted again
	}
	if a := h.bare(t.Context(), args...); a.err == nil {
		t.Fatal(a)
	}
	h.fault = nil
	for _, step := range []func(){func() {}, func() { must(os.WriteFile(file, empty, 0o600)) }} {
		step()
		a := h.bare(t.Context(), args...)
		if a.err == nil || !strings.Contains(a.String(), "--rotate-token: the token talos-ccm-dev@pve!ccm is there, and the cluster's secrets do not have its secret") {
			t.Fatal(a)
		}
		if a := h.bare(t.Context(), append(args, "--rotate-token")...); a.err != nil {
			t.Fatal(a)
		}
		values := h.values(repo)
		if code, body := h.ask(values["proxmox_ccm_token_id"]+"="+values["proxmox_ccm_token_secret"], "GET", "/cluster/status", nil); code != 200 {
			t.Errorf("the new token is answered with %d: %s", code, body)
		}
	}
	// Somebody edits the secrets while the token is made.
	stored, err := os.ReadFile(file)
	must(err)
	h.fault = func(args []string) pveshFault {
		if strings.Contains(strings.Join(args, " "), "/token/") && args[0] == "create" {
			must(os.WriteFile(file, append([]byte("# edited\n"), stored...), 0o600))
		}
		return noFault
	}
	a := h.bare(t.Context(), append(args, "--rotate-token")...)
	if a.err == nil || !strings.Contains(a.String(), "was changed by somebody else meanwhile") || strings.Contains(h.says("/access/users/talos-ccm-dev@pve"), `"ccm"`) {
		t.Errorf("%v\n%s", a, h.says("/access/users/talos-ccm-dev@pve"))
	}
	// A token that is not there is made, whatever the secrets hold of the one before.
	h.fault = nil
	if a := h.bare(t.Context(), args...); a.err != nil {
		t.Fatal(a)
	}
	values := h.values(repo)
	if code, body := h.ask(values["proxmox_ccm_token_id"]+"="+values["proxmox_ccm_token_secret"], "GET", "/cluster/status", nil); code != 200 {
		t.Errorf("the new token is answered with %d: %s", code, body)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, and had 0600: %v", info.Mode(), err)
	}
}

// TestInitAccountRotateFails: a rotation that ends at any of its calls leaves no secret in the secrets that opens nothing, and a token
// whose answer is lost is deleted.
func TestInitAccountRotateFails(t *testing.T) {
	h, repo := newAccountHost(t, "9.2")
	args := []string{"ccm", "--cluster", "dev", repo, "--yes"}
	if a := h.bare(t.Context(), args...); a.err != nil {
		t.Fatal(a)
	}
	works := func() bool {
		values := h.values(repo)
		code, _ := h.ask(values["proxmox_ccm_token_id"]+"="+values["proxmox_ccm_token_secret"], "GET", "/cluster/status", nil)
		return code == 200
	}
	for _, c := range []struct {
		name   string
		faults []pveshFault // of the calls about the token, in their order
		there  bool         // a token is left in Proxmox VE
	}{
		{"the old one is not deleted", []pveshFault{notDone}, true},
		{"the answer of its end is lost", []pveshFault{replyLost}, false},
		{"the new one is not made", []pveshFault{noFault, notDone}, false},
		{"the answer of the new one is lost", []pveshFault{noFault, replyLost}, false},
		{"the agent is killed with the new one made", []pveshFault{noFault, replyLost, notDone}, true},
	} {
		calls := 0
		h.fault = func(args []string) pveshFault {
			if !strings.Contains(strings.Join(args, " "), "/token/") {
				return noFault
			}
			if calls++; calls > len(c.faults) {
				return noFault
			}
			return c.faults[calls-1]
		}
		if a := h.bare(t.Context(), append(args, "--rotate-token")...); a.err == nil {
			t.Errorf("%s: %v", c.name, a)
		}
		h.fault = nil
		there := strings.Contains(h.says("/access/users/talos-ccm-dev@pve"), `"ccm"`)
		if there != c.there || h.values(repo)["proxmox_ccm_token_secret"] != "" {
			t.Errorf("%s: a token is there: %v, and the secrets have %v", c.name, there, h.values(repo))
		}
		a := h.bare(t.Context(), args...)
		if there {
			if a.err == nil || !strings.Contains(a.String(), "--rotate-token: the token talos-ccm-dev@pve!ccm is there") {
				t.Errorf("%s: the next run: %v", c.name, a)
			}
			a = h.bare(t.Context(), append(args, "--rotate-token")...)
		}
		if a.err != nil || !works() {
			t.Errorf("%s: the stored token does not work after %v", c.name, a)
		}
	}
}

// TestInitAccountLinks: root writes nothing where a symbolic link in the repository leads.
func TestInitAccountLinks(t *testing.T) {
	for _, name := range []string{"addons", "patches"} {
		for _, inside := range []bool{false, true} {
			h, repo := newAccountHost(t, "9.2")
			elsewhere := t.TempDir()
			to := elsewhere
			if inside {
				to, elsewhere = "../..", repo
			}
			link := filepath.Join(repo, "inventory/dev", name)
			if entries, err := os.ReadDir(link); err == nil && len(entries) > 0 {
				must(os.Rename(link, link+".was"))
			}
			must(os.RemoveAll(link))
			must(os.Symlink(to, link))
			a := h.bare(t.Context(), "ccm", "--cluster", "dev", repo, "--yes")
			if a.err == nil {
				t.Errorf("%s to %s: %v", name, to, a)
			}
			for _, file := range []string{"proxmox-cloud-controller-manager.yaml", "external-cloud-provider.yaml"} {
				if _, err := os.Lstat(filepath.Join(elsewhere, file)); err == nil {
					t.Errorf("%s to %s: %s is written there", name, to, file)
				}
			}
		}
	}
}

// TestInitAccountRefuses: what is missing is named before anything is changed.
func TestInitAccountRefuses(t *testing.T) {
	h, repo := newAccountHost(t, "9.2")
	before := h.state()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"ccm", repo, "--yes"}, "which cluster? use --cluster NAME"},
		{[]string{"ccm", "--cluster", "dev", "--yes"}, "name the directory of the repository"},
		{[]string{"ccm", "--cluster", "dev", repo}, "there is no terminal to ask on"},
		{[]string{"ccm", "--cluster", "dev", repo, "--yes", "--url", "pve1:8006"}, `--url "pve1:8006"`},
		{[]string{"ccm", "--cluster", "dev", repo, "--yes", "--region", "a b"}, `--region "a b"`},
		{[]string{"ccm", "--cluster", "other", repo, "--yes"}, "other"},
		{[]string{"csi", "--cluster", "dev", repo, "--yes"}, "--datastore: which storage are the volumes for? (there is local-lvm)"},
		{[]string{"csi", "--cluster", "dev", repo, "--yes", "--datastore", "nvme"}, "--datastore: there is no storage nvme that takes disks of VMs (there is local-lvm)"},
		{[]string{"ccm", "--cluster", "dev", repo, "--yes", "--age-key", "nowhere"}, "age key nowhere"},
	} {
		if a := h.bare(t.Context(), c.args...); a.err == nil || !strings.Contains(a.String(), c.want) {
			t.Errorf("%v is answered with\n%v\nand not with %s", c.args, a, c.want)
		}
	}
	if h.state() != before {
		t.Error("what was refused changed something")
	}
}

// TestInitAccountPool: a repository gets no rights on another pool than the host's policy allows, and deletes no account there.
func TestInitAccountPool(t *testing.T) {
	h, repo := newAccountHost(t, "9.2")
	for _, pool := range []string{"talos", "others"} {
		file := filepath.Join(repo, "inventory/dev/cluster.yaml")
		text, err := os.ReadFile(file)
		must(err)
		lines := strings.Split(string(text), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "  pool:") })
		at := slices.IndexFunc(lines, func(l string) bool { return l == "proxmox:" })
		if at < 0 {
			t.Fatalf("no proxmox in\n%s", text)
		}
		must(os.WriteFile(file, []byte(strings.Join(slices.Insert(lines, at+1, "  pool: "+pool), "\n")), 0o600))
		before, calls := h.state(), len(h.pveshs)
		for _, args := range [][]string{{"ccm"}, {"csi", "--datastore", "local-lvm"}, {"ccm", "--undo"}} {
			a := h.bare(t.Context(), append(args, "--cluster", "dev", repo, "--yes")...)
			switch {
			case pool == "talos" && a.err != nil:
				t.Errorf("%v: %v", args, a)
			case pool == "others" && (a.err == nil || !strings.Contains(a.String(), "wants the pool others, and the policy of this host allows talos")):
				t.Errorf("%v is answered with %v", args, a)
			case pool == "others" && (h.state() != before || len(h.pveshs) != calls):
				t.Errorf("%v changed something", args)
			}
		}
	}
}

// TestDocsAccounts: the commands that the page shows do what it describes, with the
// privileges of its table.
func TestDocsAccounts(t *testing.T) {
	h, repo := newAccountHost(t, "9.2")
	page, err := os.ReadFile("../../docs/how-to/platform.md")
	must(err)
	ran := 0
	for line := range strings.Lines(string(page)) {
		args, ok := strings.CutPrefix(strings.TrimSpace(line), "talos-agent init ")
		if !ok {
			continue
		}
		words := strings.Fields(args)
		if i := slices.Index(words, "."); i >= 0 {
			words[i] = repo
		}
		if a := h.bare(t.Context(), words...); a.err != nil {
			t.Fatalf("%s: %v", line, a)
		}
		if ran++; ran == 3 {
			acl := h.says("/access/acl")
			for _, user := range []string{"talos-ccm-dev@pve", "talos-csi-dev@pve"} {
				if !strings.Contains(acl, user) || !strings.Contains(string(page), "| `"+user+"` |") {
					t.Errorf("%s is not made, or not in the table", user)
				}
			}
		}
	}
	if ran != 5 || strings.Contains(h.says("/access/users"), "-dev@pve") {
		t.Errorf("%d commands left %s", ran, h.says("/access/users"))
	}
	for _, k := range []account.Kind{account.CCM, account.CSI} {
		for _, role := range k.Roles() {
			for _, privilege := range role.Names() {
				if !strings.Contains(string(page), "`"+privilege+"`") {
					t.Errorf("the table lacks %s", privilege)
				}
			}
		}
	}
}
