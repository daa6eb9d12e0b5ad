package inventory

import "slices"

// synonyms are words that other tools use for a key of ours.
var synonyms = map[string][]string{
	"ram":                {"memory", "mem", "memory_mib"},
	"cpu":                {"cores", "vcpu", "cpus"},
	"disk":               {"disk_size", "root_disk", "boot_disk"},
	"ip":                 {"address", "ip_address"},
	"name":               {"hostname"},
	"svc_cidr":           {"service_cidr", "services_cidr"},
	"pod_cidr":           {"pods_cidr", "cluster_cidr"},
	"workers":            {"worker"},
	"controlplane":       {"controlplanes", "control_plane", "control_planes", "masters"},
	"node":               {"host", "target_node"},
	"nodes":              {"hosts", "target_nodes"},
	"datastore":          {"storage", "datastore_id"},
	"cluster_name":       {"name"},
	"talos_version":      {"talos"},
	"kubernetes_version": {"kubernetes", "k8s_version"},
	"depends_on":         {"dependsOn", "dependencies"},
	"values_files":       {"valuesFiles", "values_file", "valueFiles"},
	"time_servers":       {"ntp", "ntp_servers"},
	"nameservers":        {"dns", "dns_servers"},
	"vlan":               {"vlan_id", "vlan_tag"},
	"profiles":           {"defaults"},
}

// suggest returns the candidate that was most likely meant by word, or "".
func suggest(word string, candidates []string) string {
	for _, c := range candidates {
		if slices.Contains(synonyms[c], word) {
			return c
		}
	}
	best, distance := "", max(1, min(3, len(word)/3))+1
	for _, c := range candidates {
		if d := editDistance(word, c); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// editDistance counts the letters to insert, delete, replace or swap with
// their neighbour (optimal string alignment). Long words are not compared: they are no
// typing mistakes.
func editDistance(a, b string) int {
	const longest = 40
	if len(a) > longest || len(b) > longest {
		return longest
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
