package world

// Firmware is what the UEFI firmware of a guest keeps in its variables: whose signature it wants of what it boots.
// The zero value is in setup mode: it has no keys, boots whatever there is, and takes the keys that it is given. It is
// a pointer for as long as a VM has its EFI disk, and a new one for each start of a VM that has none.
//
// Source: OVMF, and systemd-boot as Talos 1.14 has it: secure-boot-enroll if-safe.
type Firmware struct {
	// Keys are those that it has; "": none.
	Keys Keys
	// Legacy: it is a BIOS, which verifies nothing, and boots nothing that is signed for Secure Boot alone.
	Legacy bool
}

// Keys name who has signed what a firmware boots.
type Keys string

// The keys that a firmware may have.
const (
	// TalosKeys are those with which the Image Factory signs.
	TalosKeys Keys = "Sidero Labs"
	// MicrosoftKeys are those of distributions, which an EFI disk has with pre-enrolled-keys=1.
	MicrosoftKeys Keys = "Microsoft"
)

// Boots reports whether the firmware of a guest boots an image from its disk.
func (g Guest) Boots(img Image) bool {
	f := g.Firmware
	switch {
	case f == nil:
		return true
	case f.Legacy:
		return !img.Signed
	}
	return f.Keys == "" || img.Signed && f.Keys == TalosKeys
}

// Pick is what the firmware boots of a guest whose disk holds an image (the zero value: nothing to boot), and
// whether that is its medium: the first that it boots at all, past what is empty or not signed as it wants.
func (g Guest) Pick(disk Image) (image Image, medium, ok bool) {
	onDisk, onMedium := disk.Version != "" && g.Boots(disk), g.Medium != nil && g.Boots(*g.Medium)
	switch {
	case onMedium && (g.MediumFirst || !onDisk):
		return *g.Medium, true, true
	case onDisk:
		return disk, false, true
	}
	return Image{}, false, false
}

// VerifyBoot has the firmware boot an image, and reports whether it has verified that. An image that enrolls keys has a
// firmware without any take its own, with which that boots it once more.
func (g Guest) VerifyBoot(img Image) (verified bool) {
	f := g.Firmware
	if f == nil || f.Legacy || !img.Signed {
		return false
	}
	if f.Keys == "" && img.Enrolls {
		f.Keys = TalosKeys
	}
	return f.Keys == TalosKeys
}
