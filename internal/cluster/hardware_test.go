package cluster

import (
	"slices"
	"strings"
	"testing"
)

// TestDiskProperties: a disk of an inventory without a word about it is attached as ever, and each word
// changes what it is about and nothing else.
func TestDiskProperties(t *testing.T) {
	const asEver, threadless = ",discard=on,ssd=1,iothread=1", ",discard=on,ssd=1"
	for _, c := range []struct {
		scsi   string
		option DiskOption // "": none
		value  string
		want   string
	}{
		{SingleController, "", "", asEver},
		{"virtio-scsi-pci", "", "", threadless},
		{SingleController, DiskSSD, OptionOn, asEver},
		{SingleController, DiskSSD, OptionOff, ",discard=on,iothread=1"},
		{SingleController, DiskDiscard, OptionOn, asEver},
		{SingleController, DiskDiscard, OptionOff, ",ssd=1,iothread=1"},
		{SingleController, DiskIOThread, OptionOn, asEver},
		{SingleController, DiskIOThread, OptionOff, threadless},
		{"virtio-scsi-pci", DiskIOThread, OptionOff, threadless},
		{SingleController, DiskCache, "none", asEver},
		{SingleController, DiskCache, "writethrough", ",cache=writethrough" + asEver},
		{SingleController, DiskAIO, OptionDefault, asEver},
		{SingleController, DiskAIO, "threads", ",aio=threads" + asEver},
		{SingleController, DiskBackup, OptionOn, asEver},
		{SingleController, DiskBackup, OptionOff, ",backup=0" + asEver},
	} {
		for _, serial := range []string{SystemDiskSerial, "talos-data"} {
			n := Node{SCSIHardware: c.scsi}
			if c.option != "" {
				n.Options = map[VMField]string{FieldDiskOption(serial, c.option): c.value, FieldDiskOption("talos-other", DiskCache): "unsafe"}
			}
			if got := n.DiskProperties(serial); got != c.want {
				t.Errorf("%s of %s, %s %s: %q, want %q", serial, c.scsi, c.option, c.value, got, c.want)
			}
		}
	}
	for _, o := range DiskOptions {
		if got := (Node{SCSIHardware: SingleController, Options: map[VMField]string{FieldDiskOption("talos-data", o): "x"}}).DiskOption("talos-data", o); got != "x" {
			t.Errorf("%s: %q", o, got)
		}
	}
}

// TestNewDiskOption: what a new disk has of each option.
func TestNewDiskOption(t *testing.T) {
	var words []string
	for _, scsi := range []string{SingleController, "virtio-scsi-pci"} {
		for _, o := range DiskOptions {
			words = append(words, NewDiskOption(o, scsi))
		}
	}
	want := strings.Fields("on on on none default on  on on off none default on")
	if !slices.Equal(words, want) {
		t.Errorf("%v, want %v", words, want)
	}
}

// TestFieldDiskOption: the options of disks have names of their own, by which a person reads of them.
func TestFieldDiskOption(t *testing.T) {
	if system, data := FieldDiskOption(SystemDiskSerial, DiskCache), FieldDiskOption("talos-data", DiskCache); system != "system disk cache" || data != "disk talos-data cache" {
		t.Error(system, data)
	}
}
