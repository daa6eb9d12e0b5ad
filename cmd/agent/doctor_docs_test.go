package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/golden"
	"github.com/talos-agent/talos-agent/internal/host/doctor"
	"github.com/talos-agent/talos-agent/internal/lab/pve"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// TestDoctorReferenceIsCurrent writes docs/reference/doctor.md from the
// catalogue of checks.
func TestDoctorReferenceIsCurrent(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Checks of doctor

<!-- Written by ` + "`make docs`" + ` from internal/host/doctor/catalogue.go: change that. -->

What ` + "`talos-agent doctor`" + ` checks, in the order in which it reports it. Everything can pass; what else it can come to is in
the column "or". [How to use it](../how-to/troubleshoot.md).

`)
	group := ""
	for _, k := range doctor.Catalogue {
		if k.Group != group {
			group = k.Group
			fmt.Fprintf(&b, "## %s\n\n| check | by | passes when | or | hint |\n| --- | --- | --- | --- | --- |\n", group)
		}
		by := "daemon"
		if k.Root {
			by = "command"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Name, by, k.Looks, k.Levels, k.Hint)
		if next := nextKind(k.Name); next == nil || next.Group != group {
			b.WriteString("\n")
		}
	}
	b.WriteString(`**daemon**: with the daemon's credentials, in its sandbox; served over [the socket](api.md) as ` + "`GET /v1/doctor`" + `. **command**: by
the command itself, on the host it is run on; as root it sees all of it.

## JSON

` + "`talos-agent doctor --output json`" + ` prints, in the envelope of the socket, the kind ` + "`Doctor`" + `:

` + "```json" + `
{
  "kind": "Doctor", "apiVersion": "v1",
  "data": {
    "checks": [
      {"name": "pool", "subject": "talos", "level": "fail", "message": "there is no such pool", "hint": "` + "`pveum pool add talos`" + `, or correct ` + "`pool`" + ` in the policy"}
    ],
    "summary": {"pass": 0, "warn": 0, "fail": 1, "skipped": 0}
  }
}
` + "```" + `

| field | meaning |
| --- | --- |
| ` + "`name`" + ` | the kind of the check, as above |
| ` + "`subject`" + ` | which of its kind: a path of privileges, ` + "`HOST/STORAGE`" + `, a file, a cluster; may be missing |
| ` + "`level`" + ` | ` + "`pass`, `warn`, `fail` or `skipped`" + ` |
| ` + "`message`" + ` | what was found, in words |
| ` + "`hint`" + ` | what to do about it; may be missing |

Names and levels are stable; words may change. There may be several checks of one name.
`)
	golden.Check(t, filepath.Join(reference, "doctor.md"), b.Bytes())
}

// nextKind is the kind behind one in the catalogue; nil behind the last.
func nextKind(name string) *doctor.Kind {
	for i, k := range doctor.Catalogue {
		if k.Name == name && i+1 < len(doctor.Catalogue) {
			return &doctor.Catalogue[i+1]
		}
	}
	return nil
}

// TestDoctorScreen: the page shows what the command says of such a host. What
// differs from run to run has a fixed word in it.
func TestDoctorScreen(t *testing.T) {
	r := newPatient(t)
	r.lab.PVE.Role("TalosAgentStore", "Datastore.AllocateSpace", "Datastore.Audit")
	r.lab.PVE.ChangeBridge("pve1", "vmbr1", pve.Bridge{Down: true})
	r.lab.PVE.Backup(pve.BackupJob{"id": "backup-nightly", "all": 1, "mode": "stop"})
	var b strings.Builder
	printReport(terminal.NewPlain(&b), doctor.NewReport(r.examine()))
	screen := strings.ReplaceAll(b.String(), r.base, "10.10.0.")
	for _, m := range []struct{ found, shown string }{
		{`https://10\.10\.0\.2:8006`, "https://127.0.0.1:8006"}, {`until \d{4}-\d\d-\d\d`, "until 2028-11-22"}, {`sha1:[0-9a-f]+`, "sha1:5b2f3f6f2f0c"},
		{`10\.10\.0\.3:8443`, "factory.talos.dev"}, {`10\.10\.0\.4:8443`, "helm.cilium.io"}, {`10\.10\.0\.5:8443`, "mirror.example.org"},
	} {
		screen = regexp.MustCompile(m.found).ReplaceAllString(screen, m.shown)
	}
	const page, begin, end = "../../docs/how-to/troubleshoot.md", "<!-- screen: doctor -->\n```text\n", "```\n"
	text, err := os.ReadFile(page)
	must(err)
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the screen", page)
	}
	golden.Check(t, page, []byte(before+begin+screen+end+after))
}
