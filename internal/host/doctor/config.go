package doctor

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// JudgeConfig judges the config by what loading it came to. What this user may
// not read was not looked at: the file itself where it is not readable, and the
// keys and credentials of the hidden fields. usable reports whether the rest can be
// looked at with it.
func JudgeConfig(path string, readable bool, problems cluster.Problems, hidden []string) (checks []Check, usable bool) {
	if !readable {
		return []Check{{Name: "config", Subject: path, Level: Skipped, Message: "this user may not read it", Hint: "run it with sudo"}}, false
	}
	for _, p := range problems {
		c := Check{Name: "config", Level: Fail, Hint: p.Hint}
		switch p.Severity {
		case cluster.Warning:
			c.Level = Warn
		case cluster.Note:
			continue
		}
		if slices.Contains(hidden, p.Field) {
			c.Level = Skipped
		}
		p.Hint, p.Severity = "", cluster.Error
		c.Message = p.String()
		checks = append(checks, c)
	}
	if len(checks) == 0 {
		checks = []Check{{Name: "config", Subject: path, Level: Pass, Message: "config and policy are loaded, and every file they name"}}
	}
	return checks, !problems.HasErrors()
}
