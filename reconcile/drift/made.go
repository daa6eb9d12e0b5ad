package drift

import (
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// IsReplaced reports whether the VM of a node was made for another token than the
// inventory has, and no machine was made for that one, so that it is to become another one.
func IsReplaced(n cluster.Node, vm cluster.VM, f cluster.Facts) bool {
	return HasOtherToken(n, vm) && !f.WasReplaced(n.Name, n.Replace)
}

// IsRestored reports whether the VM of a node has another token than the inventory, which
// had its machine already: the VM was restored from a backup, or its description was edited.
func IsRestored(n cluster.Node, vm cluster.VM, f cluster.Facts) bool {
	return HasOtherToken(n, vm) && f.WasReplaced(n.Name, n.Replace)
}

// HasOtherToken reports whether the VM of a node was made for another token than the
// inventory has.
func HasOtherToken(n cluster.Node, vm cluster.VM) bool {
	return n.Replace != "" && vm.Presence == cluster.Present && vm.Owner == cluster.Ours && !vm.Unmarked && vm.Replace != n.Replace
}

// unmadeBelow is what the disk of a VM has before it is grown: the image's own size lies below, every inventory's above.
const unmadeBelow = 2 << 30 // bytes

// IsUnmade reports whether the creation of a VM of ours was interrupted before it could be
// started for the first time: its disk has not been grown, or its tag is not
// there.
func IsUnmade(vm cluster.VM) bool {
	hw := vm.Hardware
	return hw.Known && vm.Power == cluster.Stopped && !LacksSystemDisk(vm) &&
		(hw.Value.System.Bytes < unmadeBelow || !slices.Contains(vm.Tags, cluster.OwnTag))
}
