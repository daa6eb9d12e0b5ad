package cluster

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// namespace is the UUID under which every identity of this program is derived
// (RFC 9562 version 5). Changing it would disown every VM ever made.
var namespace = [16]byte{0x5b, 0x0e, 0x1f, 0x6a, 0x7c, 0x1d, 0x4b, 0x3e, 0x9a, 0x53, 0x54, 0x41, 0x4c, 0x4f, 0x53, 0x01}

// ClusterID derives the identity of a cluster from the owner in the host's
// config and the cluster's name. Two agents that share a host differ in owner,
// so that their clusters differ even when the names do not.
func ClusterID(owner, name string) string {
	return uuid5(namespace, owner+"\x00"+name)
}

// NodeUUID derives the SMBIOS UUID of a node's VM. It is one third of the
// proof of ownership; the VMID and the pool are the others.
func NodeUUID(clusterID, node string) string {
	return uuid5(parseUUID(clusterID), node)
}

// ProxmoxMACs begins the MAC addresses that are registered for Proxmox, and that Proxmox VE gives VMs by itself.
const ProxmoxMACs = "BC:24:11"

// NodeMAC derives the hardware address of a node's n-th network interface
// under a three-byte prefix such as "BC:24:11". PVE prints MACs in upper case.
func NodeMAC(prefix, clusterID, node string, n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/if%d", clusterID, node, n))
	return fmt.Sprintf("%s:%02X:%02X:%02X", strings.ToUpper(prefix), sum[0], sum[1], sum[2])
}

func uuid5(ns [16]byte, name string) string {
	h := sha1.New()
	h.Write(ns[:])
	h.Write([]byte(name))
	var u [16]byte
	copy(u[:], h.Sum(nil))
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

func parseUUID(s string) (u [16]byte) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		// Identities come from ClusterID; anything else is a programming error
		// that would silently disown VMs.
		panic(fmt.Sprintf("cluster: %q is not a UUID", s))
	}
	copy(u[:], b)
	return u
}

// markPrefix begins the first line of the description of every VM we made.
const markPrefix = "talos-agent: "

// Mark is what the description of a VM of ours holds for people and for us. It
// is not the proof of ownership (people edit descriptions), but it carries the
// first phase of a deletion.
type Mark struct {
	Version  int    `json:"v"`
	Cluster  string `json:"cluster"`
	Node     string `json:"node"`
	Deleting bool   `json:"deleting,omitempty"`
	// Replace is the token with which the inventory asked for the machine.
	Replace string `json:"replace,omitempty"`
}

// String renders the mark as the first line of a VM's description.
func (m Mark) String() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // a struct of strings always marshals
	}
	return markPrefix + string(b)
}

// ParseMark reads the mark from a VM's description. ok is false when the
// first line is not a mark of a version this program knows.
func ParseMark(description string) (m Mark, ok bool) {
	line, _, _ := strings.Cut(description, "\n")
	rest, found := strings.CutPrefix(strings.TrimSpace(line), strings.TrimSpace(markPrefix))
	if !found {
		return Mark{}, false
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(rest)), &m); err != nil || m.Version != 1 {
		return Mark{}, false
	}
	return m, true
}

// OwnTag is the tag every VM of ours carries, for people and for filters.
const OwnTag = "talos-agent"

// VMTags are the tags that a node's VM carries, sorted: our own, and those of the
// inventory.
func (n Node) VMTags() []string {
	tags := append([]string{OwnTag}, n.Tags...)
	slices.Sort(tags)
	return slices.Compact(tags)
}
