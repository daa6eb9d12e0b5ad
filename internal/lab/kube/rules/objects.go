package rules

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
)

// HashTemplate distinguishes pod templates.
func HashTemplate(o map[string]any) string {
	h := fnv.New32a()
	// Maps of JSON values always encode, with sorted keys.
	if err := json.NewEncoder(h).Encode(ValueAt(o, "spec", "template")); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%08x", h.Sum32())
}

// ListOwners are the uids of the owners of an object.
func ListOwners(o map[string]any) []string {
	var uids []string
	for _, r := range MapsAt(o, "metadata", "ownerReferences") {
		uids = append(uids, TextAt(r, "uid"))
	}
	return uids
}
