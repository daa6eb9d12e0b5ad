package agent

import (
	"context"
	"time"
)

// ReadAgain is the record of a repository whose clusters are read.
const ReadAgain = readAgain

// FetchTree fetches the repository as the loop of a cluster does.
func (a *Agent) FetchTree(ctx context.Context) error {
	_, err := a.hub.tree(ctx, time.Now())
	return err
}
