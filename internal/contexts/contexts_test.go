package contexts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	mine = `apiVersion: v1
kind: Config
current-context: home
# Mine.
clusters:
  - {name: home, cluster: {server: "https://home:6443"}}
  - {name: dev, cluster: {server: "https://old:6443"}}
contexts:
  - {name: home, context: {cluster: home, user: me}}
  - {name: admin@dev, context: {cluster: dev, user: admin@dev}}
users:
  - {name: me, user: {token: s3cret}}
`
	dev = `apiVersion: v1
kind: Config
current-context: admin@dev
clusters:
  - name: dev
    cluster: {server: "https://10.10.0.11:6443"}
contexts:
  - name: admin@dev
    context: {cluster: dev, user: admin@dev}
users:
  - name: admin@dev
    user: {client-key-data: new}
`
	talos = "context: dev\ncontexts:\n    dev:\n        endpoints: [10.10.0.11]\n"
)

// TestOthers: what would be lost is named, and nothing is where the file is the
// cluster's own.
func TestOthers(t *testing.T) {
	for _, c := range []struct {
		have, written string
		want          []string
	}{
		{mine, dev, []string{"home"}},
		{dev, dev, nil},
		{"", dev, nil},
		{"context: x\ncontexts: {dev: {}, prod: {}}\n", talos, []string{"prod"}},
		{"contexts:\n", talos, nil},
	} {
		if got, err := Others([]byte(c.have), []byte(c.written)); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s\n%q %v, want %q", c.have, got, err, c.want)
		}
	}
	for _, have := range []string{"- a", "s3cret", "a: [s3cret", "\x00"} {
		if _, err := Others([]byte(have), []byte(dev)); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", have, err)
		}
	}
}

// kubeconfigOf is the file of a cluster named dev, as the agent writes it.
func kubeconfigOf(authority, certificate string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: admin@dev
clusters:
  - {name: dev, cluster: {server: "https://10.10.0.11:6443", certificate-authority-data: %s}}
contexts:
  - {name: admin@dev, context: {cluster: dev, user: admin@dev}}
users:
  - {name: admin@dev, user: {client-certificate-data: %s}}
`, authority, certificate)
}

// talosconfigOf is the same for talosctl.
func talosconfigOf(authority, certificate string) string {
	return fmt.Sprintf("context: dev\ncontexts:\n    dev: {endpoints: [10.10.0.11], ca: %s, crt: %s}\n", authority, certificate)
}

// TestAuthority: what has the same name is replaced where it is of the same
// cluster, with another client certificate too; what is of another cluster is not
// lost, and named where it would be.
func TestAuthority(t *testing.T) {
	kube, talos := kubeconfigOf("b3Vycw==", "new"), talosconfigOf("b3Vycw==", "new")
	const one = "dev belongs to another cluster there: rename or remove it, or name another file"
	for name, c := range map[string]struct {
		have, written string
		fails         string // of Merge
		others        []string
	}{
		"renewed":                {have: kubeconfigOf("b3Vycw==", "old"), written: kube},
		"renewed, for talosctl":  {have: talosconfigOf("b3Vycw==", "old"), written: talos},
		"folded":                 {have: kubeconfigOf(`"b3Vy\n  cw=="`, "old"), written: kube},
		"another's":              {have: kubeconfigOf("dGhlaXJz", "old"), written: kube, fails: "dev, admin@dev belong to another cluster there: rename or remove them, or name another file", others: []string{"admin@dev of another cluster"}},
		"another's, of talosctl": {have: talosconfigOf("dGhlaXJz", "old"), written: talos, fails: one, others: []string{"dev of another cluster"}},
		"without an authority":   {have: "contexts: {dev: {endpoints: [a], auth: {siderov1: {identity: me}}}}\n", written: talos, fails: one, others: []string{"dev of another cluster"}},
		"an empty one":           {have: "contexts: {dev: null}\n", written: talos},
		"only the cluster":       {have: "clusters: [{name: dev, cluster: {server: a, certificate-authority: ca.crt}}]\n", written: kube, fails: one},
		"the context of another": {have: "clusters: [{name: x, cluster: {server: a, certificate-authority-data: dGhlaXJz}}]\ncontexts: [{name: admin@dev, context: {cluster: x, user: me}}]\n",
			written: kube, fails: strings.Replace(one, "dev", "admin@dev", 1), others: []string{"admin@dev of another cluster"}},
		"the user of another": {have: "clusters: [{name: x, cluster: {server: a, certificate-authority-data: dGhlaXJz}}]\ncontexts: [{name: x, context: {cluster: x, user: admin@dev}}]\nusers: [{name: admin@dev, user: {token: a}}]\n",
			written: kube, fails: strings.Replace(one, "dev", "admin@dev", 1), others: []string{"x"}},
		"left of a deleted cluster": {have: "contexts: [{name: admin@dev, context: {cluster: dev, user: admin@dev}}]\nusers: [{name: admin@dev, user: {token: a}}]\n", written: kube},
		"ours under two names": {have: "clusters: [{name: tunnel, cluster: {server: a, certificate-authority-data: b3Vycw==}}]\ncontexts: [{name: tunnel, context: {cluster: tunnel, user: admin@dev}}]\nusers: [{name: admin@dev, user: {token: a}}]\n",
			written: kube, others: []string{"tunnel"}},
	} {
		others, err := Others([]byte(c.have), []byte(c.written))
		if err != nil || !slices.Equal(others, c.others) {
			t.Errorf("%s: others %q %v, want %q", name, others, err, c.others)
		}
		got, err := Merge([]byte(c.have), []byte(c.written))
		switch {
		case c.fails == "" && (err != nil || strings.Contains(string(got), ": old") || !strings.Contains(string(got), "new")):
			t.Errorf("%s: %v\n%s", name, err, got)
		case c.fails != "" && (err == nil || err.Error() != c.fails):
			t.Errorf("%s: %v, want %s", name, err, c.fails)
		}
	}
}

// TestMerge: what has the same name is replaced, the rest stays as it was.
func TestMerge(t *testing.T) {
	got, err := Merge([]byte(mine), []byte(dev))
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	for _, want := range []string{"current-context: admin@dev", "# Mine.", "https://home:6443", "https://10.10.0.11:6443", "token: s3cret", "client-key-data: new"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%s is not there once:\n%s", want, text)
		}
	}
	if strings.Contains(text, "old") || strings.Count(text, "name: admin@dev") != 2 {
		t.Errorf("the old ones are there still:\n%s", text)
	}
	again, err := Merge(got, []byte(dev))
	if err != nil || string(again) != text {
		t.Errorf("merged again it is another: %v\n%s", err, again)
	}
	if others, err := Others(got, []byte(dev)); err != nil || !slices.Equal(others, []string{"home"}) {
		t.Error(others, err)
	}
	for have, want := range map[string]string{
		"": "dev", "context: prod\ncontexts: {prod: {a: b}}\n": "prod", "contexts: null\n": "dev",
	} {
		got, err := Merge([]byte(have), []byte(talos))
		if err != nil || !strings.Contains(string(got), want+":") || !strings.Contains(string(got), "10.10.0.11") || !strings.Contains(string(got), "context: dev") {
			t.Errorf("%q: %v\n%s", have, err, got)
		}
	}
	if _, err := Merge([]byte(strings.ReplaceAll(mine, "admin@dev", "dev")), []byte(talos)); err == nil || err.Error() != "contexts: it has another form" {
		t.Error(err, "a talosconfig is merged into a kubeconfig")
	}
}
