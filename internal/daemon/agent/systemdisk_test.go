package agent_test

import (
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/lab"
)

// TestDetachedSystemDisk: a system disk that was detached by hand, and one that was
// attached again in the web interface, which drops its serial, are told of, and the
// command of the hint brings the node back.
func TestDetachedSystemDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sz := size{ControlPlanes: 1, Workers: 1}
		s := newSim(t, sz, lab.Config{})
		defer s.Close()
		s.Boot()
		s.UntilReady(20 * time.Minute)
		const id = 541
		vm, _ := s.Lab.PVE.VM(id)
		volume, options, _ := strings.Cut(vm.Config["scsi0"], ",")
		_, size, _ := strings.Cut(options, "size=")
		size, _, _ = strings.Cut(size, ",")
		edit := func(options ...string) {
			must(s.Cluster().Suspend())
			if isRunning(s, id) {
				must(s.Lab.PVE.Stop(id))
			}
			for i := 0; i < len(options); i += 2 {
				must(s.Lab.PVE.Edit(id, options[i], options[i+1]))
			}
			must(s.Cluster().Resume())
		}
		told := func(words string) (hint string) {
			t.Helper()
			s.Until(10*time.Minute, words, func(st cluster.Status) bool {
				hint = st.Hint
				return st.Condition == cluster.Stalled && st.Reason == cluster.SystemDiskMissing && strings.Contains(st.Message, words)
			})
			time.Sleep(10 * time.Minute)
			if isRunning(s, id) {
				t.Error("a VM without its disk was started")
			}
			return hint
		}
		edit("scsi0", "", "unused0", volume, "boot", " ")
		first := told("the system disk of vm 541 is detached: " + volume + " is kept as unused0")
		edit("unused0", "", "scsi0", volume+",size="+size)
		hint := told("scsi0 of vm 541 lacks the serial talos-sys")
		if hint != first {
			t.Errorf("%s\n%s", first, hint)
		}
		m := regexp.MustCompile("`qm set 541 --scsi0 (\\S+) --boot (\\S+)`").FindStringSubmatch(hint)
		if m == nil {
			t.Fatal(hint)
		}
		edit("scsi0", m[1]+",size="+size, "boot", m[2])
		s.Until(20*time.Minute, "Ready", func(st cluster.Status) bool { return st.Condition == cluster.Ready })
		s.CheckRules(sz)
		s.Halt()
	})
}
