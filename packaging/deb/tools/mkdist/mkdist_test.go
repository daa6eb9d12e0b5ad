package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goreleaser/nfpm/v2"
)

var day = time.Date(2026, 11, 22, 2, 15, 20, 0, time.UTC)

func TestDebianVersion(t *testing.T) {
	for described, want := range map[string]string{
		"v1.2.3":                  "1.2.3",
		"1.2.3":                   "1.2.3",
		"v1.2.3-dirty":            "1.2.3+dirty",
		"v1.2.3-rc.1":             "1.2.3~rc.1",
		"v1.2.3-5-gabc1234":       "1.2.3+5.gabc1234",
		"v1.2.3-rc.1-5-gabc1234":  "1.2.3~rc.1+5.gabc1234",
		"v1.2.3-5-gabc1234-dirty": "1.2.3+5.gabc1234+dirty",
		"4159a59":                 "0.0.0+git20261122021520.4159a59",
		"4159a59-dirty":           "0.0.0+git20261122021520.4159a59+dirty",
	} {
		if got, err := debianVersion(described, day); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", described, got, err, want)
		}
	}
	for _, described := range []string{"", "v0.0.0-unknown-", "main", "v1.2", "1.2.3_4", "v1.2.3; rm -rf /"} {
		if got, err := debianVersion(described, day); err == nil {
			t.Errorf("%q became %s", described, got)
		}
	}
}

// TestVersionsSort: dpkg holds each of these for newer than the one before.
func TestVersionsSort(t *testing.T) {
	dpkg, err := exec.LookPath("dpkg")
	if err != nil {
		t.Skip("there is no dpkg")
	}
	before := "0"
	for _, described := range []string{"abc1234", "v1.2.3-rc.1", "v1.2.3-rc.1-2-gabc1234", "v1.2.3-rc.2", "v1.2.3", "v1.2.3-1-gfff1234", "v1.2.3-10-gabc1234", "v1.2.4"} {
		v, err := debianVersion(described, day)
		if err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(dpkg, "--compare-versions", before, "lt", v).Run(); err != nil {
			t.Errorf("%s is not newer than %s", v, before)
		}
		before = v
	}
}

// TestPackageName: a package of a release has the name by which the CI files of init
// repo fetch it.
func TestPackageName(t *testing.T) {
	r := release{top: "../../../..", stage: t.TempDir(), version: "v1.2.3", date: day}
	info, err := r.list("amd64")
	if err != nil {
		t.Fatal(err)
	}
	deb, err := nfpm.Get("deb")
	if err != nil {
		t.Fatal(err)
	}
	name := deb.ConventionalFileName(info)
	files, err := filepath.Glob(filepath.Join(r.top, "internal/repo/scaffold/files/ci/*.yaml"))
	if err != nil || len(files) != 3 {
		t.Fatalf("CI files: %v, %v", files, err)
	}
	for _, file := range files {
		text := strings.ReplaceAll(string(readFile(t, file)), "${TALOS_AGENT}", "1.2.3")
		for _, want := range []string{`package="` + name + `"`, `-O "$release/` + sumsFile + `"`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", file, want)
			}
		}
	}
}

func TestWrap(t *testing.T) {
	got := wrap("  * ", "    ", "one two three four", 12)
	if want := "  * one two\n    three\n    four\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := wrap("  * ", "    ", strings.Repeat("x", 20), 12); got != "  * "+strings.Repeat("x", 20)+"\n" {
		t.Errorf("a long word: %q", got)
	}
}

const mit = `MIT License

Copyright (c) 2020 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

// apache is the licence of this project, as somebody else's.
func apache(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(b), "Copyright [yyyy] [name of copyright owner]", "Copyright 2019 Somebody", 1)
}

// put writes files, given as names and texts in pairs, into a folder.
func put(t *testing.T, pairs ...string) string {
	t.Helper()
	top := t.TempDir()
	for i := 0; i < len(pairs); i += 2 {
		path := filepath.Join(top, pairs[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(pairs[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func TestTextsOfAModule(t *testing.T) {
	top := put(t, "LICENSE", mit, "NOTICE", "made by somebody", "license.go", "package x",
		"forked/LICENSE", apache(t), "forked/p/p.go", "package p", "unused/LICENSE", "nobody knows what this means")
	got, err := texts(top, []string{top, filepath.Join(top, "forked/p")})
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, x := range got {
		files = append(files, x.file)
	}
	if want := []string{"LICENSE", "NOTICE", "forked/LICENSE"}; !slices.Equal(files, want) {
		t.Errorf("found %v, want %v: what is not linked does not count", files, want)
	}
	if ids := (module{texts: got}).licences(); !slices.Equal(ids, []string{"Apache-2.0", "MIT"}) {
		t.Errorf("licences %v", ids)
	}
}

// What may be had under one licence or another is not under both: a program under
// Apache-2.0 could not have a part under GPL-2.0 alone.
func TestChoiceOfLicences(t *testing.T) {
	top := put(t, "LICENSE", "/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n\n"+mit+"\n\n"+apache(t), "other/LICENSE", mit, "other/p.go", "package p")
	got, err := texts(top, []string{filepath.Join(top, "other")})
	if err != nil {
		t.Fatal(err)
	}
	m := module{path: "example.org/a", version: "v1.0.0", texts: got}
	if ids := m.licences(); !slices.Equal(ids, []string{"MIT", "MIT OR Apache-2.0"}) {
		t.Errorf("licences %q", ids)
	}
	bill, err := release{version: "v1.2.3", date: day}.bom("go1.26.8", []module{m})
	if err != nil {
		t.Fatal(err)
	}
	if want := `"expression": "MIT AND (MIT OR Apache-2.0)"`; !strings.Contains(string(bill), want) {
		t.Errorf("lacks %s:\n%s", want, bill)
	}
	if text := string(copyright([]module{m}, common)); !strings.Contains(text, "Permission is hereby granted") || strings.Contains(text, "TERMS AND CONDITIONS FOR USE") {
		t.Errorf("the copyright file:\n%s", text)
	}
}

func TestNothingWithoutAKnownLicence(t *testing.T) {
	for name, pairs := range map[string][]string{
		"none":     {"p/p.go", "package p"},
		"a notice": {"NOTICE", "made by somebody", "p/p.go", "package p"},
		"unknown":  {"LICENSE", "You may use this on Tuesdays, if the moon is full and nobody looks.", "p/p.go", "package p"},
		"below":    {"LICENSE", mit, "p/LICENSE", "All rights reserved by us, and you have none of them.", "p/p.go", "package p"},
	} {
		top := put(t, pairs...)
		if got, err := texts(top, []string{filepath.Join(top, "p")}); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCopyright(t *testing.T) {
	licensed := func(path, body string) module {
		ids := recognise([]byte(body))
		return module{path: path, version: "v1.0.0", texts: []text{{file: "LICENSE", content: body, licences: ids}}}
	}
	got := string(copyright([]module{licensed("example.org/a", mit), licensed("example.org/b", mit), licensed("example.org/c", apache(t)), licensed("example.org/d", apache(t)+"\n\n"+mit)}, common))
	for _, want := range []string{
		"  example.org/a v1.0.0: MIT\n", "  example.org/d v1.0.0: Apache-2.0, MIT\n",
		"example.org/a (LICENSE)\nexample.org/b (LICENSE)\n\nMIT License",
		"example.org/c (LICENSE)\n\nApache-2.0, see /usr/share/common-licenses/Apache-2.0\nCopyright 2019 Somebody\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q", want)
		}
	}
	if n := strings.Count(got, "Permission is hereby granted"); n != 2 {
		t.Errorf("the text of MIT is there %d times, want once for two modules and once beside another", n)
	}
	if strings.Contains(got, "TERMS AND CONDITIONS FOR USE") {
		t.Error("a text is repeated that every Debian has")
	}
}

func TestBillOfMaterials(t *testing.T) {
	r := release{version: "v1.2.3", date: day}
	modules := []module{{path: "example.org/a", version: "v1.0.0", sum: "h1:abc=", texts: []text{{licences: recognise([]byte(mit))}}}}
	a, err := r.bom("go1.26.8", modules)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"purl": "pkg:golang/example.org/a@v1.0.0"`, `"id": "MIT"`, `"value": "h1:abc="`, `"timestamp": "2026-11-22T02:15:20Z"`} {
		if !strings.Contains(string(a), want) {
			t.Errorf("lacks %s:\n%s", want, a)
		}
	}
	b, err := r.bom("go1.26.8", modules)
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Error("the same modules give another bill")
	}
	modules[0].version = "v1.0.1"
	if b, err = r.bom("go1.26.8", modules); err != nil || serial(b) == serial(a) {
		t.Errorf("another bill has the same number (%v)", err)
	}
}

func serial(bom []byte) string {
	_, rest, _ := strings.Cut(string(bom), `"serialNumber": "`)
	number, _, _ := strings.Cut(rest, `"`)
	return number
}
