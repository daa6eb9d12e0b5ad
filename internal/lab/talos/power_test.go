package talos_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

func TestReset(t *testing.T) {
	state := []*machineapi.ResetPartitionSpec{{Label: constants.StatePartitionLabel, Wipe: true}, {Label: constants.EphemeralPartitionLabel, Wipe: true}}
	for _, tc := range []struct {
		name  string
		req   *machineapi.ResetRequest
		stage string // afterwards; "" : nothing boots; "off"
		left  bool   // etcd
	}{
		{"config and data", &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: state}, maintenance, true},
		{"the whole disk", &machineapi.ResetRequest{Graceful: true, Reboot: true}, "", true},
		{"the whole disk and off", &machineapi.ResetRequest{Graceful: true, Mode: machineapi.ResetRequest_SYSTEM_DISK}, "off", true},
		{"not graceful", &machineapi.ResetRequest{Reboot: true, SystemPartitionsToWipe: state}, maintenance, false},
		{"the data alone", &machineapi.ResetRequest{Graceful: true, Reboot: true, SystemPartitionsToWipe: state[1:]}, running, true},
		{"user disks", &machineapi.ResetRequest{Reboot: true, Mode: machineapi.ResetRequest_USER_DISKS}, running, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, world.Config{}, func(l *lab) {
				l.cluster(cp(1), cp(2), cp(3))
				if err := l.admin(cp(3)).ResetGeneric(within(time.Second), tc.req); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if tc.left {
					l.wantMembers(cp(1), "cp1", "cp2")
				} else {
					l.wantMembers(cp(1), "cp1", "cp2", "cp3")
				}
				time.Sleep(time.Minute)
				if tc.stage == "off" {
					if vmid := <-l.off; vmid != 403 || len(l.fleet.Machines()) != 2 {
						t.Errorf("VM %d is off, %d are on", vmid, len(l.fleet.Machines()))
					}
					return
				}
				l.wantStage(cp(3), tc.stage)
				l.wantViolations()
			})
		})
	}
}

func TestShutdownFromInside(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		if err := l.admin(cp(1)).Shutdown(within(time.Second)); err != nil {
			t.Fatal(err)
		}
		if vmid := <-l.off; vmid != 401 {
			t.Errorf("VM %d switched itself off, want 401", vmid)
		}
	})
}

// TestRebootProvesItself by another boot id.
func TestRebootProvesItself(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		bootID := func() string {
			r, err := l.admin(cp(1)).Read(within(time.Second), "/proc/sys/kernel/random/boot_id")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(b))
		}
		before := bootID()
		known := func() world.Kubelet {
			k, ok := l.kube.kubelet(cp(1).name)
			if !ok {
				t.Fatal("no kubelet runs")
			}
			return k
		}
		if k := known(); k.BootID != before || k.UUID != cp(1).guest("v1.13.9").UUID || k.Cores != 2 || k.MemoryMiB != 2048 {
			t.Errorf("Kubernetes knows %+v, the boot is %s", k, before)
		}
		if err := l.admin(cp(1)).Reboot(within(time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if st := status(t, l.admin(cp(1))); st.Stage.String() != "rebooting" || !st.Status.Ready {
			t.Errorf("on its way down: %+v", st)
		}
		time.Sleep(2 * time.Minute)
		if now := bootID(); now == before || known().BootID != now {
			t.Errorf("boot %s was %s before, and Kubernetes knows %s", now, before, known().BootID)
		}
		if v := l.view(cp(1)); !v.Ready {
			t.Errorf("after the reboot: %+v", v)
		}
	})
}

// TestRoles: what a client may is in its certificate.
func TestRoles(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.cluster(cp(1))
		for _, tc := range []struct {
			role          role.Role
			list, restart codes.Code
		}{
			{role.Admin, codes.OK, codes.OK},
			{role.Operator, codes.OK, codes.OK},
			{role.Reader, codes.OK, codes.PermissionDenied},
			{role.EtcdBackup, codes.OK, codes.PermissionDenied},
			{role.MetaWriter, codes.PermissionDenied, codes.PermissionDenied},
		} {
			c := l.connect(cp(1).ip, l.tls(tc.role))
			_, err := c.EtcdMemberList(within(time.Second), &machineapi.EtcdMemberListRequest{})
			if got := client.StatusCode(err); got != tc.list {
				t.Errorf("member list as %s: %v", tc.role, got)
			}
			if got := client.StatusCode(c.Reboot(within(time.Second))); got != tc.restart {
				t.Errorf("reboot as %s: %v", tc.role, got)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// TestKubeconfig opens the cluster it is for.
func TestKubeconfig(t *testing.T) {
	inBubble(t, world.Config{}, func(l *lab) {
		l.bring("v1.13.9", cp(1))
		data, err := l.admin(cp(1)).Kubeconfig(within(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Clusters []struct {
				Cluster struct {
					Server string `yaml:"server"`
					CA     string `yaml:"certificate-authority-data"`
				} `yaml:"cluster"`
			} `yaml:"clusters"`
			Users []struct {
				User struct {
					Cert string `yaml:"client-certificate-data"`
				} `yaml:"user"`
			} `yaml:"users"`
		}
		if err := yaml.Unmarshal(data, &config); err != nil {
			t.Fatal(err)
		}
		decode := func(s string) *x509.Certificate {
			der, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(der)
			crt, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			return crt
		}
		roots := x509.NewCertPool()
		roots.AddCert(decode(config.Clusters[0].Cluster.CA))
		crt := decode(config.Users[0].User.Cert)
		if _, err := crt.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: time.Now()}); err != nil {
			t.Error(err)
		}
		if crt.Subject.Organization[0] != "system:masters" || config.Clusters[0].Cluster.Server != "https://10.5.0.11:6443" {
			t.Errorf("for %v at %s", crt.Subject, config.Clusters[0].Cluster.Server)
		}
	})
}
