package wizard

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
)

// StepView is a step as JSON has it: its words, and what is done.
type StepView struct {
	What    string   `json:"what"`
	Pvesh   []string `json:"pvesh,omitempty"` // arguments
	File    string   `json:"file,omitempty"`  // written
	Dir     string   `json:"directory,omitempty"`
	Mode    string   `json:"mode,omitempty"`
	Group   string   `json:"group,omitempty"`
	Remove  string   `json:"remove,omitempty"`
	Command []string `json:"command,omitempty"`
}

// PlanView is a plan as JSON has it.
type PlanView struct {
	Steps []StepView `json:"steps"`
	Notes []string   `json:"notes"`
}

// ViewPlan is the JSON form of a plan.
func ViewPlan(plan setup.Plan) PlanView {
	return PlanView{viewSteps(plan.Steps), append([]string{}, plan.Notes...)}
}

// showPlan shows every step, and what is left as it is.
func (i *session) showPlan(plan setup.Plan) {
	for _, s := range plan.Steps {
		i.printf("- %s\n    %s\n", s.What, s.Shown())
	}
	for _, n := range plan.Notes {
		i.printf("note: %s\n", n)
	}
	if len(plan.Steps) == 0 {
		i.printf("nothing to do\n")
	}
}

func viewSteps(steps []setup.Step) []StepView {
	out := []StepView{}
	for _, s := range steps {
		one := StepView{What: s.What, Remove: s.Remove, Command: s.Run}
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
func (i *session) showConflict(c setup.Conflict) {
	if c.Secret {
		i.printf("%s holds something else\n", c.Path)
		return
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(string(c.Have)), FromFile: c.Path,
		B: difflib.SplitLines(string(c.Want)), ToFile: "what init would write", Context: 2,
	})
	if err != nil {
		text = c.Path + " holds something else\n"
	}
	i.printf("%s", text)
}

// showNext shows what a person has to do now, with the public halves of the keys.
func (i *session) showNext() error {
	read := func(name string) ([]byte, bool, error) {
		data, _, err := config.ReadFile(i.Host.Path(setup.Credential(name)), 0)
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
		if recipients := listRecipients(ageKey); len(recipients) > 0 {
			i.printf("\nThe host opens secrets that are encrypted to this recipient (.sops.yaml):\n  %s\n", strings.Join(recipients, "\n  "))
			i.printf("Keep a copy of %s in your safe.\n", setup.Credential(setup.AgeKey))
		}
	}
	if hasSSH && i.wishes.Repository.SSH() {
		signer, err := ssh.ParsePrivateKey(sshKey)
		if err != nil {
			return fmt.Errorf("%s is not a private key without a passphrase", setup.Credential(setup.SSHKey))
		}
		i.printf("\nThe deploy key: register it at the forge for %s, to read only:\n  %s talos-agent@%s\n", i.wishes.Repository.URL,
			bytes.TrimSpace(ssh.MarshalAuthorizedKey(signer.PublicKey())), i.facts.Host)
	}
	dir := "DIR"
	if followed := i.wishes.Repository.Directory; followed != "" {
		dir = followed
	}
	i.printf("\nA repository to start from: talos-agent init repo %s\n", dir)
	switch {
	case i.Flags.Start || i.facts.Unit.Active:
		i.printf("The agent runs: talos-agent status, journalctl -u talos-agent\n")
	case i.facts.Unit.Installed:
		i.printf("Then: systemctl enable --now talos-agent\n")
	}
	return nil
}

// listRecipients are the public halves of age keys.
func listRecipients(keys []byte) []string {
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

// removeRecord removes what init remembers.
func (h target) removeRecord() error {
	err := os.Remove(h.Path(setup.RecordFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}
