package pve

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/lab/pve/accesslog"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestAccessLog: pveproxy logs every request that it answers, with who was authenticated,
// whatever became of it; and those for another host both of them do.
func TestAccessLog(t *testing.T) {
	var logs []*accesslog.Log
	var paths []string
	for _, name := range []string{"one", "two"} {
		paths = append(paths, filepath.Join(t.TempDir(), name))
		l, err := accesslog.Open(paths[len(paths)-1])
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
	}
	inBubble(t, Config{Hosts: []Host{{AccessLog: logs[0]}, {AccessLog: logs[1]}, {}}}, func(l *testLab) {
		agent, _, _ := strings.Cut(l.token, "=")
		admin := l.as(l.admin)
		admin.ok("GET", "/cluster/nextid?vmid=%34%31%31", "")
		admin.call("PUT", "/nodes/pve2/qemu/410/config", "cores=2")
		l.call("PUT", "/nodes/pve3/qemu/410/config", "cores=2")
		l.as(agent+"=wrong").call("PUT", "/nodes/pve1/qemu/410/config", "cores=2")
		admin.call("GET", "/no/such/method", "")
		l.world.Inject(world.Fault{System: "pve", Op: "GET /version", Kind: world.Answer, Status: http.StatusServiceUnavailable, Text: "busy"})
		admin.call("GET", "/version", "")
		for i, want := range [][]string{{
			`::ffff:127.0.0.1 - root@pam!admin [T] "GET /api2/json/cluster/nextid?vmid=%34%31%31 HTTP/1.1" 200 N`,
			`::ffff:127.0.0.1 - root@pam!admin [T] "PUT /api2/json/nodes/pve2/qemu/410/config HTTP/1.1" 500 N`,
			`::ffff:127.0.0.1 - ` + agent + ` [T] "PUT /api2/json/nodes/pve3/qemu/410/config HTTP/1.1" 403 N`,
			`::ffff:127.0.0.1 - - [T] "PUT /api2/json/nodes/pve1/qemu/410/config HTTP/1.1" 401 -`,
			`::ffff:127.0.0.1 - root@pam!admin [T] "GET /api2/json/no/such/method HTTP/1.1" 501 N`,
			`::ffff:127.0.0.1 - root@pam!admin [T] "GET /api2/json/version HTTP/1.1" 503 N`,
		}, {
			`::ffff:127.0.0.1 - root@pam!admin [T] "PUT /api2/json/nodes/pve2/qemu/410/config HTTP/1.1" 500 N`,
		}} {
			data, err := os.ReadFile(paths[i])
			if err != nil {
				t.Fatal(err)
			}
			got := regexp.MustCompile(`\[\d\d/\d\d/\d{4}:\d\d:\d\d:\d\d \+0100\]`).ReplaceAllString(string(data), "[T]")
			got = regexp.MustCompile(`(?m) \d+$`).ReplaceAllString(got, " N")
			if got != strings.Join(want, "\n")+"\n" {
				t.Errorf("host %d has\n%s", i+1, got)
			}
		}
	})
	if err := errors.Join(logs[0].Close(), logs[1].Close()); err != nil {
		t.Error(err)
	}
}
