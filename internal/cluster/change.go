package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Change is what a machine answered when it was asked what the config that is wanted
// would do. Nothing of the config is in it.
type Change struct {
	For     string // digest of the config that it was asked about
	Reboots bool   // it takes effect only with a reboot
	Assumed bool   // by a forecast: it was not asked
	Refused string // why the machine does not take it, "" when it does
	// Network: it takes a reboot, and what of it is about the network does not, so that this is on
	// trial before the rest is given. It is the digest of what runs with that; "": nothing is.
	Network string
	// Lacks are the images of the config that the machine does not have, for people; "" : it has
	// all, or that is not known before it has the config.
	Lacks string
}

// Why a config is not changed, besides what failed.
var (
	// ErrOtherAuthority: the machine's config names another certificate authority than
	// the cluster's secrets: to replace it would lock somebody out.
	ErrOtherAuthority = errors.New("the machine's config has another certificate authority than the cluster's secrets")
	// ErrOnTrial: a config runs on the machine that is neither saved nor the one that is wanted:
	// the machine goes back by itself.
	ErrOnTrial = errors.New("somebody has another config on trial on the machine")
	// ErrNeedsReboot: the machine takes the config only with a reboot.
	ErrNeedsReboot = errors.New("the config takes effect only with a reboot")
	// ErrUnreachable: the machine did not answer with the config, and went back to the one that
	// it had.
	ErrUnreachable = errors.New("the machine did not answer with the config, and went back to the one that it had")
)

// Why a machine does not do what Talos answered OK to, which its events show.
var (
	// ErrSequenceRefused: it carries out one thing at a time, and nothing was done.
	ErrSequenceRefused = errors.New("refused by Talos, because another sequence runs")
	// ErrSequenceFailed: it was begun.
	ErrSequenceFailed = errors.New("begun by Talos, and not brought to its end")
)

// ConfigSummary is what of a machine config is known without its text: what can never change
// on a cluster that lives, as it is in certificates, in etcd and in what runs; and the
// images. The zero value is unknown.
type ConfigSummary struct {
	Cluster   string // its name
	DNSDomain string
	Pods      string // networks, comma-separated
	Services  string
	Role      Role // of the machine; "" : unknown
	// Flannel is whether Talos brings that network, "yes" or "no"; "" for workers, whose
	// configs do not have it.
	Flannel string
	// Authorities may be rotated, by whoever has the keys of the machines; the agent does not.
	Authorities Authorities
	Images      Images
	// Registries identifies where images are from, and how they are asked for.
	Registries string
	// Discovery: its machine finds the others of its cluster without the endpoint.
	Discovery bool
	// Endpoint is the host of the URL at which the machine reaches the Kubernetes API.
	Endpoint string
	// Rest identifies all of the config but the images and how Talos is installed; "" : unknown.
	Rest string
}

// AtEnd is the summary of a config at the end of a hop of Kubernetes.
func (c Config) AtEnd() ConfigSummary {
	out := c.Summary
	out.Images = c.Final
	return out
}

// RunsAs reports whether a machine runs with another config as it does with this one: they differ
// in nothing but how Talos is installed, which counts when that happens.
func (f ConfigSummary) RunsAs(other ConfigSummary) bool {
	return f.OnlyImages(other) && f.Images == other.Images
}

// OnlyImages reports whether what a machine runs with another config differs in its images alone.
func (f ConfigSummary) OnlyImages(other ConfigSummary) bool {
	return f.Rest != "" && f.Rest == other.Rest
}

// Images are the container images that a machine config names for what Talos itself runs;
// "" : none. Proxy is no such thing: Talos makes a manifest with it, and is "" where that is off.
type Images struct{ Kubelet, Etcd, APIServer, ControllerManager, Scheduler, Proxy string }

// Authorities identify the certificate authorities in a machine config: hashes of their
// certificates, comma-separated, of the one that issues and then of those that are
// accepted besides. "" : unknown, or there is none.
type Authorities struct{ Talos, Kubernetes, Etcd string }

// Other names the first authority that is another than the wanted one, "" when none is.
// One that is accepted besides is none.
func (a Authorities) Other(want Authorities) string {
	for _, x := range []struct{ name, have, want string }{
		{"Talos", a.Talos, want.Talos}, {"Kubernetes", a.Kubernetes, want.Kubernetes}, {"etcd", a.Etcd, want.Etcd},
	} {
		have, want := strings.Split(x.have, ","), strings.Split(x.want, ",")
		if x.have != "" && x.want != "" && !(slices.Contains(have, want[0]) && slices.Contains(want, have[0])) {
			return x.name
		}
	}
	return ""
}

// Differences are what of two can never change and is not the same, for people, besides
// authorities; none where one is unknown.
func (f ConfigSummary) Differences(want ConfigSummary) []string {
	f.Authorities, f.Images, f.Registries, f.Discovery, f.Endpoint, f.Rest = Authorities{}, Images{}, "", false, "", ""
	want.Authorities, want.Images, want.Registries, want.Discovery, want.Endpoint, want.Rest = Authorities{}, Images{}, "", false, "", ""
	if f == (ConfigSummary{}) || want == (ConfigSummary{}) {
		return nil
	}
	var out []string
	for _, x := range []struct{ name, have, want string }{
		{"cluster name", f.Cluster, want.Cluster}, {"DNS domain", f.DNSDomain, want.DNSDomain},
		{"pod network", f.Pods, want.Pods}, {"service network", f.Services, want.Services},
	} {
		if x.have != x.want {
			out = append(out, fmt.Sprintf("%s %s (the inventory has %s)", x.name, x.have, x.want))
		}
	}
	switch {
	case f.Flannel == "yes" && want.Flannel == "no":
		out = append(out, "Flannel, which Talos brings (the inventory has none)")
	case f.Flannel == "no" && want.Flannel == "yes":
		out = append(out, "no Flannel (the inventory has it)")
	}
	if f.Role != "" && want.Role != "" && f.Role != want.Role {
		out = append(out, fmt.Sprintf("role %s (the inventory has %s)", f.Role, want.Role))
	}
	return out
}

// DeprecatedAPI is an API of Kubernetes that is deprecated.
type DeprecatedAPI struct {
	Group, Version, Resource string // "" is the core group
	Removed                  string // version of Kubernetes without it, v1.36; "": none is named
}

// ReleaseAPI is a deprecated API of objects in the manifest that Helm keeps of a release, its Resource their kind.
type ReleaseAPI struct {
	Release ReleaseName
	API     DeprecatedAPI
	Unread  string // why what Helm keeps of the release cannot be read, so that API is not known; "": it was
}

// Manifests are the bootstrap manifests: the objects of Kubernetes that the machines of control planes
// render, which Talos makes where they are missing and never changes.
type Manifests struct {
	Rendered RenderedManifests
	// Inventoried: all nodes run a Talos that notes in Kubernetes which objects are its own.
	Inventoried bool
	// Changes are what applying them would do to the objects that are there, what it deletes first.
	Changes []ObjectChange
	Since   time.Time // since when there are changes, in every look of this agent
	// Rolling are the Deployments and DaemonSets whose pods are not all of what is rendered yet, each with how far they are.
	Rolling []string
	// Left are the objects that differ and are not changed, each with why: somebody else keeps them.
	Left []string
}

// RenderedManifests are the bootstrap manifests as all control planes render them.
type RenderedManifests struct {
	Objects Secret // a list as JSON; there may be Secrets among them
	// Lacks is what a control plane has not rendered yet of what its config asks for, "" : nothing. Its objects look
	// like those that nothing renders any longer.
	Lacks string
}

// Differences are all fields that would change, each with its object.
func (m Manifests) Differences() []FieldDifference {
	var out []FieldDifference
	for _, c := range m.Changes {
		fields := c.Fields
		switch {
		case c.Deleted:
			fields = []FieldDifference{{Field: "the object", Has: "what was rendered before", Wants: "nothing"}}
		case len(fields) == 0:
			fields = []FieldDifference{{Field: "the object", Has: "nothing", Wants: "what is rendered"}}
		}
		for _, f := range fields {
			f.Field, f.Since = c.Object+" "+f.Field, m.Since
			f.Has, f.Wants = cmp.Or(f.Has, "another value"), cmp.Or(f.Wants, "what is rendered")
			out = append(out, f)
		}
	}
	return out
}

// ObjectChange is what would become of an object of Kubernetes.
type ObjectChange struct {
	Object string            // "DaemonSet kube-system/kube-proxy"
	Fields []FieldDifference // none: it is made, or deleted
	// Deleted: Talos has made it, and no control plane renders it any longer.
	Deleted bool
}

// String implements fmt.Stringer: the object with the first of its fields.
func (c ObjectChange) String() string {
	switch {
	case c.Deleted:
		return c.Object + " (deleted: nothing renders it)"
	case len(c.Fields) == 0:
		return c.Object + " (new)"
	}
	first := c.Fields[0]
	out := c.Object + ": " + first.Field
	if first.Has != "" {
		out += " " + first.Has + " -> " + first.Wants
	}
	if more := len(c.Fields) - 1; more > 0 {
		out += fmt.Sprintf(" (and %d more)", more)
	}
	return out
}
