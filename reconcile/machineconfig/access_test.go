package machineconfig

import (
	"encoding/base64"
	"net/netip"
	"slices"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"go.yaml.in/yaml/v4"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// The file is read by talosctl's own code.
func TestTalosconfig(t *testing.T) {
	s := snapshot(t, "v1.13")
	s.Spec.Nodes = append(s.Spec.Nodes, cluster.Node{Name: "dev-cp-2", Role: cluster.ControlPlane, IP: netip.MustParseAddr("10.10.0.12")})
	access, err := read(t, bundle(t)).Credentials(testNow, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file, err := Talosconfig(s.Spec, access)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientconfig.FromString(string(file))
	if err != nil {
		t.Fatal(err)
	}
	ctx := c.Contexts["dev"]
	if c.Context != "dev" || ctx == nil || !slices.Equal(ctx.Endpoints, []string{"10.10.0.11", "10.10.0.12"}) || len(ctx.Nodes) > 0 {
		t.Fatalf("context %q is %+v", c.Context, ctx)
	}
	for name, pair := range map[string]struct {
		text string
		want cluster.Secret
	}{"ca": {ctx.CA, access.Talos.CA}, "crt": {ctx.Crt, access.Talos.Cert}, "key": {ctx.Key, access.Talos.Key}} {
		if got, err := base64.StdEncoding.DecodeString(pair.text); err != nil || string(got) != pair.want.RevealString() {
			t.Errorf("%s is not what was minted (%v)", name, err)
		}
	}
}

func TestKubeconfig(t *testing.T) {
	access, err := read(t, bundle(t)).Credentials(testNow, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file, err := Kubeconfig(snapshot(t, "v1.13").Spec, access, "https://10.10.0.5:6443")
	if err != nil {
		t.Fatal(err)
	}
	// The format of Kubernetes' client configuration, version v1.
	var c struct {
		APIVersion     string `yaml:"apiVersion"`
		Kind           string
		CurrentContext string `yaml:"current-context"`
		Clusters       []struct {
			Name    string
			Cluster struct {
				Server string
				CA     string `yaml:"certificate-authority-data"`
			}
		}
		Users []struct {
			Name string
			User struct {
				Cert string `yaml:"client-certificate-data"`
				Key  string `yaml:"client-key-data"`
			}
		}
		Contexts []struct {
			Name    string
			Context struct{ Cluster, User, Namespace string }
		}
	}
	if err := yaml.Unmarshal(file, &c); err != nil {
		t.Fatal(err)
	}
	if c.APIVersion != "v1" || c.Kind != "Config" || len(c.Clusters) != 1 || len(c.Users) != 1 || len(c.Contexts) != 1 ||
		c.CurrentContext != c.Contexts[0].Name || c.Contexts[0].Context.Cluster != c.Clusters[0].Name || c.Contexts[0].Context.User != c.Users[0].Name ||
		c.Clusters[0].Cluster.Server != "https://10.10.0.5:6443" || c.Users[0].Name != "admin@dev" {
		t.Fatalf("the file does not hang together:\n%+v", c)
	}
	for name, pair := range map[string]struct {
		text string
		want cluster.Secret
	}{"ca": {c.Clusters[0].Cluster.CA, access.Kube.CA}, "cert": {c.Users[0].User.Cert, access.Kube.Cert}, "key": {c.Users[0].User.Key, access.Kube.Key}} {
		if got, err := base64.StdEncoding.DecodeString(pair.text); err != nil || string(got) != pair.want.RevealString() {
			t.Errorf("%s is not what was minted (%v)", name, err)
		}
	}
}
