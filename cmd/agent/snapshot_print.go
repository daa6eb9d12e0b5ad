package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/host/archive"
	"github.com/talos-agent/talos-agent/internal/terminal"
	"github.com/talos-agent/talos-agent/internal/text"
)

// printSnapshot prints what is in a snapshot that was verified.
func printSnapshot(p terminal.Printer, r archive.Report) {
	d, rows := r.Database, [][]string{}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	if h := r.Header; h != nil {
		add("cluster", h.Cluster)
		add("kind", string(h.Kind))
		add("taken", text.Moment(h.At))
		add("from", h.Node)
		add("Talos", h.Talos)
		add("Kubernetes", h.Kubernetes)
		add("etcd", h.Etcd)
		add("commit", h.Commit)
		add("secrets", h.Bundle)
		add("encryption keys", h.EncryptionKeys)
		add("encrypted to", strings.Join(h.Recipients, ", "))
	}
	add("revision", strconv.FormatInt(d.Revision, 10))
	add("keys", formatKeys(d.Keys))
	add("size", formatMiB(d.Size))
	add("hash", d.Hash)
	add("version of etcd's data", d.Version)
	for _, m := range d.Members {
		state := "voter"
		if m.Learner {
			state = "learner"
		}
		add("member", fmt.Sprintf("%s (%s, %s) at %s", m.Name, m.ID, state, strings.Join(m.PeerURLs, ", ")))
	}
	p.Printf("%s: %s\n", r.File, p.Paint("verified", terminal.Green))
	p.PrintRows(rows)
}

func formatKeys(n int64) string {
	if n < 0 {
		return "too many to count"
	}
	return strconv.FormatInt(n, 10)
}

// formatMiB is a size in MiB, of at least a tenth.
func formatMiB(n int64) string { return fmt.Sprintf("%.1f MiB", max(0.1, float64(n)/(1<<20))) }

var contentColours = map[string]terminal.Colour{"verified": terminal.Green, "unverified": terminal.Yellow, "damaged": terminal.Red}

// printListing prints what is in a folder.
func printListing(p terminal.Printer, l archive.Listing, now time.Time) error {
	if p.IsJSON() {
		return p.PrintJSON("SnapshotList", l)
	}
	printSnapshots(p, l, now)
	return nil
}

// printSnapshots prints the snapshots of each cluster, then what is wrong with them.
func printSnapshots(p terminal.Printer, l archive.Listing, now time.Time) {
	if len(l.Clusters) == 0 {
		p.Printf("There are no snapshots.\n")
	}
	for i, c := range l.Clusters {
		if i > 0 {
			p.Printf("\n")
		}
		newest := "none is verified"
		switch {
		case l.IsUnread(c.Cluster):
			newest = "none was read, which takes --age-key FILE"
		case c.Verified != nil:
			newest = "the newest verified one is " + text.Duration(now.Sub(*c.Verified)) + " old"
		}
		p.Printf("%s: %s, %s; with one every %g h the next is due %s\n", c.Cluster, text.Count(c.Snapshots, "snapshot"), newest, archive.Every.Hours(), text.Moment(c.Due))
		rows := [][]string{{"SNAPSHOT", "AGE", "SIZE", "REVISION", "CONTENT", "KEPT"}}
		var problems []string
		for _, k := range l.Snapshots {
			if k.Cluster != c.Cluster {
				continue
			}
			revision, why := "", k.Why
			if k.Header != nil {
				revision = strconv.FormatInt(k.Header.Database.Revision, 10)
			}
			if k.Prune {
				why = "no: may be removed"
			}
			state := string(k.State)
			rows = append(rows, []string{k.File, text.Duration(now.Sub(k.At)), formatMiB(k.Size), revision, p.Paint(state, contentColours[state]), why})
			if k.Problem != "" {
				problems = append(problems, k.File+": "+k.Problem)
			}
		}
		p.PrintTable(rows)
		for _, problem := range problems {
			p.Printf("  %s\n", problem)
		}
	}
}
