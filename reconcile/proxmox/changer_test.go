package proxmox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/lab/pve/accesslog"
)

// person is somebody who is logged in at the web interface of the hosts.
type person struct {
	s            *stand
	http         *http.Client
	ticket, csrf string
}

// logIn logs a user in with a password.
func (s *stand) logIn(user string) *person {
	s.t.Helper()
	s.host.SetPassword(user, "secret")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.world.PKI.PEM)
	p := &person{s: s, http: &http.Client{Transport: &http.Transport{DialContext: s.world.Net.DialContext, TLSClientConfig: &tls.Config{RootCAs: pool}}}}
	var answer struct {
		Data struct{ Ticket, CSRFPreventionToken string }
	}
	resp, err := p.http.PostForm(s.host.URL()+"/api2/json/access/ticket", url.Values{"username": {user}, "password": {"secret"}})
	s.must(err)
	s.must(json.NewDecoder(resp.Body).Decode(&answer))
	s.must(resp.Body.Close())
	p.ticket, p.csrf = answer.Data.Ticket, answer.Data.CSRFPreventionToken
	return p
}

// put sends a PUT, as the web interface does, and returns the status of the answer.
func (p *person) put(path string, form url.Values) int {
	p.s.t.Helper()
	r, err := http.NewRequest(http.MethodPut, p.s.host.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
	p.s.must(err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("CSRFPreventionToken", p.csrf)
	r.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: p.ticket})
	resp, err := p.http.Do(r)
	p.s.must(err)
	p.s.must(resp.Body.Close())
	return resp.StatusCode
}

// onLoggedStand runs a test against a host whose access log the agent may read.
func onLoggedStand(t *testing.T, test func(s *stand, log *accesslog.Log)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "access.log")
	log, err := accesslog.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, pve.Config{Hosts: []pve.Host{{AccessLog: log}}}, func(_ *testing.T, s *stand) {
		s.accessLog = path
		test(s, log)
	})
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

// sender is who of others changed a VM last, by a task or by a request, once its config was
// read again.
func sender(c *Client, d cluster.Desired, n cluster.Node) string {
	time.Sleep(auditPause + time.Second)
	return senderOf(observe(c, d).VMs[n.Name])
}

// senderOf is who of others changed a VM last: a task goes before a request.
func senderOf(vm cluster.VM) string {
	for _, by := range vm.ChangedBy {
		if !by.Ours {
			return "task of " + by.User
		}
	}
	for _, with := range vm.ChangedWith {
		if !with.Ours {
			return strings.TrimSpace(with.Method+" "+with.Call) + " of " + with.User
		}
	}
	if !vm.ChangedAfter.IsZero() {
		return "unknown"
	}
	return "unchanged"
}

// TestWhoChangedItMeanwhile: a process that has not seen a VM before asks for its changes since
// an earlier one saw all of them, once, and for none where that is not known.
func TestWhoChangedItMeanwhile(t *testing.T) {
	onLoggedStand(t, func(s *stand, _ *accesslog.Log) {
		d, ctx, image := desired(3), context.Background(), s.imageBytes()
		s.drive("bring-up", func(c *Client) (bool, error) { return s.next(c, d, image) }, nil).Close()
		root := s.logIn("root@pam")
		defer root.http.CloseIdleConnections()
		admin := s.wide()
		defer admin.Close()
		config := func(n cluster.Node) string { return vmPath(testHost, n.VMID, "config") }
		edit := func(n cluster.Node, cores string) {
			t.Helper()
			if status := root.put(config(n), url.Values{"cores": {cores}}); status != 200 {
				t.Errorf("answered with %d", status)
			}
		}
		sent, posted, deleted := d.Spec.Nodes[0], d.Spec.Nodes[1], d.Spec.Nodes[2]
		edit(posted, "3") // the process before saw this
		time.Sleep(time.Minute)
		looked := time.Now()
		time.Sleep(time.Minute)
		edit(sent, "4")
		s.must(admin.post(ctx, config(posted), params{"cores": "5"}, nil))
		if err := admin.post(ctx, config(posted), params{"scsi0": "nowhere:1"}, nil); err == nil {
			t.Error("a storage that is none is taken")
		}
		s.must(admin.power(ctx, admin.identityOf(d, deleted.VMID, deleted.Name), toStop, admin.confirm, nil, defaultProgress(nil)))
		var task string
		s.must(admin.delete(ctx, vmPath(testHost, deleted.VMID), nil, &task))
		s.must(admin.wait(ctx, task, defaultProgress(nil)))
		asked := 0 // in a second look where nothing is asked
		for _, step := range []struct {
			what   string
			looked time.Time
			want   []string
		}{
			{"it is not known until when", time.Time{}, []string{"unchanged", "unchanged", "unchanged"}},
			{"since the process before", looked, []string{"PUT config of root@pam", "task of root@pam!admin", "task of root@pam!admin"}},
			{"all was seen", time.Now().Add(time.Minute), []string{"unknown", "unknown", "unknown"}},
		} {
			c, want, looked, what := s.client(), step.want, step.looked, step.what
			for range 2 {
				s.world.ForgetCalls()
				o := &cluster.Observed{Facts: cluster.Facts{Looked: looked}}
				observeLater(ctx, c, d, o)
				for i, n := range d.Spec.Nodes {
					vm := o.VMs[n.Name]
					if got := senderOf(vm); got != want[i] || !vm.ChangedAfter.Equal(looked) {
						t.Errorf("%s: %s: %q after %v, want %q", what, n.Name, got, vm.ChangedAfter, want[i])
					}
				}
			}
			if calls := s.calls(); looked.IsZero() {
				asked = len(calls)
			} else if len(calls) != asked {
				t.Errorf("%s: %d calls, %d without it: it is asked again: %v", what, len(calls), asked, calls)
			}
			c.Close()
		}
	})
}

// TestWhoSentIt: what somebody changed with a request that leaves no task is theirs as
// the access log of the host has it, and that of no one who did not.
func TestWhoSentIt(t *testing.T) {
	onLoggedStand(t, func(s *stand, log *accesslog.Log) {
		d, ctx, image := desired(2), context.Background(), s.imageBytes()
		c := s.drive("bring-up", func(c *Client) (bool, error) { return s.next(c, d, image) }, nil)
		defer c.Close()
		n, other := d.Spec.Nodes[0], d.Spec.Nodes[1]
		root := s.logIn("root@pam")
		defer root.http.CloseIdleConnections()
		mallory := s.logIn("mallory@pve")
		defer mallory.http.CloseIdleConnections()
		config := func(n cluster.Node) string { return vmPath(testHost, n.VMID, "config") }
		cores := 2
		more := func() url.Values { // another value each time
			cores++
			return url.Values{"cores": {fmt.Sprint(cores)}}
		}
		editor := func() { // of the config's file
			cores++
			s.must(s.host.Edit(n.VMID, "cores", fmt.Sprint(cores)))
		}
		status := func(got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("answered with %d, want %d", got, want)
			}
		}
		raw := func(line string) {
			f, err := os.OpenFile(s.accessLog, os.O_WRONLY|os.O_APPEND, 0)
			s.must(err)
			_, err = f.WriteString(line + "\n")
			s.must(err)
			s.must(f.Close())
		}
		for _, step := range []struct {
			what string
			do   func()
			want string
		}{
			{"nothing", func() {}, "unchanged"},
			{"a text editor", editor, "unknown"},
			{"the web interface", func() { status(root.put(config(n), more()), 200) }, "PUT config of root@pam"},
			{"nothing more", func() {}, "PUT config of root@pam"},
			{"an editor, later", editor, "unknown"},
			{"a token", func() {
				admin := s.wide()
				defer admin.Close()
				s.must(admin.put(ctx, config(n), params{"cores": more().Get("cores")}, nil))
			}, "PUT config of root@pam!admin"},
			{"the agent's own token, from elsewhere", func() { s.must(c.put(ctx, config(n), params{"cores": more().Get("cores")}, nil)) }, "unknown"},
			{"a task, and a request before it", func() {
				status(root.put(config(n), more()), 200)
				admin := s.wide()
				defer admin.Close()
				s.must(admin.post(ctx, config(n), params{"cores": more().Get("cores")}, nil))
			}, "task of root@pam!admin"},
			{"who may not", func() { status(mallory.put(config(n), more()), 403); editor() }, "unknown"},
			{"who was refused", func() {
				form := more()
				form.Set("digest", strings.Repeat("0", 40))
				status(root.put(config(n), form), 500)
				editor()
			}, "unknown"},
			{"who is not logged in", func() {
				unknown := &person{s: s, http: root.http}
				status(unknown.put(config(n), more()), 401)
				editor()
			}, "unknown"},
			{"another vm", func() { status(root.put(config(other), more()), 200); editor() }, "unknown"},
			{"a key that is pressed", func() {
				raw(`::ffff:192.0.2.7 - root@pam [` + time.Now().Format("02/01/2006:15:04:05 -0700") + `] "PUT ` + "/api2/json" + vmPath(testHost, n.VMID, "sendkey") + ` HTTP/1.1" 200 13`)
				editor()
			}, "unknown"},
			{"lines that are none", func() {
				raw("\x00\x1b[31m" + strings.Repeat("x", 10_000))
				raw(`::ffff:192.0.2.7 - root@pam [later] "PUT ` + "/api2/json" + config(n) + ` HTTP/1.1" 200 13`)
				raw(`::ffff:192.0.2.7 - mallory@pve [` + time.Now().Format("02/01/2006:15:04:05 -0700") + `] "PUT ` + "/api2/json" + config(n) + ` HTTP/1.1" 200 13" 403 -`)
				editor()
			}, "unknown"},
			{"a line of tomorrow", func() {
				raw(`::ffff:192.0.2.7 - root@pam [` + time.Now().Add(24*time.Hour).Format("02/01/2006:15:04:05 -0700") + `] "PUT ` + "/api2/json" + config(n) + ` HTTP/1.1" 200 13`)
				editor()
			}, "unknown"},
			{"between lines that are none", func() {
				raw("garbage")
				status(root.put(config(n), more()), 200)
				raw("more of it")
			}, "PUT config of root@pam"},
			{"localhost", func() { status(root.put("/nodes/localhost/qemu/"+fmt.Sprint(n.VMID)+"/config", more()), 200) }, "PUT config of root@pam"},
			{"before a rotation", func() {
				status(root.put(config(n), more()), 200)
				s.must(log.Rotate())
				s.must(log.Reopen())
			}, "PUT config of root@pam"},
			{"after a rotation, before the log is opened again", func() {
				s.must(log.Rotate())
				status(root.put(config(n), more()), 200)
			}, "PUT config of root@pam"},
			{"nothing after a rotation", func() { s.must(log.Rotate()); s.must(log.Reopen()); editor() }, "unknown"},
		} {
			step.do()
			if got := sender(c, d, n); got != step.want {
				t.Errorf("%s: %q, want %q", step.what, got, step.want)
			}
		}
		if strings.Contains(s.log.String(), "access log") {
			t.Errorf("the log could be read all the time:\n%s", s.log)
		}
	})
}

// TestAccessLogOfOthers: without a log, or with that of another host, no one is named.
func TestAccessLogOfOthers(t *testing.T) {
	onLoggedStand(t, func(s *stand, _ *accesslog.Log) {
		d := desired(1)
		s.made(d).Close()
		n := d.Spec.Nodes[0]
		root := s.logIn("root@pam")
		defer root.http.CloseIdleConnections()
		for i, want := range []string{"unknown", "unknown", "PUT config of root@pam"} {
			c := s.client()
			switch i {
			case 0:
				c.accessLog.Path = ""
			case 1:
				c.accessLog.Host = "pve2"
			}
			if got := sender(c, d, n); got != "unchanged" {
				t.Errorf("%d: %q before anything", i, got)
			}
			if status := root.put(vmPath(testHost, n.VMID, "config"), url.Values{"cores": {fmt.Sprint(4 + i)}}); status != 200 {
				t.Errorf("answered with %d", status)
			}
			if got := sender(c, d, n); got != want {
				t.Errorf("%d: %q, want %q", i, got, want)
			}
			c.Close()
		}
	})
}

// TestUnreadableAccessLog: a log that cannot be read is reported once, and who changed a
// VM is unknown.
func TestUnreadableAccessLog(t *testing.T) {
	onLoggedStand(t, func(s *stand, _ *accesslog.Log) {
		d := desired(1)
		hidden := s.accessLog + ".hidden"
		s.must(os.Rename(s.accessLog, hidden))
		c := s.made(d)
		defer c.Close()
		n := d.Spec.Nodes[0]
		root := s.logIn("root@pam")
		defer root.http.CloseIdleConnections()
		count := func(message string, want int) {
			t.Helper()
			if got := strings.Count(s.log.String(), message); got != want {
				t.Errorf("%q was logged %d times, want %d:\n%s", message, got, want, s.log)
			}
		}
		s.log.Reset()
		again := s.client() // as after a restart
		defer again.Close()
		for cores := 4; cores < 7; cores++ {
			if got := sender(again, d, n); cores == 4 && got != "unchanged" || cores > 4 && got != "unknown" {
				t.Errorf("%q", got)
			}
			if status := root.put(vmPath(testHost, n.VMID, "config"), url.Values{"cores": {fmt.Sprint(cores)}}); status != 200 {
				t.Errorf("answered with %d", status)
			}
		}
		count("the access log of the host cannot be read", 1)
		count("no such file", 1)
		count("hint=", 1)
		if path, err := again.CheckAccessLog(); path != s.accessLog || err == nil {
			t.Errorf("%q, %v", path, err)
		}
		s.must(os.Rename(hidden, s.accessLog))
		if got := sender(again, d, n); got != "PUT config of root@pam" {
			t.Errorf("%q", got)
		}
		count("the access log of the host cannot be read", 1)
		count("the access log of the host can be read again", 1)
		if path, err := again.CheckAccessLog(); path != s.accessLog || err != nil {
			t.Errorf("%q, %v", path, err)
		}
	})
}
