package inventory

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/talos-agent/talos-agent/internal/yamlschema"
)

// TestContent: whatever a file has that the inventory is made from counts, in folders too, and a file that it does not name counts for
// nothing. What cannot be read whole is unknown.
func TestContent(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	files := func() fstest.MapFS {
		return fstest.MapFS{"inventory/dev/cluster.yaml": file("a"), "inventory/dev/nodes.yaml": file("b"), "inventory/dev/secrets.sops.yaml": file("c"), "shared/patch.yaml": file("d"),
			"charts/web/Chart.yaml": file("e"), "charts/web/templates/web.yaml": file("f"), "inventory/dev/README.md": file("g"), "app/main.go": file("h")}
	}
	digest := func(fsys fstest.MapFS) string {
		l := &loader{Report: yamlschema.NewReport(), fsys: fsys, dir: "inventory/dev", named: []string{"shared/patch.yaml", "charts/web", "shared/patch.yaml"}}
		return l.digestContent()
	}
	first := digest(files())
	if first == "" || first != digest(files()) {
		t.Fatalf("not the same for the same files: %q", first)
	}
	for name, counts := range map[string]bool{"inventory/dev/cluster.yaml": true, "inventory/dev/nodes.yaml": true, "inventory/dev/secrets.sops.yaml": true, "shared/patch.yaml": true,
		"charts/web/Chart.yaml": true, "charts/web/templates/web.yaml": true, "inventory/dev/README.md": false, "app/main.go": false} {
		other := files()
		other[name] = file("another")
		if got := digest(other); (got != first) != counts || got == "" {
			t.Errorf("%s: %q of %q", name, got, first)
		}
		delete(other, name)
		if got := digest(other); (got != first) != counts || got == "" {
			t.Errorf("without %s: %q of %q", name, got, first)
		}
	}
	more := files()
	more["charts/web/values.yaml"] = file("")
	if digest(more) == first {
		t.Error("a file that is added to a folder does not count")
	}
	more["charts/web/link"] = &fstest.MapFile{Data: []byte("values.yaml"), Mode: fs.ModeSymlink}
	if digest(more) == "" {
		t.Error("a link in a folder has all of it unknown")
	}
	for i := range mostContentFiles {
		more["charts/web/files/"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676))] = file("")
	}
	if got := digest(more); got != "" {
		t.Errorf("more than is compared is %q", got)
	}
}
