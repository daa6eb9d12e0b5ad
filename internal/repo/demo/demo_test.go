package demo

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

func TestProgressLineStaysOnOneRow(t *testing.T) {
	s := cluster.Status{
		Message: "1 of 3 nodes Ready; download image talos-v1.13.9-376567988ad3-nocloud-amd64.qcow2",
		Nodes:   []cluster.NodeStatus{{Phase: cluster.PhaseJoining}, {Phase: cluster.PhaseReady}, {Phase: cluster.PhaseBooting}},
		Running: []cluster.RunningStatus{{Action: "fetch chart"}, {Action: "download image", Done: 1 << 19, Total: 1 << 20, Unit: "bytes"}},
	}
	for _, width := range []int{1, 2, 10, 20, 40, 60, 80, 118, 200} {
		line := formatProgress(s, width)
		if n := utf8.RuneCountInString(line); n >= width && width > 1 {
			t.Errorf("a terminal of %d columns gets a line of %d: %q", width, n, line)
		}
		if width >= 40 && (!strings.HasPrefix(line, "[##....] 1 of 3 nodes Ready; d") || !strings.HasSuffix(line, "; 50%")) {
			t.Errorf("at %d columns the line does not say how far it is: %q", width, line)
		}
	}
	if got, want := formatProgress(cluster.Status{Message: "cannot fetch the repository"}, 80), "cannot fetch the repository"; got != want {
		t.Errorf("before the nodes are known the line is %q, want %q", got, want)
	}
}
