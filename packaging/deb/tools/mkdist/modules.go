package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// module is one that is linked into the program, with what its authors want to
// be told wherever it is passed on.
type module struct {
	path, version, sum string
	texts              []text
}

// text is one file of a module about its licence.
type text struct {
	file    string // from the module's top
	content string
	// The licences in it; none in a notice, which belongs to a licence.
	licences []licence
	// The SPDX expression that it begins with, where that leaves the choice between
	// licences.
	choice string
}

// licence is one that a text holds, by its SPDX identifier, and where.
type licence struct {
	id         string
	start, end int
}

// ours is the module that is packaged.
const ours = "github.com/talos-agent/talos-agent"

// standard is what the Go distribution's own packages are called in a list of
// modules.
const standard = "std"

// linked lists the modules that are linked into a program, by path, Go's own
// library among them. The program itself says which they are; that the packages
// found here are of the same modules is checked.
func (r release) linked(program string, p platform) (goVersion string, _ []module, err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", nil, err
	}
	for _, s := range info.Settings {
		if s.Key == "GOARCH" && s.Value != p.arch || s.Key == "GOOS" && s.Value != p.os {
			return "", nil, fmt.Errorf("%s was built for %s", program, s.Value)
		}
	}
	dirs, err := r.packages(p)
	if err != nil {
		return "", nil, err
	}
	modules := []module{{path: standard, version: info.GoVersion}}
	inProgram := map[string]bool{standard: true, ours: true}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		modules = append(modules, module{path: d.Path, version: d.Version, sum: d.Sum})
		inProgram[d.Path] = true
	}
	for path := range dirs {
		if !inProgram[path] {
			return "", nil, fmt.Errorf("%s was built from other modules than are here: it lacks %s; build it again", program, path)
		}
	}
	for i := range modules {
		m := &modules[i]
		found, ok := dirs[m.path]
		if !ok {
			return "", nil, fmt.Errorf("%s was built from other modules than are here: it has %s; build it again", program, m.path)
		}
		if m.texts, err = texts(found.top, found.packages); err != nil {
			return "", nil, fmt.Errorf("module %s: %w", m.path, err)
		}
	}
	slices.SortFunc(modules, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return info.GoVersion, modules, nil
}

// found is where a module lies on this machine, and which of its folders hold
// packages that are linked.
type found struct {
	top      string
	packages []string
}

// packages lists the packages that are linked on one platform, by module.
func (r release) packages(on platform) (map[string]found, error) {
	out, err := output(r.top, []string{"GOOS=" + on.os, "GOARCH=" + on.arch, "CGO_ENABLED=0"}, "go", "list", "-deps", "-json=Dir,Standard,Module", "./cmd/agent")
	if err != nil {
		return nil, err
	}
	goroot, err := output(r.top, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	type listedModule struct {
		Path, Dir string
		Replace   *listedModule
	}
	dirs := map[string]found{standard: {top: strings.TrimSpace(goroot)}}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p struct {
			Dir      string
			Standard bool
			Module   *listedModule
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return dirs, nil
		} else if err != nil {
			return nil, fmt.Errorf("read what go list prints: %w", err)
		}
		if p.Standard || p.Module.Path == ours {
			continue
		}
		m := p.Module
		if m.Replace != nil {
			m = m.Replace
		}
		f := dirs[m.Path]
		f.top = m.Dir
		f.packages = append(f.packages, p.Dir)
		dirs[m.Path] = f
	}
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([._-].*)?$`)
	// SPDX 3, annex D: the operators of an expression.
	choice     = regexp.MustCompile(`^[\s*#/]*SPDX-License-Identifier: *([\w.+-]+(?: OR [\w.+-]+)+)[ */]*\n`)
	noticeFile = regexp.MustCompile(`(?i)^(notice|patents|copyright|authors)([._-].*)?$`)
)

// texts finds what is said about licences in a module: at its top, and in the
// folders on the way to each package of it that is linked. A module without a
// licence is an error, and so is a licence that is not recognised: neither may be
// passed on unseen.
func texts(top string, packages []string) ([]text, error) {
	folders := map[string]bool{top: true}
	for _, dir := range packages {
		for ; dir != top; dir = filepath.Dir(dir) {
			if len(dir) <= len(top) {
				return nil, fmt.Errorf("package folder %s is not inside %s", dir, top)
			}
			folders[dir] = true
		}
	}
	var out []text
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			isLicence, isNotice := licenceFile.MatchString(e.Name()), noticeFile.MatchString(e.Name())
			if e.IsDir() || filepath.Ext(e.Name()) == ".go" || !isLicence && !isNotice {
				continue
			}
			path := filepath.Join(dir, e.Name())
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(top, path)
			if err != nil {
				return nil, err
			}
			t := text{file: name, content: string(b)}
			if isLicence {
				if t.licences = recognise(b); t.licences == nil {
					return nil, fmt.Errorf("the licence in %s is not recognised: read it, and teach mkdist its name if it may be linked", path)
				}
				if m := choice.FindStringSubmatch(t.content); m != nil {
					t.choice = m[1]
				}
			}
			out = append(out, t)
		}
	}
	if !slices.ContainsFunc(out, func(t text) bool { return t.licences != nil }) {
		return nil, fmt.Errorf("there is no licence in %s or in the folders of its packages", top)
	}
	return out, nil
}

// recognised is how much of a file, in percent, must be the text of licences
// that are known.
const recognised = 75

// recognise finds the licences that a text consists of, in their order; none when
// too much of it is of none that is known.
func recognise(b []byte) []licence {
	c := licensecheck.Scan(b)
	if c.Percent < recognised {
		return nil
	}
	var out []licence
	for _, m := range c.Match {
		if !m.IsURL {
			out = append(out, licence{id: m.ID, start: m.Start, end: m.End})
		}
	}
	return out
}
