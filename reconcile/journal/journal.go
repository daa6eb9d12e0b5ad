// Package journal keeps the few facts of a cluster that the world does not show, on disk, so that what was
// decided outlives a crash at any instant.
package journal

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Files is the little of a file system the journal needs, so that a simulation
// can tear it at any step.
type Files interface {
	// Read returns a file's contents; fs.ErrNotExist when there is none.
	Read(name string) ([]byte, error)
	// Write makes or truncates a file that only its owner may read.
	Write(name string, data []byte) error
	// Sync makes a file's contents durable.
	Sync(name string) error
	// Rename replaces to by from, atomically, and makes that durable.
	Rename(from, to string) error
	// Remove deletes a file and makes that durable; there may be none.
	Remove(name string) error
}

// RecordsHint is the hint for state that cannot be written.
func RecordsHint(err error) string {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return "the disk is not the cause: `systemctl restart talos-agent` closes the agent's files; `talos-agent support-bundle` shows a maintainer what held them"
	}
	return "make room on the file system of state_dir, or correct its permissions"
}

// unreadHint is the hint for a journal that the file system does not give.
const unreadHint = "the agent's user must be able to read it, and its disk to answer; moved away, it counts as lost, and nothing is bootstrapped until etcd is seen"

// Journal keeps the few facts the world does not show, one file per cluster.
// It is a cache plus intents: a lost or torn journal is rebuilt from the
// world, and only bootstrap fails closed because of it.
type Journal struct {
	files Files
	name  string
	id    string // of the cluster

	mu    sync.Mutex
	facts cluster.Facts
	fresh bool // there was no file: nothing was ever written
	why   string
}

// journalVersion is the version of the file that is written. Older ones are read,
// too; a newer one is refused. It grows with every new field, because an older agent
// would take what it does not know for damage.
const journalVersion = 14

// record is the journal's file.
type record struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"`
	cluster.Facts
}

// recordV1 is the file of version 1, whose intents were fields of their own.
type recordV1 struct {
	Version   int    `json:"version"`
	Cluster   string `json:"cluster"`
	Lost      bool   `json:"lost,omitempty"`
	Bootstrap *struct {
		Node string    `json:"node"`
		UUID string    `json:"uuid"`
		At   time.Time `json:"at"`
		Done bool      `json:"done,omitempty"`
	} `json:"bootstrap,omitempty"`
	Suspended   bool                        `json:"suspended,omitempty"`
	Destroying  bool                        `json:"destroying,omitempty"`
	Applied     cluster.Revision            `json:"applied,omitempty"`
	Fingerprint string                      `json:"fingerprint,omitempty"`
	Images      map[string]cluster.ImagePin `json:"images,omitempty"`
	Charts      map[string]string           `json:"charts,omitempty"`
}

// upgraded is the record as the version of today has it.
func (r recordV1) upgraded() record {
	out := record{Version: journalVersion, Cluster: r.Cluster, Facts: cluster.Facts{Lost: r.Lost, Applied: r.Applied, Fingerprint: r.Fingerprint, Images: r.Images, Charts: r.Charts}}
	if b := r.Bootstrap; b != nil {
		out.Intend(cluster.Intent{Kind: cluster.IntendBootstrap, At: b.At, Node: b.Node, UUID: b.UUID, Done: b.Done})
	}
	if r.Suspended {
		out.Intend(cluster.Intent{Kind: cluster.IntendSuspend})
	}
	if r.Destroying {
		out.Intend(cluster.Intent{Kind: cluster.IntendDestroy})
	}
	return out
}

// NameOf is the name of the file that holds a cluster's journal.
func NameOf(clusterName string) string { return clusterName + ".json" }

// Open reads a cluster's journal. It never fails for what the file
// holds: a journal that cannot be read is lost, kept aside as name.corrupt, and
// logged. It fails when the file system does.
func Open(files Files, clusterName, clusterID string) (*Journal, error) {
	j := &Journal{files: files, name: NameOf(clusterName), id: clusterID}
	raw, err := files.Read(j.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A new cluster, or a journal that was deleted: it counts as lost, also if
		// something is written to it, until it was seen that there is nothing.
		j.fresh, j.facts.Lost = true, true
		return j, nil
	case err != nil:
		return nil, fault.WithHint(fmt.Errorf("read journal %s: %w", j.name, text.Plain(err)), cmp.Or(fault.HintOf(err), unreadHint))
	}
	rec, err := decodeRecord(raw)
	if err == nil && rec.Cluster != clusterID {
		return nil, fault.WithHint(fmt.Errorf("read journal %s: it belongs to another cluster: `owner` in the host's config or `cluster_name` was changed", j.name),
			"change it back, or move the file away if that cluster is gone")
	}
	if errors.Is(err, errNewer) {
		return nil, fault.WithHint(fmt.Errorf("read journal %s: %w", j.name, err), "install that version of talos-agent again, or a newer one")
	}
	if err != nil {
		j.why = err.Error()
		j.facts.Lost = true
		if err := j.keepAside(); err != nil {
			return nil, err
		}
		return j, j.write()
	}
	j.facts = rec.Facts
	return j, nil
}

// ReadFingerprint returns with which secrets the journal of a cluster has it built, ""
// if with none, or if the journal is lost. That much is read of a newer agent's, too: its
// cluster is not to be touched, and keeps no other from being built. It fails when the
// file system does.
func ReadFingerprint(files Files, clusterName string) (string, error) {
	raw, err := files.Read(NameOf(clusterName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fault.WithHint(fmt.Errorf("read journal %s: %w", NameOf(clusterName), text.Plain(err)), cmp.Or(fault.HintOf(err), unreadHint))
	}
	line, _, _ := bytes.Cut(raw, []byte("\n"))
	var record struct {
		Fingerprint string `json:"fingerprint"`
	}
	if json.Unmarshal(line, &record) != nil {
		return "", nil
	}
	return record.Fingerprint, nil
}

func (j *Journal) keepAside() error {
	if err := j.files.Rename(j.name, j.name+".corrupt"); err != nil {
		return fmt.Errorf("set unreadable journal %s aside: %w", j.name, err)
	}
	return nil
}

// Why says why the journal was lost, "" when it was not, or not by its contents.
func (j *Journal) Why() string { return j.why }

// Facts returns a copy of what is remembered.
func (j *Journal) Facts() cluster.Facts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return cloneFacts(j.facts)
}

func cloneFacts(f cluster.Facts) cluster.Facts {
	f.Images = maps.Clone(f.Images)
	f.Charts = maps.Clone(f.Charts)
	f.Restarts, f.Installs, f.Earlier = maps.Clone(f.Restarts), maps.Clone(f.Installs), maps.Clone(f.Earlier)
	f.Settled, f.Moved = maps.Clone(f.Settled), maps.Clone(f.Moved)
	f.Replaced, f.Cards = maps.Clone(f.Replaced), maps.Clone(f.Cards)
	f.Guarded, f.Installed = slices.Clone(f.Guarded), slices.Clone(f.Installed)
	f.Forgotten, f.Drifts = slices.Clone(f.Forgotten), slices.Clone(f.Drifts)
	f.Intents = slices.Clone(f.Intents)
	return f
}

// Fresh reports whether nothing was ever written: the agent has never begun an action
// for this cluster, or its state is deleted.
func (j *Journal) Fresh() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fresh
}

// Update changes the facts and returns when the change is durable. When it
// returns an error nothing has changed, neither on disk nor in memory.
func (j *Journal) Update(change func(*cluster.Facts)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.facts
	after := cloneFacts(before)
	if after.Images == nil {
		after.Images = map[string]cluster.ImagePin{}
	}
	if after.Charts == nil {
		after.Charts = map[string]string{}
	}
	if after.Settled == nil {
		after.Settled = map[string]string{}
	}
	if after.Installs == nil {
		after.Installs = map[string]cluster.Install{}
	}
	if after.Earlier == nil {
		after.Earlier = map[string]string{}
	}
	if after.Restarts == nil {
		after.Restarts = map[string]cluster.Restart{}
	}
	if after.Moved == nil {
		after.Moved = map[string]time.Time{}
	}
	change(&after)
	j.facts = after
	if err := j.write(); err != nil {
		j.facts = before
		return err
	}
	j.fresh = false
	return nil
}

// Hold changes the facts of a journal that was never written in memory only: a cluster of
// which nothing is made needs no file. Keep writes them.
func (j *Journal) Hold(change func(*cluster.Facts)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.facts = cloneFacts(j.facts)
	change(&j.facts)
}

// Keep makes the facts durable that are held; where the journal was written before,
// they are.
func (j *Journal) Keep() error {
	if !j.Fresh() {
		return nil
	}
	return j.Update(func(*cluster.Facts) {})
}

// Discard removes the journal's file where it has nothing that matters for a cluster of
// which nothing is left: no intent, and no keys that a machine was given. It reports
// whether there is no file any more.
func (j *Journal) Discard() (bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fresh {
		return true, nil
	}
	if j.facts.Lost || len(j.facts.Intents) > 0 || j.facts.Fingerprint != "" {
		return false, nil
	}
	if err := j.files.Remove(j.name); err != nil {
		return false, fmt.Errorf("remove journal %s: %w", j.name, text.Plain(err))
	}
	j.fresh = true
	return true, nil
}

// write makes the facts durable: temporary file, sync, rename.
func (j *Journal) write() error {
	raw, err := encodeRecord(record{Version: journalVersion, Cluster: j.id, Facts: j.facts})
	if err != nil {
		return fmt.Errorf("write journal %s: %w", j.name, err)
	}
	if err := Replace(j.files, j.name, raw); err != nil {
		return cluster.WithReason(cluster.JournalUnwritable, fault.WithHint(fmt.Errorf("write journal %s: %w", j.name, text.Plain(err)), RecordsHint(err)))
	}
	return nil
}

// Replace makes a file's new content durable: temporary file, sync, rename. Who
// reads it finds the old content or the new one, whenever the power fails.
func Replace(files Files, name string, data []byte) error {
	tmp := name + ".new"
	for _, step := range []func() error{
		func() error { return files.Write(tmp, data) },
		func() error { return files.Sync(tmp) },
		func() error { return files.Rename(tmp, name) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// encodeRecord writes one line of JSON and one with its SHA-256, so that a
// flipped bit is a lost journal and not a wrong fact.
func encodeRecord(r record) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(line)
	return fmt.Appendf(line, "\n%s\n", hex.EncodeToString(sum[:])), nil
}

func decodeRecord(raw []byte) (record, error) {
	line, rest, ok := bytes.Cut(raw, []byte("\n"))
	sum := sha256.Sum256(line)
	if !ok || string(bytes.TrimSpace(rest)) != hex.EncodeToString(sum[:]) {
		return record{}, errors.New("its checksum does not match: it was torn or changed by hand")
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return record{}, fmt.Errorf("it cannot be decoded: %w", err)
	}
	switch {
	case v.Version > journalVersion:
		return record{}, fmt.Errorf("%w: version %d, and this one knows %d", errNewer, v.Version, journalVersion)
	case v.Version >= 2: // which have fewer fields, and kinds of intent
		return decodeStrictly[record](line)
	case v.Version == 1:
		r, err := decodeStrictly[recordV1](line)
		return r.upgraded(), err
	default:
		return record{}, fmt.Errorf("it has version %d", v.Version)
	}
}

func decodeStrictly[T any](line []byte) (r T, err error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, fmt.Errorf("it cannot be decoded: %w", err)
	}
	return r, nil
}

// errNewer is a journal of a newer agent. It is not lost, only not ours to
// overwrite.
var errNewer = errors.New("a newer agent wrote it")
