package machineconfig

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// renderWith renders a cluster whose nodes have a patch, whatever that is warned of.
func renderWith(t *testing.T, contract, patch string) map[string]cluster.Config {
	t.Helper()
	s := snapshot(t, contract)
	withPatch(&s, "files.yaml", patch)
	var r Renderer
	configs, ps := r.Render(s, testSchematic)
	if ps.HasErrors() || len(configs) != len(s.Spec.Nodes) {
		t.Fatalf("problems:\n%v", ps)
	}
	return configs
}

// joinDocuments is the text of documents, as they are sent.
func joinDocuments(docs []Document) string {
	var texts []string
	for _, d := range docs {
		texts = append(texts, d.Text)
	}
	return strings.Join(texts, "---\n")
}

func TestRewriteKeepsWhatIsNotReplaced(t *testing.T) {
	for contract := range talosFor {
		for node, c := range renderWith(t, contract, filesPatch) {
			docs, err := Rewrite(c.Bytes.Reveal(), func(v Scalar) string { return v.Text })
			if err != nil {
				t.Fatal(err)
			}
			if got := joinDocuments(docs); got != c.Bytes.RevealString() {
				t.Errorf("%s of %s is written in another way:\n%s\nas sent:\n%s", node, contract, got, c.Bytes.RevealString())
			}
		}
	}
}

const filesPatch = `machine:
  files:
    - path: /var/token
      op: create
      permissions: 0o600
      content: |
        user: "a: b"
          token=abcd
    - path: /var/other
      op: create
      permissions: 0o600
      content: "yes"
`

func TestRewriteKnowsEverySecretOfTheBundle(t *testing.T) {
	for contract := range talosFor {
		s := snapshot(t, contract)
		b, err := OpenBundle(s.Bundle, contract)
		if err != nil {
			t.Fatal(err)
		}
		secrets, err := b.Secrets(false)
		if err != nil {
			t.Fatal(err)
		}
		if len(secrets) < 14 {
			t.Fatalf("%d secrets in a bundle", len(secrets))
		}
		for node, c := range mustRender(t, s) {
			docs, err := Rewrite(c.Bytes.Reveal(), func(v Scalar) string {
				if v.Secret {
					return "<hidden>"
				}
				return v.Text
			})
			if err != nil {
				t.Fatal(err)
			}
			got := joinDocuments(docs)
			for _, secret := range secrets {
				raw := secret.RevealString()
				for _, form := range []string{raw, base64.StdEncoding.EncodeToString([]byte(raw))} {
					if strings.Contains(got, form) {
						t.Errorf("%s of %s shows a secret of the bundle:\n%s", node, contract, got)
					}
				}
			}
			if !strings.Contains(got, "<hidden>") || !strings.Contains(got, "dev") {
				t.Errorf("%s of %s: nothing is hidden, or everything:\n%s", node, contract, got)
			}
		}
	}
}

func TestRewritePaths(t *testing.T) {
	paths := map[string]bool{}
	if _, err := Rewrite(renderWith(t, "v1.13", filesPatch)["dev-wk-1"].Bytes.Reveal(), func(v Scalar) string {
		paths[v.Document+" "+v.Path] = true
		return v.Text
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"v1alpha1 machine.files[].content", "v1alpha1 machine.token", "HostnameConfig hostname"} {
		if !paths[want] {
			t.Errorf("there is no %q in %v", want, paths)
		}
	}
}

func TestRewriteDoesNotQuoteWhatItCannotRead(t *testing.T) {
	_, err := Rewrite([]byte("machine:\n  token: [very-secret-token]\n"), func(v Scalar) string { return v.Text })
	if err == nil || strings.Contains(err.Error(), "very-secret-token") {
		t.Errorf("the error is %v", err)
	}
}

// Whatever a value becomes, the documents can be read again.
func TestRewrittenDocumentsCanBeRead(t *testing.T) {
	config := mustRender(t, snapshot(t, "v1.14"))["dev-cp-1"].Bytes.Reveal()
	for _, text := range []string{" begins with a space\n", "", "a: b", "- a\n- b\n", "<secret hmac:0123abcd>", "# none", "\ttab", "two\n\n\nlines  \n \n"} {
		docs, err := Rewrite(config, func(v Scalar) string {
			if v.Secret {
				return text
			}
			return v.Text
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			if _, err := decodeDocuments([]byte(d.Text)); err != nil {
				t.Errorf("%q: %v:\n%s", text, err, d.Text)
			}
		}
	}
}
