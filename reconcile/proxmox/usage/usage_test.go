package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/usage"
	"github.com/talos-agent/talos-agent/internal/golden"
)

// answers reads paths out of texts; what is not in it is refused.
func answers(texts map[string]string) Get {
	return func(_ context.Context, path string, _ map[string]string, into any) error {
		text, ok := texts[path]
		if !ok {
			return errors.New("403 Permission check failed (/nodes/pve, Sys.Audit)")
		}
		return json.Unmarshal([]byte(text), into)
	}
}

// recorded is the data of an answer of a real host.
func recorded(t *testing.T, name string) string {
	t.Helper()
	folder, file, _ := strings.Cut(name, "/")
	b, err := os.ReadFile(filepath.Join(golden.Recordings(t, "pve", folder), file))
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Response struct {
			Body string `json:"body_raw"`
		} `json:"response"`
	}
	var body struct {
		Data json.RawMessage `json:"data"`
	}
	if err := errors.Join(json.Unmarshal(b, &r), json.Unmarshal([]byte(r.Response.Body), &body)); err != nil {
		t.Fatal(err)
	}
	return string(body.Data)
}

func ask(t *testing.T, texts map[string]string, host string, vmid int) usage.Report {
	t.Helper()
	r := usage.Report{Hosts: []usage.Host{{Name: host}}, VMs: []usage.VM{{Node: "cp-1", VMID: vmid}}}
	if err := Ask(t.Context(), answers(texts), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRecorded reads what real hosts have answered: with statistics, without any, and
// to a token that may see little.
func TestRecorded(t *testing.T) {
	full := ask(t, map[string]string{"/cluster/resources": recorded(t, "recorded-9.2/043-resources.json")}, "pve", 100).Hosts[0]
	cpu := 0.0115057528764382
	store := usage.Amount{Used: 44830253056, Total: 270553174016}
	want := usage.Host{Name: "pve", Status: "online", Cores: 16, CPU: &cpu, Memory: &usage.Amount{Used: 1218146304, Total: 25276514304}, Disk: &store,
		Storages: []usage.Storage{{Name: "local", Amount: store}, {Name: "vmdata", Amount: store}}, Unanswered: full.Unanswered}
	if !reflect.DeepEqual(full, want) || full.Unanswered == "" {
		t.Errorf("%+v", full)
	}
	for _, name := range []string{"recorded-8.4/043-resources.json", "recorded-8.4/855-lp-resources.json", "recorded-9.2/855-lp-resources.json"} {
		r := ask(t, map[string]string{"/cluster/resources": recorded(t, name)}, "pve", 190)
		if h := r.Hosts[0]; h.Cores != 0 || h.CPU != nil || h.Memory != nil || h.Disk != nil || h.Pressure != nil || h.Unanswered != "" || len(h.Storages) == 0 {
			t.Errorf("%s: %+v", name, h)
		}
		if vm := r.VMs[0]; vm.Status != "unknown" || vm.CPU != nil || vm.Memory != nil || vm.HostMemory != nil {
			t.Errorf("%s: %+v", name, vm)
		}
	}
	zero, none := 0.0, int64(0)
	vm := ask(t, map[string]string{"/cluster/resources": recorded(t, "recorded-9.2/206-resources-vm.json")}, "pve", 100).VMs[0]
	if want := (usage.VM{Node: "cp-1", VMID: 100, Host: "pve", Status: "stopped", Cores: 2, CPU: &zero, Memory: &usage.Amount{Total: 1073741824}, HostMemory: &none}); !reflect.DeepEqual(vm, want) {
		t.Errorf("%+v", vm)
	}
	if old := ask(t, map[string]string{"/cluster/resources": recorded(t, "recorded-8.4/503-resources-template.json")}, "pve", 100).VMs[0]; old.HostMemory != nil || old.Cores != 2 {
		t.Errorf("Proxmox VE 8: %+v", old)
	}
}

// TestPressure: the newest point with values counts, unless it is old, and none is
// known of Proxmox VE 8.
func TestPressure(t *testing.T) {
	now := time.Now().Unix()
	point := func(ago int64, cpu string) string {
		return fmt.Sprintf(`{"time":%d,"cpu":0.1,"pressurecpusome":%s,"pressureiosome":"2.5","pressureiofull":1,"pressurememorysome":0,"pressurememoryfull":0}`, now-ago, cpu)
	}
	const row = `[{"type":"node","node":"pve","status":"online","cpu":0.5,"maxcpu":4}]`
	for _, c := range []struct {
		name, history string
		want          *usage.Pressure
	}{
		{"newest", "[" + point(120, "1") + "," + point(60, "0.31") + `,{"time":` + fmt.Sprint(now) + "}]", &usage.Pressure{CPU: 0.31, IO: 2.5, At: time.Unix(now-60, 0).UTC()}},
		{"in another order", "[" + point(60, "0.31") + "," + point(120, "1") + "]", &usage.Pressure{CPU: 0.31, IO: 2.5, At: time.Unix(now-60, 0).UTC()}},
		{"null", "[" + point(120, "1") + "," + point(60, "null") + "]", &usage.Pressure{CPU: 1, IO: 2.5, At: time.Unix(now-120, 0).UTC()}},
		{"old", "[" + point(3600, "1") + "]", nil},
		{"Proxmox VE 8", fmt.Sprintf(`[{"time":%d,"cpu":0.1,"loadavg":1}]`, now-60), nil},
		{"empty", "[]", nil},
	} {
		h := ask(t, map[string]string{"/cluster/resources": row, "/nodes/pve/rrddata": c.history}, "pve", 1).Hosts[0]
		if !reflect.DeepEqual(h.Pressure, c.want) || h.Unanswered != "" {
			t.Errorf("%s: %+v %s", c.name, h.Pressure, h.Unanswered)
		}
	}
}

// TestRefused: without the list nothing is known.
func TestRefused(t *testing.T) {
	r := usage.Report{Hosts: []usage.Host{{Name: "pve"}}}
	if err := Ask(t.Context(), answers(nil), &r); err == nil {
		t.Error("no error")
	}
}
