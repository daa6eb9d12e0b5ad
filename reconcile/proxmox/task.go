package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

const (
	// lostAfter is how long a task may be unreadable (the API restarts, the host is busy) before waiting for it is given up. The
	// task goes on and is found again by looking.
	lostAfter = 2 * time.Minute
	logTail   = 5
	// mostActive bounds a list of what runs on a host.
	mostActive = 1000
	// logAfter is how long a task of ours has run when the end of its log begins to be shown.
	logAfter = time.Minute
)

// taskRow is a task in a list.
type taskRow struct {
	UPID   pveconf.Scalar `json:"upid"`
	Status pveconf.Scalar `json:"status"` // its exit status, or RUNNING
	End    pveconf.Scalar `json:"endtime"`
}

// task is a task in a list, understood.
type task struct {
	upid
	running bool
	exit    string // when it has ended
	log     []string
}

func tasksOf(rows []taskRow) ([]task, error) {
	var out []task
	for _, r := range rows {
		u, err := parseUPID(string(r.UPID))
		if err != nil {
			return nil, err
		}
		t := task{upid: u, running: r.End == "" && (r.Status == "" || r.Status == "RUNNING")}
		if !t.running {
			t.exit = string(r.Status)
		}
		out = append(out, t)
	}
	return out, nil
}

// activeTasks lists what runs on a host: everybody's with Sys.Audit on it, else our own.
func (c *Client) activeTasks(ctx context.Context, host string) ([]task, error) {
	path, query := hostPath(host, "tasks"), params{"source": "active", "limit": strconv.Itoa(mostActive)}
	var rows []taskRow
	var asked time.Time // zero: it was asked before
	err := c.recent.Get(ctx, path, query, &rows, func(into any) error { asked = time.Now(); return c.ask(ctx, path, query, into) })
	if err != nil {
		return nil, err
	}
	tasks, err := tasksOf(rows)
	if err == nil && !asked.IsZero() && len(rows) < mostActive {
		c.followed.Show(host, asked, func(name string) bool {
			return slices.ContainsFunc(tasks, func(t task) bool { return t.text == name && t.running })
		})
	}
	return tasks, err
}

// vmTasks lists the latest tasks on a VMID, newest first.
func (c *Client) vmTasks(ctx context.Context, host string, vmid int) ([]task, error) {
	var rows []taskRow
	if err := c.get(ctx, hostPath(host, "tasks"), params{"source": "all", "vmid": strconv.Itoa(vmid), "limit": "50"}, &rows); err != nil {
		return nil, err
	}
	tasks, err := tasksOf(rows)
	slices.SortStableFunc(tasks, func(a, b task) int { return b.started.Compare(a.started) })
	return tasks, err
}

// ours reports whether a task was started with our token.
func (c *Client) ours(t upid) bool { return t.user == string(c.token) }

// describeTask returns a task in the terms of the observed world.
func (c *Client) describeTask(t task) cluster.Task {
	return cluster.Task{UPID: t.text, Type: t.kind, VMID: t.vmid(), Started: t.started, User: t.user, Ours: c.ours(t.upid), Log: t.log}
}

// wait waits until a task has ended, and judges it by its own exit status.
func (c *Client) wait(ctx context.Context, name string, progress func(cluster.Progress)) error {
	u, err := parseUPID(name)
	if err != nil {
		return err
	}
	progress(cluster.Progress{UPID: name})
	t, stop := c.followed.Follow(u.host, u.text)
	defer stop()
	kind := u.kind + "@" + u.host
	for asked, seen := t.Began, t.Began; ; {
		if err := t.Await(ctx, asked, func(age time.Duration) time.Duration { return c.pace.Next(kind, age) }); err != nil {
			return err
		}
		asked = time.Now()
		var st struct{ Status, ExitStatus pveconf.Scalar }
		switch err := c.get(ctx, taskPath(u, "status"), nil, &st); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNoTask), errors.Is(err, errForbidden), errors.Is(err, errToken), err != nil && time.Since(seen) > lostAfter:
			return fmt.Errorf("look at task %s: %w", name, err)
		case err != nil:
			continue
		}
		seen = time.Now()
		if st.Status != "running" {
			c.recent.Ended(u.kind)
			if isSuccess(string(st.ExitStatus)) {
				c.pace.Learn(kind, t.RanAt().Sub(t.Began), time.Since(t.Began))
			}
			return c.judge(ctx, u, string(st.ExitStatus))
		}
		t.Ran(asked)
	}
}

// judge reports what an exit status means. Proxmox VE counts warnings as success.
func (c *Client) judge(ctx context.Context, u upid, exit string) error {
	if exit == "OK" {
		return nil
	}
	tail, err := c.taskLog(ctx, u)
	if isSuccess(exit) {
		what := "task " + u.kind
		if id := u.vmid(); id != 0 {
			what += fmt.Sprintf(" of vm %d", id)
		}
		c.log.Warn("a task ended with warnings", logging.Detail, what+": "+sanitize(strings.Join(tail, " / ")),
			logging.UPID, u.text, logging.VMID, u.vmid(), logging.Log, strings.Join(tail, " / "))
		return nil
	}
	failed := &TaskError{UPID: u.text, Type: u.kind, Exit: sanitize(exit), Log: tail}
	if err != nil {
		return errors.Join(failed, fmt.Errorf("read its log: %w", err))
	}
	return failed
}

// taskLog returns the last lines of a task's log.
func (c *Client) taskLog(ctx context.Context, u upid) ([]string, error) {
	var lines []struct{ T pveconf.Scalar }
	// The length of a log is unknown before it is read; that of an import has a line per percent.
	if err := c.get(ctx, taskPath(u, "log"), params{"limit": "5000"}, &lines); err != nil {
		return nil, err
	}
	var out []string
	for _, l := range lines[max(0, len(lines)-logTail):] {
		out = append(out, sanitize(string(l.T)))
	}
	return out, nil
}

// start carries out a request that starts a task, and waits for the task.
func (c *Client) start(ctx context.Context, progress func(cluster.Progress), ask func(upid *pveconf.Scalar) error) error {
	var name pveconf.Scalar
	if err := ask(&name); err != nil {
		return err
	}
	return c.wait(ctx, string(name), progress)
}

// settle waits for the tasks of ours that run on a VM, after a reply was lost: one of them may be the one that was asked
// for. How they end does not matter; the VM is looked at again.
func (c *Client) settle(ctx context.Context, host string, vmid int, progress func(cluster.Progress)) error {
	tasks, err := c.activeTasks(ctx, host)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		if t.vmid() != vmid || !c.ours(t.upid) {
			continue
		}
		var failed *TaskError
		if err := c.wait(ctx, t.text, progress); err != nil && !errors.As(err, &failed) {
			return err
		}
	}
	return nil
}

// hostPath is the path of something of a host.
func hostPath(host string, rest ...string) string {
	p := "/nodes/" + url.PathEscape(host)
	for _, r := range rest {
		p += "/" + url.PathEscape(r)
	}
	return p
}

// vmPath is the path of something of a VM.
func vmPath(host string, vmid int, rest ...string) string {
	return hostPath(host, append([]string{"qemu", strconv.Itoa(vmid)}, rest...)...)
}

func taskPath(u upid, rest string) string { return hostPath(u.host, "tasks", u.text, rest) }

// defaultProgress makes progress callable.
func defaultProgress(progress func(cluster.Progress)) func(cluster.Progress) {
	if progress == nil {
		return func(cluster.Progress) {}
	}
	return progress
}
