package boot

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// lab is a make-believe Proxmox VE host in the container's network. It lives
// outside the container, so that its VMs run on whatever becomes of that.
type lab struct {
	c    *container
	dir  string
	repo string // a clone, to push from

	mu    sync.Mutex
	story []string // what happened so far
}

// startLab starts one with the program that is under test, and gives the
// container what makes it a Proxmox VE host.
func startLab(c *container, program, flavour, example string) *lab {
	c.t.Helper()
	l := &lab{c: c, dir: filepath.Join(c.work, "lab"), repo: filepath.Join(c.work, "repo")}
	// Half as fast as it is by itself: rollouts are to last long enough for
	// something to happen in the middle of them.
	cmd := c.beside(program, "lab", "--bare", "--speed", "5", "--flavour", flavour, "--dir", l.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	up, listened := make(chan struct{}), make(chan struct{})
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-listened
		if err := cmd.Wait(); err != nil {
			c.t.Errorf("the lab ended: %v", err)
		}
	})
	go l.listen(out, up, listened)
	select {
	case <-up:
	case <-listened:
		c.t.Fatal("the lab does not start")
	}
	outside(c.t, "cp", "--recursive", example, l.repo)
	for _, other := range []string{"dev", "prod"} { // are for real hosts
		outside(c.t, "rm", "--recursive", filepath.Join(l.repo, "inventory", other))
	}
	outside(c.t, "git", "-C", l.repo, "init", "--quiet", "--initial-branch=main")
	outside(c.t, "cp", filepath.Join(l.dir, "usr/bin/pvesh"), filepath.Join(c.root, "usr/bin/pvesh"))
	outside(c.t, "cp", "--recursive", filepath.Join(l.dir, "etc/pve"), filepath.Join(c.root, "etc/pve"))
	return l
}

// listen gathers the lab's story.
func (l *lab) listen(out io.Reader, up, done chan<- struct{}) {
	defer close(done)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		l.mu.Lock()
		l.story = append(l.story, line)
		l.mu.Unlock()
		if pushCommand.MatchString(line) {
			close(up)
		}
	}
}

// told is what the first group of an expression matches in the lab's story so
// far, in each line that it matches.
func (l *lab) told(what *regexp.Regexp) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, line := range l.story {
		if m := what.FindStringSubmatch(line); m != nil {
			out = append(out, m[1])
		}
	}
	return out
}

// once is what an expression matches in the lab's story, which it does once.
func (l *lab) once(what *regexp.Regexp) string {
	l.c.t.Helper()
	found := l.told(what)
	if len(found) != 1 {
		l.c.t.Fatalf("the lab's story matches %s %d times", what, len(found))
	}
	return found[0]
}

// What the lab says at its beginning: how a host is set up for it, and how a
// repository is pushed.
var (
	initCommand = regexp.MustCompile(`^  talos-agent init --root \S+ (.*)$`)
	pushCommand = regexp.MustCompile(`^  cd REPOSITORY && (.*)$`)
)

// push commits and pushes the clone as it is, and has the daemon look.
func (l *lab) push(what string) {
	l.c.t.Helper()
	outside(l.c.t, "git", "-C", l.repo, "add", "--all")
	outside(l.c.t, "git", "-C", l.repo, "-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "commit", "--quiet", "--message", what)
	cmd := l.c.beside("sh", "-ec", l.once(pushCommand))
	cmd.Dir = l.repo
	if out, err := cmd.CombinedOutput(); err != nil {
		l.c.t.Fatalf("git push: %v\n%s", err, out)
	}
	l.c.run("systemctl", "reload", "talos-agent.service")
}

// workers changes how many workers the inventory has.
func (l *lab) workers(n int) {
	l.c.t.Helper()
	path := filepath.Join(l.repo, "inventory", cluster, "nodes.yaml")
	b, err := os.ReadFile(path)
	if err != nil {
		l.c.t.Fatal(err)
	}
	changed := regexp.MustCompile(`count: \d+`).ReplaceAll(b, fmt.Appendf(nil, "count: %d", n))
	if err := os.WriteFile(path, changed, 0o644); err != nil {
		l.c.t.Fatal(err)
	}
}

// head is the commit that was pushed last.
func (l *lab) head() string {
	l.c.t.Helper()
	out, err := exec.Command("git", "-C", l.repo, "rev-parse", "HEAD").Output()
	if err != nil {
		l.c.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// cluster is the one of the example repository that is for labs.
const cluster = "lab"

// status is what the daemon tells of it.
type status struct {
	Condition, Message, Revision, Applied string
	Nodes                                 []struct{ Name, Phase, WaitsFor string }
}

// phases counts nodes by phase.
func (s status) phases() map[string]int {
	out := map[string]int{}
	for _, n := range s.Nodes {
		out[n.Phase]++
	}
	return out
}

// status asks the daemon. Its exit code says no more than the answer does.
func (l *lab) status() (status, error) {
	out, failed := l.c.try("talos-agent", "status", cluster, "--output", "json")
	var answer struct {
		Data []status
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Data) != 1 {
		return status{}, fmt.Errorf("%w: %s", failed, out)
	}
	return answer.Data[0], nil
}

// untilReady waits until so many nodes are Ready at what was pushed last.
func (l *lab) untilReady(nodes int) {
	l.c.t.Helper()
	l.c.until(fmt.Sprintf("%d nodes are Ready", nodes), func() (bool, string) {
		s, err := l.status()
		if err != nil {
			return false, err.Error()
		}
		there := s.Condition == "Ready" && s.Applied == s.Revision && strings.HasSuffix(s.Applied, l.head())
		return there && s.phases()["Ready"] == nodes && len(s.Nodes) == nodes, fmt.Sprintf("%+v", s)
	})
}

// untilMidway waits until a rollout is under way: a machine is on its way, and
// the cluster is not Ready at what was pushed last.
func (l *lab) untilMidway() {
	l.c.t.Helper()
	l.c.until("a rollout is under way", func() (bool, string) {
		s, err := l.status()
		if err != nil {
			return false, err.Error()
		}
		p := s.phases()
		return s.Condition == "Reconciling" && p["Booting"]+p["Maintenance"]+p["Joining"]+p["Creating"] > 0, fmt.Sprintf("%+v", s)
	})
	if s, err := l.status(); err != nil || s.Condition == "Ready" {
		l.c.t.Fatalf("the rollout was over too early for this test: %+v, %v", s, err)
	}
}

var (
	created = regexp.MustCompile(`(\d+): \S+ creates vm \d+`)
	founded = regexp.MustCompile(`(\S+): founds `)
)

// never checks what must never happen: a VM made twice, a second etcd.
func (l *lab) never(t *testing.T, nodes int) {
	t.Helper()
	times := map[string]int{}
	for _, vm := range l.told(created) {
		times[vm]++
	}
	for vm, n := range times {
		if n != 1 {
			t.Errorf("%s was made %d times", vm, n)
		}
	}
	if len(times) != nodes {
		t.Errorf("%d VMs were made for %d nodes: %v", len(times), nodes, times)
	}
	if n := len(l.told(founded)); n != 1 {
		t.Errorf("etcd was founded %d times", n)
	}
}
