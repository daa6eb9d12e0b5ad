package proxmox

import (
	"errors"
	"strings"
	"testing"
)

// TestPools: a pool in a pool is made once, whoever makes it; one that is gone takes no comment; without quorum nothing is written,
// and what was known is answered still.
func TestPools(t *testing.T) {
	for _, flavour := range []string{"9.2", "8.4"} {
		onStand(t, flavour, func(t *testing.T, s *stand) {
			const in = "talos-agent-leader"
			ctx, c := t.Context(), s.client()
			if _, err := c.ListPools(ctx, in); err == nil || !strings.Contains(err.Error(), "resource pool talos-agent-leader is not there") {
				t.Errorf("of a pool that is not there: %v", err)
			}
			s.host.Role("Leader", "Pool.Allocate", "Pool.Audit")
			s.host.Grant("talos-agent@pve", "Leader", "/pool/"+in)
			s.host.Grant("talos-agent@pve!pve1", "Leader", "/pool/"+in)
			one := Pool{Name: in + "/term-1", Comment: `{"host":"pve1","beat":1}`}
			if err := c.CreatePool(ctx, one); err == nil {
				t.Error("a pool was made in one that is not there")
			}
			if err := errors.Join(c.CreatePool(ctx, Pool{Name: in}), c.CreatePool(ctx, one)); err != nil {
				t.Fatal(err)
			}
			if err := c.CreatePool(ctx, Pool{Name: one.Name, Comment: "another"}); !errors.Is(err, ErrPoolExists) {
				t.Errorf("a second time: %v", err)
			}
			if got, err := c.ListPools(ctx, in); err != nil || len(got) != 1 || got[0] != one {
				t.Errorf("%+v, %v", got, err)
			}
			one.Comment = `{"host":"pve1","beat":2}`
			if err := c.WritePool(ctx, one); err != nil {
				t.Error(err)
			}
			s.host.LoseQuorum(true)
			for what, err := range map[string]error{"write": c.WritePool(ctx, Pool{Name: one.Name}), "create": c.CreatePool(ctx, Pool{Name: in + "/term-2"}), "remove": c.RemovePool(ctx, one.Name)} {
				if err == nil || errors.Is(err, ErrPoolExists) || errors.Is(err, ErrNoPool) {
					t.Errorf("%s without quorum: %v", what, err)
				}
			}
			if got, err := c.ListPools(ctx, in); err != nil || len(got) != 1 || got[0] != one {
				t.Errorf("without quorum: %+v, %v", got, err)
			}
			s.host.LoseQuorum(false)
			if err := errors.Join(c.RemovePool(ctx, one.Name), c.RemovePool(ctx, one.Name)); err != nil {
				t.Error(err)
			}
			if err := c.WritePool(ctx, one); !errors.Is(err, ErrNoPool) {
				t.Errorf("into one that is gone: %v", err)
			}
			if err := c.CreatePool(ctx, Pool{Name: "other/term-1"}); err == nil || errors.Is(err, ErrPoolExists) {
				t.Errorf("outside of its own pool: %v", err)
			}
		})
	}
}
