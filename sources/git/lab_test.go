package git

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/talos-agent/talos-agent/internal/lab/gitserver"
	"github.com/talos-agent/talos-agent/internal/lab/httpservice"
	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// TestAgainstTheLab reads the lab's git server over https with a token and over
// ssh, in virtual time and without a real connection, through faults.
func TestAgainstTheLab(t *testing.T) {
	for _, name := range []string{"https", "ssh"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := world.New(world.Config{})
				check(t, err)
				defer w.Close()
				g, err := gitserver.New(gitserver.Config{Service: httpservice.Config{World: w, Addr: "10.0.0.9:443"}, Token: "s3cret"})
				check(t, err)
				defer func() { check(t, g.Close()) }()
				repo, err := g.Repository("org/infra")
				check(t, err)
				c := Config{URL: repo.URL(), Token: "s3cret", CA: w.PKI.PEM, Dial: w.Net.DialContext}
				op := "POST git-upload-pack"
				if name == "ssh" {
					s, err := gitserver.NewSSH(gitserver.SSHConfig{World: w, Addr: "10.0.0.9:22", Server: g})
					check(t, err)
					defer func() { check(t, s.Close()) }()
					op = "SSH git-upload-pack"
					c = Config{URL: s.URL("org/infra"), SSHKey: s.ClientKey(), KnownHosts: s.KnownHosts(), Dial: w.Net.DialContext}
				}
				s := open(t, c)
				_, err = s.Head(t.Context())
				wantKind(t, err, ErrEmpty, "empty")

				one, err := repo.Commit("main", map[string][]byte{"inventory/dev/cluster.yaml": []byte("cluster_name: dev\n")}, "one")
				check(t, err)
				c1 := head(t, s)
				if c1.Hash != one {
					t.Errorf("head %+v, want %s", c1, one)
				}
				two, err := repo.Commit("main", map[string][]byte{"b": []byte("2")}, "two")
				check(t, err)

				for _, f := range []world.Fault{
					{Kind: world.LoseRequest}, {Kind: world.LoseReply}, {Kind: world.Answer, Status: http.StatusBadGateway, Text: "bad gateway"},
				} {
					f.System, f.Op = "git", op
					w.Inject(f)
					if _, err := s.Head(t.Context()); err == nil {
						t.Errorf("%s of %s: no error", f.Kind, op)
					}
					w.Heal()
					equal(t, readAll(t, s, c1), map[string]string{"inventory/dev/cluster.yaml": "cluster_name: dev\n"})
				}
				c2 := head(t, s)
				if c2.Hash != two {
					t.Errorf("head %+v, want %s", c2, two)
				}
				equal(t, readAll(t, s, c2), map[string]string{"inventory/dev/cluster.yaml": "cluster_name: dev\n", "b": "2"})
				descends(t, s, two, one, true)

				check(t, repo.Reset("main", one))
				if c := head(t, s); c != c1 {
					t.Errorf("after a rewind: %+v", c)
				}
				three, err := repo.Rewrite("main", map[string][]byte{"c": nil, "d": []byte("4")}, "three")
				check(t, err)
				if c := head(t, s); c.Hash != three {
					t.Errorf("after starting over: %+v, want %s", c, three)
				}
				descends(t, s, three, one, false)

				if name == "https" {
					c.Token = "wrong"
					_, err = open(t, c).Head(t.Context())
					wantKind(t, err, ErrAuth)
				}
			})
		})
	}
}
