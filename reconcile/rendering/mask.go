package rendering

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/reconcile/machineconfig"
)

// Mask hides the secrets of a cluster. Its digests are keyed with the cluster's own
// secrets: they are the same wherever the cluster is rendered, and whoever reads one cannot
// try passwords on it.
type Mask struct {
	key   []byte
	known *strings.Replacer
	// canonical is for each form of a secret what its digest is of, so that the forms of
	// one secret have one digest.
	canonical map[string]string
	// throwAway are forms of secrets that are made for this rendering only.
	throwAway map[string]bool
}

// NewMask makes the mask of the clusters that snapshots are of: it knows the secrets of
// all. With throwAway, their bundles are not theirs.
func NewMask(throwAway bool, snaps ...cluster.Snapshot) (*Mask, error) {
	m := &Mask{canonical: map[string]string{}, throwAway: map[string]bool{}}
	sum := sha256.New()
	_, _ = sum.Write([]byte("talos-agent digests of secrets\n"))
	for i, snap := range snaps {
		if snap.Bundle.IsZero() || i > 0 && snap.Bundle.Equal(snaps[0].Bundle) {
			continue
		}
		bundle, err := machineconfig.OpenBundle(snap.Bundle, snap.Spec.Versions.Contract)
		if err != nil {
			return nil, err
		}
		secrets, err := bundle.Secrets(throwAway)
		if err != nil {
			return nil, err
		}
		for _, s := range secrets {
			m.add(s.RevealString(), throwAway)
			if i == 0 && !throwAway {
				fmt.Fprintf(sum, "%q\n", s.RevealString())
			}
		}
	}
	for i, snap := range snaps {
		for _, s := range snap.Confidential {
			m.add(s.RevealString(), false)
			if i == 0 && snap.Bundle.IsZero() {
				fmt.Fprintf(sum, "%q\n", s.RevealString()) // there is nothing better
			}
		}
	}
	m.key = sum.Sum(nil)
	forms := slices.DeleteFunc(slices.Collect(maps.Keys(m.canonical)), func(form string) bool { return len(form) < cluster.ShortestFound })
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	var pairs []string
	for _, form := range forms { // of those that fit at one place, the first counts
		pairs = append(pairs, form, m.Hide(form))
	}
	m.known = strings.NewReplacer(pairs...)
	return m, nil
}

// add takes in a secret, in every form in which it may be written.
func (m *Mask) add(secret string, throwAway bool) {
	bare := strings.TrimSpace(secret)
	if bare == "" {
		return
	}
	forms := []string{secret, bare}
	if len(bare) >= cluster.ShortestFound {
		forms = append(forms, listForms(secret, bare)...)
	}
	for _, form := range forms {
		if _, known := m.canonical[form]; !known {
			m.canonical[form], m.throwAway[form] = bare, throwAway
		}
	}
}

// listForms lists how a secret is written inside of JSON, of addresses and of base64.
func listForms(secret, bare string) []string {
	quoted, err := json.Marshal(bare)
	if err != nil {
		panic(err) // a text
	}
	forms := []string{string(quoted[1 : len(quoted)-1]), url.PathEscape(bare), url.QueryEscape(bare), url.UserPassword("", bare).String()[1:]}
	for _, text := range []string{secret, bare, bare + "\n"} {
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			forms = append(forms, enc.EncodeToString([]byte(text)))
		}
	}
	return forms
}

// Hide returns what is shown in place of a secret: the same for the same secret.
func (m *Mask) Hide(secret string) string {
	if secret == "" {
		return ""
	}
	bare := strings.TrimSpace(secret)
	if m.throwAway[bare] {
		return "<secret throw-away>"
	}
	mac := hmac.New(sha256.New, m.key)
	_, _ = mac.Write([]byte(cmp.Or(m.canonical[bare], bare)))
	return fmt.Sprintf("<secret hmac:%x>", mac.Sum(nil)[:4])
}

// Clean returns a text with every secret in it hidden that is known.
func (m *Mask) Clean(text string) string {
	if _, known := m.canonical[text]; known && text != "" {
		return m.Hide(text)
	}
	return m.known.Replace(text)
}

// cleanScalar hides the secrets in a value of a machine config.
func (m *Mask) cleanScalar(v machineconfig.Scalar) string {
	if v.Secret {
		return m.Hide(v.Text)
	}
	return m.Clean(v.Text)
}

// cleanJSON hides the secrets in the texts of a JSON value.
func (m *Mask) cleanJSON(value []byte) (json.RawMessage, error) {
	text, err := rewriteJSON(value, "", m.cleanScalar)
	return bytes.TrimSpace(text), err
}

// rewriteJSON writes a JSON value with every text in it replaced by what rewrite returns
// for it, in the one spelling that equal values have.
func rewriteJSON(value []byte, indent string, rewrite func(machineconfig.Scalar) string) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, errors.New("read the values: they are no JSON")
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(rewriteTree(tree, "", rewrite)); err != nil {
		return nil, errors.New("write the values: they are no JSON")
	}
	return b.Bytes(), nil
}

func rewriteTree(v any, path string, rewrite func(machineconfig.Scalar) string) any {
	switch v := v.(type) {
	case string:
		return rewrite(machineconfig.Scalar{Path: path, Text: v})
	case map[string]any:
		for key, below := range v {
			v[key] = rewriteTree(below, strings.TrimPrefix(path+"."+key, "."), rewrite)
		}
	case []any:
		for i, below := range v {
			v[i] = rewriteTree(below, path+"[]", rewrite)
		}
	}
	return v
}
