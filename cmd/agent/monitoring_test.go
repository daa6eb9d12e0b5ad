package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/host/hosttest"
	"github.com/talos-agent/talos-agent/internal/metrics"
)

const monitoringDir = "../../packaging/deb/monitoring"

// expressions are what alerts and dashboard ask Prometheus, by where they stand.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	b, err := os.ReadFile(filepath.Join(monitoringDir, "alerts.yaml"))
	must(err)
	must(yaml.Unmarshal(b, &rules))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			out["alert "+r.Alert] = r.Expr
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type string }
		}
	}
	b, err = os.ReadFile(filepath.Join(monitoringDir, "dashboard.json"))
	must(err)
	must(json.Unmarshal(b, &dashboard))
	for _, p := range dashboard.Panels {
		for i, target := range p.Targets {
			out[fmt.Sprintf("panel %s %d", p.Title, i)] = target.Expr
		}
	}
	if len(dashboard.Templating.List) != 2 || len(out) < 30 {
		t.Fatalf("%d expressions and %d variables found", len(out), len(dashboard.Templating.List))
	}
	return out
}

var (
	ourMetric = regexp.MustCompile(`\b(talos_agent_\w+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
)

// TestMonitoringAsksForWhatThereIs: every metric, label and word that alerts and
// dashboard name is one that the agent tells, and every metric is of use to one
// of them.
func TestMonitoringAsksForWhatThereIs(t *testing.T) {
	families := map[string]metrics.Family{}
	for _, f := range metrics.Families() {
		families[f.Name] = f
		if f.Type == "histogram" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				families[f.Name+part] = f
			}
		}
	}
	used := map[string]bool{}
	for where, expr := range expressions(t) {
		for _, m := range ourMetric.FindAllStringSubmatch(expr, -1) {
			f, ok := families[m[1]]
			if !ok {
				t.Errorf("%s: there is no metric %s", where, m[1])
				continue
			}
			used[f.Name] = true
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(append([]string{"job", "instance"}, f.Labels...), l[1]) {
					t.Errorf("%s: %s has no label %s", where, m[1], l[1])
				}
				if words := firstColumn(t, "reference/status.md"); (l[1] == "condition" || l[1] == "phase") && !words[l[2]] {
					t.Errorf("%s: there is no %s %s", where, l[1], l[2])
				}
			}
		}
	}
	for _, name := range []string{"talos_agent_cluster_inventory_problems", "talos_agent_cluster_last_pass_timestamp_seconds",
		"talos_agent_certificate_not_before_timestamp_seconds", "talos_agent_config_last_reload_success_timestamp_seconds"} {
		used[name] = true // for people's own
	}
	for _, f := range metrics.Families() {
		if !used[f.Name] {
			t.Errorf("neither an alert nor the dashboard has a use for %s", f.Name)
		}
	}
}

// TestAlertsNameCommands: what an alert tells people to run is a command.
func TestAlertsNameCommands(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(monitoringDir, "alerts.yaml"))
	must(err)
	text := regexp.MustCompile(`\{\{ \$labels\.\w+ \}\}`).ReplaceAllString(string(b), "dev")
	found := inlineCommand.FindAllStringSubmatch(text, -1)
	if len(found) < 8 {
		t.Errorf("only %d commands found", len(found))
	}
	for _, m := range found {
		words, err := shellWords(m[1])
		must(err)
		if err := parses(words); err != nil {
			t.Errorf("talos-agent %s: %v", m[1], err)
		}
	}
}

// TestAlerts: promtool finds every expression of alerts and dashboard to be one,
// and every alert fires when it should, in the words it should, and not when all
// is well.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Prometheus")
	}
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = monitoringDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	run("check", "rules", "alerts.yaml")
	run("test", "rules", "alerts_test.yaml")

	// A rule for each expression, because promtool reads nothing else.
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	all := expressions(t)
	for i, where := range slices.Sorted(maps.Keys(all)) {
		expr := strings.NewReplacer("$__rate_interval", "5m", "$cluster", ".*").Replace(all[where])
		rules = append(rules, rule{Record: fmt.Sprintf("expression_%d", i), Expr: expr})
	}
	b, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	must(err)
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	hosttest.Write(t, file, string(b), 0o600)
	run("check", "rules", file)
}

// TestEveryAlertIsTried: the tests that promtool runs have every alert fire once, and keep quiet once.
func TestEveryAlertIsTried(t *testing.T) {
	tests, err := os.ReadFile(filepath.Join(monitoringDir, "alerts_test.yaml"))
	must(err)
	for where := range expressions(t) {
		name, ok := strings.CutPrefix(where, "alert ")
		fires := regexp.MustCompile(`alertname: ` + name + `\n\s+exp_alerts: \[\{`)
		if ok && (!fires.Match(tests) || !strings.Contains(string(tests), "alertname: "+name+"}")) {
			t.Errorf("no test has %s fire, or none has it keep quiet", name)
		}
	}
}
