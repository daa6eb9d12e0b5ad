package schema

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// schemaText is the part of Proxmox VE's own API description that the routes
// need: parameters and privileges, both flavours.
//
//go:generate go test -run TestSchemaIsCurrent -update ..
//go:embed schema.json
var schemaText []byte

// File is how schema.json is laid out. Properties repeat a lot, so they
// stand once and are meant by their index.
type File struct {
	Properties []Property                       `json:"properties"`
	Methods    map[string]map[string]MethodFile `json:"methods"` // flavour -> "GET /version" -> method
}

type MethodFile struct {
	Params map[string]int  `json:"params,omitempty"`
	Check  json.RawMessage `json:"check,omitempty"` // expression of privileges
	User   string          `json:"user,omitempty"`  // all: any user; world: anybody
}

// Property describes one parameter, or one key of a property string.
type Property struct {
	Type       string         `json:"type,omitempty"`
	Format     string         `json:"format,omitempty"`
	Fields     map[string]int `json:"fields,omitempty"` // of a property string
	Enum       []string       `json:"enum,omitempty"`
	Pattern    string         `json:"pattern,omitempty"`
	Minimum    *float64       `json:"min,omitempty"`
	Maximum    *float64       `json:"max,omitempty"`
	MinLength  int            `json:"minlen,omitempty"`
	MaxLength  int            `json:"maxlen,omitempty"`
	Optional   bool           `json:"opt,omitempty"`
	Requires   string         `json:"requires,omitempty"`
	Alias      string         `json:"alias,omitempty"`
	KeyAlias   string         `json:"keyalias,omitempty"`
	DefaultKey bool           `json:"key,omitempty"`

	pattern *pattern.Pattern
	fields  map[string]*Property
}

// Method is one method of the API as its description has it.
type Method struct {
	Params map[string]*Property
	Check  Expression
	Open   string // all, world, or "" where only check lets in
}

// Load returns the methods of one flavour by verb and path. They are
// shared: nobody may write to them.
func Load(flavour string) (map[string]*Method, error) {
	all, err := schemas()
	return all[flavour], err
}

// schemas reads the embedded description once: thousands of labs of a simulation
// begin with it. It returns the methods by flavour.
var schemas = sync.OnceValues(func() (map[string]map[string]*Method, error) {
	var file File
	if err := json.Unmarshal(schemaText, &file); err != nil {
		return nil, fmt.Errorf("read embedded API schema: %w", err)
	}
	for i := range file.Properties {
		p := &file.Properties[i]
		if p.Pattern != "" {
			var err error
			if p.pattern, err = pattern.Compile("^(?:" + p.Pattern + ")$"); err != nil {
				return nil, fmt.Errorf("read embedded API schema: %w", err)
			}
		}
		for name, index := range p.Fields {
			if p.fields == nil {
				p.fields = map[string]*Property{}
			}
			p.fields[name] = &file.Properties[index]
		}
	}
	all := map[string]map[string]*Method{}
	for flavour, methods := range file.Methods {
		all[flavour] = map[string]*Method{}
		for name, mf := range methods {
			m := &Method{Params: map[string]*Property{}, Open: mf.User}
			for param, index := range mf.Params {
				m.Params[param] = &file.Properties[index]
			}
			if mf.Check != nil {
				if err := json.Unmarshal(mf.Check, &m.Check); err != nil {
					return nil, fmt.Errorf("read embedded API schema: %s: %s: %w", flavour, name, err)
				}
			}
			all[flavour][name] = m
		}
	}
	return all, nil
})

// indexed are the parameters that come numbered, and the highest number of
// each: "net[n]" stands for net0 to net31.
var indexed = map[string]int{
	"net": 31, "scsi": 30, "virtio": 15, "ide": 3, "sata": 5, "unused": 255, "ipconfig": 31, "serial": 3, "parallel": 2,
	"usb": 13, "hostpci": 15, "numa": 7, "virtiofs": 9,
}

// FindProperty finds the description of a parameter; nil when there is none.
func (m *Method) FindProperty(name string) *Property {
	if p := m.Params[name]; p != nil {
		return p
	}
	stem := strings.TrimRight(name, "0123456789")
	if n, err := strconv.Atoi(name[len(stem):]); err != nil || n > indexed[stem] {
		return nil
	}
	return m.Params[stem+"[n]"]
}

// CheckParams holds parameters against the description. It returns every fault by
// the parameter's name.
func (m *Method) CheckParams(in map[string]any) map[string]string {
	errs := map[string]string{}
	for name, p := range m.Params {
		if _, given := in[name]; !given && !p.Optional && p.Alias == "" && !strings.HasSuffix(name, "[n]") {
			errs[name] = "property is missing and it is not optional"
		}
	}
	for name, value := range in {
		p := m.FindProperty(name)
		if p == nil {
			errs[name] = "property is not defined in schema and the schema does not allow additional properties"
			continue
		}
		if text := p.checkValue(name, value); text != "" {
			errs[name] = text
		}
		if _, given := in[p.Requires]; p.Requires != "" && !given {
			errs[p.Requires] = fmt.Sprintf("missing property - '%s' requires this property", name)
		}
	}
	return errs
}

// checkValue returns what does not fit about a value, "" if all does.
func (p *Property) checkValue(path string, value any) string {
	text, ok := value.(string)
	if p.Type == "array" {
		return ""
	}
	if !ok {
		return fmt.Sprintf("type check ('%s') failed - got ARRAY", p.Type)
	}
	if !isType(p.Type, text) {
		return fmt.Sprintf("type check ('%s') failed - got '%s'", p.Type, text)
	}
	if p.fields != nil {
		if _, err := parseProperties(p.fields, text, path); err != nil {
			return "invalid format - " + err.Error() + "\n"
		}
	}
	if p.Format != "" {
		if err := checkFormat(p.Format, text, path); err != nil {
			return "invalid format - " + err.Error() + "\n"
		}
	}
	return p.checkLimits(text)
}

// checkLimits checks what does not depend on a format.
func (p *Property) checkLimits(text string) string {
	if p.pattern != nil && !p.pattern.MatchString(text) {
		return "value does not match the regex pattern"
	}
	if n := len([]rune(text)); p.MaxLength > 0 && n > p.MaxLength {
		return fmt.Sprintf("value may only be %d characters long", p.MaxLength)
	} else if n < p.MinLength {
		return fmt.Sprintf("value must be at least %d characters long", p.MinLength)
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		if p.Maximum != nil && n > *p.Maximum {
			return "value must have a maximum value of " + strconv.FormatFloat(*p.Maximum, 'f', -1, 64)
		}
		if p.Minimum != nil && n < *p.Minimum {
			return "value must have a minimum value of " + strconv.FormatFloat(*p.Minimum, 'f', -1, 64)
		}
	}
	if p.Enum != nil && !slices.Contains(p.Enum, text) {
		return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", text, strings.Join(p.Enum, ", "))
	}
	return ""
}

var integerPattern = pattern.New(`^[+-]?\d+$`)

func isType(kind, text string) bool {
	switch kind {
	case "integer":
		return integerPattern.MatchString(text)
	case "number":
		_, err := strconv.ParseFloat(text, 64)
		return err == nil
	case "boolean":
		return text == "0" || text == "1"
	}
	return true
}

// formatError is what a property string's faults look like, all at once.
type formatError map[string]string

func (e formatError) Error() string {
	keys := make([]string, 0, len(e))
	for k := range e {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	text := "format error"
	for _, k := range keys {
		text += "\n" + k + ": " + e[k]
	}
	return text
}

// parseProperties reads a property string, "virtio=MAC,bridge=vmbr0", into its
// keys. A part without a key belongs to the default key.
func parseProperties(fields map[string]*Property, text, path string) (map[string]string, error) {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, value, err := splitProperty(fields, part)
		if err != nil {
			return nil, err
		}
		if p := fields[key]; p != nil && p.Alias != "" {
			if p.KeyAlias != "" {
				if out[p.KeyAlias] != "" {
					return nil, fmt.Errorf("key alias '%s' is already defined", p.KeyAlias)
				}
				out[p.KeyAlias] = key
			}
			key = p.Alias
		}
		p := fields[key]
		if p == nil {
			return nil, fmt.Errorf("invalid key in comma-separated list property: %s", key)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("duplicate key in comma-separated list property: %s", key)
		}
		if p.Type == "boolean" {
			value = ParseBoolean(value)
		}
		out[key] = value
	}
	errs := formatError{}
	for name, p := range fields {
		value, given := out[name]
		switch {
		case given:
			if fault := p.checkValue(path+"."+name, value); fault != "" {
				errs[path+"."+name] = fault
			}
			if p.Requires != "" && out[p.Requires] == "" {
				errs[path+"."+p.Requires] = fmt.Sprintf("missing property - '%s.%s' requires this property", path, name)
			}
		case !p.Optional && p.Alias == "":
			errs[path+"."+name] = "property is missing and it is not optional"
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return out, nil
}

func splitProperty(fields map[string]*Property, part string) (key, value string, err error) {
	key, value, hasKey := strings.Cut(part, "=")
	switch {
	case hasKey && key != "" && value != "":
		return key, value, nil
	case hasKey:
		return "", "", fmt.Errorf("missing key in comma-separated list property")
	}
	for name, p := range fields {
		if p.DefaultKey {
			return name, part, nil
		}
	}
	return "", "", fmt.Errorf("value without key, but schema does not define a default key")
}

// ParseBoolean reads the values a boolean may have inside a property string.
func ParseBoolean(text string) string {
	switch strings.ToLower(text) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	}
	return text
}
