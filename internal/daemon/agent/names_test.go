package agent_test

import "github.com/talos-agent/talos-agent/internal/lab/pve"

type (
	vmView = pve.VMView
	volume = pve.VolumeView
)
