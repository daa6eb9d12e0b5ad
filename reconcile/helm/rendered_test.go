package helm

import (
	"strings"
	"testing"
	"text/template"
	"text/template/parse"
)

// TestQuotedTexts: whatever a chart rendered to is itself again, and takes one node of a
// template to be parsed.
func TestQuotedTexts(t *testing.T) {
	for name, text := range map[string]string{
		"plain": "kind: ConfigMap\n", "braces": "a: {{ .Values.x }}\n", "quotes": "{{ `a` }} \"b\" \\n\t'c'\n", "no UTF-8": "{{\xff\x00}}",
		"trimmed": " {{- x -}} \n", "many": strings.Repeat("{{", 100_000), "unicode": "{{ \u2028 \U0001f600 }}",
	} {
		made, err := template.New("x").Parse(quoteTemplate(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var out strings.Builder
		if err := made.Execute(&out, nil); err != nil || out.String() != text {
			t.Errorf("%s: %.100q, %v", name, out.String(), err)
		}
		if n := len(made.Root.Nodes); n != 1 {
			t.Errorf("%s: %d nodes, the first being %v", name, n, made.Root.Nodes[0].Type() == parse.NodeText)
		}
	}
}
