package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"go.yaml.in/yaml/v3"
)

// distVariable is where .ci/deb has made a release for this machine.
const distVariable = "TALOS_AGENT_DIST"

// made is the one file of a release with such a name.
func made(t *testing.T, dist, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dist, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v; want one", pattern, found, err)
	}
	return found[0]
}

// printed is what a command prints in a folder.
func printed(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := output(dir, nil, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// gitlabJob is what the runner of GitLab starts in a container to find a shell.
const gitlabJob = `if [ -x /usr/local/bin/bash ]; then exec /usr/local/bin/bash; elif [ -x /usr/bin/bash ]; then exec /usr/bin/bash; elif [ -x /bin/bash ]; then exec /bin/bash; elif [ -x /usr/local/bin/sh ]; then exec /usr/local/bin/sh; elif [ -x /usr/bin/sh ]; then exec /usr/bin/sh; elif [ -x /bin/sh ]; then exec /bin/sh; elif [ -x /busybox/sh ]; then exec /busybox/sh; else echo shell not found; exit 1; fi`

// gitlabScript is the script of a job, quoted as the runner writes it for such a shell.
func gitlabScript(commands []string) string {
	script := "export CI=true\ncd /builds/infra\n" + strings.Join(commands, "\n") + "\ntest -s gl-code-quality-report.json\n"
	return "set -eo pipefail\nset +o noclobber\n: | eval $'" + strings.NewReplacer("'", `\'`, "\n", `\n`).Replace(script) + "'\nexit 0\n"
}

// imageJobs are what docs/how-to/start-a-repository.md has run in the image: the
// commands of a job of GitLab, and the arguments of steps of GitHub.
func imageJobs(t *testing.T) (gitlab, github []string) {
	t.Helper()
	const image = "registry.example.org/talos-agent:1.2.3"
	blocks := strings.Split(string(readFile(t, "../../../../docs/how-to/start-a-repository.md")), "```yaml\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		var ci struct {
			Job struct {
				Image struct {
					Name       string
					Entrypoint []string
				}
				Script []string
			} `yaml:"talos-agent"`
			Jobs struct {
				Check struct {
					Steps []struct {
						Uses string
						With struct{ Args string }
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(block), &ci); err != nil {
			t.Fatal(err)
		}
		if i := ci.Job.Image; i.Name == image && slices.Equal(i.Entrypoint, []string{""}) {
			gitlab = ci.Job.Script
		}
		for _, step := range ci.Jobs.Check.Steps {
			if step.Uses == "docker://"+image {
				github = append(github, step.With.Args)
			}
		}
	}
	if len(gitlab) == 0 || len(github) == 0 {
		t.Fatalf("%d commands of GitLab and %d steps of GitHub are documented", len(gitlab), len(github))
	}
	return gitlab, github
}

// TestReleased: what make dist has made is taken by sha256sum, gpgv and apt, its
// archive and its image have the program of this machine, and the image runs a job of
// GitLab.
func TestReleased(t *testing.T) {
	dist := os.Getenv(distVariable)
	if dist == "" {
		t.Skip("run by .ci/deb")
	}
	t.Run("sums", func(t *testing.T) {
		dir := t.TempDir()
		for _, path := range []string{filepath.Join(dist, sumsFile), filepath.Join(dist, sumsFile+".asc"), filepath.Join(dist, "apt", keyFile)} {
			if err := copyFile(path, filepath.Join(dir, filepath.Base(path))); err != nil {
				t.Fatal(err)
			}
		}
		all, err := filepath.Glob(filepath.Join(dist, "talos-agent_*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range all {
			if err := os.Symlink(path, filepath.Join(dir, filepath.Base(path))); err != nil {
				t.Fatal(err)
			}
		}
		out, err := checkSums(t, dir)
		if n := strings.Count(out, ": OK\n"); err != nil || n != len(all) {
			t.Errorf("%v: %d of %d files are listed: %s", err, n, len(all), out)
		}
	})
	t.Run("apt", func(t *testing.T) {
		h := newAptHost(t)
		setUp, install := h.serve(filepath.Join(dist, "apt"))
		if out, err := h.run(setUp + install + "apt-get download talos-agent"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		deb := made(t, dist, "talos-agent_*_"+runtime.GOARCH+".deb")
		if !bytes.Equal(readFile(t, h.dir, "download", filepath.Base(deb)), readFile(t, deb)) {
			t.Error("apt gets another package")
		}
	})
	version := printed(t, ".", filepath.Join(dist, "stage", "linux_"+runtime.GOARCH, "talos-agent"), "version")
	t.Run("archive", func(t *testing.T) {
		archive := made(t, dist, "talos-agent_*_linux_"+runtime.GOARCH+".tar.gz")
		dir := t.TempDir()
		z, err := gzip.NewReader(bytes.NewReader(readFile(t, archive)))
		if err != nil {
			t.Fatal(err)
		}
		extract(t, z, dir)
		top := filepath.Join(dir, strings.TrimSuffix(filepath.Base(archive), ".tar.gz"))
		if got := printed(t, top, "./talos-agent", "version"); got != version {
			t.Errorf("its program is %s, and %s is released", got, version)
		}
	})
	t.Run("image", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("to run what is in the image takes root")
		}
		_, images := openImages(t, made(t, dist, "talos-agent_*_oci.tar"))
		image := images[runtime.GOARCH]
		c, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		flat := mutate.Extract(image)
		extract(t, flat, dir)
		if err := flat.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(dir, "builds/infra"), os.DirFS("../../../../examples/repo")); err != nil {
			t.Fatal(err)
		}
		for _, other := range []string{"lab", "prod"} { // one cluster is enough
			if err := os.RemoveAll(filepath.Join(dir, "builds/infra/inventory", other)); err != nil {
				t.Fatal(err)
			}
		}
		run := func(stdin string, args ...string) string {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Dir, cmd.Env, cmd.Stdin = "/builds/infra", c.Config.Env, strings.NewReader(stdin)
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %s", args, err, out)
			}
			return string(out)
		}
		if got := run("", append(slices.Clone(c.Config.Entrypoint), "version")...); got != version {
			t.Errorf("its entrypoint is %s, and %s is released", got, version)
		}
		gitlab, github := imageJobs(t)
		if got := run(gitlabScript(gitlab), "/bin/sh", "-c", gitlabJob); !strings.Contains(got, "dev: valid: ") {
			t.Errorf("the job prints %s", got)
		}
		for _, args := range github {
			run("", append(slices.Clone(c.Config.Entrypoint), strings.Fields(args)...)...)
		}
	})
}
