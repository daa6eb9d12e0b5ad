package reporting

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"sync"

	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/reconcile/journal"
	"github.com/talos-agent/talos-agent/sources/notify"
)

// SentFile is the file of the state directory that remembers which notices were
// sent. It is not a journal's name.
const SentFile = "notified"

// SentNotices remembers the last notice to each target about each cluster, so that
// a restart is no news. It may be lost: then everything is sent once more.
type SentNotices struct {
	files journal.Files // nil: in memory only
	log   *slog.Logger

	mu      sync.Mutex
	notices map[string]map[string]notify.Notice // by target and cluster
}

// OpenSentNotices reads which notices were sent, and forgets targets that do not
// exist any more. Without files it remembers nothing over a restart.
func OpenSentNotices(files journal.Files, targets []Target, log *slog.Logger) *SentNotices {
	sn := &SentNotices{files: files, log: log, notices: map[string]map[string]notify.Notice{}}
	if files == nil || len(targets) == 0 {
		return sn
	}
	raw, err := files.Read(SentFile)
	var all map[string]map[string]notify.Notice
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot read what was notified before; it is notified again", logging.Err, err)
	}
	for _, t := range targets {
		if all[t.Name] != nil {
			sn.notices[t.Name] = all[t.Name]
		}
	}
	return sn
}

// of is the last notice to a target about each cluster.
func (sn *SentNotices) of(target string) map[string]notify.Notice {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	return maps.Clone(sn.notices[target])
}

// set remembers a notice, or with nil that it is unknown whether one was sent.
func (sn *SentNotices) set(target, name string, notice *notify.Notice) {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	_, had := sn.notices[target][name]
	switch {
	case notice == nil && !had:
		return
	case notice == nil:
		delete(sn.notices[target], name)
	default:
		if sn.notices[target] == nil {
			sn.notices[target] = map[string]notify.Notice{}
		}
		sn.notices[target][name] = *notice
	}
	if sn.files == nil {
		return
	}
	raw, err := json.Marshal(sn.notices)
	if err == nil {
		err = journal.Replace(sn.files, SentFile, raw)
	}
	if err != nil {
		sn.log.Warn("cannot write down what was notified; after a restart it is notified again", logging.Err, err, logging.Hint, journal.RecordsHint(err))
	}
}
