package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/daemon/daemontest"
	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// canaries are secrets by their names, in every form in which they could fly.
type canaries map[string]string

// add adds a secret, and what it is without its base64 and its armour.
func (c canaries) add(name, secret string) {
	secret = strings.TrimSpace(secret)
	if len(secret) < 12 {
		panic(fmt.Sprintf("%s is too short to be told from other words", name))
	}
	c[name] = secret
	if plain, err := base64.StdEncoding.DecodeString(secret); err == nil && len(plain) >= 12 {
		c[name+", decoded"] = string(plain)
		// What is no armour may have ends of lines anywhere, and a piece between
		// two of them may be any byte, or none.
		if lines := bytes.Split(plain, []byte("\n")); len(lines) > 2 && bytes.HasPrefix(plain, []byte("-----BEGIN ")) {
			c[name+", a line of it"] = string(lines[1])
		}
	}
	c[name+", encoded"] = base64.StdEncoding.EncodeToString([]byte(secret))[:16]
}

// addBundle adds every secret of a document in the shape of secrets.sops.yaml.
func (c canaries) addBundle(plain []byte) {
	var doc map[string]any
	must(yaml.Unmarshal(plain, &doc))
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, below := range v {
				walk(path+"."+k, below)
			}
		case string:
			// Certificates are public, and so is the id of a cluster's discovery.
			if !strings.HasSuffix(path, ".crt") && path != ".cluster.id" {
				c.add("the bundle's "+path, v)
			}
		}
	}
	walk("", doc)
}

// in returns the names of the secrets that are in a text.
func (c canaries) in(text []byte) (found []string) {
	for name, secret := range c {
		if bytes.Contains(text, []byte(secret)) {
			found = append(found, name)
		}
	}
	return found
}

// TestNoSecretEscapes gives the daemon secrets that are nowhere else, leads it
// through a good day and through everything that can go wrong with them, and
// looks for them wherever it speaks or writes.
func TestNoSecretEscapes(t *testing.T) {
	daemontest.LeaveToExhaust(t)
	r := newRig(t, lab.Config{})
	c := canaries{}
	r.keys = newKeyring("values:\n  password: canary-password-5f2b7a\n  port: canary-port-91ce04\n")
	c.addBundle(r.keys.plain)
	c.add("the age key", string(r.keys.ageKey))
	_, token, _ := strings.Cut(r.lab.Token, "=")
	c.add("the token of Proxmox VE", token)
	c.add("the token of git", lab.GitToken)
	c.add("the token of the forge", lab.ForgeToken)
	for name, secret := range map[string]string{
		"webhook.secret": "canary-webhook-secret-4c1d", "hook.key": "canary-notify-key-77aa",
		// Nobody is there, so that there are errors to be told.
		"hook.url": "http://127.0.0.1:1/canary-notify-path-20be", "chat.url": "ntfy://me:canary-chat-password-9e3f@127.0.0.1:1/canary-topic-5d5d?scheme=http",
	} {
		r.file(name, secret+"\n")
		for part := range strings.FieldsFuncSeq(secret, func(c rune) bool { return strings.ContainsRune("/:@?", c) }) {
			if strings.HasPrefix(part, "canary-") {
				c.add(name+": "+part, part)
			}
		}
	}
	prom := filepath.Join(t.TempDir(), "agent.prom")
	r.config["webhook"] = map[string]any{"listen": r.base + "200:9478", "secret_file": "webhook.secret"}
	r.config["metrics"] = map[string]any{"listen": r.base + "200:9477", "textfile": prom}
	r.config["notifications"] = []map[string]any{
		{"name": "program", "kind": "webhook", "url_file": "hook.url", "secret_file": "hook.key"}, {"name": "phone", "kind": "chat", "url_file": "chat.url"}}
	r.write()
	if len(c) < 40 {
		t.Fatalf("only %d secrets", len(c))
	}
	r.file("age.key", string(r.keys.ageKey))
	r.config["mirrors"].(map[string]any)["registries"] = map[string]any{
		"ghcr.io": r.lab.Registry.URL(), "registry.k8s.io": r.lab.Registry.URL(), "factory.talos.dev": r.lab.Registry.URL()}
	r.write()

	heard := &output{} // what the commands and the socket said
	look := func() cluster.Status {
		for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"plan"}, {"plan", "-o", "json"}, {"render"}, {"render", "-o", "json"}, {"diff"}, {"diff", "-o", "json"}} {
			a := r.try(args...)
			fmt.Fprint(heard, a.out, a.errOut)
		}
		return r.status()
	}
	stalled := func(what string) {
		t.Helper()
		r.until(what, func() bool { return r.status().Condition == cluster.Stalled })
		look()
	}

	// Values in places where they cannot be, whose errors could quote them.
	base := r.inventory(0)
	text := string(base["inventory/dev/cluster.yaml"])
	patched := func(patch string) map[string][]byte {
		return with(base, "inventory/dev/cluster.yaml", text+"patches: {all: [p.yaml]}\n", "inventory/dev/p.yaml", patch)
	}
	r.push(patched("machine: {time: {bootTimeout: \"${values.port}\"}}\n"))
	r.start()
	stalled("a duration that is none")
	for _, patch := range []string{
		"cluster: {network: {podSubnets: [\"${values.port}\"]}}\n",
		"machine: {network: {interfaces: [{interface: eth0, mtu: \"${values.port}\"}]}}\n",
		"machine: {\"${values.port}\": true}\n",
		"machine: {nodeLabels: {\"a b\": \"${values.password}\"}}\n",
		"cluster: {controlPlane: {endpoint: \"https://${values.password}:port\"}}\n",
		"apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: x\nenvironment: \"${values.password}\"\n",
		"apiVersion: v1alpha1\nkind: \"${values.password}\"\n",
		"machine: {network: {interfaces: [{name: \"${values.password}\"}]}}\n",
		"machine: {files: [{path: /x, op: create, type: \"${values.password}\"}]}\n",
		"apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: \"${values.password}\"\n",
		"machine: [\"${values.missing}\", \"${values.password}\"]\n",
	} {
		commit := r.push(patched(patch))
		r.run(exitOK, do("reconcile"))
		r.until("the next mistake is seen", func() bool { return r.status().Revision.Commit() == commit })
		if look().Condition != cluster.Stalled {
			t.Errorf("the patch is not refused: %s", patch)
		}
	}

	// A good patch, charts that fail with values, and a host that refuses.
	r.lab.World.Inject(world.Fault{System: "pve", Op: "POST /nodes/{node}/qemu", Kind: world.Answer, Status: 403, Text: "Permission check failed", Times: 2})
	good := patched("machine: {sysctls: {kernel.secret: \"${values.password}\"}}\n")
	chart := func(template string) map[string][]byte {
		return with(good, "inventory/dev/cluster.yaml", text+"patches: {all: [p.yaml]}\naddons: [leaky.yaml]\n",
			"inventory/dev/leaky.yaml", "name: leaky\nnamespace: default\nchart: {path: chart}\nvalues: {password: \"${values.password}\", port: \"${values.port}\"}\n",
			"inventory/dev/chart/Chart.yaml", "apiVersion: v2\nname: leaky\nversion: 1.0.0\n",
			"inventory/dev/chart/templates/x.yaml", template)
	}
	for i, template := range []string{
		"{{ fail .Values.password }}\n",
		"{{ .Values.password | int | divf 1 }}{{ required .Values.port \"\" }}\n",
		"kind: {{ .Values.password }}\napiVersion: v1\nmetadata: {name: x}\n",
		"kind: ConfigMap\napiVersion: v1\nmetadata: {name: {{ .Values.password }}_}\n",
		"kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\ndata: {password: {{ .Values.password }}: {{ .Values.port }}\n",
	} {
		commit := r.push(chart(template))
		r.run(exitOK, do("reconcile"))
		r.until(fmt.Sprint("chart ", i, " fails"), func() bool {
			s := r.status()
			return s.Revision.Commit() == commit && len(s.Addons) == 1 && (strings.Contains(fmt.Sprint(s.Waiting, s.Blocked, s.Message), "failed") || s.Condition == cluster.Stalled)
		})
		look()
	}
	commit := r.push(chart("kind: Secret\napiVersion: v1\nmetadata: {name: x}\nstringData: {password: {{ .Values.password }}}\n"))
	r.run(exitOK, do("reconcile"))
	r.untilReady(commit)
	look()
	r.told(commit, "success")

	// Tokens and keys that are refused, each a secret of its own.
	for file, secret := range map[string]string{"git.token": "canary-git-7d11", "forge.token": "canary-forge-8e22", "proxmox.token": "talos-agent@pve!pve1=cafe1234-5678-90ab-cdef-001122334455", "age.key": anotherKey()} {
		_, bare, found := strings.Cut(secret, "=")
		if !found {
			bare = secret
		}
		c.add("a wrong "+file, bare)
		old, err := os.ReadFile(filepath.Join(r.dir, file))
		must(err)
		lines := strings.Count(r.log.String(), "restarting with changed files")
		r.file(file, secret)
		r.write()
		r.until("the wrong "+file+" is in force", func() bool { return strings.Count(r.log.String(), "restarting with changed files") > lines })
		r.until("it is refused", func() bool {
			a := r.try("status") // what was applied last may be Ready at once
			return a.code != exitOK || a.has("the repository cannot be fetched") || file == "forge.token"
		})
		look()
		for _, output := range []string{"text", "json"} {
			a := r.try("doctor", "--config", filepath.Join(r.dir, "config.yaml"), "-o", output)
			if a.code != exitFailed {
				t.Errorf("a wrong %s passes the doctor: %v", file, a)
			}
			fmt.Fprint(heard, a.out, a.errOut)
		}
		lines = strings.Count(r.log.String(), "restarting with changed files")
		r.file(file, string(old))
		r.write()
		r.until("the right "+file+" is back", func() bool { return strings.Count(r.log.String(), "restarting with changed files") > lines })
		r.untilReady(commit)
	}
	r.run(exitOK, do("reconcile"))

	for _, args := range [][]string{{"events", "--since", "1h"}, {"events", "--since", "1h", "-o", "json"}, {"history"}, {"history", "-o", "json"}, {"history", "1"}} {
		a := r.try(args...)
		fmt.Fprint(heard, a.out, a.errOut)
	}
	bundle := filepath.Join(r.work, "bundle.tar.gz")
	r.run(exitOK, do("support-bundle", "--config", filepath.Join(r.dir, "config.yaml"), "--file", bundle))

	var statuses bytes.Buffer
	must(json.NewEncoder(&statuses).Encode(r.lab.Forge.Statuses()))
	var story bytes.Buffer
	for _, call := range r.lab.World.Calls() {
		if call.System != "kube" { // where the names of objects are asked for
			must(json.NewEncoder(&story).Encode(call))
		}
	}
	told, err := os.ReadFile(prom)
	must(err)
	for _, name := range []string{"program", "phone"} {
		if !r.log.has("cannot send a notification; it is retried: " + name) {
			t.Errorf("nothing is told of %s, which nobody can reach", name)
		}
	}
	where := map[string][]byte{"the metrics": told, "the log": []byte(r.log.String()), "the commands": []byte(heard.String()), "the forge": statuses.Bytes(), "what was asked of whom": story.Bytes()}
	for _, name := range []string{"cmdline", "environ"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", r.proc.cmd.Process.Pid, name))
		must(err)
		where["/proc/PID/"+name] = b
	}
	for _, dir := range []string{r.config["state_dir"].(string), r.config["cache_dir"].(string), r.work} {
		must(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			where[path], err = os.ReadFile(path)
			return err
		}))
	}
	for name, text := range unpack(t, bundle) {
		where["the bundle's "+name] = []byte(text)
	}
	if len(where) < 25 || statuses.Len() < 100 || heard.b.Len() < 10_000 {
		t.Fatalf("there is too little to look at: %d places", len(where))
	}
	for place, b := range where {
		for _, name := range c.in(b) {
			i := bytes.Index(b, []byte(c[name]))
			t.Errorf("%s is in %s: ...%q...", name, place, b[max(0, i-200):min(len(b), i+200)])
		}
	}
}

// anotherKey is an age key that opens nothing.
func anotherKey() string {
	id, err := age.GenerateX25519Identity()
	must(err)
	return id.String()
}
