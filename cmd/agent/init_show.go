package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/pmezard/go-difflib/difflib"
	"golang.org/x/crypto/ssh"

	"github.com/talos-agent/talos-agent/internal/host/config"
	"github.com/talos-agent/talos-agent/internal/host/setup"
	"github.com/talos-agent/talos-agent/internal/terminal"
)

// initStep is a step as JSON has it: its words, and what is done.
type initStep struct {
	What    string   `json:"what"`
	Pvesh   []string `json:"pvesh,omitempty"` // arguments
	File    string   `json:"file,omitempty"`  // written
	Dir     string   `json:"directory,omitempty"`
	Mode    string   `json:"mode,omitempty"`
	Group   string   `json:"group,omitempty"`
	Remove  string   `json:"remove,omitempty"`
	Command []string `json:"command,omitempty"`
}

// showPlan shows every step, and what is left as it is.
func showPlan(p terminal.Printer, plan setup.Plan) error {
	if p.IsJSON() {
		return p.PrintJSON("InitPlan", struct {
			Steps []initStep `json:"steps"`
			Notes []string   `json:"notes"`
		}{stepsAsJSON(plan.Steps), append([]string{}, plan.Notes...)})
	}
	for _, s := range plan.Steps {
		p.Printf("- %s\n    %s\n", s.What, s.Shown())
	}
	for _, n := range plan.Notes {
		p.Printf("note: %s\n", n)
	}
	if len(plan.Steps) == 0 {
		p.Printf("nothing to do\n")
	}
	return nil
}

func stepsAsJSON(steps []setup.Step) []initStep {
	out := []initStep{}
	for _, s := range steps {
		one := initStep{What: s.What, Remove: s.Remove, Command: s.Run}
		file := s.File
		switch {
		case s.Call != nil:
			one.Pvesh, file = s.Call.Args(), s.Call.SecretTo
		case s.Dir != nil:
			one.Dir, one.Mode, one.Group = s.Dir.Path, fmt.Sprintf("%04o", s.Dir.Mode), "root"
		}
		if file != nil {
			one.File, one.Mode, one.Group = file.Path, fmt.Sprintf("%04o", file.Mode), "root"
			if file.Group != "" {
				one.Group = file.Group
			}
		}
		out = append(out, one)
	}
	return out
}

// showConflict shows how a file differs from what would be written. What is
// secret is not shown.
func showConflict(p terminal.Printer, c setup.Conflict) {
	if p.IsJSON() {
		return
	}
	if c.Secret {
		p.Printf("%s holds something else\n", c.Path)
		return
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(string(c.Have)), FromFile: c.Path,
		B: difflib.SplitLines(string(c.Want)), ToFile: "what init would write", Context: 2,
	})
	if err != nil {
		text = c.Path + " holds something else\n"
	}
	p.Printf("%s", text)
}

// next says what a person has to do now, with the public halves of the keys.
func (i *initRun) next(p terminal.Printer) error {
	read := func(name string) ([]byte, bool, error) {
		data, _, err := config.ReadFile(i.host.Path(setup.Credential(name)), 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, false, nil
		}
		return data, err == nil, err
	}
	ageKey, hasAge, errAge := read(setup.AgeKey)
	sshKey, hasSSH, errSSH := read(setup.SSHKey)
	if err := errors.Join(errAge, errSSH); err != nil {
		return err
	}
	if hasAge {
		if recipients := recipientsOf(ageKey); len(recipients) > 0 {
			p.Printf("\nThe host opens secrets that are encrypted to this recipient (.sops.yaml):\n  %s\n", strings.Join(recipients, "\n  "))
			p.Printf("Keep a copy of %s in your safe.\n", setup.Credential(setup.AgeKey))
		}
	}
	if hasSSH && i.wishes.Repository.SSH() {
		signer, err := ssh.ParsePrivateKey(sshKey)
		if err != nil {
			return fmt.Errorf("%s is not a private key without a passphrase", setup.Credential(setup.SSHKey))
		}
		p.Printf("\nThe deploy key: register it at the forge for %s, to read only:\n  %s talos-agent@%s\n", i.wishes.Repository.URL,
			bytes.TrimSpace(ssh.MarshalAuthorizedKey(signer.PublicKey())), i.facts.Host)
	}
	p.Printf("\nA repository to start from: talos-agent init repo DIR\n")
	switch {
	case i.flags.start || i.facts.Unit.Active:
		p.Printf("The agent runs: talos-agent status, journalctl -u talos-agent\n")
	case i.facts.Unit.Installed:
		p.Printf("Then: systemctl enable --now talos-agent\n")
	}
	return nil
}

// recipientsOf are the public halves of age keys.
func recipientsOf(keys []byte) []string {
	identities, err := age.ParseIdentities(bytes.NewReader(keys))
	if err != nil {
		return nil // ssh keys, which have another form
	}
	var out []string
	for _, id := range identities {
		switch id := id.(type) {
		case *age.X25519Identity:
			out = append(out, id.Recipient().String())
		case *age.HybridIdentity:
			out = append(out, id.Recipient().String())
		}
	}
	slices.Sort(out)
	return out
}

// forget removes what init remembers.
func (h target) forget() error {
	err := os.Remove(h.Path(setup.RecordFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}
