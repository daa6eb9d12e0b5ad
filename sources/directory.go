package sources

import (
	"context"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/sources/git"
)

// HintTop is what to do about a directory in which the clusters' folders are not
// where they lie in the repository.
const HintTop = "name the top of the repository"

// ReadDirectory reads a directory as the agent would: links and what Git ignores
// are left out. A repository may hold much besides the inventory, so that the
// bounds are wide.
func ReadDirectory(ctx context.Context, dir string) (Tree, error) {
	d, err := git.OpenDir(git.Config{Dir: dir, Limits: git.Limits{Total: 1 << 30, Entries: 500_000}})
	if err != nil {
		return Tree{}, err
	}
	head, err := d.Head(ctx)
	if err != nil {
		return Tree{}, err
	}
	files, err := d.Tree(ctx, head)
	if err != nil {
		return Tree{}, err
	}
	return Tree{Revision: cluster.Revision(head.Revision), Content: head.Content, FS: files}, d.Close()
}
