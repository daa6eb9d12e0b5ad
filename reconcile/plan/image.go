package plan

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/action"
)

// planImage plans what brings the Talos image to every host that needs it. It is
// needed only where a VM has to be made; its schematic's id is part of every
// machine config.
func (m *planner) planImage() {
	if m.d.Schematic == "" {
		m.do(action.RegisterSchematic{Cluster: m.d.Spec.Name, Schematic: m.d.Spec.Schematic})
	} else if asked := m.d.Repository(); asked.Schematic == "" {
		// It is part of the configs that the nodes' are compared with.
		m.do(action.RegisterSchematic{Cluster: m.d.Spec.Name, Schematic: asked.Spec.Schematic})
	}
	type place struct{ host, datastore string }
	var places []place
	for _, n := range m.d.Spec.Nodes {
		ph := m.plan.Phases[n.Name]
		if ph != cluster.PhaseAbsent || n.Locked || m.tooLarge || len(m.lacks[n.Name]) > 0 {
			continue
		}
		if pl := (place{m.placeNode(n), n.ImageDatastore}); !slices.Contains(places, pl) {
			places = append(places, pl)
		}
	}
	if m.d.Schematic == "" {
		return
	}
	missing := false
	for _, pl := range places {
		h := m.o.Hosts[pl.host]
		if !h.Images.Known {
			continue // the node's own wait shows that
		}
		if _, ok := h.Images.Value[m.d.Image.Name]; ok {
			continue
		}
		missing = true
		if m.o.ImageCached.Known && m.o.ImageCached.Value {
			m.do(action.UploadImage{Image: m.d.Image, Host: pl.host, Datastore: pl.datastore})
		}
	}
	if missing && m.o.ImageCached.Known && !m.o.ImageCached.Value {
		m.do(action.DownloadImage{Image: m.d.Image})
	}
}
