package ladder

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// window is the minor versions of Kubernetes that run on a minor version of Talos.
type window struct{ first, last int }

func (w window) has(kubernetes version) bool {
	return kubernetes.minor >= w.first && kubernetes.minor <= w.last
}

func (w window) String() string { return fmt.Sprintf("v1.%d to v1.%d", w.first, w.last) }

// windows are those of Talos 1.x, by minor version. Source: Talos machinery 1.14.1, compatibility.
var windows = map[int]window{
	8:  {26, 31},
	9:  {27, 32},
	10: {28, 33},
	11: {29, 34},
	12: {30, 35},
	13: {31, 36},
	14: {32, 37},
}

// lastTalos is the newest patch of each minor version of Talos that was known when this was
// written (2026-11). That of 1.10 is a gate besides: from 1.11 on etcd is 3.6, which
// meets members that had been removed again where one of 3.5 is older than 3.5.26, and that
// comes with Talos 1.10.9 (etcd.io: the advisory on zombie members in upgrades to 3.6).
var lastTalos = map[int]int{8: 4, 9: 6, 10: 9, 11: 6, 12: 11, 13: 9, 14: 1}

// lastKubernetes is the newest patch of each minor version of Kubernetes that was known when this
// was written (2026-11).
var lastKubernetes = map[int]int{
	26: 15, 27: 16, 28: 15, 29: 15, 30: 14, 31: 14, 32: 13, 33: 13, 34: 13, 35: 10, 36: 6, 37: 2,
}

// version is one of major version 1.
type version struct {
	minor, patch int
	pre          string // rc.1; "" of a release
}

func (v version) String() string {
	s := fmt.Sprintf("v1.%d.%d", v.minor, v.patch)
	if v.pre != "" {
		s += "-" + v.pre
	}
	return s
}

// isOlder reports whether v comes before w. A release comes after what precedes it; two of
// these come in the order of their name, and of their number: alpha.2, beta.1, rc.2, rc.10.
func (v version) isOlder(w version) bool {
	release := func(v version) int {
		if v.pre == "" {
			return 1
		}
		return 0
	}
	return cmp.Or(v.minor-w.minor, v.patch-w.patch, release(v)-release(w), comparePre(v.pre, w.pre)) < 0
}

// comparePre compares what two versions are before the same release.
func comparePre(a, b string) int {
	numberOf := func(pre string) (name string, number int) {
		name, digits, _ := strings.Cut(pre, ".")
		number, err := strconv.Atoi(digits)
		if err != nil {
			return pre, -1
		}
		return name, number
	}
	nameA, a1 := numberOf(a)
	nameB, b1 := numberOf(b)
	return cmp.Or(strings.Compare(nameA, nameB), cmp.Compare(a1, b1), strings.Compare(a, b))
}

// parseVersion reads a version like v1.13.9 or v1.14.0-rc.1.
func parseVersion(s string) (version, error) {
	core, pre, hasPre := strings.Cut(s, "-")
	numbers, isOne := strings.CutPrefix(core, "v1.")
	first, second, _ := strings.Cut(numbers, ".")
	minor, err := strconv.Atoi(first)
	patch, err2 := strconv.Atoi(second)
	if !isOne || hasPre && pre == "" || err != nil || err2 != nil || minor < 0 || patch < 0 {
		return version{}, fmt.Errorf("%q is not a version like v1.13.9", s)
	}
	return version{minor, patch, pre}, nil
}

// IsOlder reports whether one version comes before another; false where one is not a version.
func IsOlder(a, b string) bool {
	if a == b { // most are, and it is asked for each node again and again
		return false
	}
	v, err := parseVersion(a)
	w, err2 := parseVersion(b)
	return err == nil && err2 == nil && v.isOlder(w)
}

// UsesLifecycle reports whether a version of Talos is upgraded by its LifecycleService, which
// installs and does not reboot; those before have one call for both (Talos 1.13: source).
func UsesLifecycle(talos string) bool {
	v, err := parseVersion(talos)
	return err == nil && v.minor >= 13
}

// KeepsInventory reports whether a version of Talos lists in Kubernetes which objects it has deployed, and talosctl deletes
// those by it that nothing renders any longer. Source: Talos v1.14, SupportsSSAManifestSync.
func KeepsInventory(talos string) bool {
	v, err := parseVersion(talos)
	return err == nil && v.minor >= 13
}

// etcdMinors are the minor versions of etcd 3 that come with Talos 1.x, by minor version. Source:
// Talos 1.8.4 to 1.14.1, constants.DefaultEtcdVersion.
var etcdMinors = map[int]int{8: 5, 9: 5, 10: 5, 11: 6, 12: 6, 13: 6, 14: 7}

// Runs reports whether a version of Kubernetes is known to run on one of Talos.
func Runs(talos, kubernetes string) bool {
	v, err := parseVersion(talos)
	w, err2 := parseVersion(kubernetes)
	return err == nil && err2 == nil && windows[v.minor].has(w)
}

// CanRevert reports whether a machine may go back from a version of Talos to the one before: by one
// minor version at most, which Talos takes. etcd: it has a member of etcd, and all others
// run the newer etcd already, whose data the older one does not read.
func CanRevert(from, to string, etcd bool) bool {
	v, err := parseVersion(from)
	w, err2 := parseVersion(to)
	return err == nil && err2 == nil && w.isOlder(v) && v.minor-w.minor <= 1 && (!etcd || etcdMinors[v.minor] == etcdMinors[w.minor])
}

// ShareEtcd reports whether two versions of Talos are known to come with the same minor version of etcd.
func ShareEtcd(a, b string) bool {
	v, err := parseVersion(a)
	w, err2 := parseVersion(b)
	return err == nil && err2 == nil && etcdMinors[v.minor] != 0 && etcdMinors[v.minor] == etcdMinors[w.minor]
}

// HasNewerEtcd reports whether a version of Talos is known to come with a newer minor version of etcd than another one, which does not
// read its data.
func HasNewerEtcd(talos, than string) bool {
	v, err := parseVersion(talos)
	w, err2 := parseVersion(than)
	return err == nil && err2 == nil && etcdMinors[w.minor] != 0 && etcdMinors[v.minor] > etcdMinors[w.minor]
}

// BringsNewEtcd reports whether a hop of Talos from one version to another, or from any where that is "", brings etcd 3.6 or newer
// in the place of 3.5.
func BringsNewEtcd(from, to string) bool {
	v, err := parseVersion(from)
	w, err2 := parseVersion(to)
	return (from == "" || err == nil && etcdMinors[v.minor] < 6) && err2 == nil && etcdMinors[w.minor] >= 6
}

// IsOldEtcd reports whether a version of etcd (3.5.21) is one from which none leads to 3.6: it may have members that were
// removed, for which the newer one takes them again.
// Source: etcd.io, "Avoiding Zombie Cluster Members When Upgrading to etcd v3.6".
func IsOldEtcd(version string) bool {
	var patch int
	_, err := fmt.Sscanf(version, "3.5.%d", &patch)
	return err == nil && patch < 26
}

// Compare orders two versions: below 0 where a comes before b. ok is false where one of them is no
// version that is known here.
func Compare(a, b string) (order int, ok bool) {
	v, err := parseVersion(a)
	w, err2 := parseVersion(b)
	switch {
	case err != nil || err2 != nil:
		return 0, false
	case v.isOlder(w):
		return -1, true
	case w.isOlder(v):
		return 1, true
	}
	return 0, true
}

// MinorsApart is by how many minor versions b is newer than a; ok is false where one of them is no
// version that is known here.
func MinorsApart(a, b string) (minors int, ok bool) {
	v, err := parseVersion(a)
	w, err2 := parseVersion(b)
	return w.minor - v.minor, err == nil && err2 == nil
}

// VersionOf is the version of an image by its tag, "" when that is none.
func VersionOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	return KnownVersion(tag)
}

// KnownVersion is a version, or "" where it is none that can be compared.
func KnownVersion(s string) string {
	if _, err := parseVersion(s); err != nil {
		return ""
	}
	return s
}
