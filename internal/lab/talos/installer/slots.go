package installer

import "github.com/talos-agent/talos-agent/internal/lab/world"

// Slots are the places on a system disk that hold a Talos to boot. A disk that was made from
// an image has one; each installer writes the one that does not boot next. The zero value is such a
// disk. Copies are independent of each other.
// Source: talos v1.13.9, bootloader/sdboot: Upgrade, revert.
type Slots struct {
	slots   [2]*world.Image // nil: empty
	next    int             // the slot that boots next
	tagged  bool            // META has the Upgrade tag: a fatal error goes back to the other slot
	adopted bool            // the first slot is known
}

// Next is what boots next from a disk that was made from an image.
func (s *Slots) Next(made world.Image) world.Image {
	if !s.adopted {
		s.adopted, s.slots[0] = true, &made
	}
	return *s.slots[s.next]
}

// Adopted reports whether the slots hold what was installed, or has booted.
func (s *Slots) Adopted() bool { return s.adopted }

// Clear empties the slot that an installer is about to write. That is not always the one
// that does not run: after two installers without a reboot between them it is.
func (s *Slots) Clear() { s.slots[1-s.next] = nil }

// Write fills that slot, and boots it from now on, however often: it is not tried once.
func (s *Slots) Write(image world.Image) {
	image.Platform = s.slots[s.next].Platform // installers know of all
	image.Enrolls = s.slots[s.next].Enrolls   // the keys lie beside the slots
	s.next = 1 - s.next
	s.slots[s.next], s.tagged = &image, true
}

// Install has a disk hold one image, whatever it held. No fatal error goes back from it.
// Source: talos, cmd/installer/pkg/install: handleMeta, which sets the Upgrade tag for an upgrade only.
func (s *Slots) Install(image world.Image) { *s = Slots{slots: [2]*world.Image{&image}, adopted: true} }

// Revert boots the other slot from now on, if there is anything in it.
func (s *Slots) Revert() bool {
	if s.slots[1-s.next] == nil {
		return false
	}
	s.next = 1 - s.next
	return true
}

// Fall is what Talos does when it ends with a fatal error: it goes back to the other slot, if
// the version that runs has not been running and ready since it was installed.
// Source: talos v1.13.9, machined: revertBootloader.
func (s *Slots) Fall() bool {
	fell := s.tagged && s.Revert()
	s.tagged = false
	return fell
}

// Confirm is what Talos does once it is running and ready: nothing goes back by itself any more.
// Source: talos v1.13.9, runtime.DropUpgradeFallbackController.
func (s *Slots) Confirm() { s.tagged = false }
