package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// Image is a container image on a machine.
type Image struct {
	Ref       string
	Namespace common.ContainerdNamespace
	Pulled    time.Time
	// Inmem: it is in the containerd of the system, which keeps everything in memory, until the
	// next boot. The other one, CRI, has the disk.
	Inmem bool
}

// pauseImage is that of the sandboxes of Talos v1.13.
const pauseImage = "registry.k8s.io/pause:3.10.1"

// digest stands for the bytes of an image, which the lab has not.
func (i Image) digest() string {
	if _, digest, ok := strings.Cut(i.Ref, "@"); ok {
		return digest
	}
	return "sha256:" + hashText(i.Ref)
}

// Bytes is the size of an image: between 10 and 90 MB, each its own.
func (i Image) Bytes() int64 {
	if i.Ref == pauseImage {
		return 320448
	}
	var n int64
	for _, c := range []byte(i.digest()[len("sha256:"):]) {
		n = n*31%80_000_000 + int64(c)
	}
	return 10_000_000 + n%80_000_000
}

// repository is the reference without tag and digest.
func (i Image) repository() string {
	ref, _, _ := strings.Cut(i.Ref, "@")
	if at := strings.LastIndexByte(ref, ':'); at > strings.LastIndexByte(ref, '/') {
		return ref[:at]
	}
	return ref
}

// names are those under which containerd has an image: its digest, its tag, and the
// two together.
func (i Image) names() []string {
	names := []string{i.digest(), i.Ref}
	if pinned := i.repository() + "@" + i.digest(); pinned != i.Ref {
		names = append(names, pinned)
	}
	return names
}

// IsNamed reports whether containerd has the image under that name.
func (i Image) IsNamed(name string) bool { return slices.Contains(i.names(), name) }

// ImagesIn lists the images of a namespace of one containerd, each once; the CRI has the image of
// the sandboxes and those of the pods.
func (s Snapshot) ImagesIn(inmem bool, namespace common.ContainerdNamespace) (list []Image) {
	add := func(image Image) {
		if image.Inmem == inmem && image.Namespace == namespace && !slices.ContainsFunc(list, func(o Image) bool { return o.Ref == image.Ref }) {
			list = append(list, image)
		}
	}
	for _, image := range s.Images {
		add(image)
	}
	if len(s.Pods) > 0 {
		add(Image{Ref: pauseImage, Namespace: common.ContainerdNamespace_NS_CRI, Pulled: s.Booted})
	}
	for _, pod := range s.Pods {
		for _, c := range pod.Containers {
			add(Image{Ref: c.Image, Namespace: common.ContainerdNamespace_NS_CRI, Pulled: s.Booted})
		}
	}
	return list
}

// lookAtCRI returns the machine once its containerd answers. Where none runs, the
// client of containerd gives up after ten seconds (its own default).
func lookAtCRI(ctx context.Context, m Machine) (Snapshot, error) {
	now, err := m.Look()
	if err != nil || now.CRI {
		return now, err
	}
	if err := m.Wait(ctx, 10*time.Second); err != nil {
		return now, status.FromContextError(err).Err()
	}
	return now, status.Error(codes.Unavailable, `error connecting to containerd: failed to dial "/run/containerd/containerd.sock": context deadline exceeded`)
}

// ImageList lists the images of a namespace, the way before ImageService.
func (s *Service) ImageList(in *machineapi.ImageListRequest, out grpc.ServerStreamingServer[machineapi.ImageListResponse]) error {
	now, err := lookAtCRI(out.Context(), s.Machine)
	if err != nil {
		return err
	}
	if ns := in.GetNamespace(); ns != common.ContainerdNamespace_NS_CRI && ns != common.ContainerdNamespace_NS_SYSTEM {
		return status.Errorf(codes.InvalidArgument, "invalid namespace %s", ns)
	}
	for _, image := range now.ImagesIn(false, in.GetNamespace()) {
		for _, name := range image.names() {
			if err := out.Send(&machineapi.ImageListResponse{Name: name, Digest: image.digest(), Size: image.Bytes(), CreatedAt: timestamppb.New(image.Pulled)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ImagePull pulls an image, the way before ImageService.
func (s *Service) ImagePull(ctx context.Context, in *machineapi.ImagePullRequest) (*machineapi.ImagePullResponse, error) {
	now, err := lookAtCRI(ctx, s.Machine)
	if err != nil {
		return nil, err
	}
	if ns := in.GetNamespace(); ns != common.ContainerdNamespace_NS_CRI && ns != common.ContainerdNamespace_NS_SYSTEM {
		return nil, status.Errorf(codes.InvalidArgument, "invalid namespace %s", ns)
	}
	if _, _, err := pullImage(ctx, s.Machine, now, Image{Ref: in.GetReference(), Namespace: in.GetNamespace()}); err != nil {
		return nil, err
	}
	return &machineapi.ImagePullResponse{Messages: []*machineapi.ImagePull{{}}}, nil
}

// pullImage pulls an image unless it is there. A registry that does not answer is
// asked until the caller gives up (recorded).
func pullImage(ctx context.Context, m Machine, now Snapshot, image Image) (pulled Image, fresh bool, err error) {
	ref := image.Ref
	if ref == "" || strings.ContainsAny(ref, " \t\n") || strings.ToLower(ref[:strings.LastIndexByte(ref, '/')+1]) != ref[:strings.LastIndexByte(ref, '/')+1] {
		return image, false, fmt.Errorf("failed to parse image reference %q: invalid reference format", ref)
	}
	image.Ref, image.Pulled = normalizeRef(ref), now.Now
	if slices.ContainsFunc(now.ImagesIn(image.Inmem, image.Namespace), func(o Image) bool { return o.Ref == image.Ref }) {
		return image, false, nil
	}
	for {
		err := m.Pull(ctx, image)
		if errors.Is(err, ErrNotPublished) {
			return image, false, status.Errorf(codes.NotFound, pullRefused+"1 error(s) occurred:\n\tfailed to pull image %[1]q: failed to resolve reference %[1]q: %[1]s: not found", ref)
		}
		if !errors.Is(err, ErrNoRegistry) {
			return image, true, err
		}
		if err := m.Wait(ctx, 10*time.Second); err != nil {
			return image, false, status.FromContextError(err).Err()
		}
	}
}

// pullRefused begins the text of both services that pull images.
const pullRefused = "error pulling image: "

// notFoundPause is when Talos asks once more for an installer that its registry does not have
// (recorded).
const notFoundPause = 5 * time.Second

// PullToSystem pulls an image to the containerd of the system for Talos itself. Its errors carry no
// code.
func PullToSystem(ctx context.Context, m Machine, now Snapshot, ref string) error {
	_, _, err := pullImage(ctx, m, now, Image{Ref: ref, Namespace: common.ContainerdNamespace_NS_SYSTEM, Inmem: true})
	switch status.Code(err) {
	case codes.NotFound:
		if err := m.Wait(ctx, notFoundPause); err != nil {
			return err
		}
		return errors.New(strings.TrimPrefix(status.Convert(err).Message(), pullRefused))
	case codes.OK:
		return nil
	}
	return err
}

// ErrNoRegistry is Machine's answer to a Pull from a registry that cannot be reached.
var ErrNoRegistry = errors.New("registry does not answer")

// ErrNotPublished is its answer where the registry has no such image.
var ErrNotPublished = errors.New("image is not published")

// normalizeRef writes a reference in full: Docker Hub's and the tag latest are left
// out by people.
func normalizeRef(ref string) string {
	host, _, found := strings.Cut(ref, "/")
	switch {
	case !found:
		ref = "docker.io/library/" + ref
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		ref = "docker.io/" + ref
	}
	if strings.LastIndexByte(ref, ':') <= strings.LastIndexByte(ref, '/') {
		ref += ":latest"
	}
	return ref
}

// HasImage reports whether an image is among some, by its reference.
func HasImage(images []Image, ref string) bool {
	return slices.ContainsFunc(images, func(i Image) bool { return i.Ref == ref })
}

// releases are the tags of what is released with Kubernetes; Talos' kubelet comes in two more sizes.
var releases = pattern.New(`^v\d+\.\d+\.\d+(-fat|-slim)?$`)

// TagOf is the tag of a container image, "v1.36.1".
func TagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[i+1:]
	}
	return ""
}

// IsPublished reports whether a registry has an image. The lab takes each to be there but
// the repositories at the top of registry.k8s.io, which are few and known, and tags that are
// no version of the parts of Kubernetes.
func IsPublished(ref string) bool {
	image := Image{Ref: normalizeRef(ref)}
	repository := image.repository()
	name, ours := strings.CutPrefix(repository, "registry.k8s.io/")
	parts := ours && slices.Contains([]string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"}, name) || repository == constants.KubeletImage
	if tag, tagged := strings.CutPrefix(image.Ref, repository+":"); parts && tagged && !strings.Contains(tag, "@") && !releases.MatchString(tag) {
		return false
	}
	return !ours || parts || strings.Contains(name, "/") || slices.Contains([]string{"conformance", "coredns", "etcd", "pause"}, name)
}

// ImageService is machine.ImageService, which v1.13 brought. What it does not answer
// is Unimplemented.
type ImageService struct {
	machineapi.UnimplementedImageServiceServer
	Machine Machine
}

// isInmem reports whether an instance is the containerd of the system.
func isInmem(in *common.ContainerdInstance) bool {
	return in.GetDriver() == common.ContainerDriver_CONTAINERD
}

// CheckInstance refuses an instance of containerd that there is not.
func CheckInstance(in *common.ContainerdInstance) error {
	driver, namespace := in.GetDriver(), in.GetNamespace()
	switch {
	case driver != common.ContainerDriver_CONTAINERD && driver != common.ContainerDriver_CRI:
		return status.Errorf(codes.InvalidArgument, "invalid containerd driver %s", driver)
	case namespace != common.ContainerdNamespace_NS_CRI && namespace != common.ContainerdNamespace_NS_SYSTEM:
		return status.Errorf(codes.InvalidArgument, "invalid containerd namespace %s", namespace)
	case driver == common.ContainerDriver_CONTAINERD && namespace == common.ContainerdNamespace_NS_CRI:
		return status.Error(codes.InvalidArgument, "cannot use CRI namespace with containerd driver")
	}
	return nil
}

// List lists the images of an instance. The containerd of the system has those that
// were pulled to it in this boot.
func (s *ImageService) List(in *machineapi.ImageServiceListRequest, out grpc.ServerStreamingServer[machineapi.ImageServiceListResponse]) error {
	if err := CheckInstance(in.GetContainerd()); err != nil {
		return err
	}
	now, err := LookAtInstance(out.Context(), s.Machine, in.GetContainerd())
	if err != nil {
		return err
	}
	for _, image := range now.ImagesIn(isInmem(in.GetContainerd()), in.GetContainerd().GetNamespace()) {
		for _, name := range image.names() {
			if err := out.Send(&machineapi.ImageServiceListResponse{
				Name: name, Digest: image.digest(), Size: image.Bytes(), CreatedAt: timestamppb.New(image.Pulled),
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// LookAtInstance returns the machine once an instance of its containerd answers.
func LookAtInstance(ctx context.Context, m Machine, in *common.ContainerdInstance) (Snapshot, error) {
	if isInmem(in) {
		return m.Look()
	}
	return lookAtCRI(ctx, m)
}

// Pull pulls an image and reports its one layer; one that is there is only named.
func (s *ImageService) Pull(in *machineapi.ImageServicePullRequest, out grpc.ServerStreamingServer[machineapi.ImageServicePullResponse]) error {
	if err := CheckInstance(in.GetContainerd()); err != nil {
		return err
	}
	now, err := LookAtInstance(out.Context(), s.Machine, in.GetContainerd())
	if err != nil {
		return err
	}
	image, fresh, err := pullImage(out.Context(), s.Machine, now, Image{Ref: in.GetImageRef(), Namespace: in.GetContainerd().GetNamespace(), Inmem: isInmem(in.GetContainerd())})
	if err != nil {
		return err
	}
	steps := []machineapi.ImageServicePullLayerProgress_Status{machineapi.ImageServicePullLayerProgress_DOWNLOAD_COMPLETE, machineapi.ImageServicePullLayerProgress_EXTRACT_COMPLETE}
	for _, step := range steps {
		if !fresh {
			break
		}
		progress := &machineapi.ImageServicePullProgress{LayerId: image.digest()[len("sha256:"):][:12],
			Progress: &machineapi.ImageServicePullLayerProgress{Status: step, Elapsed: durationpb.New(0)}}
		if err := out.Send(&machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_PullProgress{PullProgress: progress}}); err != nil {
			return err
		}
	}
	return out.Send(&machineapi.ImageServicePullResponse{Response: &machineapi.ImageServicePullResponse_Name{Name: image.repository() + "@" + image.digest()}})
}
