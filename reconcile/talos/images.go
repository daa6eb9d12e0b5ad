package talos

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

const (
	// pullWithin bounds the pull of one image. A machine asks a registry that does not answer
	// for as long as it is asked itself, and Talos 1.14 bounds no pull.
	pullWithin = 5 * time.Minute
	// missingPause is the wait before a machine is asked again for an image that no registry had.
	missingPause = 5 * time.Minute
	// imagesSince is the minor of Talos 1 that brought the service for images.
	imagesSince = 13
)

// image is a container image, and the namespace of containerd that Talos has it in.
type image struct {
	ref       string
	namespace common.ContainerdNamespace
}

// newImages lists the images that a config has a machine run and another does not. The
// kubelet and etcd are Talos' own containers, what else there is are static pods.
func newImages(have, want cluster.Images) (out []image) {
	for _, i := range []struct {
		have, want string
		namespace  common.ContainerdNamespace
	}{
		{have.Kubelet, want.Kubelet, common.ContainerdNamespace_NS_SYSTEM},
		{have.Etcd, want.Etcd, common.ContainerdNamespace_NS_SYSTEM},
		{have.APIServer, want.APIServer, common.ContainerdNamespace_NS_CRI},
		{have.ControllerManager, want.ControllerManager, common.ContainerdNamespace_NS_CRI},
		{have.Scheduler, want.Scheduler, common.ContainerdNamespace_NS_CRI},
	} {
		if i.want != "" && i.want != i.have {
			out = append(out, image{i.want, i.namespace})
		}
	}
	return out
}

// pullImage has a machine pull an image, which it does not where it has it already.
func pullImage(ctx context.Context, conn grpc.ClientConnInterface, i image, minor int) error {
	ctx, cancel := context.WithTimeout(ctx, pullWithin)
	defer cancel()
	if minor < imagesSince {
		//lint:ignore SA1019 it is what versions up to v1.12 have
		_, err := machineapi.NewMachineServiceClient(conn).ImagePull(ctx, &machineapi.ImagePullRequest{Namespace: i.namespace, Reference: i.ref})
		if err != nil && strings.HasSuffix(err.Error(), ": not found") {
			return status.Error(codes.NotFound, status.Convert(err).Message())
		}
		return err
	}
	stream, err := machineapi.NewImageServiceClient(conn).Pull(ctx, &machineapi.ImageServicePullRequest{
		Containerd: &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: i.namespace}, ImageRef: i.ref,
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
