package proxmox

import (
	"context"
	"errors"
	"strings"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/reconcile/proxmox/pveconf"
)

// Pool is a resource pool that lies in another one, by its whole name, with its comment.
type Pool struct{ Name, Comment string }

var (
	// ErrPoolExists is that a pool is there already.
	ErrPoolExists = errors.New("the pool exists")
	// ErrNoPool is that a pool is not there.
	ErrNoPool = errors.New("the pool does not exist")
)

// ListPools lists the pools in a pool, which has to be there. A host without quorum answers what it knew last.
func (c *Client) ListPools(ctx context.Context, in string) ([]Pool, error) {
	var rows []struct{ PoolID, Comment pveconf.Scalar }
	if err := c.get(ctx, "/pools", nil, &rows); err != nil {
		return nil, err
	}
	var out []Pool
	seen := false
	for _, r := range rows {
		seen = seen || string(r.PoolID) == in
		if strings.HasPrefix(string(r.PoolID), in+"/") {
			out = append(out, Pool{Name: string(r.PoolID), Comment: string(r.Comment)})
		}
	}
	if !seen {
		return nil, fault.Errorf("`pvesh create /pools --poolid "+in+"`, and give the agent's user and its token Pool.Audit and Pool.Allocate on /pool/"+in, "resource pool %s is not there, or the agent may not see it", in)
	}
	return out, nil
}

// CreatePool makes a pool, and fails with ErrPoolExists where it is there: of several who make it at once, one does, wherever in the
// cluster of Proxmox VE they are (PVE 9.2 API2/Pool.pm: under the cluster's lock of user.cfg). Without quorum it fails.
func (c *Client) CreatePool(ctx context.Context, p Pool) error {
	return asPoolError(c.post(ctx, "/pools", params{"poolid": p.Name, "comment": p.Comment}, nil), errExists, ErrPoolExists)
}

// WritePool replaces the comment of a pool, and fails with ErrNoPool where it is not there, and without quorum. The name of a pool in
// another one has no place in a path: PVE 8.1 has it as a parameter.
func (c *Client) WritePool(ctx context.Context, p Pool) error {
	return asPoolError(c.put(ctx, "/pools", params{"poolid": p.Name, "comment": p.Comment}, nil), errMissing, ErrNoPool)
}

// RemovePool removes a pool that is empty. It may not be there.
func (c *Client) RemovePool(ctx context.Context, name string) error {
	err := asPoolError(c.delete(ctx, "/pools", params{"poolid": name}, nil), errMissing, ErrNoPool)
	if errors.Is(err, ErrNoPool) {
		return nil
	}
	return err
}

// asPoolError is err, with a meaning where Proxmox VE has answered just that.
func asPoolError(err, kind, meaning error) error {
	if err != nil && errors.Is(err, kind) && isAnswered(err) {
		return errors.Join(meaning, err)
	}
	return err
}
