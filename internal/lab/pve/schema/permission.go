package schema

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Expression is a condition on privileges as the API's description writes it:
// ["perm", "/vms/{vmid}", ["VM.Audit"], "any", 1], ["and", ...], ["or", ...].
type Expression struct {
	Op         string
	Path       string // of perm; of userid-param: self, or the privilege on the realm
	Privileges []string
	Any        bool
	Require    string // parameter that must be given, or the condition fails
	Parts      []Expression
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Expression) UnmarshalJSON(text []byte) error {
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil || len(list) == 0 {
		return fmt.Errorf("privilege expression %s: not a list", text)
	}
	if err := json.Unmarshal(list[0], &e.Op); err != nil {
		return err
	}
	list = list[1:]
	if e.Op == "and" || e.Op == "or" {
		for _, part := range list {
			var sub Expression
			if err := json.Unmarshal(part, &sub); err != nil {
				return err
			}
			e.Parts = append(e.Parts, sub)
		}
		return nil
	}
	switch {
	case e.Op == "userid-param" && len(list) > 0:
		return json.Unmarshal(list[0], &e.Path)
	case e.Op != "perm":
		return nil // perm-modify and userid-group mean one thing each here
	case len(list) < 2:
		return fmt.Errorf("privilege expression %s: too short", text)
	}
	if err := json.Unmarshal(list[0], &e.Path); err != nil {
		return err
	}
	if err := json.Unmarshal(list[1], &e.Privileges); err != nil {
		return err
	}
	for i := 2; i+1 < len(list); i += 2 {
		switch option := strings.Trim(string(list[i]), `"`); option {
		case "any":
			e.Any = true
		case "require_param":
			if err := json.Unmarshal(list[i+1], &e.Require); err != nil {
				return err
			}
		default:
			return fmt.Errorf("privilege expression %s: unknown option %q", text, option)
		}
	}
	return nil
}
