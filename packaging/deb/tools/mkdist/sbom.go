package main

import (
	"bytes"
	"crypto/sha1"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// bom is the bill of materials in CycloneDX: the program, and the modules linked
// into it with their licences and the hashes of go.sum.
func (r release) bom(goVersion string, modules []module) ([]byte, error) {
	program := cdx.Component{
		BOMRef: "pkg:golang/" + ours + "@" + r.version, Type: cdx.ComponentTypeApplication, Name: "talos-agent", Version: r.version,
		PackageURL: "pkg:golang/" + ours + "@" + r.version,
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: &[]cdx.Property{{Name: "go:version", Value: goVersion}},
	}
	components := make([]cdx.Component, 0, len(modules))
	refs := make([]string, 0, len(modules))
	for _, m := range modules {
		purl := "pkg:golang/" + m.path + "@" + m.version
		c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.version, Scope: cdx.ScopeRequired, PackageURL: purl}
		c.Licenses = licensesOf(m)
		if m.sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.sum}}
		}
		components = append(components, c)
		refs = append(refs, purl)
	}
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &program}
	b.Components = &components
	b.Dependencies = &[]cdx.Dependency{{Ref: program.BOMRef, Dependencies: &refs}}
	// The number must be unique for what it lists: it is made of that.
	var list bytes.Buffer
	if err := cdx.NewBOMEncoder(&list, cdx.BOMFileFormatJSON).Encode(b); err != nil {
		return nil, err
	}
	b.SerialNumber = "urn:uuid:" + uuid.NewHash(sha1.New(), uuid.NameSpaceURL, list.Bytes(), 5).String()
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b)
	return out.Bytes(), err
}

// licensesOf are the licences of a module. CycloneDX takes either a list of
// identifiers or one expression.
func licensesOf(m module) *cdx.Licenses {
	var list cdx.Licenses
	var all []string
	choice := false
	for _, id := range m.licences() {
		list = append(list, cdx.LicenseChoice{License: &cdx.License{ID: id}})
		if strings.Contains(id, " OR ") {
			choice = true
			id = "(" + id + ")"
		}
		all = append(all, id)
	}
	if choice {
		list = cdx.Licenses{{Expression: strings.Join(all, " AND ")}}
	}
	return &list
}
