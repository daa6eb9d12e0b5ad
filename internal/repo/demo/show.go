package demo

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
)

// untilReady waits for Ready at the pushed commit and shows how far it is.
func (d *demo) untilReady(ctx context.Context) error {
	head, err := d.host.Repo.Head("main")
	if err != nil {
		return err
	}
	var last cluster.Status
	err = waitUntil(ctx, 100*time.Millisecond, func() (bool, error) {
		s, err := d.client.Status(ctx, Cluster)
		if err != nil {
			return false, err
		}
		last = s
		d.showProgress(s)
		if s.Condition == cluster.Stalled && s.Revision.Commit() == head && len(s.Running) == 0 && time.Since(s.Since) > 5*time.Second {
			return false, fault.WithHint(fmt.Errorf("the cluster is Stalled: %s", s.Message), s.Hint)
		}
		return s.Condition == cluster.Ready && s.Revision == s.Applied && s.Revision.Commit() == head, nil
	})
	d.line.Clear()
	if err != nil {
		return fmt.Errorf("%w; last seen: %s: %s", err, last.Condition, last.Message)
	}
	return nil
}

// show prints what people look at.
func (d *demo) show(ctx context.Context) error {
	s, err := d.client.Status(ctx, Cluster)
	if err != nil {
		return err
	}
	p, err := terminal.New(d.c.Out, "text")
	if err != nil {
		return err
	}
	p.Printf("\n$ talos-agent status\n")
	p.PrintStatus(s)
	p.Printf("\n$ kubectl get nodes -o wide\n")
	rows, err := d.nodeTable(ctx)
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	p.PrintTable(rows)
	return nil
}

// kubectl reads from the API of the cluster with the kubeconfig that the agent hands out.
// An error of the API is an answer.
func (d *demo) kubectl(ctx context.Context, path, accept string) ([]byte, error) {
	kubeconfig, err := d.client.Kubeconfig(ctx, Cluster)
	if err != nil {
		return nil, err
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(c.CertData, c.KeyData)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Host+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	_, body, err := request(req, c.CAData, cert)
	return body, err
}

// request makes a request of a server with these authorities.
func request(req *http.Request, ca []byte, certs ...tls.Certificate) (status string, body []byte, err error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	tr := &http.Transport{TLSClientConfig: &tls.Config{Certificates: certs, RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return resp.Status, body, err
}

// nodeTable asks the cluster for its nodes the way kubectl does: the server
// makes the columns.
func (d *demo) nodeTable(ctx context.Context) ([][]string, error) {
	body, err := d.kubectl(ctx, "/api/v1/nodes", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if err != nil {
		return nil, err
	}
	var table struct {
		ColumnDefinitions []struct {
			Name     string `json:"name"`
			Priority int    `json:"priority"`
		} `json:"columnDefinitions"`
		Rows []struct {
			Cells []any `json:"cells"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(body, &table); err != nil {
		return nil, err
	}
	var head []string
	for _, c := range table.ColumnDefinitions {
		head = append(head, strings.ToUpper(c.Name))
	}
	rows := [][]string{head}
	for _, r := range table.Rows {
		var row []string
		for _, c := range r.Cells {
			row = append(row, fmt.Sprint(c))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// statuses prints what the forge received, and wants a success for each push.
func (d *demo) statuses() error {
	successes := map[string]bool{}
	p := terminal.NewPlain(d.c.Out)
	rows := [][]string{{"COMMIT", "CONTEXT", "STATE", "DESCRIPTION"}}
	for _, s := range d.host.Forge.Statuses() {
		rows = append(rows, []string{s.Commit[:12], s.Context, string(s.State), text.Cut(s.Description, 90)})
		if s.State == "success" {
			successes[s.Commit] = true
		}
	}
	p.PrintTable(rows)
	if len(successes) != 2 {
		return fmt.Errorf("the forge received success for %d commits, and 2 were pushed", len(successes))
	}
	return nil
}

// vms counts the VMs of the host.
func (d *demo) vms() int { return len(d.host.PVE.VMs()) }

// title begins a chapter.
func (d *demo) title(format string, args ...any) {
	d.line.Clear()
	d.line.Print("\n== " + fmt.Sprintf(format, args...) + "\n\n")
}

// print prints a line of what happens, above the progress line.
func (d *demo) print(format string, args ...any) {
	d.line.Print(fmt.Sprintf("%6.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...)))
}

// showProgress shows one line that changes in place, on a terminal.
func (d *demo) showProgress(s cluster.Status) {
	d.line.Set(func(columns int) string { return formatProgress(s, columns) })
}

// formatProgress writes in fewer than width columns how far a cluster is. A line
// that fills the last column wraps on some terminals, and one that wraps cannot
// be removed again.
func formatProgress(s cluster.Status, width int) string {
	bar := ""
	for _, ready := range []bool{true, false} {
		for _, n := range s.Nodes {
			if (n.Phase == cluster.PhaseReady) == ready {
				bar += map[bool]string{true: "##", false: ".."}[ready]
			}
		}
	}
	if bar != "" {
		bar = "[" + bar + "] "
	}
	amount := ""
	for _, r := range s.Running {
		if r.Total > 0 {
			amount = fmt.Sprintf("; %d%%", 100*r.Done/r.Total)
			break
		}
	}
	room := max(width-1-len(bar)-len(amount), 1)
	return text.Cut(bar+text.Cut(s.Message, room)+amount, max(width-1, 1))
}
