package talos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/pattern"
	"github.com/talos-agent/talos-agent/reconcile/talos/installer"
)

const (
	// pullWithin bounds the pull of one image. A machine asks a registry that does not answer
	// for as long as it is asked itself, and Talos 1.14 bounds no pull.
	pullWithin = 5 * time.Minute
	pulledFor  = 30 * time.Minute // how long a pull counts before a hop: Talos removes what nothing uses after an hour
	// imagesSince is the minor of Talos 1 that brought the service for images.
	imagesSince = 13
)

// image is a container image, and the namespace of containerd that Talos has it in.
type image struct {
	ref       string
	namespace common.ContainerdNamespace
}

// newImages lists the images that a config names and another does not. The kubelet and etcd
// are Talos' own containers, what else there is are static pods. Where images come from other
// registries from then on, or are asked for in another way, a machine cannot pull them before.
func newImages(have, want cluster.ConfigSummary) (out []image) {
	if have.Images == (cluster.Images{}) || have.Registries != want.Registries {
		return nil
	}
	for _, i := range []struct {
		have, want string
		namespace  common.ContainerdNamespace
	}{
		{have.Images.Kubelet, want.Images.Kubelet, common.ContainerdNamespace_NS_SYSTEM},
		{have.Images.Etcd, want.Images.Etcd, common.ContainerdNamespace_NS_SYSTEM},
		{have.Images.APIServer, want.Images.APIServer, common.ContainerdNamespace_NS_CRI},
		{have.Images.ControllerManager, want.Images.ControllerManager, common.ContainerdNamespace_NS_CRI},
		{have.Images.Scheduler, want.Images.Scheduler, common.ContainerdNamespace_NS_CRI},
	} {
		if i.want != "" && i.want != i.have {
			out = append(out, image{i.want, i.namespace})
		}
	}
	return out
}

// pullImage has a machine pull an image, which it does not where it has it already.
func pullImage(ctx context.Context, conn grpc.ClientConnInterface, i image, minor int) error {
	to := &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: i.namespace}
	return installer.PullTo(ctx, conn, to, i.ref, minor >= imagesSince, pullWithin, pullWithin, func() {})
}

// location is what an error quotes of where an image is: after a redirect that may have a
// signature in it.
var location = pattern.New(`https?://[^\s"]+`)

// explainPull returns why an image was not pulled, with what to do about it.
func explainPull(i image, n cluster.Node, err error) error {
	ref, why := sanitize(i.ref), location.ReplaceAllString(formatError(err), "its registry")
	hint := fmt.Sprintf("the node keeps the config that it has; see whether it reaches the registry: `talosctl -n %s image pull %s`", n.IP, ref)
	if status.Code(err) == codes.NotFound || strings.HasSuffix(why, ": not found") {
		return fault.WithHint(fmt.Errorf("there is no image %s: %s", ref, why), "correct it in the patch that names it; the node keeps the config that it has")
	}
	return fault.WithHint(fmt.Errorf("%s could not be pulled: %s", ref, why), hint)
}
