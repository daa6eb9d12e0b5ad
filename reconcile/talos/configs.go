package talos

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/crypto/x509"
	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
)

// configs are the configs of a machine, which are full of keys.
type configs struct {
	active []byte
	// running and saved are the digests of the config that runs and of the one on
	// disk. Talos 1.13: after a boot from a saved config there is none on disk to be
	// read until the next apply; it is the one that runs then, unless findBooted finds another.
	running, saved string
	// unsaved is of the one that runs where none on disk can be read, nil where one can.
	unsaved *resource.Metadata
	// waiting are the bytes of the saved config where it waits for the next boot: it was
	// saved after the one that runs was given. One on trial is given after the saved one.
	waiting []byte
}

// holds reports whether a config runs and stays, or with stage, whether it is the one
// that the next boot takes.
func (c configs) holds(digest string, stage bool) bool {
	return c.saved == digest && (stage || c.running == digest)
}

// isTried reports whether a config runs that is neither saved nor wanted: somebody else has
// it on trial.
func (c configs) isTried(digest string) bool {
	return c.saved != c.running && c.running != digest && c.waiting == nil
}

// readConfigs reads the configs of the machine. No error quotes them.
func (f *Fleet) readConfigs(ctx context.Context, l *link) (configs, error) {
	var c configs
	active, err := l.readConfig(ctx, config.ActiveID)
	if err != nil {
		return configs{}, fmt.Errorf("read its config: %w", worded{err})
	}
	c.active = active.text
	if c.running, err = f.digest(c.active); err != nil {
		return configs{}, errors.New("its config cannot be parsed")
	}
	saved, err := l.readConfig(ctx, config.PersistentID)
	switch {
	case isMissing(err):
		c.saved, c.unsaved = c.running, active.of
		return c, nil
	case err != nil:
		return configs{}, fmt.Errorf("read its saved config: %w", worded{err})
	}
	if c.saved, err = f.digest(saved.text); err != nil {
		return configs{}, errors.New("its saved config cannot be parsed")
	}
	if c.saved != c.running && isStaged(active.of, saved.of) {
		c.waiting = saved.text
	}
	return c, nil
}

// configText is one config of a machine, as bytes: whether this program's library understands
// it does not matter.
type configText struct {
	text []byte
	of   *resource.Metadata
}

// readConfig reads one config of the machine.
func (l *link) readConfig(ctx context.Context, id resource.ID) (configText, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	which := resource.NewMetadata(config.NamespaceName, config.MachineConfigType, id, resource.VersionUndefined)
	r, err := l.cosi.Get(ctx, which, state.WithGetUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if err != nil {
		return configText{}, err
	}
	raw, ok := r.(*protobuf.Resource)
	if !ok {
		return configText{}, errors.New("it is in another form")
	}
	bytes, err := configBytes(raw)
	return configText{bytes, raw.Metadata()}, err
}

// checkAuthorities returns an error when the config of a machine has another authority
// than the config that is to take its place, which was rendered from the cluster's
// secrets: somebody rotates it. Others that it accepts besides are no such case. A
// config that cannot be read in this way proves nothing and is let through; the
// machine has shown a certificate of the cluster by then.
func checkAuthorities(active, wanted []byte) error {
	have, err := configloader.NewFromBytes(active)
	if err != nil {
		return nil
	}
	want, err := configloader.NewFromBytes(wanted)
	if err != nil {
		return nil // the machine will have something to answer
	}
	theirs, ours := listAuthorities(have), listAuthorities(want)
	for _, what := range []string{"Talos", "Kubernetes", "etcd"} {
		x, y := theirs[what], ours[what]
		if len(x) == 0 || len(y) == 0 || contains(x, y[0]) && contains(y, x[0]) {
			continue
		}
		return fault.WithHint(fmt.Errorf("%w (that of %s)", cluster.ErrOtherAuthority, what),
			"somebody has rotated it: bring the new one into the cluster's secrets, or rotate it back")
	}
	return nil
}

func contains(certs [][]byte, cert []byte) bool {
	return slices.ContainsFunc(certs, func(c []byte) bool { return bytes.Equal(c, cert) })
}

// listAuthorities lists the authorities in a config, DER, the one that issues first.
func listAuthorities(p talosconfig.Provider) map[string][][]byte {
	out := map[string][][]byte{}
	add := func(what string, issuing *x509.PEMEncodedCertificateAndKey, accepted []*x509.PEMEncodedCertificate) {
		var pems [][]byte
		if issuing != nil {
			pems = append(pems, issuing.Crt)
		}
		for _, a := range accepted {
			pems = append(pems, a.Crt)
		}
		for _, text := range pems {
			if block, _ := pem.Decode(text); block != nil {
				out[what] = append(out[what], block.Bytes)
			}
		}
	}
	if m := p.Machine(); m != nil {
		add("Talos", m.Security().IssuingCA(), m.Security().AcceptedCAs())
	}
	if ca := p.K8sAPIServerCAConfig(); ca != nil {
		add("Kubernetes", ca.IssuingCA(), ca.AcceptedCAs())
	}
	if c := p.Cluster(); c != nil && c.Etcd() != nil {
		add("etcd", c.Etcd().CA(), nil)
	}
	return out
}

// RunningConfig reads the config that the machine of a node runs, now. Before that it is
// proven on the same connection that the machine is the node's. Nothing of it is kept; no
// error quotes it.
func (f *Fleet) RunningConfig(ctx context.Context, d cluster.Desired, n cluster.Node) (running cluster.Secret, err error) {
	err = f.act(ctx, "read config of", n, func(ctx context.Context) error {
		return f.askOwn(ctx, d, n, func(l *link, _ keys) error {
			read, err := l.readConfig(ctx, config.ActiveID)
			if err != nil {
				return worded{err}
			}
			running = cluster.NewSecret(read.text)
			return nil
		})
	})
	return running, err
}
