package factory

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
)

// Look looks whether the factory answers, and returns the host that was asked.
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
	if resp.StatusCode != http.StatusOK {
		return f.url.Host, readRefusal(what, resp.StatusCode, answer)
	}
	var versions []string
	if json.Unmarshal(answer, &versions) != nil {
		return f.url.Host, newTransient(nil, f.inTheWay(), "%s: the answer of %s is not that of an image factory", what, f.url.Host)
	}
	return f.url.Host, nil
}
