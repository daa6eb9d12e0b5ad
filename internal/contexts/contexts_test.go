package contexts

import (
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
	if _, err := Merge([]byte(mine), []byte(talos)); err == nil {
		t.Error("a talosconfig is merged into a kubeconfig")
	}
}
