package machineconfig

import "testing"

// TestRenderedTextsAreNotReadAgain: what machines have that was rendered here means what it meant then, at a fraction of the cost, and what
// they have of somebody else is read.
func TestRenderedTextsAreNotReadAgain(t *testing.T) {
	for _, contract := range contracts {
		snap := snapshot(t, contract)
		var r Renderer
		configs, ps := r.Render(snap, testSchematic)
		if ps.HasErrors() {
			t.Fatal(ps)
		}
		read := 0
		for name, c := range configs {
			text := c.Bytes.Reveal()
			edited := append([]byte("# by hand\n"), text...)
			for _, config := range [][]byte{text, edited} {
				digest, err := r.Digest(config)
				want, err2 := Digest(config)
				if err != nil || err2 != nil || digest != want || digest != c.Digest {
					t.Errorf("%s at %s: digest %s (%v), want %s (%v)", name, contract, digest, err, want, err2)
				}
				summary, err := r.Summarize(config)
				wanted, err2 := Summarize(config)
				if err != nil || err2 != nil || summary != wanted {
					t.Errorf("%s at %s: summary %+v (%v), want %+v (%v)", name, contract, summary, err, wanted, err2)
				}
			}
			if n := testing.AllocsPerRun(1, func() { _, _ = r.Digest(text); _, _ = r.Summarize(text) }); n > 2 {
				t.Errorf("%s at %s: %v objects are allocated for what is known", name, contract, n)
			}
			read++
		}
		if _, err := r.Digest([]byte("machine: [")); err == nil {
			t.Error("what is no config has a digest")
		}
		if read < 2 {
			t.Fatalf("%d configs", read)
		}
	}
}
