package talos

import (
	"bytes"
	"errors"
	"io"
	"reflect"

	"go.yaml.in/yaml/v4"
)

// needsReboot reports whether Talos 1.14 and newer takes over a change from one config
// to another only at the next boot. They apply every config at once and do not report
// what of it has to wait; what is not in this list takes effect at once, or is not
// known to wait.
func needsReboot(from, to []byte) bool {
	was, ok := readSettings(from)
	if !ok {
		return false
	}
	is, ok := readSettings(to)
	if !ok {
		return false
	}
	// Release notes of 1.14: settings of etcd are taken over at a reboot.
	if !reflect.DeepEqual(was.etcd, is.etcd) {
		return true
	}
	// The same: a variable that is removed stays in the environment of what runs.
	for name := range was.variables {
		if _, stays := is.variables[name]; !stays {
			return true
		}
	}
	// Machinery 1.14.1, KernelModuleConfig: "Module parameters, changes applied after
	// reboot." A module that is new is loaded with its parameters.
	for name, parameters := range was.modules {
		if next, stays := is.modules[name]; stays && !reflect.DeepEqual(parameters, next) {
			return true
		}
	}
	// Release notes of 1.14: keys of encryption are taken over when a volume is opened.
	for name, encryption := range was.encryption {
		if next, stays := is.encryption[name]; stays && !reflect.DeepEqual(encryption, next) {
			return true
		}
	}
	return false
}

// settings are the parts of a config that take effect at a boot, wherever in the config
// they stand: Talos 1.14 knows most of them in two places.
type settings struct {
	etcd       any
	variables  map[string]any // of the environment
	modules    map[string]any // of the kernel: parameters by name
	encryption map[string]any // by volume
}

// readSettings reads the documents of a config. ok is false when it is not YAML.
func readSettings(config []byte) (s settings, ok bool) {
	s = settings{variables: map[string]any{}, modules: map[string]any{}, encryption: map[string]any{}}
	for dec := yaml.NewDecoder(bytes.NewReader(config)); ; {
		var doc map[string]any
		err := dec.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF):
			return s, true
		case err != nil:
			return settings{}, false
		}
		kind, _ := doc["kind"].(string)
		name, _ := doc["name"].(string)
		switch kind {
		case "":
			s.readMachine(doc)
		case "EnvironmentConfig":
			s.addVariables(doc["variables"])
		case "KernelModuleConfig":
			s.modules[name] = doc["parameters"]
		case "VolumeConfig", "UserVolumeConfig", "RawVolumeConfig", "SwapVolumeConfig":
			s.encryption[kind+" "+name] = doc["encryption"]
		}
	}
}

// readMachine reads the document that every config has.
func (s *settings) readMachine(doc map[string]any) {
	s.etcd = at(doc, "cluster", "etcd")
	s.addVariables(at(doc, "machine", "env"))
	modules, _ := at(doc, "machine", "kernel", "modules").([]any)
	for _, m := range modules {
		if name, ok := at(m, "name").(string); ok {
			s.modules[name] = at(m, "parameters")
		}
	}
	volumes, _ := at(doc, "machine", "systemDiskEncryption").(map[string]any)
	for name, encryption := range volumes {
		s.encryption["machine "+name] = encryption
	}
}

func (s *settings) addVariables(from any) {
	variables, _ := from.(map[string]any)
	for name, value := range variables {
		s.variables[name] = value
	}
}

// at is what lies at a path in YAML, nil when nothing does.
func at(v any, path ...string) any {
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}
