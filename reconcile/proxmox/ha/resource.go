package ha

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/cluster/availability"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// resource is a row of the resources.
type resource struct{ SID, State, Group, Comment, Digest pveconf.Scalar }

func listResources(ctx context.Context, r Requests) (rows []resource, err error) {
	err = r.get(ctx, resourcesPath, nil, &rows)
	return rows, err
}

// List returns the names of all resources there are, "vm:410", in order, to one who changes none.
func List(ctx context.Context, r Requests) ([]string, error) {
	var rows []resource
	err := r.Read(ctx, resourcesPath, nil, &rows)
	var out []string
	for _, have := range rows {
		out = append(out, string(have.SID))
	}
	slices.Sort(out)
	return out, err
}

// state is what is asked of a resource. PVE 9.2 pve-ha-manager: one without a state is to be started.
func (r resource) state() availability.State {
	if r.State == "" || r.State == "enabled" {
		return availability.Started
	}
	return availability.State(r.State)
}

// change is a request by which something becomes what is wanted; without a method it is so.
type change struct {
	method, path string
	in           map[string]string
}

// Set has the resource of a VM in a state, or has none of it. The group is that of the inventory where it is to be started;
// otherwise it stays what it is.
func Set(ctx context.Context, r Requests, spec cluster.Spec, vmid int, node string, want availability.State) error {
	var last error
	var before *resource
	for try := range conflicts {
		have, err := readResource(ctx, r, vmid)
		switch {
		case err != nil:
			return errors.Join(last, err)
		case have != nil && !isOwn(have.Comment, spec.ID):
			return fault.Errorf(fmt.Sprintf("take it out of HA: `ha-manager remove %s`", sidOf(vmid)), "somebody else has made the HA resource %s", sidOf(vmid))
		}
		todo := planResource(have, spec, vmid, node, want)
		switch {
		case todo.method == "":
			return nil
		case try > 0 && isSame(have, before):
			return last // it was not another's change that kept it from being done
		}
		if last = r.change(ctx, todo); last == nil {
			return nil
		}
		before = have
	}
	return last
}

// readResource returns the resource of a VM; nil: there is none.
func readResource(ctx context.Context, r Requests, vmid int) (*resource, error) {
	rows, err := listResources(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, have := range rows {
		if string(have.SID) == sidOf(vmid) {
			return &have, nil
		}
	}
	return nil, nil
}

// planResource plans how a resource becomes what is wanted.
func planResource(have *resource, spec cluster.Spec, vmid int, node string, want availability.State) change {
	started, path := want == availability.Started, resourcesPath+"/"+sidOf(vmid)
	switch {
	case want == availability.Removed && have == nil:
		return change{}
	case want == availability.Removed:
		return change{method: "DELETE", path: path}
	case have == nil:
		in := map[string]string{"sid": sidOf(vmid), "state": string(want), "comment": fmt.Sprintf("%snode %s of cluster %s (%s)", own, node, spec.Name, spec.ID)}
		if spec.HAGroup != "" {
			in["group"] = spec.HAGroup
		}
		return change{"POST", resourcesPath, in}
	case have.state() == want && (!started || string(have.Group) == spec.HAGroup):
		return change{}
	}
	in := map[string]string{"state": string(want), "digest": string(have.Digest)}
	switch {
	case !started || string(have.Group) == spec.HAGroup:
	case spec.HAGroup == "":
		in["delete"] = "group"
	default:
		in["group"] = spec.HAGroup
	}
	return change{"PUT", path, in}
}

// isSame reports whether two looks at something saw the same.
func isSame[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
