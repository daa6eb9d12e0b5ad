// Package workertest does jobs of a worker in this process, without any bound: for
// simulations that begin thousands of them with requests that they made themselves.
package workertest

import (
	"context"

	"github.com/talos-agent/talos-agent/internal/worker"
)

// Run is a worker.Runner.
func Run(ctx context.Context, job worker.Job, _ worker.Limits, request []byte, answer worker.Answer) ([]byte, error) {
	return job.Do(request, func(question []byte) ([]byte, error) { return answer(ctx, question) })
}
