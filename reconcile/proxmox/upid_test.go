package proxmox

import (
	"strings"
	"testing"
	"time"
)

func TestUPID(t *testing.T) {
	u, err := parseUPID("UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:talos-agent@pve!agent:")
	if err != nil || u.host != "pve" || u.kind != "qmcreate" || u.vmid() != 410 || u.user != "talos-agent@pve!agent" || !u.started.Equal(time.Unix(0x6B00F8C6, 0)) {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err = parseUPID("UPID:pve:000001C1:0008D6DF:6B00F8C5:imgcopy::talos-agent@pve!agent:"); err != nil || u.vmid() != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	for _, bad := range []string{"", "UPID", "UPID:a:b:c:d:e:f:g:", "UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:talos-agent@pve", "UPID:../x:0000020E:0008D741:6B00F8C6:qmcreate:410:u:"} {
		if u, err := parseUPID(bad); err == nil {
			t.Errorf("%q is %+v", bad, u)
		}
	}
}

func FuzzUPID(f *testing.F) {
	f.Add("UPID:pve:0000020E:0008D741:6B00F8C6:qmcreate:410:talos-agent@pve!agent:")
	f.Add("UPID:pve:000001C1:0008D6DF:6B00F8C5:imgcopy::talos-agent@pve!agent:")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := parseUPID(s)
		if err == nil && (u.text != s || u.host == "" || u.kind == "" || u.user == "" || strings.ContainsAny(u.host, "/.?#")) {
			t.Errorf("%q is %+v", s, u)
		}
	})
}
