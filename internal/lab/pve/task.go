package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/copying"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// upid is the name of a task, taken apart.
type upid struct {
	node, kind, id, user string
	pid, pstart, start   int64
}

// parseUPID reads UPID:node:PID8HEX:PSTART8HEX:STARTTIME8HEX:type:id:user:.
func parseUPID(text string) (upid, error) {
	bad := errors.New("unable to parse worker upid")
	p := strings.Split(text, ":")
	if len(p) != 9 || p[0] != "UPID" || p[1] == "" || p[5] == "" || p[7] == "" || p[8] != "" {
		return upid{}, bad
	}
	u := upid{node: p[1], kind: p[5], id: p[6], user: p[7]}
	for i, to := range []*int64{&u.pid, &u.pstart, &u.start} {
		n, err := strconv.ParseInt(p[2+i], 16, 64)
		if err != nil || len(p[2+i]) < 8 || n < 0 {
			return upid{}, bad
		}
		*to = n
	}
	return u, nil
}

func (u upid) String() string {
	return fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", u.node, u.pid, u.pstart, u.start, u.kind, u.id, u.user)
}

// task is one worker. Its fields below the line belong to Server.mu.
type task struct {
	upid
	name  string // of the upid
	fault world.Fault
	ctx   context.Context
	stop  context.CancelCauseFunc
	done  chan struct{} // closed when it has ended

	log      []string
	warnings int
	ended    bool
	end      time.Time
	exit     string
	held     []copying.Lock // file locks, which die with the process
}

// wasKilled reports whether a worker ended without a chance to clean up.
func (t *task) wasKilled() bool { return errors.Is(context.Cause(t.ctx), errKilled) }

// The causes a worker ends by from outside.
var (
	errInterrupted = errors.New("received interrupt")
	errKilled      = errors.New("unexpected status")
)

// forkTask starts a worker and returns its name. do runs until it is done, and
// must return soon after t.ctx ends. Its error is the task's.
func (s *Server) forkTask(who identity, h *host, kind, id string, fault world.Fault, do func(*task) error) (string, error) {
	if !s.beginWork() {
		return "", context.Canceled
	}
	now := time.Now()
	s.mu.Lock()
	s.nextPID += 7
	t := &task{
		upid: upid{
			node: h.name, kind: kind, id: id, user: who.id, pid: int64(s.nextPID), start: now.Unix(),
			pstart: int64(now.Sub(s.boot) / (10 * time.Millisecond)),
		},
		fault: fault, done: make(chan struct{}),
	}
	t.name = t.upid.String()
	t.ctx, t.stop = context.WithCancelCause(s.ctx)
	s.tasks, s.byUPID[t.name] = append(s.tasks, t), t
	s.mu.Unlock()
	go func() {
		defer s.work.Done()
		s.finishTask(t, do(t))
	}()
	return t.name, nil
}

// passTime lets time go by for a worker and returns how much it was. Faults strike
// the first time: the worker hangs, or fails.
func (s *Server) passTime(t *task, d time.Duration) (time.Duration, error) {
	fault := t.fault
	t.fault = world.Fault{}
	if fault.Kind == world.HangTask || fault.Kind == world.FailTask {
		d += fault.Delay
	}
	if s.world.Sleep(t.ctx, d) != nil || t.ctx.Err() != nil {
		return d, context.Cause(t.ctx)
	}
	if fault.Kind == world.FailTask {
		return d, perlError("%s", cmp.Or(fault.Text, "the lab made this task fail"))
	}
	return d, nil
}

// spendTime is pass, and the world takes note of it.
func (s *Server) spendTime(t *task, kind, subject string, d time.Duration, after ...string) error {
	took, err := s.passTime(t, d)
	if err != nil {
		return err
	}
	s.world.Spend(kind, subject, took, after...)
	return nil
}

// logLine adds a line to a task's log.
func (s *Server) logLine(t *task, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.log = append(t.log, fmt.Sprintf(format, args...))
}

// finishTask writes down how a worker ended.
func (s *Server) finishTask(t *task, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.ended, t.end = true, time.Now()
	for _, lock := range t.held {
		<-lock
	}
	t.held = nil
	switch {
	case errors.Is(err, errKilled):
		t.exit = errKilled.Error()
	case err != nil:
		t.exit = err.Error()
		t.log = append(t.log, "TASK ERROR: "+t.exit)
	case t.warnings > 0:
		t.exit = fmt.Sprintf("WARNINGS: %d", t.warnings)
		t.log = append(t.log, fmt.Sprintf("TASK WARNINGS: %d", t.warnings))
	default:
		t.exit = "OK"
		t.log = append(t.log, "TASK OK")
	}
	t.stop(nil)
	close(t.done)
}

// fileLockWait is how long Proxmox VE waits for the lock file of a VM.
const fileLockWait = 10 * time.Second

// lockFile takes a VM's lock file for a worker, which keeps it until it ends
// or calls release.
func (s *Server) lockFile(t *task, id int) (release func(), err error) {
	lock, err := s.acquireLock(t.ctx, id, func() { s.logLine(t, "trying to acquire lock...") })
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.held = append(t.held, lock)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, l := range t.held {
			if l == lock {
				<-lock
				t.held = append(t.held[:i:i], t.held[i+1:]...)
				return
			}
		}
	}, nil
}

// acquireLock waits for a VM's lock file. The caller gives it back by receiving
// from it.
func (s *Server) acquireLock(ctx context.Context, id int, waiting func()) (copying.Lock, error) {
	s.mu.Lock()
	lock := s.flocks[id]
	if lock == nil {
		lock = copying.NewLock()
		s.flocks[id] = lock
	}
	s.mu.Unlock()
	err := lock.Take(ctx, s.world.Scale(fileLockWait), waiting)
	if errors.Is(err, copying.ErrLocked) {
		err = perlError("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", id)
	}
	return lock, err
}

// isOwn reports whether a task is somebody's own. A user's are those of the
// user's tokens too; a token's are not those of its siblings.
func (t *task) isOwn(who identity) bool {
	return t.user == who.id || who.token == "" && t.owner() == who.user
}

// maySee reports whether somebody may look at a task: their own, or any with
// Sys.Audit on its host. s.mu is held.
func (s *Server) maySee(who identity, t *task) bool {
	return t.isOwn(who) || s.hasPrivileges(who, "/nodes/"+t.node, false, "Sys.Audit")
}

// owner is the user of a task, without the token.
func (t *task) owner() string {
	user, _, _ := strings.Cut(t.user, "!")
	return user
}

// row is how the lists and the status show every task.
func (t *task) row() row {
	r := row{"upid": t.name, "node": t.node, "pid": t.pid, "pstart": t.pstart, "starttime": t.start, "type": t.kind, "id": t.id, "user": t.user}
	if user, name, ok := strings.Cut(t.user, "!"); ok {
		r["user"], r["tokenid"] = user, name
	}
	return r
}

// findTask returns the task the path names.
func (s *Server) findTask(c *call) (*task, error) {
	name := c.str("upid")
	u, err := parseUPID(name)
	if err != nil {
		return nil, invalidParam("upid", "%s", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byUPID[name]; t != nil {
		if !s.maySee(c.who, t) {
			return nil, s.needPrivileges(c.who, "/nodes/"+t.node, "Sys.Audit")
		}
		return t, nil
	}
	if u.user != c.who.id {
		if err := s.needPrivileges(c.who, "/nodes/"+u.node, "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	return nil, invalidParam("upid", "no such task")
}

func readTaskStatus(c *call) (any, error) {
	t, err := c.s.findTask(c)
	if err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	r := t.row()
	r["status"] = "running"
	if t.ended {
		r["status"], r["exitstatus"] = "stopped", t.exit
	}
	return r, nil
}

func readTaskLog(c *call) (any, error) {
	t, err := c.s.findTask(c)
	if err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	lines := t.log
	if len(lines) == 0 {
		lines = []string{"no content"}
	}
	out := []row{}
	start, limit := c.num("start", 0), c.num("limit", 50)
	for i := start; i < len(lines) && (limit == 0 || i < start+limit); i++ {
		out = append(out, row{"n": i + 1, "t": lines[i]})
	}
	return listing{out, len(lines)}, nil
}

// abortWait is how long Proxmox VE looks whether an interrupted worker ends.
const abortWait = time.Second

func stopTask(c *call) (any, error) {
	t, err := c.s.findTask(c)
	if err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	err = nil
	if !t.isOwn(c.who) {
		err = c.s.needPrivileges(c.who, "/nodes/"+t.node, "Sys.Modify")
	}
	ended := t.ended
	c.s.mu.Unlock()
	if err != nil || ended {
		return nil, err
	}
	t.stop(errInterrupted)
	return nil, c.s.world.Sleep(c.r.Context(), abortWait)
}

// listTasks answers GET /nodes/{node}/tasks, newest first.
func listTasks(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	source, total, out := c.str("source"), 0, []row{}
	start, limit := c.num("start", 0), c.num("limit", 50)
	for i := len(c.s.tasks) - 1; i >= 0; i-- {
		t := c.s.tasks[i]
		if t.node != c.node.name || !c.s.maySee(c.who, t) || !matchesFilters(c, t) {
			continue
		}
		if active := source == "active" || source == "all"; !t.ended && !active || t.ended && source == "active" {
			continue
		}
		total++
		if total <= start || limit > 0 && len(out) >= limit {
			continue
		}
		r := t.row()
		if t.ended {
			r["status"], r["endtime"] = t.exit, t.end.Unix()
		} else {
			r["status"], r["saved"], r["user"] = "RUNNING", "0", t.user
			delete(r, "tokenid")
		}
		out = append(out, r)
	}
	if total == 0 {
		return out, nil
	}
	return listing{out, total}, nil
}

// matchesFilters applies a task list's filters.
func matchesFilters(c *call, t *task) bool {
	switch {
	case c.has("vmid") && t.id != c.str("vmid"),
		c.flag("errors") && t.exit == "OK",
		c.has("typefilter") && t.kind != c.str("typefilter"),
		c.has("userfilter") && !strings.Contains(t.user, c.str("userfilter")),
		c.has("since") && t.start < int64(c.num("since", 0)),
		c.has("until") && t.start > int64(c.num("until", 0)):
		return false
	}
	if !c.has("statusfilter") {
		return true
	}
	kind := "error"
	switch {
	case t.exit == "OK":
		kind = "ok"
	case strings.HasPrefix(t.exit, "WARNINGS"):
		kind = "warning"
	case t.exit == errKilled.Error():
		kind = "unknown"
	}
	for _, want := range schema.SplitList(c.str("statusfilter")) {
		if want == kind {
			return true
		}
	}
	return false
}

// recentTasks is how many tasks /cluster/tasks knows of.
const recentTasks = 25

// listClusterTasks answers GET /cluster/tasks. It compares its caller with the
// task's user without the token, so that tokens see nothing of their own
// without Sys.Audit on /.
func listClusterTasks(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	all, out := c.s.hasPrivileges(c.who, "/", false, "Sys.Audit"), []row{}
	recent := c.s.tasks[max(0, len(c.s.tasks)-recentTasks):]
	for i := len(recent) - 1; i >= 0; i-- {
		t := recent[i]
		if !all && t.owner() != c.who.id {
			continue
		}
		r := t.row()
		if t.ended {
			delete(r, "pid")
			r["status"], r["endtime"], r["saved"] = t.exit, t.end.Unix(), "1"
		}
		delete(r, "pstart")
		out = append(out, r)
	}
	return out, nil
}
