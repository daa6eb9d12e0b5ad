package rules

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Arguments of a kube-apiserver that are whole numbers (Kubernetes v1.36: cmd/kube-apiserver
// and k8s.io/apiserver, options).
var numbers = []string{"audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize", "max-mutating-requests-inflight", "max-requests-inflight", "min-request-timeout", "v"}

// CheckAPIServer returns why a kube-apiserver ends at once with some arguments, as it prints it;
// "" when it starts. Only what it demands of numbers is known here.
func CheckAPIServer(args map[string][]string) string {
	for _, name := range slices.Sorted(maps.Keys(args)) {
		for _, value := range args[name] {
			if _, err := strconv.Atoi(value); err != nil && slices.Contains(numbers, name) {
				return fmt.Sprintf("invalid argument %q for \"--%s\" flag: strconv.ParseInt: parsing %[1]q: invalid syntax", value, name)
			}
		}
	}
	return ""
}
