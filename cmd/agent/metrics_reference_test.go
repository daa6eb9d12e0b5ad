package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/metrics"
)

// TestMetricsReferenceIsCurrent writes docs/reference/metrics.md from the
// families there are.
func TestMetricsReferenceIsCurrent(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Metrics

<!-- Written by ` + "`make docs`" + ` from the program's own metrics: change those. -->

With ` + "`metrics`" + ` in [config.yaml](config.md) the agent tells Prometheus how the clusters stand and what it does: at /metrics of
` + "`listen`" + `, in the ` + "`textfile`" + ` for node_exporter, or both. [How to monitor the agent](../how-to/monitor.md) shows how to collect
them, with alerts and a dashboard.

The numbers are what the agent knows anyway: a scrape asks nobody and costs no pass. Nothing in them is a secret, and names
of nodes, messages and revisions are never labels. At /metrics, not in the text file, there are also the go_ and process_
metrics that every program in Go has.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
`)
	for _, f := range metrics.Families() {
		var labels []string
		for _, l := range f.Labels {
			labels = append(labels, "`"+l+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, strings.Join(labels, ", "), f.Help)
	}
	b.WriteString(`
Times are in seconds since 1970, so that ` + "`time() - talos_agent_cluster_condition_since_timestamp_seconds`" + ` is for how long. The
conditions and phases are those of [the status](status.md). All values of a label are reported at any time, with 0 for what is
not so; a cluster that is no longer managed, or was not observed yet, has no series.
`)
	golden.Check(t, filepath.Join(reference, "metrics.md"), b.Bytes())
}
