package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Sizes of the partitions of Talos' system disk, from its source
// (pkg/machinery/imager and internal/pkg/partition of v1.13.9).
const (
	beforeState = 100<<20 + 1<<20 + 2000<<20 + 1<<20 // EFI, BIOS, BOOT, META
	stateBytes  = 100 << 20
	rootBytes   = 96 << 20 // the squashfs of the image
)

type mount struct {
	source, at  string
	size, taken uint64
}

// mounts are the mounted file systems. STATE and EPHEMERAL are mounted once a machine is
// configured.
func (s Snapshot) mounts() []mount {
	half := s.memoryTotal() / 2
	list := []mount{
		{"overlay", "/", rootBytes, rootBytes},
		{"devtmpfs", "/dev", half, 0}, {"proc", "/proc", 0, 0}, {"sysfs", "/sys", 0, 0}, {"cgroup2", "/sys/fs/cgroup", 0, 0},
		{"tmpfs", "/run", half, 32 << 10}, {"tmpfs", "/system", half, 128 << 10}, {"tmpfs", "/tmp", 64 << 20, 0},
	}
	if !s.Configured || len(s.Disks) == 0 {
		return list
	}
	var images uint64
	for _, image := range s.Images {
		images += uint64(image.Bytes()) * 3 // packed, and unpacked
	}
	ephemeral := ephemeralBytes(s.Disks[0])
	taken := min(ephemeral/100+200<<20+images, ephemeral)
	list = append(list, mount{"/dev/sda5", "/system/state", stateBytes - 8<<20, 6 << 20}, mount{"/dev/sda6", "/var", ephemeral, taken})
	for _, at := range []string{"/etc/cni", "/etc/kubernetes", "/usr/libexec/kubernetes", "/opt"} {
		list = append(list, mount{"overlay", at, ephemeral, taken})
	}
	return list
}

// Mounts lists the mounted file systems.
func (s *Service) Mounts(context.Context, *emptypb.Empty) (*machineapi.MountsResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	answer := &machineapi.Mounts{}
	for _, m := range now.mounts() {
		answer.Stats = append(answer.Stats, &machineapi.MountStat{Filesystem: m.source, Size: m.size, Available: m.size - m.taken, MountedOn: m.at})
	}
	return &machineapi.MountsResponse{Messages: []*machineapi.Mounts{answer}}, nil
}

// directories are those of the image that hold no file of files.
var directories = []string{"/bin", "/boot", "/dev", "/etc/cni", "/etc/kubernetes", "/lib", "/opt", "/root", "/run", "/sbin", "/sys", "/system/state", "/tmp", "/usr/bin", "/var/lib", "/var/log"}

// files are those that can be read, by path.
func (s Snapshot) files() map[string]string {
	m := s.memoryInfo()
	return map[string]string{
		"/etc/hostname": s.Hostname + "\n",
		"/etc/os-release": fmt.Sprintf("NAME=\"Talos\"\nID=talos\nVERSION_ID=%[1]s\nPRETTY_NAME=\"Talos (%[1]s)\"\nHOME_URL=\"https://www.talos.dev/\"\n"+
			"BUG_REPORT_URL=\"https://github.com/siderolabs/talos/issues\"\nVENDOR_NAME=\"Sidero Labs\"\nVENDOR_URL=\"https://www.siderolabs.com/\"\n", s.Talos),
		"/proc/cmdline": s.commandLine() + "\n",
		"/proc/loadavg": fmt.Sprintf("%.2f %.2f %.2f 1/%d %d\n", s.loadAverage(1), s.loadAverage(5), s.loadAverage(15), len(s.processes()), podPID(len(s.Pods), 0)),
		"/proc/meminfo": fmt.Sprintf("MemTotal:       %8d kB\nMemFree:        %8d kB\nMemAvailable:   %8d kB\nBuffers:        %8d kB\nCached:         %8d kB\n",
			m.GetMemtotal(), m.GetMemfree(), m.GetMemavailable(), m.GetBuffers(), m.GetCached()),
		"/proc/sys/kernel/hostname":       s.Hostname + "\n",
		"/proc/sys/kernel/osrelease":      Kernel + "\n",
		"/proc/sys/kernel/random/boot_id": s.BootID + "\n",
		"/proc/uptime":                    fmt.Sprintf("%.2f %.2f\n", s.uptime(), max(float64(s.Cores)-s.busy(), 0)*s.uptime()),
		"/proc/version":                   "Linux version " + Kernel + " (@buildkitsandbox) #1 SMP PREEMPT_DYNAMIC\n",
	}
}

// tree is every path of the machine with its size; directories have -1.
func (s Snapshot) tree() map[string]int64 {
	tree := map[string]int64{"/": -1}
	addParents := func(name string) {
		for dir := name; dir != "/"; dir = path.Dir(dir) {
			if _, ok := tree[dir]; !ok {
				tree[dir] = -1
			}
		}
	}
	for _, dir := range directories {
		addParents(dir)
	}
	for name, text := range s.files() {
		addParents(path.Dir(name))
		tree[name] = int64(len(text))
		if strings.HasPrefix(name, "/proc/") {
			tree[name] = 0 // so the kernel has it
		}
	}
	return tree
}

// Read reads a file.
func (s *Service) Read(in *machineapi.ReadRequest, out grpc.ServerStreamingServer[common.Data]) error {
	now, err := s.Machine.Look()
	if err != nil {
		return err
	}
	text, ok := now.files()[path.Clean(in.GetPath())]
	if !ok {
		if size, ok := now.tree()[path.Clean(in.GetPath())]; ok && size < 0 {
			return errors.New("path must be a regular file")
		}
		return status.Errorf(codes.NotFound, "stat %s: no such file or directory", in.GetPath())
	}
	for chunk := range slices.Chunk([]byte(text), 1024) {
		if err := out.Send(&common.Data{Bytes: bytes.Clone(chunk)}); err != nil {
			return err
		}
	}
	return nil
}

// List lists a directory: itself, what is in it, and with recursion what is below.
func (s *Service) List(in *machineapi.ListRequest, out grpc.ServerStreamingServer[machineapi.FileInfo]) error {
	now, err := s.Machine.Look()
	if err != nil {
		return err
	}
	root, tree := path.Clean("/"+in.GetRoot()), now.tree()
	if _, ok := tree[root]; !ok {
		return fmt.Errorf("lstat %s: no such file or directory", root)
	}
	depth := 1
	if in.GetRecurse() {
		depth = int(in.GetRecursionDepth())
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		relative := "."
		if name != root {
			below, ok := strings.CutPrefix(name, strings.TrimSuffix(root, "/")+"/")
			if !ok || depth > 0 && strings.Count(below, "/") >= depth {
				continue
			}
			relative = below
		}
		info := &machineapi.FileInfo{Name: name, RelativeName: relative, Modified: now.Booted.Unix(), Mode: 0o444, Size: tree[name]}
		if tree[name] < 0 {
			info.IsDir, info.Size, info.Mode = true, 4096, uint32(fs.ModeDir|0o755)
		}
		if wanted := in.GetTypes(); len(wanted) > 0 && !slices.Contains(wanted, fileType(info)) {
			continue
		}
		if err := out.Send(info); err != nil {
			return err
		}
	}
	return nil
}

func fileType(info *machineapi.FileInfo) machineapi.ListRequest_Type {
	if info.GetIsDir() {
		return machineapi.ListRequest_DIRECTORY
	}
	return machineapi.ListRequest_REGULAR
}
