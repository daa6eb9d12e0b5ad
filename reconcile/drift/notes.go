package drift

import (
	"cmp"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// RecordNotes are notes as the journal has them, in a fixed order.
func RecordNotes(notes map[cluster.DriftKey]cluster.DriftNote) []cluster.DriftRecord {
	var out []cluster.DriftRecord
	for key, n := range notes {
		out = append(out, cluster.DriftRecord{Subject: key.Subject, Part: key.Part, Field: key.Field, Since: n.Since.UTC(), By: n.By, Has: n.Has})
	}
	slices.SortFunc(out, func(a, b cluster.DriftRecord) int {
		return cmp.Or(strings.Compare(a.Subject, b.Subject), strings.Compare(string(a.Part), string(b.Part)), strings.Compare(a.Field, b.Field))
	})
	return out
}

// NotesOf are the notes of some records.
func NotesOf(records []cluster.DriftRecord) map[cluster.DriftKey]cluster.DriftNote {
	out := map[cluster.DriftKey]cluster.DriftNote{}
	for _, r := range records {
		out[cluster.DriftKey{Subject: r.Subject, Part: r.Part, Field: r.Field}] = cluster.DriftNote{Since: r.Since, By: r.By, Has: r.Has}
	}
	return out
}
