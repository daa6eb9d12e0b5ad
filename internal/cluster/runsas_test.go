package cluster

import "testing"

// TestRunsAs: what is not known of a config is not the same as anything.
func TestRunsAs(t *testing.T) {
	a, b := Images{APIServer: "a:1"}, Images{APIServer: "a:2"}
	for _, c := range []struct {
		f, other           ConfigSummary
		runsAs, onlyImages bool
	}{
		{ConfigSummary{Rest: "x", Images: a}, ConfigSummary{Rest: "x", Images: a}, true, true},
		{ConfigSummary{Rest: "x", Images: a}, ConfigSummary{Rest: "x", Images: b}, false, true},
		{ConfigSummary{Rest: "x", Images: a}, ConfigSummary{Rest: "y", Images: a}, false, false},
		{ConfigSummary{Images: a}, ConfigSummary{Images: a}, false, false},
	} {
		if c.f.RunsAs(c.other) != c.runsAs || c.f.OnlyImages(c.other) != c.onlyImages {
			t.Errorf("%+v and %+v", c.f, c.other)
		}
	}
}
