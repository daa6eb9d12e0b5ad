// Package deb holds the commented config and policy that the package has in
// /usr/share/talos-agent, for those who fill them in.
package deb

import _ "embed"

// Config and Policy are the files as they are in the package.
var (
	//go:embed config.yaml
	Config []byte
	//go:embed policy.yaml
	Policy []byte
)
