package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// An apt repository is a directory that any web server serves: the packages in
// pool/, and in dists/SUITE/ what apt reads of them. Of talos-agent it has one suite
// with one component.
const (
	suite     = "stable"
	component = "main"
	pool      = "pool/" + component + "/t/talos-agent"
	// keyFile is the public key, for a user's /etc/apt/keyrings.
	keyFile = "talos-agent.asc"
)

// writeRepository writes an apt repository of the packages of the release, and of
// those of a previous repository if there is one, which may be in the same place.
func (r release) writeRepository(previous string, s *signer) error {
	top := filepath.Join(r.out, "apt")
	made := top + ".new"
	if err := errors.Join(os.RemoveAll(made), r.buildRepository(made, previous, s)); err != nil {
		return errors.Join(err, os.RemoveAll(made))
	}
	return errors.Join(os.RemoveAll(top), os.Rename(made, top))
}

func (r release) buildRepository(top, previous string, s *signer) error {
	if err := os.MkdirAll(filepath.Join(top, pool), 0o755); err != nil {
		return err
	}
	if err := addPackages(r.out, filepath.Join(top, pool), nil); err != nil {
		return err
	}
	if previous != "" {
		listed, err := readPrevious(previous, s)
		if err == nil {
			err = addPackages(filepath.Join(previous, pool), filepath.Join(top, pool), listed)
		}
		if err != nil {
			return fmt.Errorf("previous repository: %w", err)
		}
	}
	lists, err := listPackages(top)
	if err != nil {
		return err
	}
	if len(lists) == 0 {
		return fmt.Errorf("there is no package in %s", r.out)
	}
	indexes, err := writeIndexes(filepath.Join(top, "dists", suite), lists, r.date)
	if err != nil {
		return err
	}
	text := describeSuite(slices.Sorted(maps.Keys(lists)), indexes, r.date)
	return writeSuite(top, text, s)
}

// addPackages copies the packages of a directory into the pool. Of a version there is
// one package, for ever. Of a previous repository they must be what its lists have.
func addPackages(from, to string, listed map[string]string) error {
	debs, err := filepath.Glob(filepath.Join(from, "talos-agent_*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		target := filepath.Join(to, filepath.Base(deb))
		_, err := os.Stat(target)
		switch {
		case err == nil:
			err = compareFiles(deb, target)
		case errors.Is(err, fs.ErrNotExist):
			err = copyFile(deb, target)
		}
		if err == nil && listed != nil {
			err = checkListed(target, listed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func compareFiles(a, b string) error {
	sumA, _, errA := hashFile(a)
	sumB, _, errB := hashFile(b)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if sumA != sumB {
		return fmt.Errorf("%s differs from the package of this version that was released before", filepath.Base(a))
	}
	return nil
}

func copyFile(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	return errors.Join(writeFile(to, func(w io.Writer) error {
		_, err := io.Copy(w, f)
		return err
	}), f.Close())
}

// controlField is a field of a control file, the names of which have no case, with what
// is on its line.
var controlField = regexp.MustCompile(`(?m)^([!-9;-~]+):[ \t]*(.*?)[ \t\r]*$`)

// blankLine ends a control file: what follows would be of another package.
var blankLine = regexp.MustCompile(`(?m)^[ \t\r]*$`)

// readControl reads the control file of a package, which must be one of talos-agent and
// be called what it is: the repository has it listed under its own words.
func readControl(deb string) (control []byte, arch string, err error) {
	var b bytes.Buffer
	err = readDeb(deb, "control.tar", "control", func(r io.Reader) error {
		_, err := io.Copy(&b, r)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	control = bytes.TrimSpace(b.Bytes())
	fields := map[string]string{}
	for _, m := range controlField.FindAllSubmatch(control, -1) {
		name := strings.ToLower(string(m[1]))
		if _, ok := fields[name]; ok {
			return nil, "", fmt.Errorf("%s: its control file has the field %s twice", deb, m[1])
		}
		fields[name] = string(m[2])
	}
	arch = fields["architecture"]
	called := fields["package"] + "_" + fields["version"] + "_" + arch + ".deb"
	switch {
	case blankLine.Match(control):
		return nil, "", fmt.Errorf("%s: its control file has a blank line", deb)
	case fields["filename"] != "" || fields["size"] != "" || fields["sha256"] != "":
		return nil, "", fmt.Errorf("%s: its control file has a field that only lists have", deb)
	case fields["package"] != "talos-agent":
		return nil, "", fmt.Errorf("%s: it is a package of %q, and the repository is for talos-agent only", deb, fields["package"])
	case arch == "":
		return nil, "", fmt.Errorf("%s: its control file names no architecture", deb)
	case called != filepath.Base(deb):
		return nil, "", fmt.Errorf("%s: by its control file it is %s", deb, called)
	}
	return control, arch, nil
}

// listPackages makes the list of the packages in the pool for each architecture: of
// each its own control file, and where it is.
func listPackages(top string) (map[string][]byte, error) {
	debs, err := filepath.Glob(filepath.Join(top, pool, "*.deb"))
	if err != nil {
		return nil, err
	}
	lists := map[string][]byte{}
	for _, deb := range debs {
		control, arch, err := readControl(deb)
		if err != nil {
			return nil, err
		}
		sum, size, err := hashFile(deb)
		if err != nil {
			return nil, err
		}
		paragraph := fmt.Appendf(nil, "%s\nFilename: %s/%s\nSize: %d\nSHA256: %s\n\n",
			control, pool, filepath.Base(deb), size, sum)
		lists[arch] = append(lists[arch], paragraph...)
	}
	return lists, nil
}

// index is one file that a suite lists.
type index struct {
	name string // from the suite's directory
	sum  string
	size int64
}

// writeIndexes writes the list of each architecture, as it is and compressed.
func writeIndexes(dir string, lists map[string][]byte, date time.Time) ([]index, error) {
	var out []index
	for _, arch := range slices.Sorted(maps.Keys(lists)) {
		folder := component + "/binary-" + arch
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return nil, err
		}
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		z.ModTime = date
		_, err := z.Write(lists[arch])
		if err := errors.Join(err, z.Close()); err != nil {
			return nil, err
		}
		for file, content := range map[string][]byte{"Packages": lists[arch], "Packages.gz": zipped.Bytes()} {
			path := filepath.Join(dir, folder, file)
			if err := os.WriteFile(path, content, 0o644); err != nil {
				return nil, err
			}
			sum, size, err := hashFile(path)
			if err != nil {
				return nil, err
			}
			out = append(out, index{folder + "/" + file, sum, size})
		}
	}
	slices.SortFunc(out, func(a, b index) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// describeSuite is the Release file.
func describeSuite(architectures []string, indexes []index, date time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Origin: talos-agent\nLabel: talos-agent\nSuite: %s\nCodename: %[1]s\nDate: %s\nArchitectures: %s\nComponents: %s\nDescription: GitOps for Talos Linux clusters on a Proxmox VE host\nSHA256:\n",
		suite, date.UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"), strings.Join(architectures, " "), component)
	for _, i := range indexes {
		fmt.Fprintf(&b, " %s %d %s\n", i.sum, i.size, i.name)
	}
	return b.Bytes()
}

// writeSuite writes the Release file; with a key also its signatures, inside of it
// and beside it, and the public key.
func writeSuite(top string, text []byte, s *signer) error {
	files := map[string][]byte{"dists/" + suite + "/Release": text}
	if s != nil {
		inline, err := s.signInline(text)
		if err != nil {
			return err
		}
		detached, err := s.signDetached(text)
		if err != nil {
			return err
		}
		public, err := s.public()
		if err != nil {
			return err
		}
		files["dists/"+suite+"/InRelease"] = inline
		files["dists/"+suite+"/Release.gpg"] = detached
		files[keyFile] = public
	}
	var failed error
	for name, content := range files {
		failed = errors.Join(failed, os.WriteFile(filepath.Join(top, name), content, 0o644))
	}
	return failed
}
