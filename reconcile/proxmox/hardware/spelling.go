package hardware

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/device"
	"github.com/talos-agent/talos-agent/internal/pattern"
)

// SetOptions sets the further options of a VM that its node has in the request that makes it. It returns what is no
// value of an option: the alphabets leave no room for another property, or another option.
func SetOptions(p map[string]string, n cluster.Node) (problems []error) {
	for _, field := range slices.Sorted(maps.Keys(n.Options)) {
		value := n.Options[field]
		s, ok := spellings[field]
		switch key := device.KeyOf(string(field)); {
		case key != "":
			problems = append(problems, setDevice(p, key, field, value)...)
		case !ok: // of a disk
		case !s.pattern.MatchString(value):
			problems = append(problems, fmt.Errorf("%s %q is not given to Proxmox VE", field, value))
		case s.edit != nil:
			s.edit(p, value)
		default:
			p[s.key] = s.spell(value)
		}
	}
	return problems
}

// OptionOf is the option of Proxmox VE that a further option of a VM is by itself, with the value that it has
// where no inventory has it; "" of one that is a property of another, or of a disk.
func OptionOf(field cluster.VMField) (key, otherwise string) {
	return spellings[field].key, spellings[field].otherwise
}

// spelling is how a further option of a VM is spelled.
type spelling struct {
	key       string // the option of Proxmox VE; "": edit sets it
	pattern   *pattern.Pattern
	edit      func(p map[string]string, value string)
	otherwise string // the value of key where the inventory does not have it
}

// spell is a value as Proxmox VE has it.
func (s spelling) spell(value string) string {
	switch value {
	case cluster.OptionNone, cluster.OptionOff:
		return "0"
	case cluster.OptionOn:
		return "1"
	}
	return value
}

// spellings are the further options of a VM that are not of a disk.
var spellings = map[cluster.VMField]spelling{
	cluster.FieldCPULimit:   {key: "cpulimit", pattern: pattern.New(`^(none|[1-9][0-9]{0,2})$`), otherwise: "0"},
	cluster.FieldCPUUnits:   {key: "cpuunits", pattern: pattern.New(`^[1-9][0-9]{0,4}$`), otherwise: "100"},
	cluster.FieldNUMA:       {key: "numa", pattern: pattern.New(`^(on|off)$`), otherwise: "0"},
	cluster.FieldBalloonMin: {key: "balloon", pattern: pattern.New(`^(none|[1-9][0-9]{0,7})$`), otherwise: "0"},
	cluster.FieldDisplay:    {pattern: pattern.New(`^(std|virtio|qxl|serial0|none)$`), edit: func(p map[string]string, value string) { p["vga"] = value }},
	cluster.FieldMachinePin: {pattern: pattern.New(`^(q35|pc-q35-[0-9]{1,2}\.[0-9]{1,2}(\+pve[0-9]{1,2})?)$`), edit: func(p map[string]string, value string) { p["machine"] = value }},
	cluster.FieldFirewall: {pattern: pattern.New(`^(on|off)$`), edit: func(p map[string]string, value string) {
		if value == cluster.OptionOn {
			p["net0"] = strings.Replace(p["net0"], ",firewall=0", ",firewall=1", 1)
		}
	}},
	cluster.FieldMTU: {pattern: pattern.New(`^(none|[1-9][0-9]{0,4})$`), edit: func(p map[string]string, value string) {
		if value != cluster.OptionNone {
			p["net0"] += ",mtu=" + value
		}
	}},
	cluster.FieldCPUFlags: {pattern: pattern.New(`^(none|[+-][a-z0-9-]{1,20}(;[+-][a-z0-9-]{1,20}){0,19})$`), edit: func(p map[string]string, value string) {
		if value != cluster.OptionNone {
			p["cpu"] += ",flags=" + value
		}
	}},
}
