package system

import (
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/extensions"

	"github.com/talos-agent/talos-agent/internal/lab/world"
)

// ListLayers lists the extensions of an image. The image factory adds one that is none: its name is
// schematic, its version the schematic's id.
func ListLayers(img world.Image) []extensions.Metadata {
	layers := make([]extensions.Metadata, 0, len(img.Extensions)+1)
	for _, e := range img.Extensions {
		name := e[strings.LastIndexByte(e, '/')+1:]
		layers = append(layers, extensions.Metadata{Name: name, Version: img.Version, Author: "Sidero Labs"})
	}
	if img.Schematic != "" {
		layers = append(layers, extensions.Metadata{Name: "schematic", Version: img.Schematic, Author: "Image Factory"})
	}
	return layers
}
