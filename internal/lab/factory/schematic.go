package factory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v4"
)

// schematic is the document an Image Factory takes. Field names, their order
// and what is left out when empty are those of the real one, because the id is
// the SHA-256 of the document as it is encoded: the same document has the same id
// here and there.
type schematic struct {
	Owner         string        `yaml:"owner,omitempty"`
	Overlay       overlay       `yaml:"overlay,omitempty"`
	Customization customization `yaml:"customization"`
}

type overlay struct {
	Image   string         `yaml:"image"`
	Name    string         `yaml:"name"`
	Options map[string]any `yaml:"options,omitempty"`
}

type customization struct {
	EmbeddedMachineConfiguration string           `yaml:"embeddedMachineConfiguration,omitempty"`
	ExtraKernelArgs              []string         `yaml:"extraKernelArgs,omitempty"`
	Meta                         []metaValue      `yaml:"meta,omitempty"`
	SystemExtensions             systemExtensions `yaml:"systemExtensions,omitempty"`
	Bootloader                   string           `yaml:"bootloader,omitempty"`
	SecureBoot                   secureBoot       `yaml:"secureboot,omitempty"`
	DiskImage                    diskImage        `yaml:"diskImage,omitempty"`
}

type metaValue struct {
	Key   uint8  `yaml:"key"`
	Value string `yaml:"value"`
}

type systemExtensions struct {
	OfficialExtensions []string `yaml:"officialExtensions,omitempty"`
}

type secureBoot struct {
	EnrollKeys                   string `yaml:"enrollKeys,omitempty"`
	IncludeWellKnownCertificates bool   `yaml:"includeWellKnownCertificates,omitempty"`
}

type diskImage struct {
	SectorSize uint `yaml:"sectorSize,omitempty"`
}

// bootloaders are the values of the bootloader field; auto is the same as no
// value, and has none in the canonical document.
var bootloaders = []string{"", "auto", "dual-boot", "grub", "sd-boot"}

// parseSchematic reads a schematic as strictly as the real factory: unknown
// fields and the enterprise edition's owner are errors.
func parseSchematic(text []byte) (schematic, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var s schematic
	if err := dec.Decode(&s); err != nil {
		return schematic{}, err
	}
	if s.Owner != "" {
		return schematic{}, errors.New("owner field is only supported in Enterprise edition")
	}
	if !slices.Contains(bootloaders, s.Customization.Bootloader) {
		return schematic{}, fmt.Errorf("invalid bootloader %q", s.Customization.Bootloader)
	}
	if s.Customization.Bootloader == "auto" {
		s.Customization.Bootloader = ""
	}
	return s, nil
}

// encodeCanonical returns the document as the factory keeps it, and its id.
func (s schematic) encodeCanonical() (text []byte, id string, err error) {
	text, err = yaml.Marshal(s)
	if err != nil {
		return nil, "", fmt.Errorf("write schematic: %w", err)
	}
	sum := sha256.Sum256(text)
	return text, hex.EncodeToString(sum[:]), nil
}
