package factory

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/talos-agent/talos-agent/internal/cluster"
)

// Look looks whether the factory answers, and returns the host that was asked. A
// mirror need not list versions, which nothing here asks for but this: of one that
// does not, it asks for the schematic that has nothing in it.
func (f *Factory) Look(ctx context.Context) (host string, err error) {
	const what = "list the versions"
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url.JoinPath("versions").String(), nil)
	if err != nil {
		return f.url.Host, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return f.url.Host, f.unreachable(what, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return f.url.Host, f.unreachable(what, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusForbidden, http.StatusNotImplemented:
		_, err := f.register(ctx, cluster.Schematic{})
		return f.url.Host, err
	default:
		return f.url.Host, readRefusal(what, resp.StatusCode, answer)
	}
	var versions []string
	if json.Unmarshal(answer, &versions) != nil {
		return f.url.Host, newTransient(nil, f.inTheWay(), "%s: the answer of %s is not that of an image factory", what, f.url.Host)
	}
	return f.url.Host, nil
}
