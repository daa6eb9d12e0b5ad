package formats

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/repo/importing/draft"
)

// inline are keys of nodes and groups that are parts of the machine config themselves, by
// their paths there.
var inline = []struct {
	key  string
	path []string
	kind kind
}{
	{"kernelModules", []string{"machine", "kernel", "modules"}, list},
	{"machineFiles", []string{"machine", "files"}, list},
	{"disableSearchDomain", []string{"machine", "network", "disableSearchDomain"}, truth},
}

// documents are keys of nodes and groups that are lists of documents of the machine config,
// by their kinds there.
var documents = []struct{ key, kind string }{
	{"extensionServices", "ExtensionServiceConfig"},
	{"userVolumes", "UserVolumeConfig"},
	{"volumes", "VolumeConfig"},
}

// readDocuments makes a patch out of the settings that are the machine config's own.
func (t *talhelperReader) readDocuments(n talhelperNode) {
	var texts []string
	patch := draft.Mapping()
	for _, in := range inline {
		v := n.take(in.key, kindNames[in.kind], in.kind)
		switch {
		case v == nil:
		case namesFile(v):
			n.leave(in.key, "names another file", "write a patch with "+strings.Join(in.path, ".")+" and its content")
		case findSecret(v, "") != "":
			n.leave(in.key, "has a secret, and was not copied", "write a patch with "+strings.Join(in.path, ".")+", and ${values.NAME} for the secret: docs/how-to/patches-with-secrets.md")
		default:
			patch.Set(draft.Origin{}, convertValue(v), in.path...)
		}
	}
	if patch.Len() > 0 {
		texts = append(texts, patch.YAML())
	}
	for _, doc := range documents {
		for _, s := range n.sections(doc.key) {
			if namesFile(s.value) {
				s.leave("name", "names another file", "write a patch of the kind "+doc.kind)
				continue
			}
			if key := findSecret(withoutKey(s.value, "environment"), ""); key != "" {
				s.leave(key, "has a secret, and was not copied", "write a patch of the kind "+doc.kind+", with ${values.NAME} for the secret: docs/how-to/patches-with-secrets.md")
				continue
			}
			texts = append(texts, t.documentOf(doc.kind, s))
		}
	}
	if firewall := n.section.section("ingressFirewall"); firewall != nil {
		texts = append(texts, firewallOf(firewall)...)
	}
	if len(texts) == 0 {
		return
	}
	o := draft.Origin{File: n.file, Line: n.value.line, Name: n.path}
	if text, ok := t.replaceVariables(n.section, "", strings.Join(texts, "---\n")); ok {
		t.attach(n.name, n.node, t.d.AddPatch(o, n.name, text))
	}
}

// namesFile reports whether a text in a value is the name of a file, which is not opened.
func namesFile(v *value) bool {
	if v.kind == text && strings.HasPrefix(v.text, "@") {
		return true
	}
	for _, item := range v.items {
		if namesFile(item) {
			return true
		}
	}
	for _, e := range v.keys {
		if namesFile(e.value) {
			return true
		}
	}
	return false
}

// withoutKey returns a mapping without one of its keys.
func withoutKey(v *value, key string) *value {
	out := *v
	out.keys = slices.DeleteFunc(slices.Clone(v.keys), func(e entry) bool { return e.key == key })
	return &out
}

// documentOf writes a document of the machine config. Variables of the environment that are
// secrets by their names become values of the cluster's secrets.
func (t *talhelperReader) documentOf(kind string, s *section) string {
	out := draft.Mapping()
	out.Set(draft.Origin{}, draft.Text("v1alpha1"), "apiVersion")
	out.Set(draft.Origin{}, draft.Text(kind), "kind")
	for _, e := range s.value.keys {
		s.taken[e.key] = true
		if e.key != "environment" || e.value.kind != list {
			out.Set(draft.Origin{}, convertValue(e.value), e.key)
			continue
		}
		variables := draft.List()
		for _, item := range e.value.items {
			name, value, _ := strings.Cut(item.text, "=")
			if secret := secretWord.MatchString(name) || clearSecret.MatchString(value); secret && !strings.Contains(value, "${") {
				value = "${values." + strings.ToLower(name) + "}"
				t.d.Leave(s.origin(e.key), joinPath(s.path, e.key), name+" is a secret, and was not copied", "put it into the secrets: talos-agent secrets new --value-file "+strings.ToLower(name)+"=FILE")
			}
			variables.Append(draft.Text(name + "=" + value))
		}
		out.Set(draft.Origin{}, variables, e.key)
	}
	return out.YAML()
}

// firewallOf writes the documents of a firewall.
func firewallOf(s *section) (out []string) {
	if action := s.text("defaultAction"); action != "" {
		doc := draft.Mapping()
		doc.Set(draft.Origin{}, draft.Text("v1alpha1"), "apiVersion")
		doc.Set(draft.Origin{}, draft.Text("NetworkDefaultActionConfig"), "kind")
		doc.Set(draft.Origin{}, draft.Text(action), "ingress")
		out = append(out, doc.YAML())
	}
	for _, rule := range s.sections("rules") {
		doc := draft.Mapping()
		doc.Set(draft.Origin{}, draft.Text("v1alpha1"), "apiVersion")
		doc.Set(draft.Origin{}, draft.Text("NetworkRuleConfig"), "kind")
		for _, e := range rule.value.keys {
			doc.Set(draft.Origin{}, convertValue(e.value), e.key)
		}
		out = append(out, doc.YAML())
	}
	s.rest(nil)
	return out
}

// addPatches adds the patches of a node, or of a group: "all" or a role.
func (t *talhelperReader) addPatches(s *section, scope string, node *draft.Value) {
	for i, item := range s.list("patches") {
		at := fmt.Sprintf("%s[%d]", joinPath(s.path, "patches"), i)
		o := draft.Origin{File: s.file, Line: item.line, Name: at}
		body, name := item.text, scope
		if ref, isFile := strings.CutPrefix(body, "@"); isFile {
			other := t.find(ref)
			if other == nil {
				t.d.Leave(o, at, "names another file", "name "+ref+" as an argument, too, or copy it to patches/ and name it in patches of cluster.yaml or of the node")
				continue
			}
			o, body = draft.Origin{File: other.Name}, string(other.Data)
			name = strings.TrimSuffix(path.Base(ref), path.Ext(ref))
		}
		if why, hint := refusePatch(body); why != "" {
			t.d.Leave(o, at, why, hint)
			continue
		}
		if text, ok := t.replaceVariables(s, at, body); ok {
			t.attach(scope, node, t.d.AddPatch(o, fileName(name), text))
		}
	}
}

// find returns the file of another argument that a patch names, nil if there is none.
func (t *talhelperReader) find(ref string) *source {
	want := path.Join(path.Dir(toSlash(t.file.Name)), toSlash(ref))
	for i, s := range t.sources {
		if path.Clean(toSlash(s.Name)) == want && s.Format.Name == patchFile.Name {
			t.used[s.Name] = true
			return &t.sources[i]
		}
	}
	return nil
}

func toSlash(name string) string { return strings.ReplaceAll(name, `\`, "/") }

// refusePatch is why a text is no patch that the inventory takes, and what to do; "" if it is.
func refusePatch(body string) (why, hint string) {
	docs, err := readYAML([]byte(body))
	if err != nil || len(docs) == 0 {
		return "is no YAML", hintByPatch
	}
	for _, d := range docs {
		if d.kind == list {
			return "is a JSON patch (RFC 6902)", "write the part of the machine config that should change: only strategic-merge patches are taken"
		}
		if d.kind != mapping && d.kind != null {
			return "is no patch", hintByPatch
		}
	}
	if strings.Contains(body, "{{") {
		return "has a template", "write what it comes to"
	}
	if clearSecret.MatchString(body) || inComment.MatchString(body) {
		return "has what looks like a secret, as in a comment, and was not copied", "take it out, or copy it by hand, with ${values.NAME} for the secret: docs/how-to/patches-with-secrets.md"
	}
	for _, d := range docs {
		if key := findSecret(d, ""); key != "" {
			return "has a secret by its name in " + key + ", and was not copied", "copy it by hand, with ${values.NAME} for the secret: docs/how-to/patches-with-secrets.md"
		}
	}
	return "", ""
}

// clearSecret matches what only secrets have: mostly their beginning, and the password in a URL.
var clearSecret = pattern.New(`-----BEGIN [A-Z ]*PRIVATE KEY-----|AGE-SECRET-KEY-1|tskey-|\bgh[oprsu]_|github_pat_|glpat-|://[^/\s:@]*:[^/\s@$]+@`)

// inContent matches what the content of a file has where it has a secret.
var inContent = pattern.New(`(?i)\b(pass|password|passwd|passphrase|secret|token|credentials?|api[_-]?key|auth[_-]?key|private[_-]?key)\b`)

// inComment matches a comment with a value of what is a secret by its name, as a line that was taken out of use has.
var inComment = pattern.New(`(?im)#.*(secret|token|password|passwd|passphrase|credentials?|(api|auth|private|ssh|pre_?shared)_?key)["']?\s*[:=]\s*["']?[^\s"'$]`)

// harmless matches what settings have whose names sound like secrets, such as
// authentication-token-webhook.
var harmless = pattern.New(`^(true|false|[0-9]+[smhd]?|/.*|https?://[^@]*)$`)

// findSecret returns the key of a text that is a secret by its name, or by how it begins, and
// stands there in clear; "" where there is none.
func findSecret(v *value, key string) string {
	if content := key == "content" || key == "contents"; content && v.kind == text && !strings.Contains(v.text, "${") && inContent.MatchString(v.text) {
		return key
	}
	named := secretWord.MatchString(key) && !strings.Contains(v.text, "${") && !harmless.MatchString(v.text)
	if v.kind == text && v.text != "" && (clearSecret.MatchString(v.text) || named) {
		return key
	}
	for _, item := range v.items {
		if found := findSecret(item, key); found != "" {
			return found
		}
	}
	for _, e := range v.keys {
		if found := findSecret(e.value, e.key); found != "" {
			return found
		}
	}
	return ""
}

var (
	anyVariable = pattern.New(`\$\{[^}]*\}?`)
	variableRef = pattern.New(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)
)

// replaceVariables makes values of the cluster's secrets out of variables of the
// environment, which is not read. One with a default or an operator is reported.
func (t *talhelperReader) replaceVariables(s *section, at, body string) (string, bool) {
	ok, seen := true, map[string]bool{}
	o := draft.Origin{File: s.file, Line: s.value.line}
	field := at
	if field == "" {
		field = s.path
	}
	out := anyVariable.ReplaceAllStringFunc(body, func(ref string) string {
		if strings.HasPrefix(ref, "${values.") {
			return ref
		}
		m := variableRef.FindStringSubmatch(ref)
		if m == nil {
			ok = false
			return ref
		}
		if name := m[1]; !seen[name] {
			seen[name] = true
			t.d.Leave(o, field, "uses the variable "+name, "put it into the secrets: talos-agent secrets new --value-file "+name+"=FILE")
		}
		return "${values." + m[1] + "}"
	})
	if !ok {
		t.d.Leave(o, field, "has a variable with a default or an operator", "write what it comes to, or ${values.NAME} for a value of the secrets")
	}
	return out, ok
}

// notName are characters that the names of files of patches do not have.
var notName = pattern.New(`[^A-Za-z0-9._-]+`)

func fileName(s string) string {
	s = strings.Trim(notName.ReplaceAllString(s, "-"), "-.")
	if s == "" {
		return "patch"
	}
	return s[:min(len(s), 60)]
}

// attach names a patch where it belongs.
func (t *talhelperReader) attach(scope string, node *draft.Value, file string) {
	if node == nil {
		t.addTexts(draft.Origin{}, []string{file}, []string{"patches", scope})
		return
	}
	if have := node.Get("patches"); have != nil {
		have.Append(draft.Text(file))
		return
	}
	node.Set(draft.Origin{}, draft.Texts(file), "patches")
}
