package system

import (
	"context"
	"math"
	"strconv"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Service answers the calls of machine.MachineService that read the inside of a
// machine. What it does not answer is Unimplemented.
type Service struct {
	machineapi.UnimplementedMachineServiceServer
	Machine Machine
}

// memoryInfo is /proc/meminfo, in kB.
func (s Snapshot) memoryInfo() *machineapi.MemInfo {
	var anonymous uint64
	for _, p := range s.processes() {
		anonymous += p.memory * 3 / 5 // the rest is shared files
	}
	total := s.memoryTotal()
	slab := total / 40
	anonymous = min(anonymous, total*4/5)
	// What was read from the disk stays in memory as long as there is room.
	cached := min(300<<20+uint64(s.uptime())*16<<10, (total-anonymous-slab)*2/3)
	free := total - anonymous - slab - cached
	const kB = 1 << 10
	return &machineapi.MemInfo{
		Memtotal: total / kB, Memfree: free / kB, Memavailable: (free + cached*9/10) / kB, Buffers: cached / 50 / kB, Cached: cached * 49 / 50 / kB,
		Active: (anonymous/50 + cached/3) / kB, Inactive: (anonymous*49/50 + cached*2/3) / kB,
		Activeanon: anonymous / 50 / kB, Inactiveanon: anonymous * 49 / 50 / kB, Activefile: cached / 3 / kB, Inactivefile: cached * 2 / 3 / kB,
		Anonpages: anonymous / kB, Mapped: anonymous / 3 / kB, Shmem: 10640, Slab: slab / kB, Sreclaimable: slab * 3 / 4 / kB, Sunreclaim: slab / 4 / kB,
		Kernelstack: 5776, Pagetables: anonymous / 130 / kB, Commitlimit: total / 2 / kB, Committedas: anonymous * 2 / kB,
		Vmalloctotal: 34359738367, Vmallocused: 18796, Hugepagesize: 2048, Directmap4K: 26624, Directmap2M: total/kB - 26624,
	}
}

// Memory is /proc/meminfo.
func (s *Service) Memory(context.Context, *emptypb.Empty) (*machineapi.MemoryResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	return &machineapi.MemoryResponse{Messages: []*machineapi.Memory{{Meminfo: now.memoryInfo()}}}, nil
}

// busy is what all processes take of the cores on average.
func (s Snapshot) busy() (load float64) {
	for _, p := range s.processes() {
		load += p.load
	}
	return min(load, float64(s.Cores))
}

// loadAverage is the load over so many minutes: a boot takes a core for itself, and
// its load fades.
func (s Snapshot) loadAverage(minutes float64) float64 {
	return hundredths(s.busy() + math.Exp(-s.uptime()/(60*minutes)))
}

// LoadAvg is /proc/loadavg.
func (s *Service) LoadAvg(context.Context, *emptypb.Empty) (*machineapi.LoadAvgResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	return &machineapi.LoadAvgResponse{Messages: []*machineapi.LoadAvg{{Load1: now.loadAverage(1), Load5: now.loadAverage(5), Load15: now.loadAverage(15)}}}, nil
}

// bootWork is how long a boot keeps one core busy, in seconds.
const bootWork = 4

// SystemStat is /proc/stat: the time of each core since the boot, and what
// happened meanwhile.
func (s *Service) SystemStat(context.Context, *emptypb.Empty) (*machineapi.SystemStatResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	up, cores := now.uptime(), max(now.Cores, 1)
	busy := min(bootWork, up)
	for _, p := range now.processes() {
		busy += now.cpuTime(p)
	}
	busy = min(busy, up*float64(cores))
	spent := func(share float64) *machineapi.CPUStat {
		return &machineapi.CPUStat{
			User: hundredths(busy * share * 0.66), System: hundredths(busy * share * 0.28),
			Iowait: hundredths(busy * share * 0.05), SoftIrq: hundredths(busy * share * 0.01),
			Idle: hundredths((up*float64(cores) - busy) * share),
		}
	}
	stat := &machineapi.SystemStat{
		BootTime: uint64(now.Booted.Unix()), CpuTotal: spent(1),
		IrqTotal: uint64(up * 900), ContextSwitches: uint64(up * 2100), ProcessCreated: uint64(len(now.processes())) + uint64(up/3),
		ProcessRunning: 1, SoftIrqTotal: uint64(up * 600),
		SoftIrq: &machineapi.SoftIRQStat{Timer: uint64(up * 250), NetRx: uint64(up * 50), Sched: uint64(up * 200), Rcu: uint64(up * 100)},
	}
	for range cores {
		stat.Cpu = append(stat.Cpu, spent(1/float64(cores)))
	}
	return &machineapi.SystemStatResponse{Messages: []*machineapi.SystemStat{stat}}, nil
}

// CPUInfo is /proc/cpuinfo of QEMU's x86-64-v2-AES, the type that Proxmox VE gives
// VMs by default.
func (s *Service) CPUInfo(context.Context, *emptypb.Empty) (*machineapi.CPUInfoResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	info := &machineapi.CPUsInfo{}
	for i := range now.Cores {
		id := strconv.Itoa(i)
		info.CpuInfo = append(info.CpuInfo, &machineapi.CPUInfo{
			Processor: uint32(i), VendorId: "GenuineIntel", CpuFamily: "15", Model: "107", ModelName: "QEMU Virtual CPU version 2.5+", Stepping: "1",
			Microcode: "0x1", CpuMhz: 2400, CacheSize: "16384 KB", PhysicalId: "0", Siblings: uint32(now.Cores), CoreId: id, ApicId: id, InitialApicId: id,
			Fpu: "yes", FpuException: "yes", CpuIdLevel: 13, Wp: "yes", BogoMips: 4800, ClFlushSize: 64, CacheAlignment: 64,
			AddressSizes: "40 bits physical, 48 bits virtual",
			Flags:        []string{"fpu", "msr", "apic", "cx8", "sse", "sse2", "ht", "syscall", "nx", "lm", "ssse3", "cx16", "sse4_1", "sse4_2", "popcnt", "aes", "hypervisor", "lahf_lm"},
		})
	}
	return &machineapi.CPUInfoResponse{Messages: []*machineapi.CPUsInfo{info}}, nil
}

// CPUFreqStats is empty for each core: a guest does not set its frequency.
func (s *Service) CPUFreqStats(context.Context, *emptypb.Empty) (*machineapi.CPUFreqStatsResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	stats := &machineapi.CPUsFreqStats{}
	for range now.Cores {
		stats.CpuFreqStats = append(stats.CpuFreqStats, &machineapi.CPUFreqStats{})
	}
	return &machineapi.CPUFreqStatsResponse{Messages: []*machineapi.CPUsFreqStats{stats}}, nil
}

// DiskStats is /proc/diskstats: the image was read at the boot, and what runs
// writes its logs and its etcd to the first disk.
func (s *Service) DiskStats(context.Context, *emptypb.Empty) (*machineapi.DiskStatsResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	stats := &machineapi.DiskStats{Total: &machineapi.DiskStat{}}
	for i := range now.Disks {
		stat := &machineapi.DiskStat{Name: diskName(i), ReadCompleted: 120, ReadSectors: 6400, ReadTimeMs: 40}
		if i == 0 {
			up := uint64(now.uptime())
			stat.ReadCompleted, stat.ReadSectors, stat.ReadTimeMs = 9000, 640000, 2600
			if now.Configured {
				stat.WriteCompleted, stat.WriteSectors, stat.WriteTimeMs, stat.IoTimeMs = 4000+up*6, 96000+up*120, 3000+up*8, 4000+up*5
			}
		}
		stats.Devices = append(stats.Devices, stat)
		stats.Total.ReadCompleted += stat.ReadCompleted
		stats.Total.ReadSectors += stat.ReadSectors
		stats.Total.ReadTimeMs += stat.ReadTimeMs
		stats.Total.WriteCompleted += stat.WriteCompleted
		stats.Total.WriteSectors += stat.WriteSectors
		stats.Total.WriteTimeMs += stat.WriteTimeMs
		stats.Total.IoTimeMs += stat.IoTimeMs
	}
	return &machineapi.DiskStatsResponse{Messages: []*machineapi.DiskStats{stats}}, nil
}

// NetworkDeviceStats is /proc/net/dev: the traffic grows with the time and with
// what runs.
func (s *Service) NetworkDeviceStats(context.Context, *emptypb.Empty) (*machineapi.NetworkDeviceStatsResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	packets := uint64(now.uptime() * float64(5+4*len(now.Pods)))
	stats := &machineapi.NetworkDeviceStats{Total: &machineapi.NetDev{Name: now.Link + ", lo"}}
	for _, d := range []*machineapi.NetDev{
		{Name: "lo", RxPackets: packets / 2, RxBytes: packets * 200, TxPackets: packets / 2, TxBytes: packets * 200},
		{Name: now.Link, RxPackets: packets, RxBytes: packets * 700, RxMulticast: uint64(now.uptime() / 10), TxPackets: packets * 4 / 5, TxBytes: packets * 300},
	} {
		stats.Devices = append(stats.Devices, d)
		stats.Total.RxPackets += d.RxPackets
		stats.Total.RxBytes += d.RxBytes
		stats.Total.RxMulticast += d.RxMulticast
		stats.Total.TxPackets += d.TxPackets
		stats.Total.TxBytes += d.TxBytes
	}
	return &machineapi.NetworkDeviceStatsResponse{Messages: []*machineapi.NetworkDeviceStats{stats}}, nil
}

// DefaultSysctl is the value of a kernel parameter that no config sets, as far as it is known.
func DefaultSysctl(key string) string {
	return map[string]string{
		"fs.inotify.max_user_instances": "128", "net.ipv4.ip_forward": "1", "net.ipv4.ip_local_port_range": "32768\t60999", "vm.max_map_count": "65530",
	}[key]
}
