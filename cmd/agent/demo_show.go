package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
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
		s, err := d.client.Status(ctx, demoCluster)
		if err != nil {
			return false, err
		}
		last = s
		d.progress(s)
		if s.Condition == cluster.Stalled && s.Revision.Commit() == head && len(s.Running) == 0 && time.Since(s.Since) > 5*time.Second {
			return false, fault.WithHint(fmt.Errorf("the cluster is Stalled: %s", s.Message), s.Hint)
		}
		return s.Condition == cluster.Ready && s.Revision == s.Applied && s.Revision.Commit() == head, nil
	})
	d.clear()
	if err != nil {
		return fmt.Errorf("%w; last seen: %s: %s", err, last.Condition, last.Message)
	}
	return nil
}

// show prints what people look at.
func (d *demo) show(ctx context.Context) error {
	s, err := d.client.Status(ctx, demoCluster)
	if err != nil {
		return err
	}
	p, err := newPrinter(d.env.stdout, "text")
	if err != nil {
		return err
	}
	p.Printf("\n$ talos-agent status\n")
	p.PrintStatus(s)
	p.Printf("\n$ kubectl get nodes -o wide\n")
	kubeconfig, err := d.client.Kubeconfig(ctx, demoCluster)
	if err != nil {
		return err
	}
	rows, err := nodeTable(ctx, kubeconfig)
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	p.PrintTable(rows)
	return nil
}

// nodeTable asks the cluster for its nodes the way kubectl does: the server
// makes the columns.
func nodeTable(ctx context.Context, kubeconfig []byte) ([][]string, error) {
	c, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(c.CertData, c.KeyData)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CAData)
	tr := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Host+"/api/v1/nodes", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var table struct {
		ColumnDefinitions []struct {
			Name     string `json:"name"`
			Priority int    `json:"priority"`
		} `json:"columnDefinitions"`
		Rows []struct {
			Cells []any `json:"cells"`
		} `json:"rows"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
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
	p := terminal.NewPlain(d.env.stdout)
	rows := [][]string{{"COMMIT", "CONTEXT", "STATE", "DESCRIPTION"}}
	for _, s := range d.host.Forge.Statuses() {
		rows = append(rows, []string{s.Commit[:12], s.Context, string(s.State), text.Cut(s.Description, 90)})
		if s.State == "success" {
			successes[s.Commit] = true
		}
	}
	p.PrintTable(rows)
	if len(successes) != 2 {
		return fmt.Errorf("the forge was told success for %d commits, and 2 were pushed", len(successes))
	}
	return nil
}

// vms counts the VMs of the host.
func (d *demo) vms() int { return len(d.host.PVE.VMs()) }

func (d *demo) title(format string, args ...any) {
	d.clear()
	d.mu.Lock()
	defer d.mu.Unlock()
	_, _ = fmt.Fprintf(d.env.stdout, "\n== %s\n\n", fmt.Sprintf(format, args...))
}

// say prints a line of the story above the progress line.
func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bottom != "" {
		_, _ = fmt.Fprint(d.env.stdout, "\r\x1b[K")
	}
	_, _ = fmt.Fprintf(d.env.stdout, "%6.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
	if d.bottom != "" {
		_, _ = fmt.Fprint(d.env.stdout, d.bottom)
	}
}

// progress shows one line that changes in place, on a terminal.
func (d *demo) progress(s cluster.Status) {
	if !d.live {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	line := progressLine(s, d.columns())
	if line == d.bottom {
		return
	}
	d.bottom = line
	_, _ = fmt.Fprint(d.env.stdout, "\r\x1b[K"+d.bottom)
}

// columns is how wide the terminal is now: people change it while they watch.
func (d *demo) columns() int {
	if f, ok := d.env.stdout.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// progressLine says in fewer than width columns how far a cluster is. A line
// that fills the last column wraps on some terminals, and one that wraps cannot
// be taken away again.
func progressLine(s cluster.Status, width int) string {
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

// clear takes the progress line away.
func (d *demo) clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bottom != "" {
		_, _ = fmt.Fprint(d.env.stdout, "\r\x1b[K")
		d.bottom = ""
	}
}
