package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/crypto/x509"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	talosresource "github.com/siderolabs/talos/pkg/machinery/resources/config"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestTalosAuthorityThatSomebodyRotates gives one control plane another authority of Talos' API: it
// answers with a certificate that the agent does not know, and no node of the cluster is taken down
// before the authority is that of the secrets again.
func TestTalosAuthorityThatSomebodyRotates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rotated = "10.10.0.13"
		sz := size{ControlPlanes: 3, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		w := s.watchTurns(sz)
		files := sz.Files()
		made, err := secrets.NewTalosCA(time.Now().Add(-time.Minute))
		must(err)
		theirs := &x509.PEMEncodedCertificateAndKey{Crt: made.CrtPEM, Key: made.KeyPEM}
		var ours *x509.PEMEncodedCertificateAndKey
		must(s.askTalos(rotated, s.rotateTo(theirs, &ours)))
		s.Until(10*time.Minute, "it is named", func(st cluster.Status) bool {
			return blockFor(st, "dev-cp-3", cluster.SecretsChanged) != ""
		})
		files["inventory/dev/nodes.yaml"] = bytes.ReplaceAll(files["inventory/dev/nodes.yaml"], []byte("cpu: 4"), []byte("cpu: 6"))
		s.Push(files, "more cores")
		time.Sleep(2 * time.Hour)
		w.wantDown("")
		st := s.Status()
		if b := blockFor(st, "dev-cp-3", cluster.SecretsChanged); !strings.Contains(b, "(that of Talos)") {
			t.Errorf("blocked: %+v", st.Blocked)
		}
		if b := blockFor(st, "dev-cp-3", cluster.UnexpectedMachine); b != "" {
			t.Errorf("two reasons: %s", b)
		}
		if waitFor(st, "dev-cp-1", cluster.SecretsChanged) == "" {
			t.Errorf("waits: %+v", st.Waiting)
		}
		file, err := s.Cluster().Talosconfig()
		must(err)
		opened, err := clientconfig.FromBytes(file)
		must(err)
		opened.Contexts[opened.Context].CA = base64.StdEncoding.EncodeToString(theirs.Crt)
		must(s.askTalosAs(opened, rotated, s.rotateTo(ours, nil)))
		s.Until(time.Hour, "it goes on", func(st cluster.Status) bool { return st.Condition == cluster.Ready && st.Applied.Commit() == s.Head() })
		w.wantDown("dev-cp-1:1 dev-cp-2:1 dev-cp-3:1 dev-wk-1:1")
		s.CheckRules(sz)
		s.Halt()
	})
}

// rotateTo gives a machine another authority of Talos' API, which accepts the one of before still.
func (s *sim) rotateTo(to *x509.PEMEncodedCertificateAndKey, from **x509.PEMEncodedCertificateAndKey) func(context.Context, *client.Client) error {
	return func(ctx context.Context, c *client.Client) error {
		found, err := safe.StateGetByID[*talosresource.MachineConfig](ctx, c.COSI, talosresource.ActiveID)
		if err != nil {
			return err
		}
		other, err := found.Provider().PatchV1Alpha1(func(cfg *v1alpha1.Config) error {
			m := cfg.MachineConfig
			had := m.MachineCA
			if from != nil {
				*from = had
			}
			m.MachineCA = to
			m.MachineAcceptedCAs = slices.DeleteFunc(m.MachineAcceptedCAs, func(ca *x509.PEMEncodedCertificate) bool { return string(ca.Crt) == string(to.Crt) })
			if from != nil {
				m.MachineAcceptedCAs = append(m.MachineAcceptedCAs, &x509.PEMEncodedCertificate{Crt: had.Crt})
			}
			return nil
		})
		must(err)
		data, err := other.Bytes()
		must(err)
		// The machine serves its API with another certificate from then on: the answer may be lost.
		_, _ = c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: data, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
		return nil
	}
}
