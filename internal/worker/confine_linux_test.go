package worker

import (
	"net"
	"os"
	"testing"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// TestConfinement: a worker reports what confines it, as far as this kernel has it.
func TestConfinement(t *testing.T) {
	c, err := FindConfinement(t.Context(), Run)
	if err != nil {
		t.Fatal(err)
	}
	if version, err := landlock.LandlockGetABIVersion(); err == nil && c.Landlock != version || err != nil && c.Landlock != 0 {
		t.Errorf("%+v, and this kernel has Landlock %d, %v", c, version, err)
	}
	t.Log(c)
}

// TestConfinementInWords: what is missing is named.
func TestConfinementInWords(t *testing.T) {
	for c, want := range map[Confinement]string{
		{Landlock: 4, Seccomp: true}: "Landlock: yes, seccomp: yes; ",
		{Landlock: 4}:                "Landlock: yes, seccomp: no; seccomp",
		{Seccomp: true}:              "Landlock: no, seccomp: yes; Landlock",
		{}:                           "Landlock: no, seccomp: no; Landlock and seccomp",
	} {
		if got := c.String() + "; " + c.Missing(); got != want {
			t.Errorf("%+v: %s, want %s", c, got, want)
		}
	}
}

// TestConfined: a worker reaches no network, no other program and no file, and knows
// nothing of the environment.
func TestConfined(t *testing.T) {
	t.Setenv("TALOS_AGENT_TEST_SECRET", "hunter2")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if version, err := landlock.LandlockGetABIVersion(); err != nil || version < 1 {
		t.Skipf("this kernel has no Landlock: %v", err)
	}
	got, err := Run(t.Context(), escaping, moderate, []byte(l.Addr().String()), nil)
	if want := "GOTRACEBACK=none MALLOC_ARENA_MAX=1"; err != nil || string(got) != want {
		t.Errorf("it did: %s, %v; want %s", got, err, want)
	}
	if _, err := os.Stat("/usr/share/zoneinfo/Europe/Berlin"); err != nil {
		t.Logf("this machine has no time zones: %v", err)
	}
}
