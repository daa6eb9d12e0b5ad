package doctor

// Snapshots is how snapshots of etcd are taken and kept.
type Snapshots struct {
	Disabled  bool
	Directory string
	Keys      int  // that open them, those of this host included
	Beside    bool // on the file system of the agent's state
}

// snapshots judges whether snapshots of etcd are left when this host is not.
func (h Host) snapshots() []Check {
	s := h.Snapshots.Value
	check := Check{Name: "snapshots", Subject: s.Directory, Level: Warn}
	warn := func(message, hint string) Check {
		c := check
		c.Message, c.Hint = message, hint
		return c
	}
	switch {
	case !h.Snapshots.Known:
		return []Check{skipCheck("snapshots", "", h.Snapshots)}
	case s.Disabled:
		return []Check{warn("the agent takes no snapshots of etcd", "remove `snapshots: {disabled: true}` from config.yaml, unless somebody else takes them")}
	}
	var out []Check
	if s.Keys < 2 {
		out = append(out, warn("one key alone opens them, which is lost with this host", "run `age-keygen` on another machine, and name its public key under `snapshots.recipients` in config.yaml"))
	}
	if s.Beside {
		out = append(out, warn("they lie on the file system of the agent's state, and are lost with it", "name a folder of another storage as `snapshots.directory` in config.yaml"))
	}
	if len(out) == 0 {
		check.Level, check.Message = Pass, "snapshots of etcd are taken, on another file system, for two keys"
		out = append(out, check)
	}
	return out
}
