package forwards

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster/forward"
)

func at(addresses ...string) (out []netip.Addr) {
	for _, a := range addresses {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

var three = []Rule{
	{forward.Forward{Port: 443, Protocol: forward.TCP, To: 8443}, at("10.10.0.21", "10.10.0.22")},
	{forward.Forward{Port: 53, Protocol: forward.UDP, To: 53}, at("10.10.0.21")},
	{forward.Forward{Port: 80, Protocol: forward.TCP, To: 80}, nil},
}

const want = `# port forwards of the cluster dev, written by talos-agent
table ip talos_own.dev
delete table ip talos_own.dev
table ip talos_own.dev {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local tcp dport 443 dnat ip to jhash ip saddr mod 2 map { 0 : 10.10.0.21 . 8443, 1 : 10.10.0.22 . 8443 }
		fib daddr type local udp dport 53 dnat to 10.10.0.21:53
	}
}
`

// TestSet: the file is what the rules are, and is not there without any.
func TestSet(t *testing.T) {
	dir := t.TempDir()
	d, file, other := New(dir, "own"), filepath.Join(dir, "own.dev.nft"), filepath.Join(dir, "own.prod.nft")
	set := func(rules []Rule) {
		t.Helper()
		if err := d.Set("dev", rules); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(other, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	set(three)
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("%s %v", got, err)
	}
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(file, long, long); err != nil {
		t.Fatal(err)
	}
	set(three)
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(long) {
		t.Errorf("what is right was written again: %v", err)
	}
	set(three[:1])
	if got, err := os.ReadFile(file); err != nil || strings.Contains(string(got), "dport 53") {
		t.Errorf("%s %v", got, err)
	}
	for _, none := range [][]Rule{three[2:], nil} {
		set(three)
		set(none)
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%v left a file: %v", none, err)
		}
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "x" {
		t.Errorf("the file of another cluster: %s %v", b, err)
	}
}

// TestNftTakesIt has nftables load the file twice, in a namespace of its own, and show
// what it has understood.
func TestNftTakesIt(t *testing.T) {
	needNamespace(t)
	file := filepath.Join(t.TempDir(), "dev.nft")
	if err := os.WriteFile(file, New("", "own").file("dev", three), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "unshare", "-rn", "sh", "-euc", `nft -f "$1"; nft -f "$1"; nft list ruleset`, "sh", file).CombinedOutput()
	if err != nil || strings.Count(string(out), "table ip talos_own.dev") != 1 || strings.Count(string(out), "dport") != 2 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestUnitOfTheDocumentation: the line that the page has root's unit run loads what is
// there, and deletes the tables of what is not there any more, and no others.
func TestUnitOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/port-forwards.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "\nExecStart=")
	command, _, _ := strings.Cut(rest, "\n")
	if !ok || !strings.Contains(command, "/var/lib/talos-agent-nft/") {
		t.Fatalf("the page has no command: %q", command)
	}
	needNamespace(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "own.dev.nft"), New("", "own").file("dev", three), 0o600); err != nil {
		t.Fatal(err)
	}
	command = strings.ReplaceAll(command, "/var/lib/talos-agent-nft", dir)
	script := "nft add table ip other\nnft add table ip talos_own.old\n" + command + "\n" + command + "\nnft list tables ip\nrm " + dir + "/*.nft\n" + command + "\necho then\nnft list tables ip\n"
	out, err := exec.CommandContext(t.Context(), "unshare", "-rn", "sh", "-euc", script).CombinedOutput()
	if want := "table ip other\ntable ip talos_own.dev\nthen\ntable ip other\n"; err != nil || string(out) != want {
		t.Errorf("%v: %s", err, out)
	}
}

// needNamespace skips a test where nftables cannot be tried.
func needNamespace(t *testing.T) {
	t.Helper()
	for _, program := range []string{"nft", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s here", program)
		}
	}
	if err := exec.CommandContext(t.Context(), "unshare", "-rn", "nft", "list", "ruleset").Run(); err != nil {
		t.Skipf("there can be no namespace of a network here: %v", err)
	}
}

// TestLargeFile: a file of any size that is right is not written again.
func TestLargeFile(t *testing.T) {
	dir := t.TempDir()
	d, file := New(dir, "own"), filepath.Join(dir, "own.dev.nft")
	var rules []Rule
	for port := range 60 {
		r := Rule{Forward: forward.Forward{Port: 1000 + port, Protocol: forward.TCP, To: 30000 + port}}
		for i := range 100 {
			r.Nodes = append(r.Nodes, netip.AddrFrom4([4]byte{10, 10, 0, byte(i)}))
		}
		rules = append(rules, r)
	}
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	for range 2 {
		if err := d.Set("dev", rules); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Size() < 64<<10 {
			t.Fatalf("%v, %v", info, err)
		}
		if err := os.Chtimes(file, long, long); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Set("dev", rules); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(long) {
		t.Errorf("written again at %v, %v", info.ModTime(), err)
	}
}
