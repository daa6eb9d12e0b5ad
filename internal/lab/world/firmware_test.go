package world

import "testing"

// TestFirmware: a firmware without keys boots whatever there is, and takes those of an image that brings them; one with
// keys boots nothing that others have signed, or nobody.
func TestFirmware(t *testing.T) {
	plain, signed, enrolls := Image{}, Image{Signed: true}, Image{Signed: true, Enrolls: true}
	for name, c := range map[string]struct {
		firmware        *Firmware
		image           Image
		boots, verified bool
		keys            Keys
	}{
		"without keys, a plain image":          {&Firmware{}, plain, true, false, ""},
		"without keys, a signed one":           {&Firmware{}, signed, true, false, ""},
		"without keys, one that brings them":   {&Firmware{}, enrolls, true, true, TalosKeys},
		"with keys, a plain image":             {&Firmware{Keys: TalosKeys}, plain, false, false, TalosKeys},
		"with keys, a signed one":              {&Firmware{Keys: TalosKeys}, signed, true, true, TalosKeys},
		"with keys of others, a plain image":   {&Firmware{Keys: MicrosoftKeys}, plain, false, false, MicrosoftKeys},
		"with keys of others, a signed one":    {&Firmware{Keys: MicrosoftKeys}, enrolls, false, false, MicrosoftKeys},
		"a BIOS, a plain image":                {&Firmware{Legacy: true}, plain, true, false, ""},
		"a BIOS, a signed one":                 {&Firmware{Legacy: true}, enrolls, false, false, ""},
		"one that verifies nothing":            {nil, enrolls, true, false, ""},
		"one that verifies nothing, any image": {nil, plain, true, false, ""},
	} {
		g := Guest{Firmware: c.firmware}
		if boots := g.Boots(c.image); boots != c.boots {
			t.Errorf("%s: boots %v", name, boots)
		}
		if !c.boots {
			continue
		}
		if verified := g.VerifyBoot(c.image); verified != c.verified {
			t.Errorf("%s: verified %v", name, verified)
		}
		if g.Firmware != nil && g.Firmware.Keys != c.keys {
			t.Errorf("%s: keys %q, want %q", name, g.Firmware.Keys, c.keys)
		}
	}
}
