package pveconf

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

func TestTextTakesEveryType(t *testing.T) {
	var o Options
	raw := `{"a":1,"b":"1","c":true,"d":false,"e":null,"f":1.5,"g":{"x":1},"h":[1,2],"i":"q\"u\\ü","j":1795225798,"k":12884901888}`
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		t.Fatal(err)
	}
	want := Options{"a": "1", "b": "1", "c": "1", "d": "0", "e": "", "f": "1.5", "g": `{"x":1}`, "h": "[1,2]", "i": `q"u\ü`, "j": "1795225798", "k": "12884901888"}
	if !maps.Equal(o, want) {
		t.Errorf("got %v", o)
	}
	if n := o["k"].Number(); n != 12884901888 {
		t.Errorf("got %d", n)
	}
	if n := o["f"].Number(); n != 1 {
		t.Errorf("got %d", n)
	}
	for _, bad := range []Scalar{"", "x", "NaN", "1e400", "Inf"} {
		if n := bad.Number(); n != 0 {
			t.Errorf("%q is %d", bad, n)
		}
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"10G": 10 << 30, "1246M": 1246 << 20, "528K": 528 << 10, "4194304": 4 << 20, "1.5G": 1536 << 20, "2T": 2 << 40,
		"": 0, "G": 0, "x": 0, "-1G": 0, "1e30G": 0, "NaN": 0, "9999999999999T": 0} {
		if got := ParseSize(s); got != want {
			t.Errorf("%q: got %d, want %d", s, got, want)
		}
	}
	for n, want := range map[int64]string{10 << 30: "10G", 1536 << 20: "1536M", 2 << 40: "2048G", 528 << 10: "528K", 1000: "1000"} {
		if got := FormatSize(n); got != want || ParseSize(got) != n {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestProperties(t *testing.T) {
	for s, want := range map[string]Properties{
		"":                                      {},
		"host":                                  {"": "host"},
		"local:9/vm-9-disk-0.raw,size=4G,ssd=1": {"": "local:9/vm-9-disk-0.raw", "size": "4G", "ssd": "1"},
		"a=1,,a=2,x=":                           {"a": "1", "x": ""}, // the first counts
		"source=/dev/urandom,max_bytes=1=2":     {"source": "/dev/urandom", "max_bytes": "1=2"},
		"virtio=BC:24:11:00:00:11,bridge=vmbr0,x": {"virtio": "BC:24:11:00:00:11", "bridge": "vmbr0", "": "x"},
	} {
		got := ParseProperties(s)
		if !maps.Equal(got, want) {
			t.Errorf("%q: got %#v, want %#v", s, got, want)
		}
		if again := ParseProperties(got.String()); !maps.Equal(again, want) {
			t.Errorf("%q: spelled %q, which is %#v", s, got, again)
		}
	}
	if s := (Properties{"size": "4G", "": "a:vm-9-disk-0", "backup": "0"}).String(); s != "a:vm-9-disk-0,backup=0,size=4G" {
		t.Errorf("spelled %q", s)
	}
	if got := (Properties{"": "b", "file": "a"}).First("file", ""); got != "a" {
		t.Errorf("the first is %q", got)
	}
	for s, want := range map[string]string{"kvm64,flags=+aes": "host,flags=+aes", "flags=+aes": "host,flags=+aes", "cputype=kvm64,flags=+aes": "cputype=host,flags=+aes"} {
		p := ParseProperties(s)
		if p.Put("cputype", "host"); p.String() != want {
			t.Errorf("%q: got %q, want %q", s, p, want)
		}
	}
}

// TestHasSeed: a cloud-init drive is known by its volume, wherever it is attached.
func TestHasSeed(t *testing.T) {
	for value, want := range map[string]bool{
		"local-lvm:vm-410-cloudinit,media=cdrom":           true,
		"media=cdrom,file=vmdata:410/vm-410-cloudinit.raw": true,
		"local:iso/x.iso,media=cdrom":                      false,
		"none,media=cdrom":                                 false,
		"local-lvm:vm-410-disk-1,size=4G":                  false,
	} {
		if got := (Options{"name": "x", "ide2": Scalar(value)}).HasSeed(); got != want {
			t.Errorf("%s: %v", value, got)
		}
	}
}

func TestCards(t *testing.T) {
	for s, want := range map[string][2]string{
		"bridge=vmbr2,virtio=bc:24:11:00:00:11":               {"virtio", "BC:24:11:00:00:11"},
		"model=e1000,macaddr=bc:24:11:00:00:12,bridge=vmbr1":  {"e1000", "BC:24:11:00:00:12"},
		"virtio,bridge=vmbr1":                                 {"", ""},
		"macaddr=bc:24:11:00:00:12,vmxnet3=bc:24:11:00:00:13": {"vmxnet3", "BC:24:11:00:00:12"},
	} {
		p := ParseProperties(s)
		if got := [2]string{p.Model(), p.MAC()}; got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	for s, want := range map[string]string{
		"":                              "",
		"ip=dhcp":                       "",
		"gw=10.78.0.1,ip=10.78.0.11/24": "10.78.0.11/24,gw=10.78.0.1",
		"ip6=auto,gw=10.78.0.1,ip=dhcp": "gw=10.78.0.1,ip6=auto",
		"gw6=FE80:0::1,ip=10.78.0.11/24,gw=10.78.0.1,ip6=FD00:10:0:0::0b/64": "10.78.0.11/24,gw=10.78.0.1,ip6=fd00:10::b/64,gw6=fe80::1",
		"ip=10.78.0.011/24,gw6=fe80::1,ip6=::":                               "10.78.0.011/24,ip6=::,gw6=fe80::1", // as it is where it is none
	} {
		if got := ParseProperties(s).Address(); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
}

func TestPending(t *testing.T) {
	for _, tc := range []struct {
		name, raw    string
		next, active Options
	}{
		{"nothing waits", `[{"key":"cores","value":2},{"key":"digest","value":"a7e9"}]`, Options{"cores": "2", "digest": "a7e9"}, nil},
		{"a change", `[{"key":"cores","value":2,"pending":4},{"key":"name","value":"n"}]`, Options{"cores": "4", "name": "n"}, Options{"cores": "2", "name": "n"}},
		{"a new option", `[{"key":"cores","value":2},{"key":"vga","pending":"std"}]`, Options{"cores": "2", "vga": "std"}, Options{"cores": "2"}},
		{"a deletion", `[{"key":"cores","value":2,"delete":1},{"key":"name","value":"n"}]`, Options{"name": "n"}, Options{"cores": "2", "name": "n"}},
		{"a deletion by force", `[{"key":"cores","value":2,"delete":"2"}]`, Options{}, Options{"cores": "2"}},
		{"no deletion", `[{"key":"cores","value":2,"delete":0}]`, Options{"cores": "2"}, nil},
	} {
		var p Pending
		if err := json.Unmarshal([]byte(tc.raw), &p); err != nil {
			t.Fatal(err)
		}
		next, active := p.Options()
		if !maps.Equal(next, tc.next) || !maps.Equal(active, tc.active) || (active == nil) != (tc.active == nil) {
			t.Errorf("%s: got %v and %v, want %v and %v", tc.name, next, active, tc.next, tc.active)
		}
	}
}

func TestLists(t *testing.T) {
	if got := SplitTags("Dev;talos-agent, mine;"); !slices.Equal(got, []string{"dev", "talos-agent", "mine"}) {
		t.Errorf("got %q", got)
	}
	if got := ParseVMIDs("100,x;101 102,"); !slices.Equal(got, []int{100, 101, 102}) {
		t.Errorf("got %v", got)
	}
}
