// Command mkdist makes the files of a release of talos-agent out of the programs
// that make has staged, each in STAGE/OS_ARCH, and the manual pages and completions
// in STAGE/manual:
//
//   - packages: the Debian packages of architectures of Linux;
//   - release: beside these packages the archives of platforms, a bill of materials
//     for each program, a container image, an apt repository, and SHA256SUMS.
//
// It adds what it reads from the programs themselves (which modules are linked into
// them: their licences, the bills of materials) and from Git (the changelog). Every
// date is that of the commit: the same commit gives the same bytes.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mkdist:", err)
		os.Exit(1)
	}
}

// release is what is being packaged.
type release struct {
	top     string    // of the repository
	stage   string    // where what goes into the packages is made
	out     string    // where the files of the release go
	version string    // as Git and the program have it
	date    time.Time // of the commit
}

// passphraseVariable has the passphrase of the key, if it is encrypted.
const passphraseVariable = "DIST_KEY_PASSPHRASE"

func run() error {
	var r release
	var shell, key, previous string
	flag.StringVar(&r.top, "top", ".", "top of the repository")
	flag.StringVar(&r.stage, "stage", "", "where the programs and the manual are")
	flag.StringVar(&r.version, "version", "", "version of the program, as git describe prints it")
	flag.StringVar(&r.out, "out", "dist", "where the files go")
	flag.StringVar(&shell, "busybox", "", "directory with Debian's packages of busybox for the image; no image without")
	flag.StringVar(&key, "key", "", "file with the armored OpenPGP key that signs; nothing is signed without. $"+passphraseVariable+" has its passphrase")
	flag.StringVar(&previous, "previous", "", "an older apt repository, whose packages are kept")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: SOURCE_DATE_EPOCH=SECONDS mkdist -version VERSION -stage DIR [flags] packages ARCH...\n"+
			"       SOURCE_DATE_EPOCH=SECONDS mkdist -version VERSION -stage DIR [flags] release OS/ARCH...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if r.version == "" || r.stage == "" || flag.NArg() < 2 {
		flag.Usage()
		return errors.New("the version, the stage, what to make and for which platforms are required")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return errors.New("SOURCE_DATE_EPOCH is not a number of seconds: every date is taken from it")
	}
	r.date = time.Unix(epoch, 0).UTC()
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	what, args := flag.Arg(0), flag.Args()[1:]
	if what == "packages" {
		return errors.Join(r.makePackages(args), writeSums(r.out))
	}
	if what != "release" {
		return fmt.Errorf("%q is neither packages nor release", what)
	}
	platforms, err := parsePlatforms(args)
	if err != nil {
		return err
	}
	var s *signer
	if key != "" {
		if s, err = openSigner(key, os.Getenv(passphraseVariable), r.date); err != nil {
			return err
		}
	}
	return r.makeRelease(platforms, busybox{dir: shell, sums: busyboxSums}, previous, s)
}

// platform is what a program runs on, as Go names it.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }
func (p platform) hasImage() bool { return p.os == "linux" }

func parsePlatforms(names []string) ([]platform, error) {
	var out []platform
	for _, name := range names {
		system, arch, ok := strings.Cut(name, "/")
		if !ok || system == "" || arch == "" {
			return nil, fmt.Errorf("%q is no platform: write one like linux/amd64", name)
		}
		out = append(out, platform{system, arch})
	}
	return out, nil
}

// folder is where the program for a platform is, and what is made with it.
func (r release) folder(p platform) string { return filepath.Join(r.stage, p.os+"_"+p.arch) }

// name is how each file of the release begins that is no package: talos-agent_1.2.3.
func (r release) name() string { return "talos-agent_" + strings.TrimPrefix(r.version, "v") }

// Files that are made for each program, in its folder.
const (
	billFile           = "sbom.cdx.json"
	debCopyrightFile   = "copyright"     // refers to the licences that every Debian has
	otherCopyrightFile = "copyright.txt" // beside the LICENSE of the repository
)

// makeRelease makes everything of a release but its packages, which are there.
func (r release) makeRelease(platforms []platform, shell busybox, previous string, s *signer) error {
	for _, p := range platforms {
		// What makePackages has written is of the same program.
		if _, err := os.Stat(filepath.Join(r.folder(p), billFile)); errors.Is(err, os.ErrNotExist) {
			if _, err := r.describe(p); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		} else if err != nil {
			return err
		}
		if err := r.writeArchive(p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	if shell.dir == "" {
		fmt.Println("NO IMAGE: there is no busybox for it")
	} else if !slices.ContainsFunc(platforms, platform.hasImage) {
		fmt.Println("NO IMAGE: none of the platforms is of Linux")
	} else if err := r.writeImage(platforms, shell); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := r.writeRepository(previous, s); err != nil {
		return fmt.Errorf("apt repository: %w", err)
	}
	if err := writeSums(r.out); err != nil {
		return err
	}
	if s == nil {
		fmt.Println("NOT SIGNED: apt refuses the repository unless it is set to trust it. DIST_KEY=FILE names the key to sign with.")
		return nil
	}
	fmt.Printf("SHA256SUMS and the apt repository are signed with %X\n", s.entity.PrimaryKey.Fingerprint)
	return s.signFile(filepath.Join(r.out, sumsFile), filepath.Join(r.out, sumsFile+".asc"))
}

// describe writes what is read from the program for a platform: the licences of the
// modules that are linked into it, and its bill of materials.
func (r release) describe(p platform) ([]module, error) {
	dir := r.folder(p)
	goVersion, modules, err := r.linked(filepath.Join(dir, "talos-agent"), p)
	if err != nil {
		return nil, err
	}
	bom, err := r.bom(goVersion, modules)
	if err != nil {
		return nil, err
	}
	return modules, errors.Join(
		os.WriteFile(filepath.Join(dir, debCopyrightFile), copyright(modules, common), 0o644),
		os.WriteFile(filepath.Join(dir, otherCopyrightFile), copyright(modules, beside), 0o644),
		os.WriteFile(filepath.Join(dir, billFile), bom, 0o644))
}

// output is what a command prints, or an error with what it complains of. None needs
// the passphrase.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, passphraseVariable+"=") }), env...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, cmp.Or(strings.Join(args, " "), "(no arguments)"), err, strings.TrimSpace(complaint.String()))
	}
	return string(b), nil
}
