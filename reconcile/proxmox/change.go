package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/hardware"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// Change corrects fields of the VM of a node on a host: what it has in other fields
// stays. A VM that runs has the change at once where Proxmox VE can, else from its next
// start on.
func (c *Client) Change(ctx context.Context, d cluster.Desired, n cluster.Node, host string, fields []cluster.VMField, progress func(cluster.Progress)) error {
	if err := c.changeFields(ctx, d, n, host, fields, defaultProgress(progress)); err != nil {
		return fmt.Errorf("change vm %d (%s): %w", n.VMID, n.Name, err)
	}
	return nil
}

func (c *Client) changeFields(ctx context.Context, d cluster.Desired, n cluster.Node, host string, fields []cluster.VMField, progress func(cluster.Progress)) error {
	// The image is not part of a change; what is checked is all of a new VM.
	wanted, err := createParams(d, n, c.poolOf(n), cluster.Image{Name: "unused.qcow2"})
	if err != nil {
		return err
	}
	id := c.identityOf(d, n.VMID, n.Name)
	defer c.forget(n.VMID)
	c.forget(n.VMID)
	p, err := c.prove(ctx, id)
	if err != nil {
		return err
	}
	if p, err = c.change(ctx, id, p, func(p proven) (params, error) { return changeParams(p.conf, wanted, fields), nil }, nil); err != nil {
		return err
	}
	if slices.Contains(fields, cluster.FieldTags) {
		var tags checks
		tagList := tags.tags(n.VMTags())
		if tags.err() != nil {
			return tags.err()
		}
		if p, err = c.tag(ctx, id, p, tagList); err != nil {
			return err
		}
	}
	if p, err = c.plug(ctx, id, p, host, n, fields, wanted, progress); err != nil {
		return err
	}
	return c.growAll(ctx, id, p, n, fields, progress)
}

// changeParams are the options that bring fields of a VM to what a new VM gets, "" of
// none. What else an option holds stays: a rate limit of the network card, flags of the
// processor.
func changeParams(have pveconf.Options, wanted params, fields []cluster.VMField) params {
	out := params{}
	set := func(key string, edit func(pveconf.Properties)) {
		was := cmp.Or(out[key], string(have[key]))
		p := pveconf.ParseProperties(was)
		edit(p)
		if !maps.Equal(p, pveconf.ParseProperties(was)) { // Proxmox VE has an order of its own
			out[key] = p.String()
		}
	}
	for _, f := range fields {
		switch f {
		case cluster.FieldCPUType:
			set("cpu", func(p pveconf.Properties) { p.Put("cputype", pveconf.ParseProperties(wanted["cpu"]).First("", "")) })
		case cluster.FieldCores:
			out["cores"], out["sockets"] = wanted["cores"], wanted["sockets"]
		case cluster.FieldMemory:
			out["memory"] = wanted["memory"]
		case cluster.FieldBalloon:
			out["balloon"] = wanted["balloon"]
		case cluster.FieldCPUFlags:
			set("cpu", func(p pveconf.Properties) { takeKey(p, pveconf.ParseProperties(wanted["cpu"]), "flags") })
		case cluster.FieldDisplay:
			set("vga", func(p pveconf.Properties) { p.Put("type", wanted["vga"]) })
		case cluster.FieldMachine, cluster.FieldMachinePin:
			set("machine", func(p pveconf.Properties) { p.Put("type", wanted["machine"]) })
		case cluster.FieldSCSI:
			out["scsihw"] = wanted["scsihw"]
		case cluster.FieldModel, cluster.FieldMAC, cluster.FieldBridge, cluster.FieldVLAN, cluster.FieldLink, cluster.FieldFirewall, cluster.FieldMTU:
			set("net0", func(p pveconf.Properties) { takeCard(p, pveconf.ParseProperties(wanted["net0"]), f) })
		case cluster.FieldAddress:
			out["ipconfig0"] = wanted["ipconfig0"]
		case cluster.FieldBoot:
			out["boot"] = "order=" + hardware.SystemDisk(have)
		case cluster.FieldAgent:
			set("agent", func(p pveconf.Properties) { p.Put("enabled", wanted["agent"]) })
		case cluster.FieldOnBoot:
			out["onboot"] = wanted["onboot"]
		case cluster.FieldMark:
			out["description"] = markDescription(string(have["description"]), wanted["description"])
		}
		if key, otherwise := hardware.OptionOf(f); key != "" {
			out[key] = cmp.Or(wanted[key], otherwise)
		}
		changeDisk(have, wanted, f, set)
	}
	maps.DeleteFunc(out, func(key, value string) bool { return value == string(have[key]) })
	if len(out) == 0 {
		return nil
	}
	return out
}

// changeDisk sets one option of a disk that is there, as a new one has it.
func changeDisk(have pveconf.Options, wanted params, f cluster.VMField, set func(string, func(pveconf.Properties))) {
	for _, drive := range wanted {
		from := pveconf.ParseProperties(drive)
		serial := from["serial"]
		key := hardware.DriveOf(have, serial)
		if serial == "" || key == "" {
			continue
		}
		for _, o := range cluster.DiskOptions {
			if f != cluster.FieldDiskOption(serial, o) {
				continue
			}
			set(key, func(p pveconf.Properties) { takeKey(p, from, string(o)) })
		}
	}
}

// takeKey takes one property from others: none where they have none.
func takeKey(into, from pveconf.Properties, key string) {
	if delete(into, key); from[key] != "" {
		into[key] = from[key]
	}
}

// cardKeys are the fields of a network card that have a key of their own.
var cardKeys = map[cluster.VMField]string{cluster.FieldBridge: "bridge", cluster.FieldVLAN: "tag", cluster.FieldLink: "link_down", cluster.FieldFirewall: "firewall", cluster.FieldMTU: "mtu"}

// takeCard takes one field of a network card from another: all of it where there is none.
func takeCard(into, from pveconf.Properties, f cluster.VMField) {
	was, model, mac := into.Model(), from.Model(), into.MAC()
	switch key, own := cardKeys[f]; {
	case was == "":
		maps.Copy(into, from)
		return
	case own:
		takeKey(into, from, key)
		return
	case f == cluster.FieldMAC: // the model is a key, whose value is the MAC
		model, mac = was, from.MAC()
	}
	maps.DeleteFunc(into, func(key, _ string) bool { return key == was || key == "model" || key == "macaddr" })
	into[model] = mac
}

// markDescription puts the agent's mark on the first line of a description. What people
// wrote stays.
func markDescription(have, wanted string) string {
	first, rest, _ := strings.Cut(have, "\n")
	if _, ok := cluster.ParseMark(have); !ok {
		rest = have
	}
	mark, _, _ := strings.Cut(wanted, "\n")
	if first == mark {
		return have
	}
	if strings.TrimSpace(rest) == "" {
		return wanted
	}
	return mark + "\n" + rest
}

// plug makes the data disks of a node that its VM does not have, and attaches them.
// Several nodes do so on one storage in turns, as they do when they are created.
func (c *Client) plug(ctx context.Context, id identity, p proven, host string, n cluster.Node, fields []cluster.VMField, wanted params, progress func(cluster.Progress)) (proven, error) {
	missing := func(p proven) params {
		out := params{}
		taken := map[string]bool{}
		for i, dk := range n.Disks {
			if !slices.Contains(fields, cluster.FieldDisk(dk.Serial)) || hardware.DriveOf(p.conf, dk.Serial) != "" {
				continue
			}
			key := freeDrive(p.conf, taken)
			taken[key] = true
			out[key] = wanted[fmt.Sprintf("scsi%d", i+1)]
		}
		return out
	}
	if len(missing(p)) == 0 {
		return p, nil
	}
	done, err := c.takeStorages(ctx, host, n, progress)
	if err != nil {
		return p, err
	}
	defer done()
	var last error
	for range conflicts {
		set := missing(p)
		if len(set) == 0 {
			return p, nil
		}
		if err := p.locked(); err != nil {
			return p, err
		}
		set["digest"] = p.conf.Digest()
		// In a task: to allocate a volume may take longer than a request lasts.
		last = c.start(ctx, progress, func(name *pveconf.Scalar) error { return c.post(ctx, vmPath(p.host, id.vmid, "config"), set, name) })
		if last != nil && !errors.Is(last, errDigest) {
			if isDecided(ctx, last) {
				return p, last
			}
			if err := c.settle(ctx, p.host, id.vmid, progress); err != nil {
				return p, err
			}
		}
		if p, err = c.prove(ctx, id); err != nil {
			return p, err
		}
	}
	if last == nil {
		last = errors.New("a disk that was attached is not there")
	}
	return p, last
}

// freeDrive is the first drive behind the SCSI controller that is not used.
func freeDrive(o pveconf.Options, taken map[string]bool) string {
	for i := 1; ; i++ {
		key := "scsi" + strconv.Itoa(i)
		if _, used := o[key]; !used && !taken[key] {
			return key
		}
	}
}

// growAll grows the disks among some fields to the sizes of the inventory.
func (c *Client) growAll(ctx context.Context, id identity, p proven, n cluster.Node, fields []cluster.VMField, progress func(cluster.Progress)) error {
	if slices.Contains(fields, cluster.FieldSystemSize) {
		if err := c.grow(ctx, id, p, cluster.SystemDiskSerial, n.DiskBytes, progress); err != nil {
			return err
		}
	}
	for _, dk := range n.Disks {
		if !slices.Contains(fields, cluster.FieldDiskSize(dk.Serial)) {
			continue
		}
		p, err := c.prove(ctx, id)
		if err != nil {
			return err
		}
		if err := c.grow(ctx, id, p, dk.Serial, dk.Bytes, progress); err != nil {
			return err
		}
	}
	return nil
}
