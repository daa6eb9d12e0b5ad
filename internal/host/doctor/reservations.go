package doctor

import "fmt"

// Reservations is where the agent writes reservations for a DHCP server of the host.
type Reservations struct {
	Directory string // "": it writes none
	Missing   bool
	// Closed is the directory, or one above it, that not everybody may enter; "": none.
	Closed string
}

// reservations judges whether a DHCP server can read what the agent writes for it: dnsmasq has a
// user of its own.
func (h Host) reservations() []Check {
	r := h.Reservations.Value
	c := Check{Name: "reservations", Subject: r.Directory, Level: Warn}
	switch {
	case !h.Reservations.Known:
		return []Check{skipCheck("reservations", "", h.Reservations)}
	case r.Directory == "":
		return nil
	case r.Missing:
		c.Message, c.Hint = "there is no such directory: the agent writes no DHCP reservations", fmt.Sprintf("`install -d -m 0755 -o talos-agent -g talos-agent %s`", r.Directory)
	case r.Closed != "":
		c.Message, c.Hint = fmt.Sprintf("not everybody may enter %s: dnsmasq, which has a user of its own, reads no reservations there", r.Closed), fmt.Sprintf("`chmod o+rx %s`, or name another directory as `dhcp.directory` in config.yaml", r.Closed)
	default:
		c.Level, c.Message = Pass, fmt.Sprintf("dnsmasq can read the reservations: `dhcp-hostsdir=%s` in its config points it there", r.Directory)
	}
	return []Check{c}
}
