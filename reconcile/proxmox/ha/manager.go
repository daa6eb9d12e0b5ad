package ha

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

const (
	resourcesPath = "/cluster/ha/resources"
	rulesPath     = "/cluster/ha/rules"

	// conflicts is how often a change that somebody else's change crossed is planned again.
	conflicts = 4
)

// Requests are those of one Proxmox VE.
type Requests struct {
	Read func(ctx context.Context, path string, query map[string]string, into any) error
	// Write is sent once: an error leaves open whether it was done, unless it is an answer.
	Write func(ctx context.Context, method, path string, in map[string]string) error

	Forbidden   error  // what an error is for lack of a privilege
	User, Token string // whose the requests are, for hints
}

func (r Requests) get(ctx context.Context, path string, query map[string]string, into any) error {
	return r.hint(r.Read(ctx, path, query, into))
}

func (r Requests) change(ctx context.Context, c change) error {
	return r.hint(r.Write(ctx, c.method, c.path, c.in))
}

// hint adds how the token gets what it was refused: the HA manager is that of the whole Proxmox VE cluster, and both what it holds
// and each change of that take a privilege on /. A shell on a host takes the same one there, so that it is not to hold below.
func (r Requests) hint(err error) error {
	if !errors.Is(err, r.Forbidden) {
		return err
	}
	return fault.WithHint(err, availability.FormatGrant(r.User, r.Token))
}

// Look returns what the HA manager holds of a cluster. version is that of Proxmox VE.
func Look(ctx context.Context, r Requests, spec cluster.Spec, version string) (availability.Manager, error) {
	major, err := strconv.Atoi(cutMajor(version))
	if err != nil {
		return availability.Manager{}, fmt.Errorf("the version of Proxmox VE is not known, and with it whether there are rules (%q)", version)
	}
	resources, err := listResources(ctx, r)
	if err != nil {
		return availability.Manager{}, err
	}
	out := availability.Manager{Resources: map[int]availability.Resource{}, HasRules: major >= 9}
	for _, have := range resources {
		if vmid, ok := vmidOf(string(have.SID)); ok {
			out.Resources[vmid] = availability.Resource{State: have.state(), Group: string(have.Group), Own: isOwn(have.Comment, spec.ID)}
		}
		if have.Group != "" {
			out.HasRules = false // PVE 9.2 pve-ha-manager: it shows groups, and takes no rule, until all have become rules
		}
	}
	if major < 9 {
		return out, nil
	}
	if out.Disarmed, err = readMode(ctx, r); err != nil {
		return availability.Manager{}, err
	}
	rules, err := listRules(ctx, r, map[string]string{"type": affinity})
	if err != nil {
		return availability.Manager{}, err
	}
	if have := findRule(rules, RuleName(spec.Name)); have != nil && isOwn(have.Comment, spec.ID) {
		out.Apart = have.describe()
	}
	return out, nil
}

func cutMajor(version string) string {
	major, _, _ := strings.Cut(version, ".")
	return major
}

// own is what the comments of the agent begin with; they end with the ID of the cluster, in parentheses.
const own = "talos-agent: "

// isOwn reports whether the agent has made something for a cluster, by its comment.
func isOwn(comment pveconf.Scalar, clusterID string) bool {
	return clusterID != "" && strings.HasPrefix(string(comment), own) && strings.HasSuffix(string(comment), "("+clusterID+")")
}

// sidOf is the name of the resource of a VM.
func sidOf(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

// vmidOf is the VM, or the container, with which VMs share their numbers, of a resource.
func vmidOf(sid string) (int, bool) {
	_, number, _ := strings.Cut(sid, ":")
	vmid, err := strconv.Atoi(number)
	return vmid, err == nil
}
