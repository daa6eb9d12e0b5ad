package system

import (
	"context"
	"fmt"

	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"google.golang.org/protobuf/types/known/emptypb"
)

const diskModel = "QEMU HARDDISK"

// DescribeDisk describes one of QEMU's SCSI disks as a resource.
func DescribeDisk(i int, d Disk) *block.Disk {
	r := block.NewDisk(block.NamespaceName, diskName(i))
	s := r.TypedSpec()
	s.DevPath, s.IOSize, s.SectorSize = "/dev/"+diskName(i), 512, 512
	s.SetSize(uint64(d.Bytes))
	s.Model, s.Serial, s.Modalias, s.SubSystem, s.Transport, s.Rotational = diskModel, d.Serial, "scsi:t-0x00", "/sys/class/block", "virtio", true
	s.BusPath = fmt.Sprintf("/pci0000:00/0000:00:05.0/0000:01:01.0/virtio2/host2/target2:0:%d/2:0:%[1]d:0", i)
	return r
}

// DescribeSystemDisk names the disk that Talos runs from.
func DescribeSystemDisk() *block.SystemDisk {
	r := block.NewSystemDisk(block.NamespaceName, block.SystemDiskID)
	r.TypedSpec().DiskID, r.TypedSpec().DevPath = diskName(0), "/dev/"+diskName(0)
	return r
}

// listDisk describes a disk for clients older than its resource.
func listDisk(i int, d Disk, system bool) *storageapi.Disk {
	return &storageapi.Disk{
		Size: uint64(d.Bytes), Model: diskModel, DeviceName: "/dev/" + diskName(i), Serial: d.Serial, Modalias: "scsi:t-0x00",
		Type: storageapi.Disk_HDD, Subsystem: "/sys/class/block", SystemDisk: system,
	}
}

// ephemeralBytes is the size of the EPHEMERAL partition: what the others leave.
func ephemeralBytes(d Disk) uint64 { return uint64(max(d.Bytes-beforeState-stateBytes, 1<<30)) }

// DescribeVolumes describes the partitions of the system disk that Talos keeps things
// on. Without a machine config there is no STATE yet, and EPHEMERAL waits for it. With nothing installed there is no META.
func DescribeVolumes(disks []Disk, configured, installed bool) (volumes []*block.VolumeStatus) {
	add := func(id string, index int, size uint64, filesystem block.FilesystemType, without block.VolumePhase) {
		r := block.NewVolumeStatus(block.NamespaceName, id)
		s := r.TypedSpec()
		s.Type, s.Phase = block.VolumeTypePartition, without
		if configured || without == block.VolumePhaseReady {
			s.Phase, s.Filesystem, s.PartitionIndex = block.VolumePhaseReady, filesystem, index
			s.Location, s.ParentLocation = fmt.Sprintf("/dev/%s%d", diskName(0), index), "/dev/"+diskName(0)
			s.MountLocation = s.Location
			s.SetSize(size)
		}
		volumes = append(volumes, r)
	}
	var d Disk
	if len(disks) > 0 {
		d = disks[0]
	}
	meta := block.VolumePhaseReady
	if !installed {
		meta, configured = block.VolumePhaseMissing, false
	}
	add(constants.MetaPartitionLabel, 4, 1<<20, block.FilesystemTypeNone, meta)
	add(constants.StatePartitionLabel, 5, stateBytes, block.FilesystemTypeXFS, block.VolumePhaseMissing)
	add(constants.EphemeralPartitionLabel, 6, ephemeralBytes(d), block.FilesystemTypeXFS, block.VolumePhaseWaiting)
	return volumes
}

// StorageService is storage.StorageService. What it does not answer is Unimplemented.
type StorageService struct {
	storageapi.UnimplementedStorageServiceServer
	Machine Machine
}

// Disks lists the disks, the way before the resources.
func (s *StorageService) Disks(context.Context, *emptypb.Empty) (*storageapi.DisksResponse, error) {
	now, err := s.Machine.Look()
	answer := &storageapi.Disks{}
	for i, d := range now.Disks {
		answer.Disks = append(answer.Disks, listDisk(i, d, i == 0 && !now.Bare))
	}
	return &storageapi.DisksResponse{Messages: []*storageapi.Disks{answer}}, err
}
