package scaffold

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func usual() Wishes {
	return Wishes{Host: "pve1", Bridge: "vmbr1", Network: netip.MustParsePrefix("10.10.0.0/24"), Gateway: netip.MustParseAddr("10.10.0.1"),
		ControlPlanes: 1, Workers: 2, Recipients: []string{"age1x", "age1y"}, CI: forges, Version: "v1.2.3"}.WithDefaults()
}

func anyVMID(int) (bool, error) { return true, nil }

// TestNodes: VMIDs follow from the addresses; what is taken, or does not fit the
// policy, is reported apart and written down.
func TestNodes(t *testing.T) {
	ids := func(w Wishes, taken ...int) (string, error) {
		nodes, err := w.Nodes(func(id int) (bool, error) {
			for _, n := range taken {
				if n == id {
					return false, nil
				}
			}
			return true, nil
		})
		var out []string
		for _, n := range nodes {
			out = append(out, strings.TrimPrefix(n.Name, "dev-")+" "+n.IP.String()+" "+strings.Repeat("*", min(1, n.VMID)))
			if n.VMID > 0 {
				out[len(out)-1] += strings.TrimSpace(itoa(n.VMID))
			}
		}
		return strings.Join(out, "; "), err
	}
	small := usual()
	small.VMIDs = []cluster.Range{{First: 100, Last: 101}, {First: 200, Last: 205}}
	for _, tc := range []struct {
		w     Wishes
		taken []int
		want  string
	}{
		{usual(), nil, "cp-1 10.10.0.11 ; wk-1 10.10.0.21 ; wk-2 10.10.0.22 "},
		{usual(), []int{411, 400, 521}, "cp-1 10.10.0.11 *401; wk-1 10.10.0.21 *500; wk-2 10.10.0.22 "},
		{small, []int{200}, "cp-1 10.10.0.11 *201; wk-1 10.10.0.21 *203; wk-2 10.10.0.22 *204"},
	} {
		if got, err := ids(tc.w, tc.taken...); err != nil || got != tc.want {
			t.Errorf("%q, %v, want %q", got, err, tc.want)
		}
	}
	if _, err := ids(small, 200, 201, 202); err == nil || !strings.Contains(err.Error(), "no VMID from 200-202 is free for dev-cp-1") {
		t.Errorf("all VMIDs are taken: %v", err)
	}
	broken := errors.New("nobody knows")
	if _, err := usual().Nodes(func(int) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("nobody knows whether one is free: %v", err)
	}
}

func itoa(n int) string { return cluster.Range{First: n, Last: n}.String() }

// TestCheck: what cannot be is refused by the flag that says it.
func TestCheck(t *testing.T) {
	offered := usual()
	offered.Offer = Offer{Host: offered.Host, Bridges: []string{"vmbr0", offered.Bridge}, Datastores: []string{offered.Datastore}}
	elsewhere := usual()
	elsewhere.Offer = Offer{Host: "pve9"}
	for _, w := range []Wishes{usual(), offered, elsewhere} {
		if wrong := w.Check(); len(wrong) > 0 {
			t.Errorf("usual wishes: %v", wrong)
		}
	}
	for flag, change := range map[string]func(*Wishes){
		"--cluster": func(w *Wishes) { w.Cluster = "a b" },
		"--host":    func(w *Wishes) { w.Host = "" },
		"--bridge":  func(w *Wishes) { w.Bridge = "" },
		"--network": func(w *Wishes) {
			w.Network, w.First = netip.MustParsePrefix("fd00::/64"), netip.Addr{}
			*w = w.WithDefaults()
		},
		"--gateway":        func(w *Wishes) { w.Gateway = netip.MustParseAddr("10.11.0.1") },
		"--vip":            func(w *Wishes) { w.VIP = w.Gateway },
		"--first-address":  func(w *Wishes) { w.First = netip.MustParseAddr("10.10.0.250") },
		"--control-planes": func(w *Wishes) { w.ControlPlanes = 2 },
		"--workers":        func(w *Wishes) { w.Workers = -1 },
		"--cni":            func(w *Wishes) { w.CNI = "none" },
		"--recipient":      func(w *Wishes) { w.Recipients = nil },
		"--ci":             func(w *Wishes) { w.CI = []string{"jenkins"} },
	} {
		w := usual()
		change(&w)
		if wrong := w.Check(); len(wrong) == 0 || !strings.HasPrefix(wrong[0].Error(), flag+": ") {
			t.Errorf("%s: %v", flag, wrong)
		}
	}
	offered.Bridge, offered.Datastore = "vmbr9", "local"
	want := []string{`--bridge: pve1 has no bridge "vmbr9" that VMs may use (choose of vmbr0, vmbr1, or have the policy of the host allow another)`,
		`--datastore: pve1 has no storage "local" that takes disks of VMs (choose of local-lvm, or have the policy of the host allow another)`}
	var got []string
	for _, w := range offered.Check() {
		got = append(got, w.Error())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLikeTheExample: what a repository begins with is what examples/repo shows.
func TestLikeTheExample(t *testing.T) {
	nodes, err := usual().Nodes(anyVMID)
	if err != nil {
		t.Fatal(err)
	}
	files, err := Files(usual(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	example := func(name string) string {
		b, err := os.ReadFile(filepath.Join("../../../examples/repo", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	type rules struct {
		Rules []struct {
			Path string `yaml:"path_regex"`
			Age  string `yaml:"age"`
		} `yaml:"creation_rules"`
	}
	var mine, theirs rules
	read := func(text string, into any) {
		t.Helper()
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	read(files[".sops.yaml"], &mine)
	read(example(".sops.yaml"), &theirs)
	if len(mine.Rules) != 1 || mine.Rules[0].Path != theirs.Rules[0].Path || mine.Rules[0].Age != "age1x,age1y" {
		t.Errorf("who can read: %+v, and in the example %+v", mine, theirs)
	}
	for _, name := range []string{"lab", "prod"} {
		var mine, theirs struct {
			Name, Namespace string
			Chart           struct{ Repository, Name, Version string }
		}
		read(files["inventory/dev/addons/cilium.yaml"], &mine)
		read(example("inventory/"+name+"/addons/cilium.yaml"), &theirs)
		if mine != theirs {
			t.Errorf("Cilium: %+v, and in the example %s %+v", mine, name, theirs)
		}
	}
	for _, name := range []string{"lab", "dev", "prod"} {
		var mine, theirs map[string]any
		read(files["inventory/dev/cluster.yaml"], &mine)
		read(example("inventory/"+name+"/cluster.yaml"), &theirs)
		for _, key := range []string{"talos_version", "kubernetes_version", "config_contract"} {
			if mine[key] != theirs[key] {
				t.Errorf("%s: %v, and in the example %s %v", key, mine[key], name, theirs[key])
			}
		}
	}
	for name, text := range files {
		if strings.Contains(text, "<<") || strings.Contains(text, ">>\n") || strings.Contains(text, "<no value>") {
			t.Errorf("%s is not filled in:\n%s", name, text)
		}
		if strings.HasSuffix(name, "yaml") || strings.HasSuffix(name, "yml") {
			read(text, new(any))
		}
	}
	if !strings.Contains(files[".github/workflows/talos-agent.yaml"], `TALOS_AGENT: "1.2.3"`) {
		t.Error("CI does not take the version of the program")
	}
}

// filesOf are the files of a repository.
func filesOf(t *testing.T, w Wishes) map[string]string {
	t.Helper()
	nodes, err := w.Nodes(anyVMID)
	if err != nil {
		t.Fatal(err)
	}
	files, err := Files(w, nodes)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestCIGetsAPackage: what CI runs to get the program asks for a package by the name
// that packages have, and refuses one that is not as its release lists it.
func TestCIGetsAPackage(t *testing.T) {
	b, err := os.ReadFile("../../../packaging/deb/nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var packaging struct{ Name, Release string }
	if err := yaml.Unmarshal(b, &packaging); err != nil {
		t.Fatal(err)
	}
	name := packaging.Name + "_1.2.3-" + packaging.Release + "_amd64.deb"
	// The release is a folder, which curl and dpkg-deb in the place of the real ones take.
	release, bin := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(bin, "curl"), "#!/bin/sh\nfor a; do case $a in https://github.com/talos-agent/talos-agent/releases/download/v1.2.3/*) cp \"$RELEASE/${a##*/}\" . || exit 22;; esac; done\n")
	write(filepath.Join(bin, "dpkg-deb"), "#!/bin/sh\necho extracted $2\n")
	write(filepath.Join(bin, "apt-get"), "#!/bin/sh\n")
	files := filesOf(t, usual())
	script := map[string]string{}
	for _, forge := range []string{".github", ".gitea"} {
		var ci struct {
			Env  map[string]string
			Jobs struct {
				Check struct{ Steps []struct{ Name, Run string } }
			}
		}
		if err := yaml.Unmarshal([]byte(files[forge+"/workflows/talos-agent.yaml"]), &ci); err != nil || ci.Env["TALOS_AGENT"] != "1.2.3" {
			t.Fatalf("%v: %v", err, ci)
		}
		for _, s := range ci.Jobs.Check.Steps {
			if s.Name == "Get talos-agent" {
				script[forge] = s.Run
			}
		}
	}
	var gitlab struct {
		Job struct {
			Before []string `yaml:"before_script"`
		} `yaml:"talos-agent"`
	}
	if err := yaml.Unmarshal([]byte(files[".gitlab-ci.yml"]), &gitlab); err != nil {
		t.Fatal(err)
	}
	script[".gitlab-ci.yml"] = strings.Join(gitlab.Job.Before, "\n")
	for file, text := range script {
		run := func(sums string) (string, error) {
			t.Helper()
			write(filepath.Join(release, "SHA256SUMS"), sums)
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", text)
			cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "RELEASE=" + release, "TALOS_AGENT=1.2.3", "GITHUB_PATH=" + filepath.Join(bin, "path"), "CI_PROJECT_DIR=" + bin, "TMPDIR=" + t.TempDir()}
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		write(filepath.Join(release, name), "package")
		wrong := strings.Repeat("0", 64)
		sum, err := exec.CommandContext(t.Context(), "sha256sum", filepath.Join(release, name)).Output()
		if err != nil {
			t.Fatal(err)
		}
		listed := string(sum[:64]) + "  " + name + "\n" + wrong + "  talos-agent_1.2.3-1_arm64.deb\n"
		if out, err := run(listed); err != nil || !strings.Contains(out, "extracted "+name) {
			t.Errorf("%s: %v\n%s\n%s", file, err, out, text)
		}
		if out, err := run(strings.Replace(listed, string(sum[:64]), wrong, 1)); err == nil || strings.Contains(out, "extracted") {
			t.Errorf("%s takes a package that is not as listed: %s", file, out)
		}
		if out, err := run(""); err == nil || strings.Contains(out, "extracted") {
			t.Errorf("%s takes a package that is not listed: %s", file, out)
		}
	}
}

// TestRelease: CI gets the release that a program is, or comes after.
func TestRelease(t *testing.T) {
	for version, want := range map[string]string{"v1.2.3": "1.2.3", "v1.2.3-dirty": "1.2.3", "v1.2.3-5-gabc1234": "1.2.3", "v0.0.0-unknown": "", "abc1234": "", "": ""} {
		if got := releaseOf(version); got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
	w := usual()
	w.Version = "abc1234"
	if text := filesOf(t, w)[".gitlab-ci.yml"]; !strings.Contains(text, "is no release: write the version of one.\n") || !strings.Contains(text, `TALOS_AGENT: ""`) {
		t.Error(text)
	}
	if got := w.WithoutRelease(); !slices.Contains(got, ".gitlab-ci.yml") || len(got) != len(w.CI) {
		t.Errorf("CI without a release: %q", got)
	}
	w.Version = "v1.2.3"
	if got := w.WithoutRelease(); len(got) > 0 {
		t.Errorf("CI without a release, made by one: %q", got)
	}
}

// TestRenovate: what renovate.json looks for is found in the files: every version that
// may become a newer one.
func TestRenovate(t *testing.T) {
	files := filesOf(t, usual())
	var config struct {
		Managers []struct {
			Files  []string `json:"managerFilePatterns"`
			Search []string `json:"matchStrings"`
		} `json:"customManagers"`
	}
	if err := json.Unmarshal([]byte(files["renovate.json"]), &config); err != nil {
		t.Fatal(err)
	}
	search, named := regexp.MustCompile(config.Managers[0].Search[0]), regexp.MustCompile(strings.Trim(config.Managers[0].Files[0], "/"))
	var got []string
	for name, text := range files {
		if !named.MatchString(name) {
			continue
		}
		for _, m := range search.FindAllStringSubmatch(text, -1) {
			got = append(got, m[search.SubexpIndex("datasource")]+" "+m[search.SubexpIndex("depName")]+" "+m[search.SubexpIndex("registryUrl")]+" "+m[search.SubexpIndex("currentValue")])
		}
	}
	slices.Sort(got)
	agent := "github-releases talos-agent/talos-agent  1.2.3"
	want := []string{"github-releases kubernetes/kubernetes  " + Kubernetes, "github-releases siderolabs/talos  " + Talos, agent, agent, agent, "helm cilium https://helm.cilium.io " + Cilium}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	quiet := usual()
	quiet.CI = nil
	if _, there := filesOf(t, quiet)["renovate.json"]; there {
		t.Error("there is a renovate.json without a forge")
	}
}

// TestSchemaLines: each file names its schema where it lies, from wherever the folder
// of the clusters is.
func TestSchemaLines(t *testing.T) {
	for _, folder := range []string{"inventory", "clusters/live"} {
		w := usual()
		w.Folder, w.Schemas = folder, map[string][]byte{"cluster": []byte("{}"), "nodes": []byte("{}"), "addon": []byte("{}")}
		files := filesOf(t, w)
		for name, schema := range map[string]string{"cluster.yaml": "cluster", "nodes.yaml": "nodes", "addons/cilium.yaml": "addon"} {
			at := filepath.Join(folder, "dev", name)
			line, _, _ := strings.Cut(files[at], "\n")
			_, path, found := strings.Cut(line, "# yaml-language-server: $schema=")
			if where := filepath.Join(filepath.Dir(at), path); !found || where != ".schema/"+schema+".json" || files[where] == "" {
				t.Errorf("%s begins with %q, which leads to %q", at, line, where)
			}
		}
	}
}

// TestFollowedDirectory: what is followed as it lies there has nothing about pushes.
func TestFollowedDirectory(t *testing.T) {
	w := usual()
	w.Followed, w.CI = "/srv/infra", nil
	page := filesOf(t, w)["README.md"]
	for _, words := range []string{"follows this directory (`/srv/infra`)", "\n\nChange a file: it counts", "\n\n## Follow a Git repository instead\n\n", "shows what is going to happen"} {
		if !strings.Contains(page, words) {
			t.Errorf("there is no %q in\n%s", words, page)
		}
	}
	if strings.Contains(page, "Renovate") || strings.Contains(page, "the branch") {
		t.Error(page)
	}
	page = filesOf(t, usual())["README.md"]
	for _, words := range []string{"# What runs on pve1\n\n[talos-agent](", "\n\nChange a file, check it, push it.", "what a push will do", "a newer version. Renovate reads `renovate.json`", "\n\n## Secrets\n"} {
		if !strings.Contains(page, words) {
			t.Errorf("there is no %q in\n%s", words, page)
		}
	}
}

// TestMirroredChart: a mirror may have packed the chart anew.
func TestMirroredChart(t *testing.T) {
	const at, line = "inventory/dev/addons/cilium.yaml", "\n  sha256: " + ciliumSHA256 + "\n"
	if text := filesOf(t, usual())[at]; !strings.Contains(text, line) {
		t.Error(text)
	}
	w := usual()
	w.ChartMirrored = true
	if text := filesOf(t, w)[at]; strings.Contains(text, line) || !strings.Contains(text, "# sha256: ") {
		t.Error(text)
	}
}

// TestSizes: nodes get what there is room for, down to the least, and no less.
func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		offer Offer
		want  string
	}{
		{"another host", Offer{Host: "pve9", Cores: 1, MemoryMiB: 1}, "{4 4096 40} {4 8192 60} true"},
		{"nothing is known", Offer{}, "{4 4096 40} {4 8192 60} true"},
		{"room for all", Offer{Cores: 64, MemoryMiB: 4096 + 2*8192, DiskGiB: map[string]int64{"local-lvm": 160}}, "{4 4096 40} {4 8192 60} true"},
		{"two cores", Offer{Cores: 2}, "{2 4096 40} {2 8192 60} true"},
		{"less memory", Offer{MemoryMiB: 4096 + 2*8192 - 1}, "{4 4096 40} {4 6144 60} true"},
		{"little memory", Offer{MemoryMiB: 9 << 10}, "{4 3072 40} {4 3072 60} true"},
		{"hardly any memory", Offer{MemoryMiB: 4 << 10}, "{4 2048 40} {4 1024 60} true"},
		{"no memory", Offer{MemoryMiB: 4<<10 - 1}, "{4 2048 40} {4 1024 60} false"},
		{"less disk", Offer{DiskGiB: map[string]int64{"local-lvm": 159}}, "{4 4096 40} {4 8192 40} true"},
		{"another disk", Offer{DiskGiB: map[string]int64{"other": 1}}, "{4 4096 40} {4 8192 60} true"},
		{"no disk", Offer{DiskGiB: map[string]int64{"local-lvm": 29}}, "{4 4096 10} {4 8192 10} false"},
	} {
		w := usual()
		w.ControlPlanes, w.Workers, w.VIP = 1, 2, netip.Addr{}
		w.Offer = tc.offer
		if w.Offer.Host == "" {
			w.Offer.Host = w.Host
		}
		w.Offer.Bridges, w.Offer.Datastores = []string{w.Bridge}, []string{w.Datastore}
		control, worker, fits := w.Sizes()
		if got := fmt.Sprint(control, worker, fits); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
		if wrong := w.Check(); (len(wrong) == 0) != fits {
			t.Errorf("%s: %v", tc.name, wrong)
		}
	}
	w := usual()
	w.ControlPlanes, w.Workers, w.VIP = 1, 2, netip.Addr{}
	w.Offer = Offer{Host: w.Host, Bridges: []string{w.Bridge}, Datastores: []string{w.Datastore}, MemoryMiB: 3000, DiskGiB: map[string]int64{"local-lvm": 500}}
	want := "--workers: 3 nodes need 4096 MiB of memory and 30 GiB on local-lvm at least, and pve1 has 3000 MiB and 500 GiB for VMs (ask for fewer nodes, or make room)"
	if wrong := w.Check(); len(wrong) != 1 || wrong[0].Error() != want {
		t.Errorf("%v, want %s", wrong, want)
	}
}
