package daemon

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/talos-agent/talos-agent/internal/fault"
	"github.com/talos-agent/talos-agent/internal/logging"
	"github.com/talos-agent/talos-agent/internal/text"
)

// problems are what is wrong and no cluster's. The zero value has none.
type problems struct {
	mu      sync.Mutex
	files   []string          // with the daemon's own files
	missing map[string]string // what cannot be had, and who cannot be reached, by the config's field
}

// setFiles sets what is wrong with the daemon's own files, and reports whether that
// is news.
func (p *problems) setFiles(texts []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := !slices.Equal(texts, p.files)
	p.files = texts
	return changed
}

// setMissing sets what is wrong with a field of the config, "" for nothing. It
// reports whether that is news, and whether anything is wrong now that was not
// before, or the other way round.
func (p *problems) setMissing(field, wrong string) (changed, turned bool) {
	text := ""
	if wrong != "" {
		text = field + ": " + wrong
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.missing[field]
	switch {
	case text == "":
		delete(p.missing, field)
	case p.missing == nil:
		p.missing = map[string]string{field: text}
	default:
		p.missing[field] = text
	}
	return text != before, (text == "") != (before == "")
}

// clearMissing forgets what the config of before could not have.
func (p *problems) clearMissing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.missing)
}

// list is everything that is wrong, and what the agent says in its place.
func (p *problems) list(agent []string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.files, agent, slices.Sorted(maps.Values(p.missing)))
}

// setTrouble sets what is wrong with the daemon's own files, and reports whether
// that is news.
func (d *Daemon) setTrouble(texts []string) bool {
	changed := d.problems.setFiles(texts)
	if changed {
		d.pulse.Beat()
	}
	return changed
}

// setField sets what is wrong with a field of the config, "" for nothing, and
// reports whether it has turned from right to wrong or back.
func (d *Daemon) setField(field, wrong string) bool {
	changed, turned := d.problems.setMissing(field, wrong)
	if changed {
		d.pulse.Beat()
	}
	return turned
}

// missingFunc is called with what a field of the config names and cannot be had,
// and with nil when it can be had now.
type missingFunc func(field string, err error)

// setMissing takes what the config names and cannot be had: the daemon goes on
// without it, and has it as soon as it can.
func (d *Daemon) setMissing(field string, err error) {
	wrong := ""
	if err != nil {
		wrong = err.Error() + "; it is tried again"
	}
	switch turned := d.setField(field, wrong); {
	case !turned:
	case err != nil:
		d.log.Warn("a part of the config is not available yet; it is retried", logging.Detail, d.c.Path+": "+field, logging.Err, err, logging.Hint, cmp.Or(fault.HintOf(err), takenHint))
	default:
		d.log.Info("a part of the config is available now", logging.Detail, d.c.Path+": "+field)
	}
}

// setReserved takes how it went to write the reservations of a cluster for the DHCP server.
func (d *Daemon) setReserved(name string, err error) {
	d.setWritten("dhcp.directory", name, "reservations", err)
}

// setForwarded takes how it went to write which ports of the host lead to a cluster.
func (d *Daemon) setForwarded(name string, err error) {
	d.setWritten("port_forwards.directory", name, "port forwards", err)
}

// setWritten takes how it went to write files of a cluster for another service of the host.
func (d *Daemon) setWritten(key, name, what string, err error) {
	field, wrong := key+" ("+name+")", ""
	if err != nil {
		wrong = "cannot write the " + what + ": " + text.OneLine(err.Error())
		if hint := fault.HintOf(err); hint != "" {
			wrong += " (" + hint + ")"
		}
		wrong += "; it is tried again"
	}
	switch turned := d.setField(field, wrong); {
	case !turned:
	case err != nil:
		d.log.Warn("cannot write files for another service; it is retried", logging.Detail, what, logging.Cluster, name, logging.Err, err, logging.Hint, fault.HintOf(err))
	default:
		d.log.Info("files for another service are written again", logging.Detail, what, logging.Cluster, name)
	}
}

// setUnreachable takes somebody whom the config names and to whom it cannot be
// reported how the clusters stand, or with nil that it can.
func (d *Daemon) setUnreachable(who string, err error) {
	if err == nil {
		d.setField(who, "")
		return
	}
	wrong := "cannot report the status: " + text.OneLine(err.Error())
	if hint := fault.HintOf(err); hint != "" {
		wrong += " (" + hint + ")"
	}
	d.setField(who, wrong)
}
