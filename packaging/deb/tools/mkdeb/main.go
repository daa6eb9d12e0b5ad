// Command mkdeb makes the Debian packages of talos-agent out of what `make deb`
// has staged: for each architecture the program in STAGE/ARCH, for all of them
// the manual pages and completions in STAGE/manual. It adds what it reads from
// the program itself (which modules are linked into it: their licences, the bill
// of materials) and from Git (the changelog), prints how large each package is, and
// lists their hashes in SHA256SUMS. The same commit gives the same bytes.
package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goreleaser/nfpm/v2"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mkdeb:", err)
		os.Exit(1)
	}
}

// release is what is being packaged.
type release struct {
	top     string    // of the repository
	stage   string    // where what goes into the packages is made
	version string    // as Git and the program tell it
	date    time.Time // of the commit
}

func run() error {
	var r release
	flag.StringVar(&r.top, "top", ".", "top of the repository")
	flag.StringVar(&r.stage, "stage", "", "where the program and the manual lie")
	flag.StringVar(&r.version, "version", "", "version of the program, as git describe prints it")
	out := flag.String("out", "dist", "where the packages go")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: SOURCE_DATE_EPOCH=SECONDS mkdeb -version VERSION -stage DIR [-top DIR] [-out DIR] ARCH...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if r.version == "" || r.stage == "" || flag.NArg() == 0 {
		flag.Usage()
		return errors.New("say the version, the stage and at least one architecture")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return errors.New("SOURCE_DATE_EPOCH is not a number of seconds: the package takes every date from it")
	}
	r.date = time.Unix(epoch, 0).UTC()
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PACKAGE\tSIZE\tINSTALLED\tMODULES")
	for _, arch := range flag.Args() {
		info, err := r.list(arch)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		m, err := r.prepare(arch, info)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		p, err := pack(info, *out)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		if err := p.program(filepath.Join(r.stage, arch, "packaged")); err != nil {
			return err
		}
		fmt.Fprintf(tw, "%s\t%.1f MiB\t%.1f MiB\t%d\n", filepath.Base(p.path), mib(p.size), mib(p.installed), len(m))
	}
	return errors.Join(writeSums(*out), tw.Flush())
}

// sumsFile lists the packages of a release for sha256sum --check.
const sumsFile = "SHA256SUMS"

// writeSums lists every package in a folder.
func writeSums(out string) error {
	names, err := filepath.Glob(filepath.Join(out, "*.deb"))
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(data), filepath.Base(name))
	}
	return os.WriteFile(filepath.Join(out, sumsFile), []byte(list.String()), 0o644)
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// prepare writes what is made for one architecture besides the program.
func (r release) prepare(arch string, info *nfpm.Info) ([]module, error) {
	dir := filepath.Join(r.stage, arch)
	goVersion, modules, err := r.linked(filepath.Join(dir, "talos-agent"), arch)
	if err != nil {
		return nil, err
	}
	bom, err := r.bom(goVersion, modules)
	if err != nil {
		return nil, err
	}
	log, err := r.changelog(info)
	if err != nil {
		return nil, err
	}
	packed, err := compressed(log)
	if err != nil {
		return nil, err
	}
	return modules, errors.Join(
		os.WriteFile(filepath.Join(dir, "copyright"), copyright(modules), 0o644),
		os.WriteFile(filepath.Join(dir, "sbom.cdx.json"), bom, 0o644),
		os.WriteFile(filepath.Join(dir, "changelog.Debian.gz"), packed, 0o644))
}

// output is what a command prints, or an error with what it complains of.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, cmp.Or(strings.Join(args, " "), "(no arguments)"), err, strings.TrimSpace(complaint.String()))
	}
	return string(b), nil
}
