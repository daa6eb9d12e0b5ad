package main

// linuxCommands are the commands that work where the daemon does, on Linux: what they
// do, and what a person does on another system instead.
var linuxCommands = map[string]struct{ short, hint string }{
	"run":            {"Run the daemon", onTheHost},
	"init":           {"Set up this Proxmox VE host for the agent, or take that back (root)", onTheHost + "; `talos-agent init repo` works here"},
	"doctor":         {"Check whether everything is there that the agent needs, with a hint for what is not", "run it on the Proxmox VE host, as root"},
	"support-bundle": {"Write a file with everything a maintainer needs, and no secret (root)", "run it on the Proxmox VE host, as root"},
	"lab":            {"Run a simulated Proxmox VE host on loopback, to try the agent on", "`talos-agent rehearse DIR` brings a repository up on a simulated host here; the lab is for a daemon, which runs on Linux"},
	"demo":           {"Show the main job on the lab: push, Ready cluster, one worker more, destroy", "`talos-agent rehearse DIR` brings a repository up on a simulated host here; the demo starts the daemon, which runs on Linux"},
}

const onTheHost = "install the package on the Proxmox VE host, and run it there as root"
