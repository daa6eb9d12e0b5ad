package wizard

// Flags are those of the command line of init.
type Flags struct {
	Pool, Images, VMIDs        string
	Bridges, Datastores        []string
	Nodes, Cores               int
	RAM, Disk                  string
	Repository, Directory      string
	Branch, Folder             string
	Forge, ForgeURL, ForgeRepo string
	ProxmoxURL, Fingerprint    string
	MirrorFactory              string
	MirrorCharts               map[string]string
	NoImport                   bool

	AgeKeyFile, SSHKeyFile, GitTokenFile, ForgeTokenFile string
	KnownHostsFile, CAFile                               string
	KnownHosts                                           []string

	Yes, DryRun, Undo, LeaveVMs, Force, Rotate, Start bool
}
