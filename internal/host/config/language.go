package config

import (
	_ "embed"
	"reflect"

	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/internal/yamlschema"
	"github.com/talos-agent/talos-agent/sources/inventory"
)

// configSource and policySource are where the meaning of every key is written:
// the comments of the types it is decoded into.
var (
	//go:embed config.go
	configSource string
	//go:embed policy.go
	policySource string
)

// language is how the host's files are written. What they name as an
// inventory does has the inventory's rule.
var language = yamlschema.Language{
	Formats: map[string]yamlschema.Format{
		"label":   inventory.Format("label"),
		"storage": inventory.Format("storage"),
		"bridge":  inventory.Format("bridge"),
		"mapping": inventory.Format("mapping"),
		"pool":    inventory.Format("pool"),

		"clock":    inventory.Format("clock"),
		"timezone": inventory.Format("timezone"),

		"macs":        yamlschema.Text("the first three to six bytes of MAC addresses", `"BC:24:11"`, `^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){2,5}$`, 17),
		"path":        yamlschema.Text("the path of a file, or credential:NAME", "age.key", `^(credential:[A-Za-z0-9][A-Za-z0-9._-]*|[A-Za-z0-9._/][A-Za-z0-9._@+,/ -]*)$`, 500).AsPrivate(),
		"absolute":    yamlschema.Text("an absolute path", "/var/lib/talos-agent", `^/[A-Za-z0-9._@+,/ -]*$`, 500),
		"recipient":   yamlschema.Text("a public key of age or ssh", "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p", `^(age1[a-z0-9]+|ssh-(ed25519|rsa) \S+( .*)?)$`, 5000),
		"folder":      yamlschema.Text("a folder of the repository", "inventory", `^[A-Za-z0-9._@+-][A-Za-z0-9._@+/-]*$`, 300),
		"branch":      yamlschema.Text("the name of a branch", "main", `^\S+$`, 200),
		"listen":      yamlschema.Text("an IP address and a port", `"127.0.0.1:9477"`, `^(\d{1,3}(\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]):\d{1,5}$`, 60),
		"giturl":      yamlschema.Text("the address of a repository", `"ssh://git@example.org/infra.git"`, `^\S+$`, 500).AsPrivate(),
		"httpsurl":    yamlschema.Text("the https address of a server", `"https://127.0.0.1:8006"`, `^https://([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:\d{1,5})?/?$`, 300),
		"weburl":      yamlschema.Text("a web address without user, query, fragment or escapes", `"https://factory.talos.dev"`, `^https?://([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:\d{1,5})?(/[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*)*/?$`, 500),
		"chartsource": yamlschema.Text("the https or oci address of a chart repository or registry", `"https://helm.cilium.io"`, `^(https|oci)://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?(/[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*)*/?$`, 500),
		"chartorigin": yamlschema.Text("the https or oci address of a chart repository or registry, or repository for charts in the repository itself", `"https://helm.cilium.io"`, `^(repository|(https|oci)://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?(/[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*)*/?)$`, 500),
		"project":     yamlschema.Text("the name of a repository", "org/infra", `^[A-Za-z0-9_][A-Za-z0-9_./-]*$`, 300),
		"transitkey":  yamlschema.Text("the path of a transit engine and the name of a key", "transit/talos-agent", `^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$`, 300),
		"namespace":   yamlschema.Text("the path of a namespace", "team-a", `^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?$`, 300),
		"fingerprint": yamlschema.Text("a SHA-256 fingerprint (32 bytes in hex, with or without colons)", "", `^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$|^[0-9A-Fa-f]{64}$`, 95).OrEmpty(),
	},
	Scalars: map[reflect.Type]yamlschema.Scalar{
		reflect.TypeFor[anyPrefix](): {What: "a network in CIDR notation", Write: "10.10.0.0/24", Pattern: `^(\d{1,3}(\.\d{1,3}){3}/\d{1,2}|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*/\d{1,3})$`, Parse: parseAnyPrefix},
		reflect.TypeFor[amount]():    {What: "an amount with a unit", Write: "64GiB", Pattern: `^[1-9][0-9]*(MiB|GiB|TiB|[MGT]i?)$`, Parse: parseAmount},
	},
	Synonyms: map[string][]string{
		"repository":       {"repo", "git", "source"},
		"url":              {"address", "endpoint"},
		"path":             {"folder", "subdir"},
		"interval":         {"poll", "poll_interval"},
		"ssh_key_file":     {"ssh_key", "deploy_key", "key_file", "identity_file"},
		"known_hosts_file": {"known_hosts"},
		"token_file":       {"token", "api_token"},
		"age_key_file":     {"age_key", "sops_age_key_file"},
		"ca_file":          {"ca", "ca_cert", "cacert"},
		"kind":             {"type", "provider"},
		"datastores":       {"storages", "storage", "datastore"},
		"bridges":          {"bridge"},
		"networks":         {"network", "cidrs", "subnets"},
		"macs":             {"mac", "mac_prefix", "mac_prefixes"},
		"vmids":            {"vmid", "vmid_ranges"},
		"cores":            {"cpu", "cpus", "vcpus"},
		"ram":              {"memory", "mem"},
		"image_datastore":  {"image_storage"},
		"vault":            {"openbao", "bao", "hc_vault"},
		"keys":             {"transit_keys", "key", "transit"},
		"access_log":       {"accesslog", "access_log_file"},
		"socket":           {"socket_path"},
		"listen":           {"address", "bind", "port", "addr"},
		"textfile":         {"file", "textfile_path", "prom_file"},
		"notifications":    {"notify", "notification", "alerts"},
		"webhook":          {"hook", "webhooks"},
		"metrics":          {"prometheus", "monitoring"},
		"url_file":         {"url", "address_file"},
		"secret_file":      {"secret", "webhook_secret", "hmac_file"},
		"on":               {"when", "conditions", "events"},
		"state_dir":        {"state", "state_directory", "data_dir"},
		"cache_dir":        {"cache", "cache_directory"},
	},
	Sources: []string{configSource, policySource},
}

// amount is a number of bytes that is written with a unit.
type amount yamlschema.Size

var plainDigits = pattern.New(`^[0-9]+$`)

// parseAmount reads an amount. A plain number is refused: beside the MiB of the
// inventory's ram and the GiB of its disks its unit is not clear, and a
// limit that is a thousand times too high is none.
func parseAmount(s string) (any, error) {
	if plainDigits.MatchString(s) {
		return nil, yamlschema.Hint("write the unit too, like 64GiB")
	}
	size, err := yamlschema.ParseSize(s)
	return amount(size), err
}
