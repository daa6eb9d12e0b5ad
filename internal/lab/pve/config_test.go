package pve

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/lab/pve/options"
	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// clone copies a configuration, so that a change can be tried out.
func (c config) clone() config {
	return config{base: maps.Clone(c.base), pending: maps.Clone(c.pending), dropped: maps.Clone(c.dropped)}
}

// TestDigests renders the configurations and pending lists that were recorded
// and compares their digests with the real ones: the lab's files are Proxmox
// VE's, byte for byte.
func TestDigests(t *testing.T) {
	dir := recordings(t)
	compared := 0
	for _, folder := range folders {
		for _, e := range load(t, filepath.Join(dir, folder)) {
			var c config
			var want string
			switch path, _, _ := strings.Cut(e.Request.URL, "?"); {
			case e.Request.Method != "GET" || e.Response.Status != 200 || strings.Contains(e.Response.Body, "<secret>") || strings.Contains(e.Response.Body, "*****"):
				continue
			case strings.HasSuffix(path, "/pending"):
				c, want = fromPending(t, e)
			case strings.HasSuffix(path, "/config") && !waiting[e.file]:
				c, want = fromConfig(t, e)
			default:
				continue
			}
			// A file that has nothing about booting has it in two ways.
			empty := c.clone()
			if empty.base["boot"] == options.NoBoot {
				empty.base["boot"] = ""
			}
			if got := c.digest(); got != want && empty.digest() != want {
				t.Errorf("%s/%s: digest %s, want %s of\n%s", folder, e.file, got, want, c.text())
			}
			compared++
		}
	}
	if compared < 50 {
		t.Errorf("compared %d digests only", compared)
	}
}

// waiting are the configurations that hide what is pending.
var waiting = setOf("g54-config-after-hand-edit", "g53-config-after-hand-edit", "g58-config-before-delete", "g57-config-before-delete",
	"412-config-current", "916-config-merged")

func fromConfig(t *testing.T, e *exchange) (config, string) {
	t.Helper()
	var answer struct{ Data map[string]any }
	if err := json.Unmarshal([]byte(e.Response.Body), &answer); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for k, v := range answer.Data {
		values[k] = fmt.Sprint(v)
	}
	digest := values["digest"]
	delete(values, "digest")
	return newConfig(values), digest
}

func fromPending(t *testing.T, e *exchange) (config, string) {
	t.Helper()
	var answer struct {
		Data []struct {
			Key            string
			Value, Pending any
			Delete         int
		}
	}
	if err := json.Unmarshal([]byte(e.Response.Body), &answer); err != nil {
		t.Fatal(err)
	}
	c, digest := newConfig(map[string]string{}), ""
	for _, d := range answer.Data {
		if d.Key == "digest" {
			digest = fmt.Sprint(d.Value)
			continue
		}
		if d.Value != nil {
			c.base[d.Key] = fmt.Sprint(d.Value)
		}
		if d.Pending != nil {
			c.pending[d.Key] = fmt.Sprint(d.Pending)
		}
		if d.Delete != 0 {
			c.dropped[d.Key] = true
		}
	}
	return c, digest
}

func TestCanonicalForms(t *testing.T) {
	for _, tc := range []struct{ key, text, want string }{
		{"tags", "Talos;zeta,alpha;talos", "alpha;talos;zeta"},
		{"tags", "Zz;b,a B", "a;b;zz"},
		{"tags", "", ""},
		{"net0", "bridge=vmbr1,virtio=bc:24:11:aa:bb:01,tag=7,firewall=1", "virtio=bc:24:11:aa:bb:01,bridge=vmbr1,firewall=1,tag=7"},
		{"net0", "model=virtio,macaddr=BC:24:11:AA:BB:01,bridge=vmbr1", "virtio=BC:24:11:AA:BB:01,bridge=vmbr1"},
		{"description", "line1\nline2: 100% # x\n", "line1\nline2: 100% # x"},
		{"cpu", "cputype=x86-64-v2-AES", "cputype=x86-64-v2-AES"},
	} {
		if got := spellOption(tc.key, tc.text, flavour{nine: true}); got != tc.want {
			t.Errorf("%s %q is %q, want %q", tc.key, tc.text, got, tc.want)
		}
	}
	if got := spellOption("tags", "B;a", flavour{}); got != "B;a" {
		t.Errorf("8.4 keeps the tags of a creation as they are, not %q", got)
	}
}

func TestDefaultBoot(t *testing.T) {
	for _, tc := range []struct {
		values map[string]string
		want   string
	}{
		{map[string]string{}, " "},
		{map[string]string{"scsi0": "a:1", "net0": "virtio"}, "order=scsi0;net0"},
		{map[string]string{"scsi0": "a:1", "ide0": "a:x,media=cdrom", "net0": "virtio"}, "order=scsi0;ide0;net0"},
		{map[string]string{"efidisk0": "a:1", "tpmstate0": "a:2"}, " "},
	} {
		if got := options.DefaultBoot(tc.values); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.values, got, tc.want)
		}
	}
}

// TestBootDevices: a disk is booted from only when the boot order lists it, or bootdisk names it
// where there is none.
func TestBootDevices(t *testing.T) {
	for _, tc := range []struct{ boot, bootdisk, want string }{
		{"order=scsi0;net0", "", "scsi0"},
		{"order=net0;scsi0", "scsi0", "scsi0"},
		{"order=net0", "scsi0", ""},
		{options.NoBoot, "scsi0", ""},
		{"", "", ""},
		{"", "scsi0", "scsi0"},
		{"", "scsi1", "scsi1"},
		{"ndc", "", ""},
		{"ndc", "scsi1", "scsi1"},
		{"legacy=cdn", "scsi1", "scsi1"},
		{"dn", "scsi1", ""},
	} {
		values := map[string]string{"scsi0": "a:1", "scsi1": "a:2", "ide2": "a:x,media=cdrom", "net0": "virtio", "boot": tc.boot, "bootdisk": tc.bootdisk}
		if got := options.BootDisk(values); got != tc.want {
			t.Errorf("boot %q, bootdisk %q: %q, want %q", tc.boot, tc.bootdisk, got, tc.want)
		}
	}
}

// TestCloudInit pins the files of the drive, the instance-id among them, as a
// real host made them from the same options.
func TestCloudInit(t *testing.T) {
	inBubble(t, Config{}, func(l *testLab) {
		l.ok("POST", "/nodes/pve1/qemu", "vmid=410&name=dev-cp-1&pool=talos&net0=virtio%3DBC:24:11:00:00:11,bridge%3Dvmbr1&ipconfig0=ip%3D10.78.0.11/24,gw%3D10.78.0.1&nameserver=10.78.0.1")
		for kind, want := range map[string]string{
			"meta":    "instance-id: bfef80eca618ae62e089a9a9810c1745c88b0575\n",
			"network": "        netmask: '255.255.255.0'\n",
			"user":    "#cloud-config\nhostname: dev-cp-1\n",
		} {
			if got, _ := l.ok("GET", "/nodes/pve1/qemu/410/cloudinit/dump?type="+kind, "").(string); !strings.Contains(got, want) {
				t.Errorf("%s:\n%s\nwants %q", kind, got, want)
			}
		}
	})
}

// TestIPConfig pins what the drive has of the addresses of both families, and that a gateway without one loses all of them.
func TestIPConfig(t *testing.T) {
	const four = "      - type: static\n        address: '10.78.0.11'\n        netmask: '255.255.255.0'\n"
	for value, want := range map[string]string{
		"":                                "",
		"ip=dhcp":                         "      - type: dhcp4\n",
		"ip=10.78.0.11/24":                four,
		"ip=10.78.0.11/24,ip6=fd00::b/64": four + "      - type: static6\n        address: 'fd00::b/64'\n",
		"ip=10.78.0.11/24,ip6=fd00::b/64,gw6=fe80::1": four + "      - type: static6\n        address: 'fd00::b/64'\n        gateway: 'fe80::1'\n",
		"ip6=auto": "      - type: ipv6_slaac\n", "ip=10.78.0.11/24,ip6=dhcp": four + "      - type: dhcp6\n",
		"ip=10.78.0.11/24,ip6=auto,gw6=fe80::1": "", "ip=dhcp,gw=10.78.0.1,ip6=fd00::b/64": "",
	} {
		got := options.NetworkData(map[string]string{"net0": "virtio=BC:24:11:00:00:11", "ipconfig0": value})
		if _, subnets, _ := strings.Cut(got, "subnets:\n"); subnets != want {
			t.Errorf("%q: %s, want %s", value, subnets, want)
		}
	}
}

func TestSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<45).Draw(t, "bytes")
		got, err := options.ParseSize(options.FormatSize(n))
		if err != nil || got != n {
			t.Fatalf("%d is %q is %d (%v)", n, options.FormatSize(n), got, err)
		}
	})
}

// TestConfigRules: applying what is pending gives what GET config promised, and
// no two configurations share a digest.
func TestConfigRules(t *testing.T) {
	options := rapid.MapOf(rapid.SampledFrom([]string{"cores", "memory", "name", "tags", "numa", "net0"}), rapid.StringMatching(`[a-z0-9=,]{1,8}`))
	rapid.Check(t, func(t *rapid.T) {
		c := config{
			base: options.Draw(t, "base"), pending: options.Draw(t, "pending"),
			dropped: rapid.MapOf(rapid.SampledFrom([]string{"cores", "numa"}), rapid.Just(true)).Draw(t, "dropped"),
		}
		promised, text := c.merged(), c.text()
		applied := c.clone()
		applied.applyPending()
		if !maps.Equal(applied.base, promised) || len(applied.pending)+len(applied.dropped) > 0 {
			t.Fatalf("applied %v, promised %v", applied, promised)
		}
		if c.text() != text {
			t.Fatal("applying a copy changed the original")
		}
		other := c.clone()
		other.base["cores"] += "1"
		if other.digest() == c.digest() {
			t.Fatal("a change left the digest as it was")
		}
	})
}

// TestDrivesRoundTrip: a drive or card in canonical form stays as it is.
func TestDrivesRoundTrip(t *testing.T) {
	word := rapid.StringMatching(`[a-z][a-z0-9-]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		d := options.Properties{"file": "local:" + word.Draw(t, "volume")}
		for k, v := range rapid.MapOfN(word, word, 0, 4).Draw(t, "options") {
			if k != "file" && k != "volume" {
				d[k] = v
			}
		}
		if got := options.ParseDrive(d.String()); !maps.Equal(got, d) {
			t.Fatalf("%s is %v", d, got)
		}
		card := options.RenderNet(options.ParseNet("virtio,bridge=" + word.Draw(t, "bridge")))
		if got := options.RenderNet(options.ParseNet(card)); got != card {
			t.Fatalf("%s is %s", card, got)
		}
	})
}

func FuzzParseUPID(f *testing.F) {
	f.Add("UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:talos-agent@pve!agent:")
	f.Add("UPID:pve:00000162:000428EA:6B00ECCA:imgcopy::root@pam!lab:")
	f.Add("UPID:::::::::")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := parseUPID(text)
		if err != nil {
			return
		}
		if again, err := parseUPID(u.String()); err != nil || again != u {
			t.Errorf("%q is %+v, then %+v (%v)", text, u, again, err)
		}
	})
}

func FuzzProperties(f *testing.F) {
	schema, err := schema.Load("9.2")
	if err != nil {
		f.Fatal(err)
	}
	create := schema["POST /nodes/{node}/qemu"]
	for _, seed := range []string{"virtio=BC:24:11:00:00:11,bridge=vmbr1", "local:1,format=raw", "uuid=x", "order=scsi0;net0", "ip=10.0.0.1/24", ",,=,"} {
		f.Add("net0", seed)
	}
	f.Fuzz(func(t *testing.T, key, text string) {
		if errs := create.CheckParams(map[string]any{"node": "pve", "vmid": "100", key: text}); len(errs) > 0 {
			return
		}
		// What the schema lets through, the lab can read.
		if options.IsNet(key) {
			options.RenderNet(options.ParseNet(text))
		}
		if _, err := options.ParseSize(options.ParseDrive(text)["size"]); options.IsDrive(key) && err != nil {
			t.Errorf("%s %q: %v", key, text, err)
		}
		spellOption(key, text, flavour{nine: true})
	})
}

func FuzzBodies(f *testing.F) {
	f.Add("vmid=100&name=x")
	f.Add("vmid=%zz")
	f.Add(`{"cores": 2, "numa": true, "x": [1,2], "y": null}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func() (map[string]any, error){
			func() (map[string]any, error) { return schema.ParseForm(text) },
			func() (map[string]any, error) { return parseJSON([]byte(text)) },
		} {
			in, err := parse()
			for k, v := range in {
				switch v.(type) {
				case string, []string:
				default:
					t.Errorf("%s is a %T", k, v)
				}
			}
			if err != nil && in != nil {
				t.Errorf("both %v and %v", in, err)
			}
		}
	})
}

func FuzzVirtualSize(f *testing.F) {
	f.Add(fileBytes(32, 1246<<20))
	f.Add([]byte("QFI\xfb"))
	f.Fuzz(func(t *testing.T, header []byte) {
		if n := virtualSize(header); n < 0 {
			t.Errorf("%d", n)
		}
	})
}
