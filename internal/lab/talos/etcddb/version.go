package etcddb

import (
	"fmt"
	"strings"
)

// servers are the versions of etcd by the minor version of the Talos that comes with it.
// Source: DefaultEtcdVersion of the config libraries of v1.8.3, v1.9.5, v1.11.6, v1.12.7, v1.13.9
// and v1.14.1.
var servers = map[int]string{8: "3.5.16", 9: "3.5.19", 11: "3.6.5", 12: "3.6.9", 13: "3.6.12", 14: "3.7.1"}

// ServerOf is the version of etcd that comes with a version of Talos (v1.13.9), "" of one that is
// none. Talos 1.10 changed it in a patch: members that had been removed come back in an upgrade from
// one of before v1.10.9, whose etcd is the first that sees to it.
// Source: the config library of v1.10.0; the advisory of etcd on zombie members.
func ServerOf(talos string) string {
	var minor, patch int
	if _, err := fmt.Sscanf(talos, "v1.%d.%d", &minor, &patch); err != nil {
		return ""
	}
	switch {
	case minor == 10 && patch < 9:
		return "3.5.21"
	case minor == 10:
		return "3.5.26"
	}
	return servers[minor]
}

// PinnedIn is the version of etcd that an image has by its tag, "" of one without a tag.
func PinnedIn(image string) string {
	image, _, _ = strings.Cut(image, "@")
	_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	return strings.TrimPrefix(tag, "v")
}

// LeavesRemoved reports whether an etcd of a version may leave a member that is removed in the part of its database that
// only one of 3.6 reads; DropsRemoved, whether it drops such members when it starts; and ShowsRemoved, whether it has them
// for members. In life that takes an old database, which is what a database of the lab is.
// Source: etcd.io, "Avoiding Zombie Cluster Members When Upgrading to etcd v3.6".
func LeavesRemoved(server string) bool { return minorOf(server) == "3.5.0" && !DropsRemoved(server) }

// DropsRemoved is described at LeavesRemoved.
func DropsRemoved(server string) bool {
	var patch int
	_, err := fmt.Sscanf(server, "3.5.%d", &patch)
	return err == nil && patch >= 26
}

// ShowsRemoved is described at LeavesRemoved.
func ShowsRemoved(server string) bool { return server != "" && !isOlder(minorOf(server), "3.6.0") }

// Raise is the version of an etcd whose members are of these versions, "" being one that is
// not known because it is down: the lowest minor of theirs, once all are known. It is never lowered.
// Source: etcd v3.6.12, etcdserver: decideClusterVersion.
func Raise(now string, servers []string) string {
	lowest := ""
	for _, server := range servers {
		if server == "" && now != "" {
			return now
		}
		if minor := minorOf(server); lowest == "" || server != "" && isOlder(minor, lowest) {
			lowest = minor
		}
	}
	if lowest == "" || isOlder(lowest, now) {
		return now
	}
	return lowest
}

// minorOf is the minor version of one: 3.6.0 of 3.6.12; "" of "".
func minorOf(version string) string {
	i := strings.LastIndex(version, ".")
	if i < 0 {
		return ""
	}
	return version[:i] + ".0"
}

// isOlder compares two minor versions of etcd 3, "" being older than any.
func isOlder(a, b string) bool {
	number := func(v string) (minor int) {
		if _, err := fmt.Sscanf(v, "3.%d.", &minor); err != nil {
			return -1
		}
		return minor
	}
	return number(a) < number(b)
}

// storageOf is the version of the storage of an etcd, which it has since 3.6; "": none.
func storageOf(version string) string {
	if isOlder(version, "3.6.0") {
		return ""
	}
	return version
}
