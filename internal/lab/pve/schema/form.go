package schema

import (
	"fmt"
	"net/url"
	"strings"
)

// ParseForm reads form parameters. A semicolon separates like an ampersand, and
// a key that comes twice becomes an array, which no scalar parameter accepts.
func ParseForm(text string) (map[string]any, error) {
	values, err := url.ParseQuery(strings.ReplaceAll(text, ";", "&"))
	if err != nil {
		return nil, fmt.Errorf("unable to decode parameters: %w", err)
	}
	in := map[string]any{}
	for k, v := range values {
		if len(v) == 1 {
			in[k] = v[0]
		} else {
			in[k] = v
		}
	}
	return in, nil
}
