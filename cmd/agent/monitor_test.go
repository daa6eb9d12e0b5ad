package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// scrape reads the daemon's numbers by their series; nil while nobody answers.
func (r *rig) scrape(address string) map[string]float64 {
	r.t.Helper()
	res, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	must(err)
	return series(r.t, b)
}

// series reads the text format, as far as it is used.
func series(t *testing.T, text []byte) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out[line[:i]] = v
	}
	return out
}

// TestMetricsOfADaemon: the numbers follow a cluster from its first pass to Ready
// and into a mistake, by both ways; a scrape asks nobody anything; and they go
// on through reloads.
func TestMetricsOfADaemon(t *testing.T) {
	r := newRig(t, lab.Config{})
	address, file := r.base+"200:9477", filepath.Join(r.dir, "agent.prom")
	r.config["metrics"] = map[string]any{"listen": address, "textfile": file}
	r.write()
	commit := r.push(r.inventory(1))
	r.start()
	r.untilReady(commit)
	var now map[string]float64
	r.until("the metrics say Ready", func() bool {
		now = r.scrape(address)
		return now[`talos_agent_cluster_condition{cluster="dev",condition="Ready"}`] == 1
	})
	for name, want := range map[string]float64{
		`talos_agent_cluster_condition{cluster="dev",condition="Stalled"}`:               0,
		`talos_agent_cluster_nodes{cluster="dev",phase="Ready"}`:                         2,
		`talos_agent_cluster_revision_in_force{cluster="dev"}`:                           1,
		`talos_agent_cluster_drift{cluster="dev",kind="wait"}`:                           0,
		`talos_agent_cluster_drift{cluster="dev",kind="action"}`:                         0,
		`talos_agent_actions_total{action="create vm",cluster="dev",result="done"}`:      2,
		`talos_agent_actions_total{action="bootstrap etcd",cluster="dev",result="done"}`: 1,
		`talos_agent_config_last_reload_successful`:                                      1,
	} {
		if got, ok := now[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{
		`talos_agent_cluster_last_ready_timestamp_seconds{cluster="dev"}`,
		`talos_agent_cluster_last_pass_timestamp_seconds{cluster="dev"}`,
		`talos_agent_pass_duration_seconds_count{cluster="dev"}`,
		`talos_agent_certificate_not_after_timestamp_seconds{certificate="talos ca",cluster="dev"}`,
		`talos_agent_certificate_not_after_timestamp_seconds{certificate="etcd ca",cluster="dev"}`,
		`talos_agent_certificate_not_after_timestamp_seconds{certificate="agent for kubernetes",cluster="dev"}`,
		`talos_agent_certificate_not_after_timestamp_seconds{certificate="proxmox",cluster=""}`,
		`talos_agent_api_calls_total{outcome="ok",system="proxmox"}`,
		`talos_agent_api_calls_total{outcome="ok",system="talos"}`,
		`talos_agent_api_calls_total{outcome="ok",system="kubernetes"}`,
		`talos_agent_api_calls_total{outcome="ok",system="git"}`,
		`talos_agent_api_calls_total{outcome="ok",system="forge"}`,
		`go_goroutines`, `process_resident_memory_bytes`,
	} {
		if now[name] <= 0 {
			t.Errorf("%s is %v", name, now[name])
		}
	}
	for name := range now {
		if strings.Contains(name, "dev-cp-1") || strings.Contains(name, commit) {
			t.Errorf("%s has no bound", name)
		}
	}
	// The file catches up with what is shown, and has nothing of the process.
	r.until("the file says Ready", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && series(t, b)[`talos_agent_cluster_condition{cluster="dev",condition="Ready"}`] == 1 && !strings.Contains(string(b), "go_goroutines")
	})
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}

	asked := func() string { return fmt.Sprint(r.calls(func(world.CallRecord) bool { return true })) }
	called := now[`talos_agent_api_calls_total{outcome="ok",system="proxmox"}`]
	// What the agent does of itself may fall between the scrapes, but not for ever.
	r.until("nobody hears of a hundred scrapes", func() bool {
		before, passes := asked(), r.scrape(address)[`talos_agent_pass_duration_seconds_count{cluster="dev"}`]
		for range 100 {
			now = r.scrape(address)
		}
		return asked() == before && now[`talos_agent_pass_duration_seconds_count{cluster="dev"}`] == passes
	})

	// A config that cannot be loaded is counted, one that cannot be used too.
	good := r.config["owner"]
	r.config["owner"] = "Not A Label"
	r.write()
	r.until("the reload fails", func() bool { return r.scrape(address)["talos_agent_config_last_reload_successful"] == 0 })
	r.config["owner"] = good
	r.config["metrics"] = map[string]any{"listen": strings.TrimPrefix(r.lab.Git.URL(), "https://"), "textfile": file}
	r.write()
	r.until("the address is taken", func() bool {
		return r.try("status").has("metrics.listen") && r.try("status").has("address already in use")
	})
	r.until("the old address serves again", func() bool { return r.scrape(address) != nil })

	// Another address and no file: the old ones are gone, the counts go on.
	other := r.base + "201:9477"
	r.config["metrics"] = map[string]any{"listen": other}
	r.write()
	r.signal(syscall.SIGHUP)
	r.until("the metrics are at the other address", func() bool {
		now = r.scrape(other)
		return now[`talos_agent_cluster_condition{cluster="dev",condition="Ready"}`] == 1
	})
	if now[`talos_agent_actions_total{action="create vm",cluster="dev",result="done"}`] != 2 || now["talos_agent_config_last_reload_successful"] != 1 ||
		now[`talos_agent_api_calls_total{outcome="ok",system="proxmox"}`] <= called {
		t.Errorf("after the reload: %v", now)
	}
	if r.scrape(address) != nil {
		t.Error("the old address is served still")
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the old file is there still: %v", err)
	}
	if r.stop(); r.scrape(other) != nil {
		t.Error("somebody serves the metrics of a daemon that has ended")
	}
}

// TestDaemonWithoutItsListeners: somebody who has the ports keeps the daemon
// from being asked, and not from its clusters. As soon as they can be had it
// listens.
func TestDaemonWithoutItsListeners(t *testing.T) {
	r := newRig(t, lab.Config{})
	metrics, hook := r.base+"200:9477", r.base+"200:9478"
	var taken []net.Listener
	for _, address := range []string{metrics, hook} {
		l, err := net.Listen("tcp", address)
		must(err)
		taken = append(taken, l)
	}
	folder := filepath.Join(r.dir, "textfile")
	file := filepath.Join(folder, "agent.prom")
	r.file("webhook.secret", "canary-hook-of-nobody\n")
	r.config["webhook"] = map[string]any{"listen": hook, "secret_file": "webhook.secret"}
	r.config["metrics"] = map[string]any{"listen": metrics, "textfile": file}
	r.write()
	commit := r.push(r.inventory(0))
	r.start()
	r.untilReady(commit)
	// A pod of a node that has just come may restart, and the cluster is not Ready meanwhile.
	ready := func(texts ...string) (a answer) {
		t.Helper()
		r.until("the status is that of a Ready cluster", func() bool { a = r.try("status"); return a.code == exitOK })
		for _, text := range texts {
			if !a.has(text) {
				t.Errorf("want %q of %v", text, a)
			}
		}
		return a
	}
	ready("metrics.listen: listen on "+metrics, "webhook.listen: listen on "+hook, "address already in use", "metrics.textfile")
	// Nor do they keep it from another key.
	r.file("webhook.secret", "canary-another-hook\n")
	const over = "restarting with changed files: "
	r.until("the other secret is taken up", func() bool { return r.log.has(over + filepath.Join(r.dir, "webhook.secret")) })
	r.untilReady(commit)
	if a := ready("webhook.listen: listen on " + hook); a.has("cannot start") {
		t.Errorf("what it did without keeps it from the rest: %v", a)
	}

	for _, l := range taken {
		must(l.Close())
	}
	must(os.Mkdir(folder, 0o700))
	r.until("the numbers are told", func() bool { return r.scrape(metrics) != nil })
	r.until("forges are heard", func() bool {
		res, err := http.Post("http://"+hook, "application/json", strings.NewReader("{}"))
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusUnauthorized
	})
	r.run(exitOK, do("reconcile"))
	r.until("the file is written", func() bool { _, err := os.Stat(file); return err == nil })
	r.until("nothing is told to be wrong", func() bool { return !r.try("status").has("tried again") })
}
